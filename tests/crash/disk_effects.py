"""Transactions of one disk that die at an effect."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from disks import effects
from disks.base import Disk, Transaction
from oplog.kinds import OtherKind

START = {"a/x": b"ax", "a/y": b"ay", "b/x": b"bx", "c/d/x": b"cdx"}


class Killed(BaseException):
    """The process is dead; every later effect raises as well."""


class Effects:
    def __init__(self, stop: int | None = None, when: Literal["before", "after"] = "before") -> None:
        self.count = 0
        self._stop, self._when, self._dead = stop, when, False

    def __call__(self, when: Literal["before", "after"], name: str, args: tuple[object, ...]) -> None:
        if self._dead:
            raise Killed
        if when == self._when:
            self.count += 1
            if self.count == self._stop:
                self._dead = True
                raise Killed


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


def fill(disk: Disk) -> None:
    with disk.transaction(OtherKind("start")) as transaction:
        for path, data in START.items():
            transaction.create(path, data)
        transaction.commit()


def release_locks(root: Path) -> None:
    """What the end of a process does to its locks. Each descriptor keeps its number, for its owner here will close it:
    closing it now would let that close hit whatever has the number by then. SQLite's own files are left to SQLite."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            place = os.readlink(f"/proc/self/fd/{number}")
            if place.startswith(str(root)) and "files.db" not in place:
                os.dup2(nothing, int(number))
    os.close(nothing)


def attempt(disk: Disk, change: Callable[[Transaction], None], hook: Effects, reading: bool) -> bool:
    """Whether the transaction was acknowledged before the kill."""
    acknowledged = False
    effects.set_hook(hook)
    try:
        lease = disk.read_lease() if reading else contextlib.nullcontext()
        with lease, disk.transaction(OtherKind("change")) as transaction:
            change(transaction)
            transaction.commit()
            acknowledged = True
    except Killed:
        pass
    finally:
        effects.set_hook(None)
    return acknowledged


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is a place: syncing costs nothing there, and what it means is not tested here."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="frostline-") as directory:
        yield Path(directory)
