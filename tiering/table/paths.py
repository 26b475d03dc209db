"""Where the files of tables and parts lie on any disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from oplog.errors import UsageError
from tiering.table.part import PartName

STORE_DIRECTORY = "store"
GIVEN_UP_DIRECTORY = "given-up"
CLONED_DIRECTORY = "cloned"
OLDER_DIRECTORY = "older"
_RESERVATION = re.compile(r"(?:/|\A)(?:blocks|levels)-\d+\.json\Z", re.ASCII)
_LEVELS = re.compile(r"levels-(\d+)\.json\Z", re.ASCII)


class PathParts(msgspec.Struct, frozen=True):
    """Where a path belongs: `store/<3>/<uuid>/<part>/<file>`. `part` is None for files of the table itself."""

    uuid: str
    part: str | None
    file: str


def locate(path: str) -> PathParts | None:
    """The table and part a path belongs to; None for paths outside of tables."""
    segments = path.split("/")
    if len(segments) < 4 or segments[0] != STORE_DIRECTORY or not segments[2].startswith(segments[1]):
        return None
    if len(segments) == 4:
        return PathParts(segments[2], None, segments[3])
    return PathParts(segments[2], segments[3], "/".join(segments[4:]))


def table_directory(uuid: str) -> str:
    """Where a table lies on any disk."""
    return f"{STORE_DIRECTORY}/{uuid[:3]}/{uuid}"


def directory_of(uuid: str, part: str) -> str:
    """Where a part of a table lies on any disk."""
    return f"{table_directory(uuid)}/{part}"


def free_path(path: str, is_taken: Callable[[str], bool]) -> str:
    """The path, or one that ends with `_try2`, `_try3`, …: the first that is not taken."""
    attempt, free = 1, path
    while is_taken(free):
        attempt += 1
        free = f"{path}_try{attempt}"
    return free


def part_name(name: str) -> PartName | None:
    """The directory's name as a part's; None when it is not one."""
    try:
        return PartName.parse(name)
    except UsageError:
        return None


def name_at(path: str) -> tuple[str, PartName] | None:
    """The table's uuid and the name of the part whose directory, or a file in it, has this path."""
    segments = path.split("/")
    if len(segments) < 4 or segments[0] != STORE_DIRECTORY or not segments[2].startswith(segments[1]):
        return None
    name = part_name(segments[3])
    return (segments[2], name) if name is not None else None


def given_up_path(identity: str) -> str:
    """The file that says, on the other disks, that the disk with this id was given up."""
    return f"{GIVEN_UP_DIRECTORY}/{identity}.json"


def clone_mark(identity: str, token: str = "") -> str:
    """The file that says, on the other disks, that a home with this last transaction goes by the id of a disk, and so
    does another home; without a token the directory of all of them."""
    directory = f"{CLONED_DIRECTORY}/{identity}"
    return f"{directory}/{token}.json" if token else directory


def older_mark(identity: str, number: int = 0, token: str = "") -> str:
    """The file that says, on the other disks, that a home uses the id of a disk whose last transaction is this one, and
    that a log has seen a later one; without a token the directory of all of them."""
    directory = f"{OLDER_DIRECTORY}/{identity}"
    return f"{directory}/{number}-{token}.json" if token else directory


def is_reservation(path: str) -> bool:
    """Whether the file says which names of parts were given (`blocks-<range>.json`, `levels-<level>.json` in a table's
    directory). It stays after every drop, undo or restore: what was named so may come back."""
    return _RESERVATION.search(path) is not None


def level_mark(uuid: str, level: int) -> str:
    """The file that says: merges of the table get a level above this one."""
    return f"{STORE_DIRECTORY}/{uuid[:3]}/{uuid}/levels-{level}.json"


def highest_level(names: Iterable[str]) -> int:
    """What the names of a table's files say: the level above which merges are; -1 when none says anything."""
    return max((int(match[1]) for name in names if (match := _LEVELS.match(name))), default=-1)
