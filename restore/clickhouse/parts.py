"""The tables and MergeTree parts of a ClickHouse tree, and which of them are not whole. Pure.

What a part must hold is known from its own `checksums.txt`, which the caller reads; files that it does not list are
expected where the table's other parts have them and the log shows that an object between the part's own is gone.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from oplog.clickhouse.checksums import FILE_NAME as CHECKSUMS
from oplog.clickhouse.replay import LOST, File, LogProblem
from tiering.config.units import counted
from tiering.table.part import PART_FILE

_TABLE = re.compile(
    r"(?:(shadow/[^/]+)/)?((?:store/[0-9a-f]{3}/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})|data/[^/]+/[^/]+)/(.+)\Z"
)
_NAME = re.compile(r"(.+?)_(\d+)_(\d+)_(\d+)(?:_(\d+))?\Z", re.ASCII)
_TEMPORARY = re.compile(r"(?:tmp[_-]|attaching_|deleting_|delete_tmp_|covered-by-broken_)")
_FINAL = re.compile(r"(?:tmp_(?:insert|merge|mut|clone|replace_from)_|tmp-fetch_|attaching_)?(.+)\Z")
_PROJECTION = ".proj"
_REQUIRED = (CHECKSUMS, "columns.txt")
_MARKS = (*_REQUIRED, "count.txt", "partition.dat")
"""Whatever has one of these is a part of a MergeTree table."""
_USUAL = ("metadata_version.txt", "default_compression_codec.txt")
"""Files of every part of today's versions that its checksums do not list."""


class State(StrEnum):
    """What a part's place and name say about it."""

    ACTIVE = "active"
    COVERED = "covered"
    """A part made from it is there too; ClickHouse deletes it some minutes later."""
    DETACHED = "detached"
    FROZEN = "frozen"
    TEMPORARY = "temporary"
    """Under construction, or left by a crash."""


class ClickHousePart(msgspec.Struct):
    """One directory of a table that holds the files of a part."""

    table: str
    name: str
    """Of the directory, with the prefix of a temporary one."""
    directory: str
    state: State
    files: dict[str, File] = msgspec.field(default_factory=dict)
    """Name within the part -> file."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    @property
    def is_ours(self) -> bool:
        """A part of our own tables, on a disk of ours with ClickHouse's log: ClickHouse's rules are not for it."""
        return PART_FILE in self.files


class ClickHouseTable(msgspec.Struct):
    """A table of the disk; its name is not in the bucket."""

    directory: str
    parts: list[ClickHousePart] = msgspec.field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    """Bytes shared by hard links within the table once."""

    @property
    def uuid(self) -> str:
        """The uuid, or `database/table` for a database that has no uuids."""
        return self.directory.rpartition("/")[2] if self.directory.startswith("store/") else self.directory[5:]

    def count(self, state: State) -> int:
        return sum(part.state is state for part in self.parts)


def find_tables(files: Mapping[str, File]) -> list[ClickHouseTable]:
    """The tables, by directory, with their parts by directory."""
    tables: dict[str, ClickHouseTable] = {}
    parts: dict[str, ClickHousePart] = {}
    inodes: dict[str, dict[int, int]] = defaultdict(dict)
    for path, file in files.items():
        found = _TABLE.match(path)
        if found is None:
            continue
        shadow, directory, rest = found.groups()
        table = tables.setdefault(directory, ClickHouseTable(directory))
        table.files += 1
        inodes[directory][file.inode] = file.size_bytes
        place, name, inside = _split(rest)
        if name is None:
            continue
        at = path[: len(path) - len(inside) - 1]
        if at not in parts:
            parts[at] = ClickHousePart(directory, name, at, _state(shadow, place, name))
            table.parts.append(parts[at])
        parts[at].files[inside] = file
    for directory, table in tables.items():
        table.size_bytes = sum(inodes[directory].values())
        _mark_covered(table.parts)
    return [tables[directory] for directory in sorted(tables)]


def _split(rest: str) -> tuple[str, str | None, str]:
    """`detached` or `moving`, the part's directory and the file in it; no part for a file of the table itself."""
    segments = rest.split("/")
    place = segments.pop(0) if segments[0] in ("detached", "moving") else ""
    if len(segments) < 2 or not (_NAME.match(segments[0]) or place):
        return place, None, rest
    return place, segments[0], "/".join(segments[1:])


