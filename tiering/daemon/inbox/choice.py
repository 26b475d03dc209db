"""Which files are whole, and when they are taken. Pure: the time is an argument, and so is what was seen.

A file is whole when two looks, `stable_seconds` or more apart, see the same size, time of change and inode: one look
cannot tell a file from one that is being written. Names that begin with a dot, and those that end in `.tmp` or `.part`,
wait for the name that they get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tiering.config.settings import InboxConfig
from tiering.insert.inputs.path_steps import path_steps

_UNFINISHED = (".tmp", ".part")

Key = tuple[int, int, int]


class Found(msgspec.Struct, frozen=True):
    """A file as a look saw it."""

    name: str
    size_bytes: int
    changed_ns: int
    inode: int

    @property
    def key(self) -> Key:
        """The same only while nobody writes to it or puts another in its place."""
        return (self.inode, self.size_bytes, self.changed_ns)


class Sight(msgspec.Struct, frozen=True):
    """What a file looked like, and since when."""

    key: Key
    since: float


def is_candidate(name: str) -> bool:
    """Whether a file of this name is meant to be taken."""
    return not name.startswith(".") and not name.lower().endswith(_UNFINISHED)


def is_column(name: str) -> bool:
    """Whether a directory of this name is a column of the files in it, and no other thing."""
    return is_candidate(name) and bool(path_steps(f"{name}/"))


def look(before: Mapping[str, Sight], files: Iterable[Found], now: float) -> dict[str, Sight]:
    """What is known after another look: files that are as they were keep their time."""
    after = {}
    for file in files:
        earlier = before.get(file.name)
        after[file.name] = earlier if earlier is not None and earlier.key == file.key else Sight(file.key, now)
    return after


def is_whole(file: Found, sights: Mapping[str, Sight], now: float, stable_seconds: float) -> bool:
    """Whether it has been as it is for long enough."""
    known = sights.get(file.name)
    return known is not None and known.key == file.key and now - known.since >= stable_seconds


def choose(
    files: Sequence[Found], sights: Mapping[str, Sight], now: float, settings: InboxConfig, *, at_once: bool = False
) -> list[Found]:
    """The files to take now, in name order: none before there are enough bytes or files, or the one that waits longest
    has waited `batch_seconds`; then as many as a batch holds. `at_once`: none waits for others."""
    whole = [file for file in in_order(files) if is_whole(file, sights, now, settings.stable_seconds)]
    enough = (
        at_once
        or len(whole) >= settings.batch_files
        or sum(file.size_bytes for file in whole) >= settings.batch_bytes
        or any(now - sights[file.name].since >= settings.batch_seconds for file in whole)
    )
    taken: list[Found] = []
    size_bytes = 0
    for file in whole if enough else ():
        if taken and (len(taken) >= settings.batch_files or size_bytes + file.size_bytes > settings.batch_bytes):
            break
        taken.append(file)
        size_bytes += file.size_bytes
    return taken


def in_order(files: Iterable[Found]) -> list[Found]:
    """By name, whatever the name holds."""
    return sorted(files, key=lambda file: file.name.encode("utf-8", "surrogateescape"))
