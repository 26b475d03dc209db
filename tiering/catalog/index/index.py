"""The index of parts: what a scan finds goes in, in one transaction, and answers come out.

An answer is of a `DiskTable`: a table's directory on a disk as it was at one moment. Where the index has another one by
now, each method raises `OvertakenError`: then the disk is compared once more (`scan.scan`).
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from disks.base import Fingerprint
from tiering.catalog.index import changes, rows
from tiering.catalog.index.changes import FACTS, WIDTH, asked, pieces
from tiering.catalog.index.database import Database, OvertakenError
from tiering.catalog.index.rows import (
    Basis,
    DiskTable,
    DiskTableRow,
    DocumentKey,
    Facts,
    IndexChange,
    IndexedPart,
    KnownPart,
    PartitionTotals,
    in_microseconds,
    moment_of,
    partition_of,
    range_in,
)
from tiering.table import part as part_format
from tiering.table.paths import part_name

_T = TypeVar("_T")
_HIGHEST = "\U0010ffff"
_shown = itemgetter(*map(Facts._fields.index, ("name", "revision", "replaces", "data_crc32", "facts")))


class PartIndex:
    """The index of one machine, or of one process where nothing may be kept (`path` is None)."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._database = Database(path)
        self._tables: dict[tuple[str, str], DiskTable] = {}
        """As they were last seen: while the generation is the same, their sums are not read again."""

    def table(self, disk: str, directory: str) -> DiskTable:
        """What is known of the directory. Before a first scan that is nothing."""
        if (table := self.table_if_kept(disk, directory)) is not None:
            return table
        with self._database.writing() as connection:
            if (table := self._load(connection, disk, directory)) is None:
                insert = "INSERT INTO disk_tables (disk, directory, data, crc32) VALUES (?, ?, x'', 0)"
                number = connection.execute(insert, (disk, directory)).lastrowid
                assert number is not None
                table = DiskTable(number, disk, directory, DiskTableRow(changes.new_generation()), {})
                changes.write(connection, table, ())
            return table

    def table_if_kept(self, disk: str, directory: str) -> DiskTable | None:
        """The same; None before a first scan. Writes nothing."""
        with self._database.reading() as connection:
            return self._load(connection, disk, directory)

    def throw_away(self) -> None:
        """Keep nothing: each part is read again."""
        self._database.throw_away()

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        self._database.close()

    # For scans

    def known(self, table: DiskTable, low: str = "", high: str = _HIGHEST) -> dict[str, KnownPart]:
        """The parts whose names are from `low` on and below `high`, with what tells their files from others."""
        with self._database.reading() as connection:
            return dict(known_parts(connection, table, "name >= ? AND name < ?", (low, high)))

    def known_among(self, table: DiskTable, names: Collection[str]) -> dict[str, KnownPart]:
        """The same of the parts with these names."""
        with self._database.reading() as connection:
            return {
                name: known
                for some in pieces(names)
                for name, known in known_parts(connection, table, f"name IN ({asked(some)})", some)
            }

    def facts_among(self, table: DiskTable, names: Collection[str]) -> dict[str, Facts]:
        """All that the index has of the parts with these names."""
        if not names:
            return {}
        with self._database.reading() as connection:
            return all_facts(connection, table, names)

    def put(self, table: DiskTable, change: IndexChange) -> None:
        """Bring in some of what a scan of all files finds. Until the scan has ended nobody believes the table."""
        with self._database.writing() as connection:
            self._apply(connection, self._now(connection, table), change, None, (0, 0))

    def finish(self, table: DiskTable, change: IndexChange, state: Fingerprint | None, basis: Basis) -> DiskTable:
        """A scan of all files has ended: `change` has its last finds, and the sums of all. That
        is what the index has then, or another process has changed it meanwhile."""
        if change.is_empty():
            with self._database.reading() as connection:
                now = self._now(connection, table)
            if _is_what(now, change) and now.row == _ended(now.row, change, state, basis):
                return now
        with self._database.writing() as connection:
            after = self._apply(connection, self._now(connection, table), change, state, basis)
            if not _is_what(after, change):
                _count(connection, after)
                raise OvertakenError
            return after

    def follow(
        self, table: DiskTable, change: IndexChange, state: Fingerprint | None, touched: Collection[str] | None = None
    ) -> DiskTable:
        """Bring in what was touched since the state of the table: this one is that of now. `touched`: the names, where
        they are more than those that the change has."""
        with self._database.writing() as connection:
            now = self._now(connection, table)
            if now.row != table.row:
                raise OvertakenError
            names = touched if touched is not None else [*(part.facts.name for part in change.new), *change.gone]
            for partition in set(map(partition_of, names)):  # a lost row would be a new part, or one that was never
                _count(connection, now, partition)
            return self._apply(connection, now, change, state, now.row.basis)

    # States

    def mixed(self, tables: Sequence[DiskTable]) -> set[str]:
        """The partitions of a table that are not settled, and in which a part may not be active: the names of two parts
        meet, or one says that it replaces others."""
        if not unsettled(tables):
            return set()
        with self._at(tables) as connection:
            return {partition for partition in unsettled(tables) if _may_be_mixed(connection, tables, partition)}

    def settle(
        self, tables: Sequence[DiskTable], partitions: Collection[str], states: Mapping[tuple[int, str], int]
    ) -> list[DiskTable]:
        """The states of the parts of these partitions, which follow from the parts in these tables: by table and name,
        of those that are not active."""
        with self._database.writing() as connection:
            for table in tables:
                _check_now(connection, table)
            return [self._settle(connection, table, partitions, states) for table in tables]

    # Answers

    def parts(
        self, tables: Sequence[DiskTable], make: Callable[[DiskTable, IndexedPart], _T], partition: str | None = None
    ) -> list[_T]:
        """What `make` makes of each part in these tables, or of those of one partition, table by table and in the order
        of names as text."""
        low, high = ("", _HIGHEST) if partition is None else range_in(partition)
        query = f"SELECT {FACTS}, state, document, crc32 FROM parts WHERE disk_table = ? AND name >= ? AND name < ?"
        made: list[_T] = []
        with self._at(tables) as connection:
            for table in tables:
                parts = check = 0
                for row in connection.execute(query, (table.id, low, high)):
                    state, number, crc32 = row[WIDTH:]
                    if zlib.crc32(rows.encode(row[: WIDTH + 1])) != crc32:
                        raise ValueError("a part in the index does not have its checksum")
                    parts, check = parts + 1, check + crc32
                    name, revision, replaces, data_crc32, facts = _shown(row)
                    key = number, data_crc32
                    made.append(make(table, IndexedPart(name, revision, facts, key, state, replaces)))
                _compare(table, partition, parts, check)
        return made

    def due(self, table: DiskTable, until: datetime) -> set[str]:
        """The partitions with a part on which a rule acts by then."""
        with self._at([table]) as connection:
            query = "SELECT name FROM parts WHERE disk_table = ? AND due <= ?"
            return {partition_of(name) for (name,) in connection.execute(query, (table.id, in_microseconds(until)))}

    def between_told(self, table: DiskTable, now: datetime) -> set[str]:
        """The partitions with a part of which a rule that plans only tell of was due, and another one will be."""
        told = "told_last > ? AND told_last > told_first AND told_first <= ?"
        query = f"SELECT name FROM parts WHERE disk_table = ? AND {told}"
        moment = in_microseconds(now)
        with self._at([table]) as connection:
            return {partition_of(name) for (name,) in connection.execute(query, (table.id, moment, moment))}

    def next_due(self, table: DiskTable, after: datetime, without: Collection[str] = ()) -> datetime | None:
        """When a rule that acts, or one that plans only tell of, is due next for a part of a partition other than
        these. Of those that `between_told` names the parts themselves tell."""
        times: list[int] = []
        with self._at([table]) as connection:
            for column in ("due", "told_first"):
                query = f"SELECT {column}, name FROM parts WHERE disk_table = ? AND {column} > ? ORDER BY {column}"
                later = connection.execute(query, (table.id, in_microseconds(after)))
                times += next(([at] for at, name in later if partition_of(name) not in without), [])
        return moment_of(min(times)) if times else None

    def newest(self, table: DiskTable) -> datetime | None:
        """When the last of the parts was written."""
        with self._at([table]) as connection:
            (at,) = connection.execute("SELECT max(created) FROM parts WHERE disk_table = ?", (table.id,)).fetchone()
            return moment_of(at) if at is not None else None

    def documents(self, keys: Collection[DocumentKey], /) -> dict[DocumentKey, bytes]:
        """The bytes of each `part.json`, without those that are kept no more."""
        found: dict[DocumentKey, bytes] = {}
        with suppress(OvertakenError), self._database.reading() as connection:
            for some in pieces(keys):
                query = f"SELECT id, data FROM documents WHERE id IN ({asked(some)})"
                for number, data in connection.execute(query, [number for number, _ in some]):
                    found[number, zlib.crc32(data)] = data
        return found

    @contextmanager
    def _at(self, tables: Iterable[DiskTable]) -> Iterator[sqlite3.Connection]:
        """All that is read within is of these tables."""
        with self._database.reading() as connection:
            for table in tables:
                _check_now(connection, table)
            yield connection

    def _now(self, connection: sqlite3.Connection, table: DiskTable) -> DiskTable:
        now = self._load(connection, table.disk, table.directory)
        if now is None or now.id != table.id:
            raise OvertakenError
        return now

    def _load(self, connection: sqlite3.Connection, disk: str, directory: str) -> DiskTable | None:
        query = "SELECT id, data, crc32 FROM disk_tables WHERE disk = ? AND directory = ?"
        if (found := connection.execute(query, (disk, directory)).fetchone()) is None:
            return None
        number, data, crc32 = found
        row = rows.decoded_disk_table(number, f"{disk}:{directory}", data, crc32)
        last = self._tables.get((disk, directory))
        if last is not None and (last.id, last.row.generation) == (number, row.generation):
            return self._note(replace(last, row=row))
        return self._note(with_partitions(connection, DiskTable(number, disk, directory, row, {})))

    def _apply(
        self,
        connection: sqlite3.Connection,
        now: DiskTable,
        change: IndexChange,
        state: Fingerprint | None,
        basis: Basis,
    ) -> DiskTable:
        touched = changes.replace_parts(connection, now, change)
        after = changes.with_sums(now, touched)
        after = replace(after, row=_ended(after.row, change, state, basis))
        changes.write(connection, after, touched)
        return self._note(after)

    def _settle(
        self,
        connection: sqlite3.Connection,
        table: DiskTable,
        partitions: Collection[str],
        states: Mapping[tuple[int, str], int],
    ) -> DiskTable:
        touched = changes.set_states(connection, table, partitions, states)
        if not touched:
            return table
        after = changes.with_sums(table, touched)
        changes.write(connection, after, touched)
        return self._note(after)

    def _note(self, table: DiskTable) -> DiskTable:
        """Remember the table. One that is not committed after all has a generation that no other has."""
        self._tables[table.disk, table.directory] = table
        return table