def _state(shadow: str | None, directory: str, name: str) -> State:
    if shadow is not None:
        return State.FROZEN
    if directory == "moving" or _TEMPORARY.match(name):
        return State.TEMPORARY
    return State.DETACHED if directory == "detached" else State.ACTIVE


def _mark_covered(parts: Sequence[ClickHousePart]) -> None:
    by_partition: dict[str, list[tuple[tuple[int, ...], ClickHousePart]]] = defaultdict(list)
    for part in parts:
        if part.state is State.ACTIVE and (found := _NAME.match(part.name)):
            low, high, level, mutation = (int(number or 0) for number in found.groups()[1:])
            by_partition[found[1]].append(((low, -high, -level, -mutation), part))
    for entries in by_partition.values():
        entries.sort(key=lambda entry: entry[0])
        outer: tuple[int, ...] | None = None
        for interval, part in entries:
            if outer is not None and all(own >= other for own, other in zip(interval[1:], outer[1:], strict=True)):
                part.state = State.COVERED
            elif outer is None or interval[1] < outer[1]:
                outer = interval


# What is not whole


def check_parts(
    tables: Sequence[ClickHouseTable],
    listed: Mapping[str, Mapping[str, int]],
    *,
    missing: Sequence[str] = (),
    unversioned: Collection[str] = (),
    gaps: Sequence[tuple[int, int]] = (),
    restarted: bool = False,
) -> list[LogProblem]:
    """Every active or detached part that lacks a file, and every directory that a crash left.

    `listed`: directory of a part -> its checksums (name -> bytes), those of its projections among them. `missing`:
    paths that hard links should have made. `unversioned`: paths that the server takes away itself. `gaps`: ranges of
    revisions that no object bears, ascending. `restarted`: the server's counter did.
    """
    findings: list[LogProblem] = []
    marked = _by_part(missing, {part.directory for table in tables for part in table.parts})
    for table in tables:
        usual = _usual(table.parts)
        final = {part.name for part in table.parts if part.state in (State.ACTIVE, State.COVERED)}
        merge_tree = any(CHECKSUMS in part.files for part in table.parts)
        for part in table.parts:
            if part.is_ours:
                continue
            required = _REQUIRED if merge_tree or any(name in part.files for name in _MARKS) else ()
            lost = _lost(part, required, listed.get(part.directory), marked.pop(part.directory, ()))
            if part.state is State.TEMPORARY:
                findings.append(_unfinished(part, whole=not lost, final=final, restarted=restarted))
            elif part.state is not State.COVERED:
                kept = {name for name in usual if f"{part.directory}/{name}" not in unversioned}
                lost |= _lost_between(part, kept, gaps)
                findings += [_incomplete(part, name, why) for name, why in sorted(lost.items())]
                findings += _wrong_sizes(part, listed.get(part.directory, {}))
    findings += [
        LogProblem("missing_file", f"{path} was a hard link to a file that is gone", path)
        for directory, names in marked.items()
        for path in (f"{directory}/{name}" for name in names)
    ]
    return findings


def is_checksums(name: str) -> bool:
    """Whether the file of a part lists its files, or those of one of its projections."""
    return name == CHECKSUMS or name.endswith(f"{_PROJECTION}/{CHECKSUMS}")


def final_name(name: str) -> str:
    """The name that a part under this temporary name would have got."""
    found = _FINAL.match(name)
    return found[1] if found else name


def is_whole(part: ClickHousePart, listed: Mapping[str, int]) -> bool:
    """Whether the part has every file that its checksums list, with its size."""
    return CHECKSUMS in part.files and not _lost(part, _REQUIRED, listed, ()) and not _wrong_sizes(part, listed)


def empty_files(part: ClickHousePart, listed: Mapping[str, int]) -> list[str]:
    """Names of files that the checksums list with no bytes and that have no object: 25.5 writes none."""
    return [name for name, size in listed.items() if size == 0 and name not in part.files]


