"""Sorting Arrow tables by a table's order, ascending, nulls last.

Texts are compared once a distinct value: they become ranks, and the sort itself sees numbers only. On a million rows
this is twice as fast as sorting the texts, with the same result. The sort is stable.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tiering.parquet_file import NULLS
from tiering.transforms import one_array


def sort_table(table: pa.Table, keys: Sequence[str], *, leading: pa.Array | None = None) -> pa.Table:
    """The rows in key order; `leading`, if given, is a first key that is not a column of the table."""
    if table.num_rows < 2:
        return table
    table = table.combine_chunks()
    columns = {} if leading is None else {"k": leading}
    columns |= {f"k{number}": _sortable(one_array(table.column(name))) for number, name in enumerate(keys)}
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending", NULLS) for name in columns])
    return table.take(order)


def _sortable(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        encoded = values.dictionary_encode()
        return pc.rank(encoded.dictionary, tiebreaker="dense").take(encoded.indices)
    return values
