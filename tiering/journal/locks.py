"""Who holds what on this machine: flock files that name their holder."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from disks import effects
from disks.host.locks import holder_of, try_lock, wait_for_lock
from disks.host.processes import described
from oplog.errors import Locked, NoSpace

_LOOK_SECONDS = 0.001


@contextmanager
def hold_lock(path: Path, *, resource: str, hint: str, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive flock on the file, which names our process id. Raises `Locked` naming the holder's.

    The kernel releases it when the process dies; the file itself stays. Where the disk is full, it may name nobody.
    """
    effects.make_directory(path.parent, mode=effects.PRIVATE)
    with effects.op("fs.create", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if wait:
            wait_for_lock(descriptor, path, fcntl.LOCK_EX, timeout_seconds=math.inf)
        elif not _take(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            who = described(int(holder)) if holder.isdigit() else holder_of(descriptor)
            raise Locked(f"{resource} is held by {who} ({path})", hint=hint)
        with suppress(NoSpace), effects.op("fs.write", path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> int | None:
    """The process id that holds the lock file now, or None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if try_lock(descriptor, fcntl.LOCK_SH):
            return None
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Take the lock; False when somebody holds it. A process that only looks, as `lock_holder` does, shares it for a
    moment: that is waited for."""
    while not try_lock(descriptor, fcntl.LOCK_EX):
        if not try_lock(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_LOOK_SECONDS)
    return True


def daemon_lock_path(state_directory: Path) -> Path:
    """The lock file of the store's one daemon."""
    return state_directory / "daemon.lock"


@contextmanager
def daemon_lock(state_directory: Path) -> Iterator[None]:
    """Be the store's one daemon. Raises `Locked` naming the process that is it already."""
    with hold_lock(
        daemon_lock_path(state_directory),
        resource="the daemon lock of this store",
        hint="another daemon works on this store; 'frostline daemon status' shows it",
    ):
        yield
