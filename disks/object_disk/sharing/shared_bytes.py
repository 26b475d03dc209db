"""Whose the objects are that a disk's log names: this machine's alone, or other logs' of the prefix as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.object_disk.sharing.other_log import OtherLog
from disks.object_disk.sharing.retiring import heeded_logs


class SharedBytes(msgspec.Struct, frozen=True):
    """Of the objects that the newest table of a log names. Each object counts once, however many files it is."""

    size_bytes: int
    shared_bytes: int
    """Of them, what at least one other log names: it stays when this one drops it."""
    share_bytes: int
    """This log's share: each object by the number of logs that name it. The shares of all logs are what they name
    together, each object once, but for the bytes that do not divide."""
    by_log: Mapping[str, int]
    """Of them, what each of the other logs names. Those that name nothing of it have 0."""


def shared_bytes(disk: LoggedDisk, directories: Sequence[str] = ("",), *, now: datetime) -> list[SharedBytes]:
    """What is named below each of the directories, and what of it others name. Reads the other logs to their ends, each
    once. Raises `FrostlineError` where one of them cannot be read."""
    sizes = [{info.key: info.size_bytes for info in disk.walk(own) if info.key is not None} for own in directories]
    theirs: dict[str, set[str]] = {}
    for name in heeded_logs(disk, now=now):
        with closing(OtherLog(disk, name)) as log:
            log.refresh()
            theirs[name] = {info.key for info in log.walk() if info.key is not None}
    return [_of_one(own, theirs) for own in sizes]


def _of_one(own: Mapping[str, int], theirs: Mapping[str, set[str]]) -> SharedBytes:
    named = {name: own.keys() & keys for name, keys in theirs.items()}
    others = Counter(key for keys in named.values() for key in keys)
    return SharedBytes(
        size_bytes=sum(own.values()),
        shared_bytes=sum(own[key] for key in others),
        share_bytes=sum(size // (1 + others[key]) for key, size in own.items()),
        by_log={name: sum(own[key] for key in keys) for name, keys in named.items()},
    )
