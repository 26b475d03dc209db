"""What the pieces of a file unpack to, by what stands before each: pages of Parquet, buffers of Arrow batches.

The reader makes as much memory as a piece says of itself, so that is what counts, and not what a footer says of all of
them. Pieces are looked at where the reader will look for them, and none is unpacked for it. What cannot be read raises
`pa.ArrowInvalid`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

ORDINARY_BYTES = 16 * 1024 * 1024
"""Pieces up to this size do not count: each column has one in memory, and there may be thousands of columns."""
_HEADER_BYTES = (4096, 16 * 1024 * 1024)
"""Of a page: read at first, and where that was not all of it."""
_MOST_LEVELS = 8
_MOST_METADATA_BYTES = 256 * 1024 * 1024
_ARROW_FILE = b"ARROW1"
_GOES_ON = b"\xff\xff\xff\xff"


class Page(msgspec.Struct, frozen=True):
    """What the header of a Parquet page says."""

    unpacked_bytes: int
    packed_bytes: int
    values: int
    is_dictionary: bool = False


class GroupSize(msgspec.Struct, frozen=True):
    """What the pages of a row group come to."""

    at_once_bytes: int
    """Of the largest page of each column, where it is no ordinary one: the reader has them at the same time."""
    widest_row_bytes: int
    """As it stands in the pages. Rows that name a value of a dictionary may be wider."""


def group_size(stream: Any, group: pq.RowGroupMetaData) -> GroupSize:
    """Of a row group, by its pages."""
    at_once = widest = 0
    for number in range(group.num_columns):
        largest, of_values, whole = 0, 1, 0
        for page in pages(stream, group.column(number)):
            largest, whole = max(largest, page.unpacked_bytes), whole + page.unpacked_bytes
            if not page.is_dictionary:
                of_values = max(of_values, -(-page.unpacked_bytes // max(page.values, 1)))
        at_once += largest if largest > ORDINARY_BYTES else 0
        widest += max(of_values, whole // max(group.num_rows, 1))
    return GroupSize(at_once, widest)


def pages(stream: Any, column: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """The pages of a column of a row group, in their order."""
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end, left = at + column.total_compressed_size, column.num_values
    while at < end and left > 0:
        page, header_bytes = _page(stream, at)
        at += header_bytes + page.packed_bytes
        left -= 0 if page.is_dictionary else page.values
        yield page


def _page(stream: Any, at: int) -> tuple[Page, int]:
    for size_bytes in _HEADER_BYTES:
        data = _read(stream, at, size_bytes)
        header = _Compact(data)
        try:
            fields = header.struct()
        except IndexError:
            if len(data) < size_bytes:
                break
            continue
        unpacked, packed = fields.get(2, -1), fields.get(3, -1)
        of_kind: Any = next((fields[number] for number in (5, 7, 8) if number in fields), {})
        values = of_kind.get(1, 0) if isinstance(of_kind, dict) else -1
        if not all(isinstance(one, int) and one >= 0 for one in (unpacked, packed, values)):
            break
        return Page(unpacked, packed, values, is_dictionary=7 in fields), header.at
    raise pa.ArrowInvalid(f"the page at byte {at:,} has no header that can be read")


class _Compact:
    """Thrift's compact protocol, as far as a page header has it. Raises `IndexError` at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, level: int = 0) -> dict[int, Any]:
        """The fields of a structure by their numbers; what is no number and no structure is None."""
        if level > _MOST_LEVELS:
            raise pa.ArrowInvalid("the header of a page is nested too deep")
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            found[field] = (head & 15) == 1 if head & 15 in (1, 2) else self._value(head & 15, level)
        return found

    def _value(self, kind: int, level: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._number()
            case 7:
                self._skip(8)
            case 8:
                self._skip(self._size())
            case 9 | 10:
                head = self._byte()
                for _ in range(head >> 4 if head >> 4 < 15 else self._size()):
                    self._value(head & 15, level + 1)
            case 12:
                return self.struct(level + 1)
            case _:
                raise pa.ArrowInvalid(f"the header of a page has a field of kind {kind}")
        return None

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, size_bytes: int) -> None:
        self.at += size_bytes
        if self.at > len(self._data):
            raise IndexError

    def _size(self) -> int:
        size = shift = 0
        while True:
            byte = self._byte()
            size |= (byte & 127) << shift
            if byte < 128:
                return size
            shift += 7

    def _number(self) -> int:
        size = self._size()
        return (size >> 1) ^ -(size & 1)


