"""Makes all of a file system durable at once, by syncfs(2): of very many small files a sixth of syncing each.

It may take the place of single syncs only where the kernel tells of every failure. Linux tells since 5.8 of bytes of
any file that could not be written since the descriptor was opened, even if another caller noticed it before, and since
5.17 of a journal that could not be; and only a file system that keeps its own books does, not one on top of another or
on a server. So `watch` says no for all others, and each file is synced by itself.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from disks.effects import op

if TYPE_CHECKING:  # few processes sync a whole file system
    import ctypes

KINDS = frozenset({0xEF53, 0x58465342})
"""`f_type` of statfs(2): ext4, XFS."""
_SINCE = (5, 17)
_STATFS_BYTES = 256
"""More than any machine's `struct statfs`, which begins with the kind."""


def tells_of_every_failure(release: str, kind: int) -> bool:
    """Whether syncfs does, on a Linux of this release and a file system of this kind. Pure."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return match is not None and (int(match[1]), int(match[2])) >= _SINCE and kind in KINDS


def watch(directory: Path) -> int | None:
    """A descriptor that `sync_all` takes, to be opened before anything is written that this shall make durable: only
    later failures are reported. None where not every failure is. The caller closes it."""
    if sys.platform != "linux":
        return None
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if tells_of_every_failure(platform.release(), _kind(descriptor)):
            watching, descriptor = descriptor, -1
            return watching
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def sync_all(watching: int, directory: Path) -> None:
    """Make bytes and names of all files durable that the file system of the directory has. An error is final, as that
    of `fsync_file`; it may be one of a file of somebody else."""
    with op("fs.syncfs", directory):
        syncfs(watching)


def syncfs(descriptor: int) -> None:
    """The call itself."""
    import ctypes

    if _libc().syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kind(descriptor: int) -> int:
    import ctypes

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        if _libc().fstatfs(descriptor, found) != 0:
            return 0
    except (AttributeError, OSError):  # a C library without it
        return 0
    return ctypes.c_long.from_buffer(found).value


def _libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
