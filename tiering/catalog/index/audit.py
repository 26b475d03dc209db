"""Reads the file of the index of parts for a check: changes nothing, and throws nothing away."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from disks.base import Fingerprint
from disks.host.database import for_reading
from disks.system_errors import of_sqlite, of_the_system
from oplog.errors import Damaged, FrostlineError
from tiering.catalog.index import rows
from tiering.catalog.index.database import SCHEMA
from tiering.catalog.index.index import all_facts, known_parts, with_partitions
from tiering.catalog.index.rows import DiskTable, DocumentKey, Facts, PartitionTotals, decoded_facts, in_microseconds


@contextmanager
def opened(path: Path) -> Iterator[Audit | None]:
    """The index as it is at one moment; None where there is none of this layout. Raises `Damaged` for a file that
    cannot be read, within the block too."""
    try:
        if not path.exists():
            yield None
            return
        with closing(for_reading(path)) as connection:
            if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
                yield None
                return
            connection.execute("BEGIN")
            yield Audit(connection)
    except (sqlite3.Error, OSError, msgspec.MsgspecError, ValueError) as error:
        raise _refused(error, path) or Damaged(
            f"{path.name} cannot be read: {error}", hint="'frostline fsck --repair' deletes it, and it is rebuilt"
        ) from error


class AuditedPart(NamedTuple):
    """All that the file has of a part, but for its `part.json`."""

    facts: Facts
    fingerprint: Fingerprint
    document: DocumentKey
    state: int
    crc32: int


class Audit:
    """What the file has, at one moment."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def check_file(self) -> None:
        """Raise `ValueError` where SQLite finds the file damaged, its indexes of times among it."""
        (said,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            raise ValueError(said)

    def tables(self) -> Iterator[DiskTable]:
        """All of them."""
        query = "SELECT id, disk, directory, data, crc32 FROM disk_tables"
        for number, disk, directory, data, crc32 in self._connection.execute(query).fetchall():
            row = rows.decoded_disk_table(number, f"{disk}:{directory}", data, crc32)
            yield with_partitions(self._connection, DiskTable(number, disk, directory, row, {}))

    def parts(self, table: DiskTable) -> dict[str, AuditedPart]:
        """By name."""
        facts = all_facts(self._connection, table, None)
        return {
            name: AuditedPart(facts[name], one.fingerprint, one.document, one.state, one.crc32)
            for name, one in known_parts(self._connection, table)
        }

    def document(self, part: AuditedPart) -> bytes | None:
        """Its `part.json`."""
        query = "SELECT data FROM documents WHERE id = ?"
        found = self._connection.execute(query, part.document[:1]).fetchone()
        return None if found is None else bytes(found[0])


def adds_up(table: DiskTable, parts: Mapping[str, AuditedPart]) -> bool:
    """Whether the sums of the table are those of its parts, and the parts are what their facts say. Block numbers of
    parts that are gone may be among the sums."""
    sums: dict[str, PartitionTotals] = defaultdict(PartitionTotals)
    values: dict[str, set[object]] = defaultdict(set)
    for part in parts.values():
        facts, kept = decoded_facts(part.facts.facts), part.facts
        said = facts.name, facts.rows, facts.size_bytes, in_microseconds(facts.created), len(facts.replaces)
        if said != (kept.name, kept.rows, kept.size_bytes, kept.created, kept.replaces):
            return False
        partition = kept.partition
        sums[partition] = _added(sums[partition], part)
        values[partition].add(facts.partition_values)
    for name, totals in table.partitions.items():
        if totals.values is not None and totals.parts and {totals.values} != values[name]:
            return False
    return _counted(table.partitions) == _counted(sums)


def _added(totals: PartitionTotals, part: AuditedPart) -> PartitionTotals:
    return PartitionTotals(
        totals.parts + 1,
        totals.rows + part.facts.rows,
        totals.bytes + part.facts.size_bytes,
        totals.inactive + bool(part.state),
        totals.check + part.crc32,
    )


def _counted(partitions: Mapping[str, PartitionTotals]) -> dict[str, tuple[int, ...]]:
    return {
        name: (totals.parts, totals.rows, totals.bytes, totals.inactive, totals.check)
        for name, totals in partitions.items()
        if totals.parts
    }


def _refused(error: Exception, path: Path) -> FrostlineError | None:
    """Our error where the system refused, which says nothing about the file."""
    return of_sqlite(error, path) if isinstance(error, sqlite3.Error) else of_the_system(error, path)
