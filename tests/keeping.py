"""For tests: what parts say is kept at once, of each single part, also when its file was written just now; and so are
the looks at the parts of a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from disks.base import Mark
from disks.local.disk import LocalDisk

_CLOCK_REALTIME_COARSE = 5
"""Of Linux: the clock that file times are taken from."""


@contextmanager
def keeping(*, settled: bool = True) -> Iterator[None]:
    """While it lasts, in this process. Unless `settled`, files that were written just now are still such that may be
    changed in the same moment: who looks at each reads them again, and who looks at none goes by what commits say."""
    if not settled:
        with mock.patch("tiering.catalog.looks.look.KEPT_FROM", 1):
            yield
        return
    state_of = LocalDisk.state_of

    def state_and_tick(self: LocalDisk, directory: str) -> Mark | None:
        state = state_of(self, directory)
        next_tick()
        return state

    with (
        mock.patch("disks.local.disk.SETTLED_NS", 0),
        mock.patch("disks.local.disk.UNCHANGED_NS", 0),
        mock.patch.object(LocalDisk, "state_of", state_and_tick),
        mock.patch("tiering.catalog.looks.look.KEPT_FROM", 1),
    ):
        yield


def next_tick() -> None:
    """From now on a change of a file leaves a time that none before has: the kernel's clock goes on in steps of some
    milliseconds."""
    begin = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) == begin:
        pass
