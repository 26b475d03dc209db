"""For tests: what parts say is kept at once, of each single part, also when its file was written just now; and so are
the looks at the parts of a table, which are made in batches, as of a table of very many."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest import mock

from disks.base import Fingerprint
from disks.local.disk import LocalDisk
from tiering.catalog.index import scan

ENVIRONMENT = "FROSTLINE_KEEPING"

FEW = {"tiering.catalog.index.scan.AT_ONCE": 2}
"""Scans of a few parts go in batches, as those of very many do."""
UNSETTLED = {"disks.local.disk.SETTLED_NS": 10**18, "disks.local.disk.UNCHANGED_NS": 10**18}
"""Every file was changed just now, however long a loaded machine takes: what the index of parts writes then depends on
no clock."""
MANY_FILES = {
    "disks.local.unsynced.OPEN_FILES": 1,
    "disks.local.commits.MANY_ARRIVALS": 0,
    "disks.host.file_system.KINDS": frozenset({0xEF53, 0x58465342, 0x01021994}),
}
"""Commits of a few files are made durable as those of very many are, in memory too."""
_CLOCK_REALTIME_COARSE = 5
"""Of Linux: the clock that file times are taken from."""


@contextmanager
def keeping(*, settled: bool = True) -> Iterator[None]:
    """While it lasts, in this process. Unless `settled`, files that were written just now are still such that may be
    changed in the same moment: who looks at each reads them again, and who looks at none goes by what commits say."""
    if not settled:
        with patched(FEW):
            yield
        return
    state_of = LocalDisk.state_of

    def state_and_tick(self: LocalDisk, directory: str) -> Fingerprint | None:
        state = state_of(self, directory)
        next_tick()
        return state

    with (
        mock.patch("disks.local.disk.SETTLED_NS", 0),
        mock.patch("disks.local.disk.UNCHANGED_NS", 0),
        mock.patch.object(LocalDisk, "state_of", state_and_tick),
        patched(FEW),
    ):
        yield


def is_keeping() -> bool:
    """Whether scans of a few parts go in batches here."""
    return FEW["tiering.catalog.index.scan.AT_ONCE"] == scan.AT_ONCE


def keep_where_asked() -> None:
    """As `keeping(settled=False)`, for as long as the process lives, and those that it forks, where `ENVIRONMENT` is
    set. In each of them all files are `UNSETTLED`."""
    for name, value in (UNSETTLED | (FEW | MANY_FILES if os.environ.get(ENVIRONMENT) else {})).items():
        mock.patch(name, value).start()


@contextmanager
def patched(values: Mapping[str, object]) -> Iterator[None]:
    """These names have these values while it lasts."""
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch(name, value))
        yield


def next_tick() -> None:
    """From now on a change of a file leaves a time that none before has: the kernel's clock goes on in steps of some
    milliseconds."""
    begin = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) == begin:
        pass
