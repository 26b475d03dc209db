"""The options of `spark.read.format("frostline")`, checked: a misspelt one is an error, not a default."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from oplog.errors import Refused, UsageError
from tiering.config.units import parse_duration, parse_size, parse_time

T = TypeVar("T")

_OPTION = "option."
"""So Spark marks what was said as `options (…)` of a table that it makes, beside the same without it."""

PARTITION_BYTES = 64 * 1024 * 1024
LEASE = timedelta(hours=6)
KNOWN = (
    "config",
    "columns",
    "filter",
    "revision",
    "timestamp",
    "changes_since",
    "deletes",
    "maxrevisionspertrigger",
    "partition_bytes",
    "local_disks",
    "nanoseconds",
    "lease",
)


STREAM_WITHOUT_END = "a stream has no end"
STREAM_HINT = "leave the options revision and timestamp out"
CATALOGUED = (
    "a table of Spark's catalogue forgets its options: spark_tiering.formats(spark), then "
    "'create table t using frostline.db.table'"
)
"""What helps where Spark's catalogue did not say which table it is."""


class ReadOptions(msgspec.Struct, frozen=True):
    """What a user asked for. Holds no secret."""

    table: str
    config: Path | None = None
    """None: found as the command line finds it."""
    columns: tuple[str, ...] | None = None
    """None: all, or those of the schema that was given."""
    filter: str = ""
    revision: int | None = None
    timestamp: datetime | None = None
    changes_since: int | None = None
    """Only rows that came after this revision."""
    skip_deletes: bool = False
    """Of changes: rows that go, or come back, are no error."""
    revisions_per_trigger: int | None = None
    """Of a stream: so many commits a batch."""
    partition_bytes: int = PARTITION_BYTES
    local_disks: Literal["auto", "shared", "skip"] = "auto"
    truncate_nanoseconds: bool = False
    lease: timedelta = LEASE
    on_this_machine: bool = False
    """Whether the executors run here."""
    cores: int = 1
    """How many tasks can run at once."""


def read_options(given: Mapping[str, str], *, on_this_machine: bool = False, cores: int = 1) -> ReadOptions:
    """The options as Spark hands them over. Raises `UsageError` naming the option and, where it helps, the nearest."""
    options = {name.lower(): value for name, value in given.items()}
    table = options.pop("path", "")
    if not table:
        raise UsageError(
            "which table?", hint=f"spark.read.format('frostline').option('config', FILE).load('db.table'); {CATALOGUED}"
        )
    for name in options:
        if name not in KNOWN:
            nearest = get_close_matches(name, KNOWN, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the options are: {', '.join(KNOWN)}"
            raise UsageError(f"no such option: {name}", hint=hint)
    if "revision" in options and "timestamp" in options:
        raise UsageError("say either 'revision' or 'timestamp'")
    if "maxrevisionspertrigger" in options and not options.keys().isdisjoint(("revision", "timestamp")):
        raise UsageError(STREAM_WITHOUT_END, hint=STREAM_HINT)
    return ReadOptions(
        table=table,
        config=Path(options["config"]).expanduser() if options.get("config") else None,
        columns=_option(options, "columns", column_names, None),
        filter=options.get("filter", ""),
        revision=_option(options, "revision", _revision, None),
        timestamp=_option(options, "timestamp", parse_time, None),
        changes_since=_option(options, "changes_since", _count, None),
        skip_deletes=_option(options, "deletes", _deletes, False),
        revisions_per_trigger=_option(options, "maxrevisionspertrigger", _commits, None),
        partition_bytes=_option(options, "partition_bytes", _partition_bytes, PARTITION_BYTES),
        local_disks=_option(options, "local_disks", _local_disks, "auto"),
        truncate_nanoseconds=_option(options, "nanoseconds", _nanoseconds, False),
        lease=_option(options, "lease", parse_duration, LEASE),
        on_this_machine=on_this_machine,
        cores=cores,
    )


def options_of_format(given: Mapping[str, str], table: str, config: str) -> dict[str, str]:
    """The options of a read or write by the format of one table; without a table, those that were given. Raises
    `Refused` where Spark's catalogue makes a table with options, which it would not hand on again."""
    options = {name.lower(): value for name, value in given.items()}
    if "provider" in options:  # a table of the catalogue is made: all that Spark and its user say of it comes along
        theirs = {name.removeprefix(_OPTION) for name in options if name.startswith(_OPTION)}
        forgotten = sorted(theirs | ({"path"} & options.keys()))
        if forgotten or not table:
            raise Refused(
                "Spark hands the options of a table in its catalogue to a Python source when it is made, and never "
                f"again: {', '.join(forgotten) or 'the table'} would be forgotten",
                hint="spark_tiering.formats(spark) makes each table a format, which is remembered: create table t "
                f"using frostline.{table or options.get('path') or options.get('table') or 'db.table'}; or "
                "create temporary view t using frostline options (path 'db.table')",
            )
        options = {}
    if not table:
        return options
    if options.get("path", table) != table:
        raise UsageError(f"the format frostline.{table} is of {table}, and not of {options['path']}")
    return {**({"config": config} if config else {}), **options, "path": table}


def column_names(text: str) -> tuple[str, ...]:
    """`a, b`, or a JSON list where a name holds a comma."""
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise UsageError(f"not a JSON list of columns: {text}") from error
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise UsageError(f"not a list of different columns: {text!r}", hint="option('columns', 'service, ts')")
    return tuple(names)


def _option(options: Mapping[str, str], name: str, read: Callable[[str], T], default: T) -> T:
    if name not in options:
        return default
    try:
        return read(options[name])
    except UsageError as error:
        raise UsageError(f"option {name}: {error.message}", hint=error.hint) from error


def _commits(text: str) -> int:
    return _from_one(text, "a number of commits", "1 or more")


def _revision(text: str) -> int:
    return _from_one(text, "a revision", "'frostline log DISK' lists them")


def _from_one(text: str, expected: str, hint: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise UsageError(f"not {expected}: {text!r}", hint=hint)
    return int(text)


def _count(text: str) -> int:
    return 0 if text.strip() == "0" else _revision(text)


def _deletes(text: str) -> bool:
    if text.lower() not in ("refuse", "skip"):
        raise UsageError(f"expected refuse or skip, got {text!r}")
    return text.lower() == "skip"


def _partition_bytes(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise UsageError("the size of an input partition must be above 0")
    return size


def _local_disks(text: str) -> Literal["auto", "shared", "skip"]:
    match text.lower():
        case "auto":
            return "auto"
        case "shared":
            return "shared"
        case "skip":
            return "skip"
    raise UsageError(f"expected auto, shared or skip, got {text!r}")


def _nanoseconds(text: str) -> bool:
    if text.lower() not in ("refuse", "truncate"):
        raise UsageError(f"expected refuse or truncate, got {text!r}")
    return text.lower() == "truncate"
