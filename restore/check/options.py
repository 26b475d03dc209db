"""What a check is asked for: built once, where the question comes in, and handed through whole. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from disks.workers.runner import Remote
from restore.check.share_history import Subset


class CountedPin(msgspec.Struct, frozen=True):
    """A pin of a bucket that something elsewhere, such as a backup, counts on."""

    name: str
    revision: int
    by: str
    """What counts on it, for people."""


class CheckOptions(msgspec.Struct, frozen=True):
    """What a check does beyond comparing tables with listings."""

    read_data: bool = False
    subset: Subset | None = None
    """Read this part of the data; `memory` says which part comes next."""
    repair: bool = False
    """Put right what can be derived again (a bucket's cache, a missing or old `table.json`, leftovers of a crash) and
    set parts aside that cannot be read. Nothing is deleted."""
    dry_run: bool = False
    """Say what a repair would do, and do nothing."""
    memory: Path | None = None
    """A directory to remember in which shares were read; None: nothing is remembered."""
    kept: Path | None = None
    """What this machine keeps of parts (`catalog.db`); None: that is not compared."""
    workers: int = 8
    actor: str = ""
    """Who repairs, for the log."""
    seed: int | None = None
    remote: Mapping[str, Remote] = msgspec.field(default_factory=dict)
    """The disks in buckets that others list and read."""
    listers: Mapping[str, Remote] = msgspec.field(default_factory=dict)
    """The disks in buckets that others only list."""
    pins: Mapping[str, Sequence[CountedPin]] = msgspec.field(default_factory=dict)
    """By disk: the pins that must be there."""
    unfinished_restores: Collection[str] = ()
    """The uuids of tables that a restore is bringing: their parts are there before their `table.json`."""

    def lister(self, disk: str) -> Remote | None:
        """Who lists the disk's bucket, if others do."""
        return self.remote.get(disk) or self.listers.get(disk)