def with_partitions(connection: sqlite3.Connection, table: DiskTable) -> DiskTable:
    """The table with the sums of its partitions. Raises `ValueError` where they do not add up."""
    sums = connection.execute("SELECT partition, data, crc32 FROM sums WHERE disk_table = ?", (table.id,))
    partitions = {name: rows.decoded_sums(table.id, name, *columns) for name, *columns in sums}
    table = replace(table, partitions=partitions)
    if not table.adds_up():
        raise ValueError("the sums of the index do not add up")
    return table


def unsettled(tables: Iterable[DiskTable]) -> set[str]:
    """The partitions whose states have to be computed."""
    return {name for table in tables for name, sums in table.partitions.items() if not sums.is_settled}


def _ended(row: DiskTableRow, change: IndexChange, state: Fingerprint | None, basis: Basis) -> DiskTableRow:
    return replace(row, state=state, basis=basis, broken=tuple(change.broken))


def _is_what(table: DiskTable, change: IndexChange) -> bool:
    return (table.row.parts, table.row.check) == (change.parts, change.check)


def _check_now(connection: sqlite3.Connection, table: DiskTable) -> None:
    found = connection.execute("SELECT data, crc32 FROM disk_tables WHERE id = ?", (table.id,)).fetchone()
    if found is None:
        raise OvertakenError
    row = rows.decoded_disk_table(table.id, f"{table.disk}:{table.directory}", *found)
    if row.generation != table.row.generation:
        raise OvertakenError


