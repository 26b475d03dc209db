"""A directory for one task's files on whatever machine it runs; what killed tasks left there goes first."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from disks.effects import op
from disks.host.locks import OwnedDirectory, sweep


def task_scratch(name: str) -> OwnedDirectory:
    """A directory below the machine's temporary one (`$TMPDIR`), beside those of other tasks of the name and the user.

    Nobody else can look into it. Where somebody has made a directory of that name before us, it is below a new one of a
    name that nobody can foresee, which stays.
    """
    parent = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    if not _is_ours(parent):
        with op("fs.mkdir", parent):
            parent = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    sweep(parent)
    return OwnedDirectory(parent)


def _is_ours(directory: Path) -> bool:
    """Make it, unless it is there; whether nobody else can write to it."""
    if not os.path.lexists(directory):
        with op("fs.mkdir", directory), suppress(FileExistsError):
            directory.mkdir(mode=0o700)
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
