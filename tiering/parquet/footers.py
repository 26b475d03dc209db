"""Footers of Parquet files with fewer row groups: the engine then reads no other ones.

A footer is one struct in Thrift's compact protocol. Its row groups are copied unchanged, so all that has to be known
of them is where each one ends.
Format: https://github.com/apache/parquet-format and Thrift's `thrift-compact-protocol.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tiering.parquet.sections import MAGIC

_LENGTH_BYTES = 4
_ROWS, _GROUPS = 3, 4
"""Numbers of the fields of `FileMetaData`: how many rows the file has, and its row groups."""
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)


def with_groups(tail: bytes, rows: Sequence[int], groups: Collection[int]) -> bytes:
    """The end of a file, `tail`, whose footer has of its row groups, which have so many `rows`, only those at these
    places. Raises `ValueError` for an end that is no footer, or that of a file with another number of row groups."""
    size = int.from_bytes(tail[-len(MAGIC) - _LENGTH_BYTES : -len(MAGIC)], "little")
    start = len(tail) - len(MAGIC) - _LENGTH_BYTES - size
    if start < 0 or not tail.endswith(MAGIC):
        raise ValueError("no footer")
    footer = tail[start : start + size]
    try:
        shorter = _with_groups(footer, rows, groups)
    except (IndexError, RecursionError) as error:
        raise ValueError("the footer ends early") from error
    return b"".join((tail[:start], shorter, len(shorter).to_bytes(_LENGTH_BYTES, "little"), MAGIC))


def _with_groups(footer: bytes, rows: Sequence[int], groups: Collection[int]) -> bytes:
    pieces, copied = [], 0
    at, number = 0, 0
    seen: list[int] = []
    while (head := footer[at]) != _STOP:
        kind = head & 15
        if head >> 4:
            number, at = number + (head >> 4), at + 1
        else:
            number, at = _zigzag(footer, at + 1)
        end = _end(footer, at, kind)
        seen.append(number)
        if number == _ROWS:
            pieces += [footer[copied:at], _varint(2 * sum(rows[group] for group in groups))]
            copied = end
        elif number == _GROUPS:
            pieces += [footer[copied:at], _chosen(footer, at, len(rows), groups)]
            copied = end
        at = end
    if sorted(set(seen) & {_ROWS, _GROUPS}) != [_ROWS, _GROUPS] or len(set(seen)) < len(seen) or at + 1 != len(footer):
        raise ValueError("the footer is another struct")
    return b"".join((*pieces, footer[copied:]))


def _chosen(data: bytes, at: int, expected: int, groups: Collection[int]) -> bytes:
    """The list there, with those of its structs that are at these places."""
    count, kind, at = _list_head(data, at)
    if kind != _STRUCT or count != expected:
        raise ValueError(f"the footer has {count} row groups instead of {expected}")
    kept = []
    for number in range(count):
        end = _end(data, at, kind)
        if number in groups:
            kept.append(data[at:end])
        at = end
    head = bytes((len(kept) << 4 | kind,)) if len(kept) < 15 else bytes((0xF0 | kind,)) + _varint(len(kept))
    return b"".join((head, *kept))


def _end(data: bytes, at: int, kind: int) -> int:
    """Where the value of this type ends that begins there."""
    if kind in _INTEGERS:
        while data[at] & 0x80:
            at += 1
        return at + 1
    if kind == _BINARY:
        size, at = _number(data, at)
        return at + size
    if kind == _STRUCT:
        return _end_of_struct(data, at)
    if kind in (_LIST, _SET):
        count, inner, at = _list_head(data, at)
        return _after(data, at, inner, count)
    if kind == _MAP:
        count, at = _number(data, at)
        if not count:
            return at
        kinds = data[at]
        at += 1
        for _ in range(count):
            at = _after(data, _after(data, at, kinds >> 4, 1), kinds & 15, 1)
        return at
    if kind in (_TRUE, _FALSE):
        return at
    if kind == _BYTE:
        return at + 1
    if kind == _DOUBLE:
        return at + 8
    raise ValueError(f"type {kind} is none of Thrift's")


def _end_of_struct(data: bytes, at: int) -> int:
    """Where the struct ends that begins there. Most of a footer is numbers and short texts in structs, so these are
    passed over here: by calls it would take three times as long."""
    while head := data[at]:
        at += 1
        if head < 16:  # the number of the field follows
            while data[at] & 0x80:
                at += 1
            at += 1
        kind = head & 15
        if 4 <= kind <= 6:
            while data[at] & 0x80:
                at += 1
            at += 1
        elif kind == _BINARY:
            size = data[at]
            if size & 0x80:
                size, at = _number(data, at)
                at += size
            else:
                at += 1 + size
        elif kind == _STRUCT:
            at = _end_of_struct(data, at)
        elif kind not in (_TRUE, _FALSE):  # which are in the head
            at = _end(data, at, kind)
    return at + 1


def _after(data: bytes, at: int, kind: int, count: int) -> int:
    """Where so many values of a list or map end: within these, a boolean takes a byte."""
    if kind in (_TRUE, _FALSE):
        return at + count
    for _ in range(count):
        at = _end(data, at, kind)
    return at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """How many there are, of which type, and where the first one begins."""
    head = data[at]
    if head >> 4 < 15:
        return head >> 4, head & 15, at + 1
    count, at = _number(data, at + 1)
    return count, head & 15, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number without a sign, and where it ends."""
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | byte << shift, at + 1


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _number(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(value: int) -> bytes:
    """A number without a sign; one with a sign that is not negative is given doubled."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
