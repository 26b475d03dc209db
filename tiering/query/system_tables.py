"""What the store knows of itself, as tables of a query: `system.tables`, `columns`, `parts`, `disks`, `log`, `moves`.

They are made when a statement names them, from what is known then: a revision's, when the past is asked. The moves are
those of this machine's journal, which has no past: always of now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from oplog.errors import FrostlineError
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition

_MOMENT = pa.timestamp("us", "UTC")
_SCHEMAS = {
    "system.tables": pa.schema(
        [
            ("database", pa.string()),
            ("name", pa.string()),
            ("uuid", pa.string()),
            ("policy", pa.string()),
            ("parts", pa.int64()),
            ("rows", pa.int64()),
            ("bytes", pa.int64()),
        ]
    ),
    "system.columns": pa.schema(
        [
            ("database", pa.string()),
            ("table", pa.string()),
            ("position", pa.int64()),
            ("name", pa.string()),
            ("type", pa.string()),
            ("nullable", pa.bool_()),
        ]
    ),
    "system.parts": pa.schema(
        [
            ("database", pa.string()),
            ("table", pa.string()),
            ("part", pa.string()),
            ("partition", pa.string()),
            ("disk", pa.string()),
            ("volume", pa.string()),
            ("rows", pa.int64()),
            ("bytes", pa.int64()),
            ("level", pa.int64()),
            ("state", pa.string()),
            ("created", _MOMENT),
            ("revision", pa.int64()),
        ]
    ),
    "system.disks": pa.schema(
        [
            ("name", pa.string()),
            ("kind", pa.string()),
            ("total_bytes", pa.int64()),
            ("free_bytes", pa.int64()),
            ("parts", pa.int64()),
            ("revision", pa.int64()),
            ("read_only", pa.bool_()),
            ("problem", pa.string()),
        ]
    ),
    "system.log": pa.schema(
        [
            ("disk", pa.string()),
            ("revision", pa.int64()),
            ("time", _MOMENT),
            ("kind", pa.string()),
            ("actor", pa.string()),
            ("reason", pa.string()),
            ("operations", pa.int64()),
            ("bytes", pa.int64()),
        ]
    ),
    "system.moves": pa.schema(
        [
            ("id", pa.int64()),
            ("database", pa.string()),
            ("table", pa.string()),
            ("part", pa.string()),
            ("source", pa.string()),
            ("target", pa.string()),
            ("state", pa.string()),
            ("reason", pa.string()),
            ("detail", pa.string()),
            ("actor", pa.string()),
            ("bytes", pa.int64()),
            ("bytes_done", pa.int64()),
            ("seconds", pa.float64()),
            ("requests", pa.int64()),
            ("attempts", pa.int64()),
            ("error", pa.string()),
            ("revision", pa.int64()),
            ("created", _MOMENT),
            ("updated", _MOMENT),
        ]
    ),
}
NAMES = tuple(_SCHEMAS)


def system_table(context: Context, name: str) -> pa.RecordBatch:
    """The rows of the table of this name, one of `NAMES`. Raises what reading a log raises."""
    rows = {
        "system.tables": _tables,
        "system.columns": _columns,
        "system.parts": _parts,
        "system.disks": _disks,
        "system.log": _log,
        "system.moves": _moves,
    }[name](context)
    return pa.RecordBatch.from_pylist(list(rows), schema=_SCHEMAS[name])


def _tables(context: Context) -> Iterable[Mapping[str, Any]]:
    for definition in context.catalog.tables():
        facts = [stored.facts for stored in context.catalog.parts(definition)]
        yield {
            "database": definition.database,
            "name": definition.name,
            "uuid": definition.uuid,
            "policy": definition.policy,
            "parts": len(facts),
            "rows": sum(one.rows for one in facts),
            "bytes": sum(one.size_bytes for one in facts),
        }


def _columns(context: Context) -> Iterable[Mapping[str, Any]]:
    for definition in context.catalog.tables():
        for position, column in enumerate(definition.columns, 1):
            yield {
                "database": definition.database,
                "table": definition.name,
                "position": position,
                "name": column.name,
                "type": column.type,
                "nullable": column.nullable,
            }


def _parts(context: Context) -> Iterable[Mapping[str, Any]]:
    """Outdated ones, too: `state` tells."""
    for definition, stored in _stored(context):
        yield {
            "database": definition.database,
            "table": definition.name,
            "part": stored.facts.name,
            "partition": stored.name.partition,
            "disk": stored.disk,
            "volume": stored.volume,
            "rows": stored.facts.rows,
            "bytes": stored.facts.size_bytes,
            "level": stored.name.level,
            "state": stored.state,
            "created": _moment(stored.facts.created),
            "revision": stored.revision,
        }


def _stored(context: Context) -> Iterator[tuple[TableDefinition, StoredPart]]:
    for definition in context.catalog.tables():
        for stored in context.catalog.parts(definition, include_outdated=True):
            yield definition, stored


def _disks(context: Context) -> Iterable[Mapping[str, Any]]:
    parts = Counter(stored.disk for _, stored in _stored(context))
    for name, disk in context.disks.items():
        row: dict[str, Any] = {
            "name": name,
            "kind": disk.kind,
            "parts": parts[name],
            "read_only": disk.read_only,
        }
        try:
            if disk.broken is not None:
                raise disk.broken.afresh()
            usage = disk.usage()
            row |= {"total_bytes": usage.total_bytes, "free_bytes": usage.free_bytes, "revision": disk.revision}
            row["problem"] = disk.unreachable or None
        except FrostlineError as error:
            row["problem"] = error.message
        yield row


def _log(context: Context) -> Iterable[Mapping[str, Any]]:
    """As far as the disk is looked at."""
    for name, disk in context.disks.items():
        if disk.logged is None:
            continue
        for entry in disk.logged.commits().between(until=disk.revision):
            commit = entry.commit
            yield {
                "disk": name,
                "revision": commit.revision,
                "time": _moment(commit.time),
                "kind": commit.kind.word,
                "actor": commit.actor,
                "reason": commit.reason,
                "operations": len(commit.operations),
                "bytes": commit.size_bytes,
            }


def _moves(context: Context) -> Iterable[Mapping[str, Any]]:
    """Finished ones, too, as long as the journal keeps them."""
    for record in context.journal.work.moves():
        database, _, table = record.table.partition(".")
        yield {
            "id": record.id,
            "database": database,
            "table": table,
            "part": record.part,
            "source": record.source,
            "target": record.target,
            "state": record.state,
            "reason": record.reason_kind,
            "detail": record.reason_detail,
            "actor": record.actor,
            "bytes": record.bytes,
            "bytes_done": record.bytes_done,
            "seconds": record.seconds,
            "requests": record.requests,
            "attempts": record.attempts,
            "error": record.error or None,
            "revision": record.revision,
            "created": _moment(record.created),
            "updated": _moment(record.updated),
        }


def _moment(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
