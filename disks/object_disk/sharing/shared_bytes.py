"""Whose the objects are that a disk's log names: this machine's alone, or other logs' of the prefix as well."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from disks.base import LoggedDisk
from disks.object_disk.sharing.other_log import OtherLog
from disks.object_disk.sharing.retiring import heeded_logs


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """Of the objects that the newest table of a log names. Each object counts once, however many files it is."""

    size_bytes: int
    shared_bytes: int
    """Of them, what at least one other log names: it stays when this one drops it."""
    by_log: Mapping[str, int]
    """Of them, what each of the other logs names. Those that name nothing of it have 0."""


def shared_bytes(disk: LoggedDisk, directory: str = "", *, now: datetime) -> SharedBytes:
    """What is named below the directory, and what of it others name. Reads the other logs to their ends. Raises
    `FrostlineError` where one of them cannot be read."""
    own = {info.key: info.size_bytes for info in disk.walk(directory) if info.key is not None}
    shared: set[str] = set()
    by_log: dict[str, int] = {}
    for name in heeded_logs(disk, now=now):
        with closing(OtherLog(disk, name)) as log:
            log.refresh()
            theirs = own.keys() & {info.key for info in log.walk() if info.key is not None}
        by_log[name] = sum(own[key] for key in theirs)
        shared |= theirs
    return SharedBytes(sum(own.values()), sum(own[key] for key in shared), by_log)
