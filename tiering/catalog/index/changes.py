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
    Facts,
    IndexChange,
    PartitionTotals,
    Place,
    encoded_mark,
    encoded_place,
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


def replace_parts(connection: sqlite3.Connection, place: Place, change: IndexChange) -> dict[str, PartitionTotals]:
    """Write the parts of the change; the sums of the partitions that they are in."""
    touched: dict[str, PartitionTotals] = {}
    now = int(time.time())
    for some in pieces([*(part.facts.name for part in change.new), *change.gone]):
        where = f"place = ? AND name IN ({asked(some)})"
        query = f"SELECT {FACTS}, state, crc32, document FROM parts WHERE {where}"
        before = connection.execute(query, (place.id, *some)).fetchall()
        for *columns, state, crc32, _ in before:
            facts = checked(columns, state, crc32)
            touched[facts.partition] = _sums(place, touched, facts.partition).without(facts, state, crc32)
        if before:
            connection.execute(f"DELETE FROM parts WHERE {where}", (place.id, *some))
            connection.executemany("UPDATE documents SET gone = ? WHERE id = ?", [(now, row[-1]) for row in before])
    if change.new:
        _insert(connection, place, change, touched)
    for earlier, later in change.times:
        _set_times(connection, place, earlier, later, touched)
    marks = [(encoded_mark(mark), place.id, name) for name, mark in change.marks.items()]
    connection.executemany("UPDATE parts SET mark = ? WHERE place = ? AND name = ?", marks)
    connection.execute("DELETE FROM documents WHERE gone < ?", (now - _KEPT_SECONDS,))
    return touched


def set_states(
    connection: sqlite3.Connection,
    place: Place,
    partitions: Collection[str],
    states: Mapping[tuple[int, str], int],
) -> dict[str, PartitionTotals]:
    """Write the states of all parts of these partitions, which are settled then: by place and name, of those that are
    not active. The sums of the partitions."""
    named = {partition_of(name) for number, name in states if number == place.id}
    touched: dict[str, PartitionTotals] = {}
    for partition in partitions:
        if (sums := place.partitions.get(partition)) is None:
            continue
        inactive, check = sums.inactive, sums.check
        query = f"SELECT {FACTS}, state, crc32 FROM parts WHERE place = ? AND name >= ? AND name < ?"
        rows: Iterable[tuple[object, ...]] = ()
        if inactive or partition in named:
            rows = connection.execute(query, (place.id, *range_in(partition))).fetchall()
        for *columns, before, crc32 in rows:
            facts = checked(columns, int(str(before)), int(str(crc32)))
            state = states.get((place.id, facts.name), 0)
            if state != before:
                after = facts.crc32(state)
                values = (state, after, place.id, facts.name)
                connection.execute("UPDATE parts SET state = ?, crc32 = ? WHERE place = ? AND name = ?", values)
                inactive, check = inactive + bool(state) - bool(before), check + after - int(str(crc32))
        touched[partition] = replace(sums, inactive=inactive, check=check, is_settled=True)
    return touched


def with_sums(place: Place, touched: Mapping[str, PartitionTotals]) -> Place:
    """The place with other sums of these partitions; of another generation where its parts or their states are
    others."""
    parts, check, is_same = place.row.parts, place.row.check, True
    partitions = {**place.partitions, **touched}
    for name, sums in touched.items():
        before = place.partitions.get(name, PartitionTotals())
        parts, check = parts + sums.parts - before.parts, check + sums.check - before.check
        is_same = is_same and before.check == sums.check and before.is_settled <= sums.is_settled
        if not sums.parts and sums.is_settled:
            del partitions[name]
    generation = place.row.generation if is_same else new_generation()
    row = replace(place.row, parts=parts, check=check, generation=generation)
    return replace(place, row=row, partitions=partitions)


def write(connection: sqlite3.Connection, place: Place, touched: Iterable[str]) -> None:
    """Write the place, and the sums of these partitions."""
    for partition in touched:
        if (sums := place.partitions.get(partition)) is None:
            connection.execute("DELETE FROM sums WHERE place = ? AND partition = ?", (place.id, partition))
        else:
            values = (place.id, partition, *encoded_sums(place.id, partition, sums))
            connection.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?)", values)
    data, crc32 = encoded_place(place.id, f"{place.disk}:{place.directory}", place.row)
    connection.execute("UPDATE places SET data = ?, crc32 = ? WHERE id = ?", (data, crc32, place.id))


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
    """A question mark for each."""
    return ",".join("?" * len(values))


def _is_checked(facts: Facts, state: int, crc32: int) -> bool:
    return facts.crc32(state) == crc32


def _set_times(
    connection: sqlite3.Connection, place: Place, before: Facts, after: Facts, touched: dict[str, PartitionTotals]
) -> None:
    """Of a part that is `before` still: else another process has changed it meanwhile."""
    where = "WHERE place = ? AND name = ?"
    row = connection.execute(f"SELECT {FACTS}, state, crc32 FROM parts {where}", (place.id, after.name)).fetchone()
    if row is None or checked(row[:WIDTH], *row[WIDTH:]) != before:
        return
    state, crc32 = row[WIDTH:]
    values = (after.rules, after.due, after.told_first, after.told_last, after.crc32(state), place.id, after.name)
    update = f"UPDATE parts SET rules = ?, due = ?, told_first = ?, told_last = ?, crc32 = ? {where}"
    connection.execute(update, values)
    sums = _sums(place, touched, after.partition)
    touched[after.partition] = sums.with_check(after.crc32(state) - crc32)


def _insert(
    connection: sqlite3.Connection, place: Place, change: IndexChange, touched: dict[str, PartitionTotals]
) -> None:
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    numbers = count(1 + (last[0] if last else 0))
    documents, parts = [], []
    for part, number in zip(change.new, numbers, strict=False):
        facts = part.facts
        crc32, partition = facts.crc32(0), facts.partition
        touched[partition] = _sums(place, touched, partition).with_part(part, crc32)
        documents.append((number, part.data))
        parts.append((place.id, *facts, encoded_mark(part.mark), number, 0, crc32))
    connection.executemany("INSERT INTO documents (id, data) VALUES (?, ?)", documents)
    values = ", ".join("?" * (WIDTH + 5))
    connection.executemany(f"INSERT INTO parts (place, {FACTS}, mark, document, state, crc32) VALUES ({values})", parts)


def _sums(place: Place, touched: Mapping[str, PartitionTotals], partition: str) -> PartitionTotals:
    return touched[partition] if partition in touched else place.partitions.get(partition, PartitionTotals())
