"""Answers of queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiering.config.units import counted
from tiering.query.plain_values import plain_values
from tui.facts.listing import ListColumn, Listing, plain

if TYPE_CHECKING:
    from tiering.engine.store import Store

ROWS_SHOWN = 10_000
"""`query` has all."""


def answer(store: Store, sql: str) -> Listing:
    """The rows of a read-only statement. Raises as `query` does; a part that cannot be read is an error here."""
    result = store.query(sql)
    names = [name for name, _ in result.columns]
    rows: list[tuple[int, tuple[Any, ...]]] = []
    more = False
    for batch in result.batches():
        columns = [_values(column) for column in batch.columns]
        rows += enumerate(zip(*columns, strict=True), len(rows))
        if len(rows) > ROWS_SHOWN:
            more = True
            break
    rows = rows[:ROWS_SHOWN]
    widths = [_width(name, [row[1][index] for row in rows[:100]]) for index, name in enumerate(names)]
    kinds = {index for index in range(len(names)) if rows and isinstance(rows[0][1][index], int | float)}
    aside = f"; without {counted(len(result.set_aside), 'part')} that a repair set aside" if result.set_aside else ""
    return Listing(
        columns=tuple(
            ListColumn(f"c{index}", name, widths[index], _cell(index), right=index in kinds)
            for index, name in enumerate(names)
        ),
        rows=rows,
        key=lambda row: str(row[0]),
        document=lambda row: {
            f"{index} {name}": value for index, (name, value) in enumerate(zip(names, row[1], strict=True))
        },
        state=lambda row: 0,
        summary=f"{counted(len(rows), 'row')}{' and more' if more else ''}, "
        f"{counted(result.parts_read, 'part')} read{aside}",
        empty="No rows.",
        sideways=True,
    )


def _values(column: pa.Array) -> list[Any]:
    """As `query --json` has them, but for decimals: texts of numbers have another order."""
    return column.to_pylist() if pa.types.is_decimal(column.type) else plain_values(column)


def _cell(index: int) -> Any:
    return lambda row: row[1][index]


def _width(name: str, values: list[Any]) -> int:
    return min(40, max([len(name) + 1, *(len(plain(value)) for value in values)]))
