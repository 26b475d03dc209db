"""ClickHouse's `columns.txt`: the columns of a MergeTree part, each with its type in ClickHouse's words. Pure.

columns format version: 1
<number> columns:
`<name>` <type>
"""

from __future__ import annotations

import re

import msgspec

from oplog.clickhouse.quoting import NAME, unescaped
from oplog.errors import Damaged

FILE_NAME = "columns.txt"
DELETED_MASK = "_row_exists"
"""The column in which a lightweight DELETE marks rows: none of the table's."""
_HEADER = "columns format version: 1"
_COLUMN = re.compile(rf"{NAME.pattern} (.+)\Z")


class SourceColumn(msgspec.Struct, frozen=True):
    """A column of a part."""

    name: str
    kind: str
    """The type as the file has it: any text. `oplog.clickhouse.types` reads it."""


def parse(data: bytes, *, name: str) -> list[SourceColumn]:
    """The columns of a part. Raises `Damaged` naming the file."""
    try:
        header, counted, *lines = data.decode().split("\n")
        count = int(counted.partition(" ")[0])
    except (UnicodeDecodeError, ValueError) as error:
        raise Damaged(f"{name} is no list of columns of version 1") from error
    found = [_COLUMN.match(line) for line in lines if line]
    if header != _HEADER or None in found or len(found) != count:
        raise Damaged(f"{name} is no list of columns of version 1")
    columns = [SourceColumn(unescaped(match[1]), match[2]) for match in found if match]
    return [column for column in columns if column.name != DELETED_MASK]