def known_parts(
    connection: sqlite3.Connection, table: DiskTable, where: str = "TRUE", values: Sequence[object] = ()
) -> Iterator[tuple[str, KnownPart]]:
    """Those of the table to which the condition applies."""
    columns = "name, columns, rules, revision, document, data_crc32, fingerprint, state, crc32"
    query = f"SELECT {columns} FROM parts WHERE disk_table = ? AND {where}"
    decoded, make = rows.decoded_fingerprint, KnownPart._make
    found = connection.execute(query, (table.id, *values))
    for name, shape, rules, revision, document, data_crc32, fingerprint, state, crc32 in found:
        yield name, make((shape, rules, revision, (document, data_crc32), decoded(fingerprint), state, crc32))


def all_facts(connection: sqlite3.Connection, table: DiskTable, names: Collection[str] | None) -> dict[str, Facts]:
    """All that the index has of the parts with these names, or of all."""
    wheres = ["TRUE"] if names is None else [f"name IN ({asked(some)})" for some in pieces(names)]
    values = [()] if names is None else [*pieces(names)]
    found: dict[str, Facts] = {}
    for where, some in zip(wheres, values, strict=True):
        query = f"SELECT {FACTS} FROM parts WHERE disk_table = ? AND {where}"
        found.update((row[0], Facts._make(row)) for row in connection.execute(query, (table.id, *some)))
    return found


