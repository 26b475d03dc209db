"""An Arrow stream that is read once, from a pipe: each of its messages is measured before the reader gets it."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tiering.insert.inputs.packed_sizes import message_size


class CheckedStream(io.RawIOBase):
    """Reads on from `stream`. `check` is called with the number of each batch or dictionary and the bytes that it takes
    in memory, and raises to refuse it: before its buffers are read, or unpacked."""

    def __init__(self, stream: Any, check: Callable[[int, int], None]) -> None:
        self._ahead = _Ahead(stream)
        self._check = check
        self._number = 0
        self._left = 0
        """Bytes of the message that was checked last."""
        self._is_at_end = False

    def readable(self) -> bool:
        return True

    def read(self, size_bytes: int | None = -1, /) -> bytes:
        if not self._left and not self._is_at_end:
            self._next_message()
        if self._is_at_end or size_bytes is None or size_bytes < 0:
            return self._ahead.take(size_bytes)
        data = self._ahead.take(min(size_bytes, self._left))
        self._left -= len(data)
        return data

    def _next_message(self) -> None:
        try:
            in_memory, length = message_size(self._ahead, 0, lambda size: self._check(self._number, size))
        except (struct.error, OverflowError) as error:
            raise pa.ArrowInvalid(f"the metadata of a batch cannot be read: {error}") from error
        self._check(self._number, in_memory)
        self._left, self._is_at_end = length or 0, length is None
        self._number += 1


class _Ahead:
    """A pipe whose next bytes can be looked at. Positions count from what was taken last."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = b""
        self._at = 0

    def seek(self, at: int) -> None:
        self._at = at

    def read(self, size_bytes: int) -> bytes:
        end = self._at + size_bytes
        if len(self._held) < end:
            self._held += self._stream.read(end - len(self._held))
        return self._held[self._at : end]

    def take(self, size_bytes: int | None) -> bytes:
        if size_bytes is None or size_bytes < 0:
            data, self._held = self._held + self._stream.read(), b""
            return bytes(data)
        if not self._held:
            return bytes(self._stream.read(size_bytes))
        if len(self._held) < size_bytes:
            self._held += self._stream.read(size_bytes - len(self._held))
        data, self._held = self._held[:size_bytes], self._held[size_bytes:]
        return data
