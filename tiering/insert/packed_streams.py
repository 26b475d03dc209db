"""The bytes of files by bzip2 and xz, which hold one compressed stream or several, one after the other."""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Callable
from typing import IO, Any

_PIECE_BYTES = 256 * 1024
STREAMS: dict[str, Callable[[], Any]] = {".bz2": bz2.BZ2Decompressor, ".xz": lzma.LZMADecompressor}
"""What reads one stream, by compression."""


def open_streams(packed: IO[bytes], compression: str) -> io.BufferedReader:
    """The unpacked bytes of all streams of a file, which stays open when they are closed."""
    return io.BufferedReader(_PackedStreams(packed, compression))


class _PackedStreams(io.RawIOBase):
    """Every stream of a file, to the file's last byte.

    The readers of Python's own library take a damaged stream behind a whole one for the end of the file. Here only
    zeros may follow the last stream: anything else is read as a stream, and fails as its first one does. Raises
    `EOFError` for a file that ends within a stream, `OSError` or `lzma.LZMAError` for one that is damaged.
    """

    def __init__(self, packed: IO[bytes], compression: str) -> None:
        self._packed = packed
        self._begin = STREAMS[compression]
        self._stream = self._begin()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as view:
            while True:
                if self._stream.eof and not self._next_stream():
                    return 0
                given = b""
                if self._stream.needs_input:
                    given, self._left = self._left or self._packed.read(_PIECE_BYTES), b""
                    if not given:
                        raise EOFError("the file ends within a compressed stream")
                if data := self._stream.decompress(given, len(view)):
                    view[: len(data)] = data
                    return len(data)

    def _next_stream(self) -> bool:
        """Begin to read the one behind; False at the end of the file."""
        behind = self._stream.unused_data.lstrip(b"\0")
        while not behind:
            if not (piece := self._packed.read(_PIECE_BYTES)):
                return False
            behind = piece.lstrip(b"\0")
        self._stream, self._left = self._begin(), behind
        return True
