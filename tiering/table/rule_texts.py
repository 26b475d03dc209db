"""Partitions and TTL rules as people write them: `month(ts), bucket(16, id)`, `7d on ts to volume cold`. No I/O."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

from oplog.errors import UsageError
from tiering.config.units import format_duration, parse_duration
from tiering.table.columns.type_texts import split_outside
from tiering.table.names import name_text, read_names, unquoted
from tiering.table.schema import (
    LONGEST_TTL_SECONDS,
    Delete,
    MoveToDisk,
    MoveToVolume,
    PartitionField,
    Recompress,
    TtlRule,
)

_TRANSFORM = re.compile(r"(?P<name>[A-Za-z]+)\s*\((?P<arguments>.*)\)\Z", re.DOTALL)
_TTL = re.compile(r'(?P<after>.+?)\s+on\s+(?P<column>"(?:[^"]|"")+"|\S+)\s+(?P<action>.+)\Z', re.IGNORECASE | re.DOTALL)
_CODEC = re.compile(r"(?P<codec>[a-z0-9]+)(?:\s*\(\s*(?P<level>\d+)\s*\)|\s+(?P<bare>\d+))?\Z", re.IGNORECASE)
_TTL_HINT = (
    "rules look like '7d on ts to volume cold', '30d on ts to disk s3', '365d on ts delete' or "
    "'90d on ts recompress zstd(9)'"
)
_PLURALS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}


def parse_partition_by(text: str) -> tuple[PartitionField, ...]:
    """The fields of `day(ts)`, `month(ts), bucket(16, id)` or plain columns (identity). Empty text: unpartitioned."""
    fields = tuple(_parse_partition_field(piece) for piece in _split_outside_parentheses(text))
    if len(set(fields)) != len(fields):
        raise UsageError(f"--partition-by names a field twice: {text!r}", hint="name each field once")
    return fields


def parse_ttl(text: str) -> TtlRule:
    """The rule of `7d on ts to volume cold` and its like. Raises `UsageError`."""
    match = _TTL.match(text.strip())
    if not match:
        raise UsageError(f"not a TTL rule: {text!r}", hint=_TTL_HINT)
    after = parse_duration(match["after"].removeprefix("after ").strip())
    if after.total_seconds() > LONGEST_TTL_SECONDS:
        raise UsageError(
            f"the TTL is too long: {match['after']!r}",
            hint=f"the longest is {LONGEST_TTL_SECONDS // 86400:,}d; rows that stay for ever need no rule",
        )
    words = match["action"].split()
    return TtlRule(int(after.total_seconds()), unquoted(match["column"].rstrip(":")), _parse_action(words, text))


def ttl_text(rule: TtlRule) -> str:
    """The rule as `parse_ttl` reads it."""
    match rule.action:
        case MoveToVolume(volume=volume):
            action = f"to volume {volume}"
        case MoveToDisk(disk=disk, if_exists=if_exists):
            action = f"to disk {'if exists ' if if_exists else ''}{disk}"
        case Delete():
            action = "delete"
        case Recompress(codec=codec, level=level):
            action = f"recompress {codec}({level})"
    exact = format_duration(rule.after)
    shown = exact if parse_duration(exact) == rule.after else f"{rule.after_seconds}s"
    return f"{shown} on {name_text(rule.column)} {action}"


def _split_outside_parentheses(text: str) -> list[str]:
    pieces = [piece.strip() for piece in split_outside(text)]
    if pieces == [""]:
        return []
    if "" in pieces:
        raise UsageError(f"not a list of partition fields: {text!r}", hint="write 'day(ts), bucket(16, id)'")
    return pieces


def _parse_partition_field(text: str) -> PartitionField:
    match = _TRANSFORM.match(text)
    if match is None:
        return PartitionField("identity", read_names([text])[0])
    known = get_args(get_type_hints(PartitionField)["transform"])
    name = _PLURALS.get(match["name"].lower(), match["name"].lower())
    if name not in known:
        raise UsageError(
            f"not a partition field: {text!r}", hint=f"write TRANSFORM(column) with one of: {', '.join(known)}"
        )
    arguments = [argument.strip() for argument in split_outside(match["arguments"])]
    if name not in ("bucket", "truncate"):
        if len(arguments) != 1 or not arguments[0]:
            raise UsageError(f"not a partition field: {text!r}", hint=f"write {name}(column)")
        return PartitionField(name, read_names(arguments)[0])  # type: ignore[arg-type]
    numbers = [argument for argument in arguments if argument.isdecimal()]
    names = [argument for argument in arguments if argument and not argument.isdecimal()]
    if len(arguments) != 2 or len(numbers) != 1 or len(names) != 1 or not 0 < int(numbers[0]) < 2**31:
        raise UsageError(f"not a partition field: {text!r}", hint=f"write {name}(16, column)")
    return PartitionField(name, read_names(names)[0], int(numbers[0]))  # type: ignore[arg-type]


def _parse_action(words: list[str], text: str) -> MoveToVolume | MoveToDisk | Delete | Recompress:
    match [word.lower() for word in words]:
        case ["delete"]:
            return Delete()
        case ["to", "volume", _]:
            return MoveToVolume(words[2])
        case ["to", "disk", _]:
            return MoveToDisk(words[2])
        case ["to", "disk", "if", "exists", _]:
            return MoveToDisk(words[4], if_exists=True)
        case ["recompress", *rest] if match := _CODEC.match(" ".join(rest)):
            level = int(match["level"] or match["bare"] or 9)
            if match["codec"] != "zstd" or not 1 <= level <= 22:
                raise UsageError(f"not a codec: {' '.join(rest)!r} in {text!r}", hint="zstd(1) to zstd(22)")
            return Recompress("zstd", level)
    raise UsageError(f"not a TTL rule: {text!r}", hint=_TTL_HINT)
