"""Copies a regular file to a new one, hashing what is read. A large copy passes the kernel's page cache by where the
file system can: that costs half the processor time, and the disk writes from the first MiB on, not when it is synced.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import stat
from pathlib import Path

from disks.effects import op
from oplog.errors import Damaged

_PIECE_BYTES = 1 << 20
_DIRECT_FROM_BYTES = 8 << 20
_ALIGNMENT_BYTES = 4096
"""Of length and place in the file: no file system asks for more."""


def copy_file(source: Path, target: Path) -> tuple[int, int, str]:
    """Copy to a file that must not exist yet. The descriptor of the copy, for `fsync_opened`, its size and hex digest.
    Raises `Damaged` for what is no regular file."""
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(reader)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{source} is not a regular file", hint="symbolic links, devices and pipes are refused")
        with op("fs.create", target):
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with op("fs.write", target):
                size_bytes, digest = _copy(reader, writer, direct=status.st_size >= _DIRECT_FROM_BYTES)
        except BaseException:
            os.close(writer)
            raise
        return writer, size_bytes, digest
    finally:
        os.close(reader)


class UncachedFile:
    """A new file that is written from its beginning to its end, past the page cache where it is large. Its bytes are
    durable when it was synced."""

    def __init__(self, target: Path, size_bytes: int) -> None:
        """`size_bytes`: how large it will be, as far as is known."""
        self._descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._direct = size_bytes >= _DIRECT_FROM_BYTES and _pass_cache_by(self._descriptor, True)
        self._buffer = mmap.mmap(-1, _PIECE_BYTES) if self._direct else None  # aligned
        self._filled = 0
        self._size_bytes = 0

    def write(self, data: bytes) -> None:
        """Append."""
        with memoryview(data) as rest:
            begin = 0
            while self._buffer is not None and begin < len(rest):
                end = min(len(rest), begin + _PIECE_BYTES - self._filled)
                self._buffer[self._filled : self._filled + end - begin] = rest[begin:end]
                self._filled, begin = self._filled + end - begin, end
                if self._filled == _PIECE_BYTES:
                    self.flush()
            self._put(rest[begin:])

    def flush(self) -> None:
        """Give everything to the system."""
        if self._buffer is not None and self._filled:
            with memoryview(self._buffer) as whole, whole[: self._filled] as filled:
                self._put(filled)
            self._filled = 0

    def close(self) -> None:
        """Close the file; what was not flushed is lost."""
        os.close(self._descriptor)

    def _put(self, view: memoryview) -> None:
        self._direct = _write_all(self._descriptor, view, self._size_bytes, direct=self._direct)
        self._size_bytes += len(view)


def _write_all(writer: int, view: memoryview, offset: int, *, direct: bool) -> bool:
    """Write all of it, where the file has `offset` bytes already; whether what follows may pass the page cache by."""
    done, count = 0, len(view)
    while done < count:
        if direct and (offset + done) % _ALIGNMENT_BYTES + (count - done) % _ALIGNMENT_BYTES:
            direct = _pass_cache_by(writer, False)
        try:
            done += os.write(writer, view[done:])
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
            direct = _pass_cache_by(writer, False)
    return direct


def _copy(reader: int, writer: int, *, direct: bool) -> tuple[int, str]:
    direct = direct and _pass_cache_by(writer, True)
    checksum = hashlib.sha256()
    size_bytes = 0
    piece = mmap.mmap(-1, _PIECE_BYTES)  # aligned; goes with the last view of it
    while count := os.readv(reader, [piece]):
        with memoryview(piece)[:count] as view:
            checksum.update(view)
            direct = _write_all(writer, view, size_bytes, direct=direct)
        size_bytes += count
    return size_bytes, checksum.hexdigest()


def _pass_cache_by(descriptor: int, yes: bool) -> bool:
    """Whether writes pass the page cache by from now on; a file system that cannot do it says so here or at the first
    write."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if yes else flags & ~os.O_DIRECT)
    except OSError:
        if yes:
            return False
        raise
    return yes
