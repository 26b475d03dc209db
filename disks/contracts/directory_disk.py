"""What a disk in a directory of this machine adds to the contract.

`disks.kinds.as_disk(disk, DirectoryDisk)` asks for it, also through wrappers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from disks.base import Disk, FileInfo


class DirectoryDisk(Disk):
    """A disk whose files other programs of this machine can open."""

    @abstractmethod
    def local_path(self, path: str) -> Path:
        """The path of the file or directory in this machine's file system. Does not check that it exists."""

    @abstractmethod
    def hold(self, paths: Sequence[str], *, until: datetime, process: int) -> list[Path]:
        """Paths where other processes of this machine can read the files until then, or until the process ends, also
        when they are removed meanwhile. Raises `NotFound` for one that is gone already."""

    @abstractmethod
    def stored_bytes(self) -> int:
        """The sizes of the disk's own files; `usage` of a disk without a quota is that of its file system."""

    @abstractmethod
    def inspect(self) -> tuple[list[FileInfo], list[str]]:
        """Every file, and the paths of what does not belong on a disk: links, devices, pipes. Never raises `Damaged`
        for them as `walk` does."""