def batch_sizes(stream: Any) -> Iterator[int]:
    """What each batch and dictionary of an Arrow file or stream takes in memory, in their order."""
    try:
        is_file = _read(stream, 0, len(_ARROW_FILE)) == _ARROW_FILE
        for at in _blocks(stream) if is_file else _messages(stream):
            yield message_size(stream, at)[0]
    except (struct.error, OverflowError) as error:
        raise pa.ArrowInvalid(f"the metadata of a batch cannot be read: {error}") from error


def _blocks(stream: Any) -> Iterator[int]:
    """Where the footer of a file says that its dictionaries and batches begin."""
    end = stream.seek(0, 2) or stream.tell()
    (footer_bytes,) = struct.unpack("<i", _read(stream, end - 10, 4))
    footer = _Flat(_read(stream, end - 10 - _sized(footer_bytes), footer_bytes))
    for number in (2, 3):
        first, count = footer.vector(footer.root, number, 24)
        for block in range(count):
            yield footer.value("<q", first + 24 * block)


def _messages(stream: Any) -> Iterator[int]:
    at = 0
    while (size := message_size(stream, at)[1]) is not None:
        yield at
        at += size


def message_size(
    stream: Any, at: int, check_body: Callable[[int], None] = lambda size_bytes: None
) -> tuple[int, int | None]:
    """What the message there takes in memory, and its bytes in the file; None at the end. `check_body` is called with
    the bytes of its buffers before any of them is looked at."""
    head = _read(stream, at, 8)
    begin = 8 if head.startswith(_GOES_ON) else 4
    if len(head) < begin or not (length := struct.unpack("<i", head[begin - 4 : begin])[0]):
        return 0, None
    flat = _Flat(_read(stream, at + begin, _sized(length)))
    body, body_bytes = at + begin + length, flat.number("<q", flat.root, 3)
    if body_bytes < 0:
        raise pa.ArrowInvalid("a batch has less than no bytes")
    check_body(body_bytes)
    kind, header = flat.number("<B", flat.root, 1), flat.table(flat.root, 2)
    if kind == 2 and header is not None:  # a dictionary is a batch of one column
        header = flat.table(header, 1)
    if kind not in (2, 3) or header is None:
        return 0, begin + length + body_bytes
    first, count = flat.vector(header, 2, 16)
    buffers = [struct.unpack_from("<qq", flat.data, first + 16 * number) for number in range(count)]
    if flat.table(header, 3) is None:
        return body_bytes, begin + length + body_bytes
    unpacked = 0
    for offset, size_bytes in buffers:
        if size_bytes:
            (says,) = struct.unpack("<q", _read(stream, body + offset, 8))
            unpacked += size_bytes - 8 if says == -1 else _sized(says, most=1 << 62)
    return unpacked, begin + length + body_bytes


class _Flat:
    """A flatbuffer. Raises `struct.error` for what lies outside of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.root = self.value("<I", 0)

    def value(self, kind: str, at: int) -> int:
        if at < 0:
            raise struct.error("it lies before the first byte")
        return int(struct.unpack_from(kind, self.data, at)[0])

    def _field(self, table: int, number: int) -> int | None:
        known = table - self.value("<i", table)
        if 4 + 2 * number >= self.value("<H", known):
            return None
        offset = self.value("<H", known + 4 + 2 * number)
        return table + offset if offset else None

    def number(self, kind: str, table: int, number: int) -> int:
        """A field that is a number; 0 where there is none."""
        at = self._field(table, number)
        return 0 if at is None else self.value(kind, at)

    def table(self, table: int, number: int) -> int | None:
        """Where a field that is a table begins."""
        at = self._field(table, number)
        return None if at is None else at + self.value("<I", at)

    def vector(self, table: int, number: int, each_bytes: int) -> tuple[int, int]:
        """Where the elements of a field begin, and how many there are."""
        at = self.table(table, number)
        if at is None:
            return 0, 0
        count = self.value("<I", at)
        if at + 4 + count * each_bytes > len(self.data):
            raise struct.error("a list is longer than all there is")
        return at + 4, count


def _sized(size_bytes: int, *, most: int = _MOST_METADATA_BYTES) -> int:
    if not 0 <= size_bytes <= most:
        raise pa.ArrowInvalid(f"it says that {size_bytes:,} bytes follow")
    return size_bytes


def _read(stream: Any, at: int, size_bytes: int) -> bytes:
    if at < 0:
        raise pa.ArrowInvalid("it names bytes before its first one")
    stream.seek(at)
    return bytes(stream.read(size_bytes))
