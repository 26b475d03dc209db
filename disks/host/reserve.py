"""A reserve: a file that is given up where the disk is full, so that what makes room can be done there."""

from __future__ import annotations

import os
from pathlib import Path

from disks.effects import op, remove_file
from oplog.errors import FrostlineError

RESERVE_FILE = "reserve"
_PAGE_BYTES = 4096


class Reserve:
    """The reserve of one directory's file system. It holds nothing: losing it, or a part of it, loses room only."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """Touches nothing. With a size of 0 there is no reserve."""
        self.path = directory / RESERVE_FILE
        self._size = size_bytes

    @property
    def missing_bytes(self) -> int:
        """How much of it there is not."""
        return max(0, self._size // _PAGE_BYTES * _PAGE_BYTES - self._held_bytes())

    def give_up(self) -> bool:
        """Remove it; whether there was one."""
        try:
            remove_file(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_room(self) -> bool:
        """Give it up where less room is left than it would be; whether that was so."""
        return bool(self._size) and self._free_bytes() < self._size and self.give_up()

    def make(self, *, beside_bytes: int = 0) -> None:
        """Make it, or as much of it as there is room for when so much is to stay free. Whether it could be made nobody
        has to know."""
        held = self._held_bytes()
        if held >= self._size:
            return
        wanted = min(self._size, held + self._free_bytes() - beside_bytes) // _PAGE_BYTES * _PAGE_BYTES
        if wanted <= held:
            return
        try:
            self._allocate(wanted)
        except (OSError, FrostlineError):
            self.give_up()  # somebody else took the room

    def _allocate(self, size_bytes: int) -> None:
        with op("fs.create", self.path):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, 0o644)
        try:
            with op("fs.write", self.path):
                os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)

    def _held_bytes(self) -> int:
        try:
            return os.lstat(self.path).st_size
        except OSError:
            return 0

    def _free_bytes(self) -> int:
        try:
            status = os.statvfs(self.path.parent)
        except OSError:
            return 0
        return status.f_bavail * status.f_frsize
