"""A directory for one task's files on whatever machine it runs; what killed tasks left there goes first."""

from __future__ import annotations

import tempfile
from pathlib import Path

from disks.host.locks import OwnedDirectory, sweep


def task_scratch(name: str) -> OwnedDirectory:
    """A directory below the machine's temporary one (`$TMPDIR`), beside those of other tasks of the name."""
    parent = Path(tempfile.gettempdir()) / name
    sweep(parent)
    return OwnedDirectory(parent)
