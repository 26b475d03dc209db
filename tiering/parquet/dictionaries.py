"""Texts as dictionaries on their way through a merge: numbers are moved, compared and written in their place. Pure."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence

import pyarrow as pa


def decoded(table: pa.Table) -> pa.Table:
    """The table with the texts themselves in every column."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = field.with_type(field.type.value_type)
            table = table.set_column(number, plain, table.column(number).cast(plain.type))
    return table


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables; as texts where not all of them hold dictionaries in the same columns."""
    if any(not table.schema.equals(tables[0].schema) for table in tables[1:]):
        tables = [decoded(table) for table in tables]
    return pa.concat_tables(tables)


def with_dictionaries(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """The schema with dictionaries in these columns, to write by."""
    return pa.schema(
        [
            field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in columns else field
            for field in schema
        ],
        schema.metadata,
    )


def schema_note(schema: pa.Schema) -> dict[str, str]:
    """What Arrow's Parquet writer notes in a file of this schema. A writer of texts by dictionaries notes the plain
    schema itself: otherwise readers would give dictionaries, and the file would depend on how its texts arrived."""
    return {"ARROW:schema": base64.b64encode(schema.serialize().to_pybytes()).decode()}


def laid_out(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with dictionaries where the schema has them, one a column, and texts elsewhere."""
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        if not pa.types.is_dictionary(field.type):
            columns.append(column.cast(field.type) if pa.types.is_dictionary(column.type) else column)
        elif pa.types.is_dictionary(column.type):
            columns.append(column.unify_dictionaries())
        else:
            columns.append(pa.chunked_array([column.combine_chunks().dictionary_encode()], field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def used_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts that a column of dictionaries does hold, some of them more than once, without nulls."""
    used = [chunk.dictionary.take(chunk.indices.unique().drop_null()) for chunk in column.chunks]
    return pa.chunked_array(used, column.type.value_type)
