"""How the rows of the index of parts change, together with their sums. Each call is within one transaction."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TypeVar

from msgspec.structs import replace

from tiering.catalog.index.rows import (
    DiskTable,
    Facts,
    IndexChange,
    PartitionTotals,
    encoded_disk_table,
    encoded_fingerprint,
    encoded_sums,
    partition_of,
    range_in,
)

FACTS = ", ".join(Facts._fields)
WIDTH = len(Facts._fields)
_T = TypeVar("_T")
_KEPT_SECONDS = 24 * 3600
"""The `part.json` of a part that is gone stays so long: somebody may have seen the part before, and ask for it now."""
_AT_ONCE = 500


def replace_parts(connection: sqlite3.Connection, table: DiskTable, change: IndexChange) -> dict[str, PartitionTotals]:
    """Write the parts of the change; the sums of the partitions that they are in."""
    touched: dict[str, PartitionTotals] = {}
    now = int(time.time())
    for some in pieces([*(part.facts.name for part in change.new), *change.gone]):
        where = f"disk_table = ? AND name IN ({asked(some)})"
        query = f"SELECT {FACTS}, state, crc32, document FROM parts WHERE {where}"
        before = connection.execute(query, (table.id, *some)).fetchall()
        for *columns, state, crc32, _ in before:
            facts = checked(columns, state, crc32)
            touched[facts.partition] = _sums(table, touched, facts.partition).without(facts, state, crc32)
        if before:
            connection.execute(f"DELETE FROM parts WHERE {where}", (table.id, *some))
            connection.executemany("UPDATE documents SET gone = ? WHERE id = ?", [(now, row[-1]) for row in before])
    if change.new:
        _insert(connection, table, change, touched)
    for earlier, later in change.times:
        _set_times(connection, table, earlier, later, touched)
    fingerprints = [
        (encoded_fingerprint(fingerprint), table.id, name) for name, fingerprint in change.fingerprints.items()
    ]
    connection.executemany("UPDATE parts SET fingerprint = ? WHERE disk_table = ? AND name = ?", fingerprints)
    connection.execute("DELETE FROM documents WHERE gone < ?", (now - _KEPT_SECONDS,))
    return touched


def set_states(
    connection: sqlite3.Connection,
    table: DiskTable,
    partitions: Collection[str],
    states: Mapping[tuple[int, str], int],
) -> dict[str, PartitionTotals]:
    """Write the states of all parts of these partitions, which are settled then: by table and name, of those that are
    not active. The sums of the partitions."""
    named = {partition_of(name) for number, name in states if number == table.id}
    touched: dict[str, PartitionTotals] = {}
    for partition in partitions:
        if (sums := table.partitions.get(partition)) is None:
            continue
        inactive, check = sums.inactive, sums.check
        query = f"SELECT {FACTS}, state, crc32 FROM parts WHERE disk_table = ? AND name >= ? AND name < ?"
        rows: Iterable[tuple[object, ...]] = ()
        if inactive or partition in named:
            rows = connection.execute(query, (table.id, *range_in(partition))).fetchall()
        for *columns, before, crc32 in rows:
            facts = checked(columns, int(str(before)), int(str(crc32)))
            state = states.get((table.id, facts.name), 0)
            if state != before:
                after = facts.crc32(state)
                values = (state, after, table.id, facts.name)
                connection.execute("UPDATE parts SET state = ?, crc32 = ? WHERE disk_table = ? AND name = ?", values)
                inactive, check = inactive + bool(state) - bool(before), check + after - int(str(crc32))
        touched[partition] = replace(sums, inactive=inactive, check=check, is_settled=True)
    return touched


def with_sums(table: DiskTable, touched: Mapping[str, PartitionTotals]) -> DiskTable:
    """The table with other sums of these partitions; of another generation where its parts or their states are
    others."""
    parts, check, is_same = table.row.parts, table.row.check, True
    partitions = {**table.partitions, **touched}
    for name, sums in touched.items():
        before = table.partitions.get(name, PartitionTotals())
        parts, check = parts + sums.parts - before.parts, check + sums.check - before.check
        is_same = is_same and before.check == sums.check and before.is_settled <= sums.is_settled
        if not sums.parts and sums.is_settled:
            del partitions[name]
    generation = table.row.generation if is_same else new_generation()
    row = replace(table.row, parts=parts, check=check, generation=generation)
    return replace(table, row=row, partitions=partitions)


def write(connection: sqlite3.Connection, table: DiskTable, touched: Iterable[str]) -> None:
    """Write the table, and the sums of these partitions."""
    for partition in touched:
        if (sums := table.partitions.get(partition)) is None:
            connection.execute("DELETE FROM sums WHERE disk_table = ? AND partition = ?", (table.id, partition))
        else:
            values = (table.id, partition, *encoded_sums(table.id, partition, sums))
            connection.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?)", values)
    data, crc32 = encoded_disk_table(table.id, f"{table.disk}:{table.directory}", table.row)
    connection.execute("UPDATE disk_tables SET data = ?, crc32 = ? WHERE id = ?", (data, crc32, table.id))


def checked(columns: Iterable[object], state: int, crc32: int) -> Facts:
    """The facts of a row. Raises `ValueError` for one without its checksum: else a sum would go by it."""
    facts = Facts._make(columns)
    if not _is_checked(facts, state, crc32):
        raise ValueError("a part in the index does not have its checksum")
    return facts


def new_generation() -> int:
    return secrets.randbits(62)


def pieces(values: Collection[_T]) -> Iterator[list[_T]]:
    """Some hundreds at a time, for one statement each."""
    waiting = iter(values)
    while some := list(islice(waiting, _AT_ONCE)):
        yield some


def asked(values: Sequence[object]) -> str:
    """A question fingerprint for each."""
    return ",".join("?" * len(values))


def _is_checked(facts: Facts, state: int, crc32: int) -> bool:
    return facts.crc32(state) == crc32


def _set_times(
    connection: sqlite3.Connection, table: DiskTable, before: Facts, after: Facts, touched: dict[str, PartitionTotals]
) -> None:
    """Of a part that is `before` still: else another process has changed it meanwhile."""
    where = "WHERE disk_table = ? AND name = ?"
    row = connection.execute(f"SELECT {FACTS}, state, crc32 FROM parts {where}", (table.id, after.name)).fetchone()
    if row is None or checked(row[:WIDTH], *row[WIDTH:]) != before:
        return
    state, crc32 = row[WIDTH:]
    values = (after.rules, after.due, after.told_first, after.told_last, after.crc32(state), table.id, after.name)
    update = f"UPDATE parts SET rules = ?, due = ?, told_first = ?, told_last = ?, crc32 = ? {where}"
    connection.execute(update, values)
    sums = _sums(table, touched, after.partition)
    touched[after.partition] = sums.with_check(after.crc32(state) - crc32)


def _insert(
    connection: sqlite3.Connection, table: DiskTable, change: IndexChange, touched: dict[str, PartitionTotals]
) -> None:
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    numbers = count(1 + (last[0] if last else 0))
    documents, parts = [], []
    for part, number in zip(change.new, numbers, strict=False):
        facts = part.facts
        crc32, partition = facts.crc32(0), facts.partition
        touched[partition] = _sums(table, touched, partition).with_part(part, crc32)
        documents.append((number, part.data))
        parts.append((table.id, *facts, encoded_fingerprint(part.fingerprint), number, 0, crc32))
    connection.executemany("INSERT INTO documents (id, data) VALUES (?, ?)", documents)
    values = ", ".join("?" * (WIDTH + 5))
    connection.executemany(
        f"INSERT INTO parts (disk_table, {FACTS}, fingerprint, document, state, crc32) VALUES ({values})", parts
    )


def _sums(table: DiskTable, touched: Mapping[str, PartitionTotals], partition: str) -> PartitionTotals:
    return touched[partition] if partition in touched else table.partitions.get(partition, PartitionTotals())