def _count(connection: sqlite3.Connection, table: DiskTable, partition: str | None = None) -> None:
    """Raise `ValueError` where the rows of the table, or of the partition, are not those of its sums."""
    limits = ("", _HIGHEST) if partition is None else range_in(partition)
    query = "SELECT count(*), ifnull(sum(crc32), 0) FROM parts WHERE disk_table = ? AND name >= ? AND name < ?"
    parts, check = connection.execute(query, (table.id, *limits)).fetchone()
    _compare(table, partition, parts, check)


def _compare(table: DiskTable, partition: str | None, parts: int, check: int) -> None:
    sums: PartitionTotals | DiskTableRow = table.row
    if partition is not None:
        sums = table.partitions.get(partition, PartitionTotals())
    if (parts, check) != (sums.parts, sums.check):
        raise ValueError("the index has lost parts, or has some of another day")


def _may_be_mixed(connection: sqlite3.Connection, tables: Sequence[DiskTable], partition: str) -> bool:
    names = []
    for table in tables:
        if (sums := table.partitions.get(partition)) is None:
            continue
        query = "SELECT name, replaces FROM parts WHERE disk_table = ? AND name >= ? AND name < ?"
        found = connection.execute(query, (table.id, *range_in(partition))).fetchall()
        if sums.inactive or any(replaces for _, replaces in found):
            return True
        names += [part_name(name) for name, _ in found]
    ordered = sorted(name for name in names if name is not None)
    return len(set(ordered)) < len(names) or part_format.meet(ordered)
