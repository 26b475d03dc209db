"""A seekable file whose bytes come in ranges, for readers that want a file object."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class RangedFile(io.RawIOBase):
    """A file of known size. A subclass says how a range is read; reads never go beyond the end."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size = size_bytes
        self._position = 0

    @abstractmethod
    def _bytes(self, start: int, stop: int) -> Any:
        """The bytes of a range that is not empty."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def size(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> Any:
        stop = self._size if size is None or size < 0 else min(self._position + size, self._size)
        start, self._position = self._position, max(stop, self._position)
        return self._bytes(start, stop) if stop > start else b""
