"""JSON text in blocks of whole records, one a line: JSON lines unchanged, of an array of objects its elements."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from oplog.errors import UsageError
from tiering.insert.inputs.source_files import BLOCK_BYTES, MOST_RECORD_BYTES, too_long

TOO_DEEP = "nested too deep"
DEEP_HINT = "more than some hundred levels are refused: leave the deepest out, or make a text of them"
_SURELY_FLAT = 200
"""A line with no more opening brackets is not nested deeper."""
_NO_OPENING = bytes(set(range(256)) - set(b"[{\n"))
_any_value = msgspec.json.Decoder(msgspec.Raw)
_BETWEEN = re.compile(r"[\s,]*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def deep_line(block: bytes) -> int | None:
    """The first line that is nested so deep that parsers would run out of stack, counted from 0; None where none is."""
    openings = block.translate(None, _NO_OPENING).split(b"\n")
    if max(map(len, openings)) <= _SURELY_FLAT:
        return None
    lines = block.split(b"\n")
    for number, brackets in enumerate(openings):
        if len(brackets) > _SURELY_FLAT:
            try:
                _any_value.decode(lines[number])
            except RecursionError:
                return number
            except ValueError:  # who parses it says what is wrong
                continue
    return None


def whole_lines(stream: Any, label: str) -> Iterator[bytes]:
    """Blocks that end where a line ends; blank blocks are left out. In an array, elements count as lines. Raises
    `UsageError` with the label for an array that cannot be read to its end."""
    first = bytes(stream.read(BLOCK_BYTES)).removeprefix(_BYTE_ORDER_MARK)
    if first.lstrip()[:1] == b"[":
        yield from _elements(stream, first, label)
        return
    rest: list[bytes] = []
    given = held = 0
    for data in chain((first,), iter(lambda: bytes(stream.read(BLOCK_BYTES)), b"")):
        end = data.rfind(b"\n") + 1
        if not end:
            rest.append(data)
            held += len(data)
            if held > MOST_RECORD_BYTES:
                raise too_long(label, given)
            continue
        block = b"".join([*rest, data[:end]])
        given += len(block)
        rest, held = [data[end:]], len(data) - end
        if not block.isspace():
            yield block
    if (last := b"".join(rest)).strip():
        yield last


def _elements(stream: Any, first: bytes, label: str) -> Iterator[bytes]:
    decoder, utf8 = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text, place, number = utf8.decode(first).lstrip()[1:], 0, 1
    lines: list[str] = []
    size = 0
    while True:
        if between := _BETWEEN.match(text, place):
            place = between.end()
        if text[place : place + 1] == "]":
            break
        try:
            end, problem = _end_of(text, place, decoder)
        except RecursionError:  # more of the text makes it no better
            raise UsageError(f"{label}: element {number} of the array is {TOO_DEEP}", hint=DEEP_HINT) from None
        if end is None:
            if len(text) - place > MOST_RECORD_BYTES:
                raise UsageError(f"{label}: element {number} of the array is longer than {MOST_RECORD_BYTES >> 20} MiB")
            if not (more := bytes(stream.read(BLOCK_BYTES))):
                raise UsageError(
                    f"{label}: element {number} of the array cannot be read: {problem}", hint="is the file complete?"
                )
            text, place = text[place:] + utf8.decode(more), 0
            continue
        # No line ends within a text: there JSON has a backslash and an n.
        lines.append(text[place:end].replace("\n", " ").replace("\r", " "))
        size += end - place
        place, number = end, number + 1
        if size >= BLOCK_BYTES:
            yield _block(lines)
            lines, size = [], 0
    if lines:
        yield _block(lines)


def _end_of(text: str, start: int, decoder: json.JSONDecoder) -> tuple[int | None, str]:
    """Where the element ends that begins there; None and why, when that is not known yet."""
    try:
        _, end = decoder.raw_decode(text, start)
    except ValueError as error:
        return None, str(error)
    return (end, "") if end < len(text) else (None, "the array has no end")  # and a number could go on


def _block(lines: list[str]) -> bytes:
    """Bytes that are no text as they were: who takes the rows says so."""
    return ("\n".join(lines) + "\n").encode(errors="surrogateescape")
