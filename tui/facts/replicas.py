"""Replicas of tables: who has what, who is behind, and what waits here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oplog.errors import FrostlineError, UsageError
from tiering.config.units import counted
from tiering.facts.replicas import replica_trouble
from tiering.facts.status import daemon_row
from tui.facts.listing import ListColumn, Listing, field, minute, number
from tui.facts.overview import daemon_text

if TYPE_CHECKING:
    from disks.contracts.bucket_disk import LoggedDisk
    from tiering.engine.store import Store
    from zerocopy.replica.status import OwnReplica, ReplicaStatus

NONE_HERE = "No replicated tables here: frostline table create … --replicated makes one (docs/replicas.md)."


class _Row(msgspec.Struct, frozen=True):
    table: str
    replica: str
    here: bool
    read_only: str
    status: ReplicaStatus | None
    """None where Keeper does not answer."""


def _of(name: str) -> Callable[[_Row], Any]:
    return lambda row: getattr(row.status, name, None)


def _document(row: _Row) -> Mapping[str, Any]:
    """As `replica status` has it, or what is known without Keeper."""
    known = {"table": row.table, "replica": row.replica, "here": row.here}
    status = msgspec.structs.asdict(row.status) if row.status is not None else known
    return {**status, "read_only": row.read_only} if row.read_only else status


def replicas(store: Store) -> Listing:
    """`replica status`. What Keeper cannot be asked of is as `replica list` has it, and why is said above."""
    rows: list[_Row] = []
    problems: list[str] = []
    for own in _own(store):
        try:
            from zerocopy.replica.status import statuses

            found = statuses(store.context, store.definition(own.table))
        except FrostlineError as error:  # with one table as with all: the others are not asked in vain
            problems.append(f"{own.table}: {error.message}")
            rows.append(_Row(own.table, own.replica, True, own.read_only, None))
            continue
        rows += [_Row(one.table, one.replica, one.here, own.read_only if one.here else "", one) for one in found]
    return Listing(
        columns=(
            ListColumn("table", "table", 18, field("table"), grows=True),
            ListColumn("replica", "replica", 14, field("replica")),
            ListColumn("here", "", 4, lambda row: "here" if row.here else ""),
            ListColumn("active", "active", 6, lambda row: _yes_no(_of("active")(row))),
            ListColumn("parts", "parts", 7, _of("parts"), number, right=True),
            ListColumn("queue", "queue", 6, _of("queue"), number, right=True),
            ListColumn("behind", "behind", 6, _of("behind"), number, right=True),
            ListColumn("lag_seconds", "lag s", 6, _of("lag_seconds"), number, right=True),
            ListColumn("host", "address", 22, _of("host")),
            ListColumn("why", "trouble", 40, _trouble, least=16),
        ),
        rows=rows,
        key=lambda row: f"{row.table} {row.replica}",
        document=_document,
        state=lambda row: (_of("active")(row), _of("parts")(row), _of("queue")(row), _of("behind")(row), _trouble(row)),
        summary="; ".join([*problems, *_idle(store, rows)]),
        empty=NONE_HERE,
    )


def _trouble(row: _Row) -> str:
    """Why it only reads; else what its last try met."""
    if row.read_only:
        return f"read-only: {row.read_only}"
    return _of("last_error")(row) or ""


def _idle(store: Store, rows: Sequence[_Row]) -> list[str]:
    """Why this machine's replicas are not active, where they are not."""
    if not any(row.here and _of("active")(row) is False for row in rows):
        return []
    daemon = daemon_row(store.context.config)
    return [] if daemon.running else [f"automatic fetches are off here: {daemon_text(daemon)}"]


def waiting(store: Store, table: str) -> list[str]:
    """`replica queue`, as lines; not yet escaped."""
    from zerocopy.execution import queue
    from zerocopy.replica.replica import Replica

    context, definition = store.context, store.definition(table)
    failed = {one.node: one for one in context.journal.replicas.failures(definition.uuid)}
    lines: list[str] = []
    for one in queue.queue(Replica.open(context, definition)):
        what = f"{one.entry.__struct_config__.tag}  {one.entry.brings}  by {one.entry.replica}"
        lines.append(f"{one.number:>8,}  {what}  {minute(one.entry.time)}")
        if (tried := failed.get(one.node)) is not None:
            lines.append(f"          {counted(tried.tries, 'try', 'tries')}: {tried.reason}")
    if failed and (next_try := replica_trouble(context.config, context.journal, definition).next_try) is not None:
        lines.append(f"The next attempt is at {str(next_try)[:19].replace('T', ' ')}.")
    return lines or ["Nothing waits here."]


def marks(store: Store, disk: LoggedDisk) -> str:
    """What the last audit of this machine means for gc."""
    try:
        from zerocopy.execution import auditing

        objection = auditing.objection(store.context, disk)
    except ImportError:
        return "a package is missing: pip install 'frostline[replicas]'"
    except FrostlineError as error:
        return error.message
    return objection or "gc may collect here"


def _own(store: Store) -> list[OwnReplica]:
    """This machine's. What they need is installed where there are any."""
    if not any(definition.is_replicated for definition in store.definitions()):
        return []
    try:
        from zerocopy.replica.status import own_replicas
    except ImportError as error:
        raise UsageError(
            "replicated tables need a package that is not installed", hint="pip install 'frostline[replicas]'"
        ) from error
    return own_replicas(store.context)


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