def _lost(
    part: ClickHousePart, required: Iterable[str], listed: Mapping[str, int] | None, marked: Iterable[str]
) -> dict[str, str]:
    """Name -> why it must have been there."""
    lost = dict.fromkeys(marked, "a hard link to it is in the log")
    for name in required:
        if name not in part.files:
            lost[name] = "every part has one"
    sizes = listed or {}
    for name, size in sizes.items():
        if name.endswith(_PROJECTION):
            lost[f"{name}/{CHECKSUMS}"] = f"{CHECKSUMS} lists the projection"
        elif size > 0:
            lost[name] = f"{CHECKSUMS} lists it with {size} bytes"
    return {name: why for name, why in lost.items() if name not in part.files and sizes.get(name) != 0}


def _usual(parts: Iterable[ClickHousePart]) -> set[str]:
    """Those of the usual files that more than half of the table's parts have."""
    settled = [part for part in parts if part.state is not State.TEMPORARY]
    counts = Counter(name for part in settled for name in _USUAL if name in part.files)
    return {name for name, count in counts.items() if 2 * count > len(settled)}


def _lost_between(part: ClickHousePart, usual: Iterable[str], gaps: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Usual files that the part lacks while an object next to those written for it alone is gone."""
    own = [file.revision for file in part.files.values() if file.links == 1] or [
        file.revision for file in part.files.values()
    ]
    first, last = min(own) - 1, max(own) + 1
    if not first:  # the part was there before revisions were: its numbers say nothing
        return {}
    near = gaps[bisect_left(gaps, first, key=lambda gap: gap[1]) : bisect_right(gaps, last, key=lambda gap: gap[0])]
    if not near:
        return {}
    gone = ", ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in near[:3])
    why = f"other parts of the table have it, and no object next to this part's bears revision {gone}"
    return {name: why for name in usual if name not in part.files}


def _incomplete(part: ClickHousePart, name: str, why: str) -> LogProblem:
    path = f"{part.directory}/{name}"
    return LogProblem("incomplete_part", f"part {part.name} lacks {name} ({path}): {why}", path)


def _wrong_sizes(part: ClickHousePart, listed: Mapping[str, int]) -> list[LogProblem]:
    return [
        LogProblem(
            "wrong_size",
            f"{file.path} has {file.size_bytes} bytes, and {CHECKSUMS} of its part says {listed[name]}",
            file.path,
            file.blobs[0][0] if file.blobs else None,
        )
        for name, file in part.files.items()
        if name in listed and listed[name] != file.size_bytes
    ]


def _unfinished(part: ClickHousePart, *, whole: bool, final: set[str], restarted: bool) -> LogProblem:
    if whole and CHECKSUMS in part.files and (restarted or part.name.startswith(LOST)):
        return LogProblem(
            "lost_rename",
            f"{part.directory} is a complete part under a temporary name: after a server restart another operation "
            "overwrote the one that gave it its name. Its name, and whether it was merged since, are unknown",
            part.directory,
        )
    objects = len({key for file in part.files.values() if file.links == 1 for key, _ in file.blobs})
    name = final_name(part.name)
    if whole and CHECKSUMS in part.files and name not in final:
        return LogProblem(
            "lost_rename",
            f"{part.directory} is a complete part under a temporary name: its rename to {name} is not in the "
            f"log (a server restart may have overwritten it), or never finished",
            part.directory,
        )
    return LogProblem(
        "unfinished_part",
        f"{part.directory} was never finished: {counted(objects, 'object')}, {part.size_bytes} bytes that nothing"
        " collects",
        part.directory,
    )


def _by_part(missing: Iterable[str], parts: Collection[str]) -> dict[str, list[str]]:
    """Directory of a part, or else of the file -> names of the files below it."""
    marked: dict[str, list[str]] = defaultdict(list)
    for path in missing:
        above = path.rpartition("/")[0]
        directory = next((found for found in (above, above.rpartition("/")[0]) if found in parts), above)
        marked[directory].append(path[len(directory) + 1 :])
    return marked
