"""The lock of a store's one daemon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disks.host.locks import hold_lock


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
