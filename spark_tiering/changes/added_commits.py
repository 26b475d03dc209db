"""Which commits of a bucket brought rows into a table, and which took some away. By the log alone.

Rows come with an insert or a write of Spark, and with a part that comes from a disk that has no log here: what was
inserted on an SSD is new to the bucket when it gets there, moved or merged. A part that was in the bucket before brings
nothing new. Merges, moves out, the removal of copies and what a TTL deletes change nothing that a reader of new rows
would see. All other ways in which rows go or come back are an error, or passed over when that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.row_bytes import read_row
from oplog import paths
from oplog.entry import Commit, Create, Remove, Rename, changed_paths
from oplog.errors import Refused
from oplog.kinds import Dropped, Merged, Tidied, Undone
from oplog.replay import FileRow
from tiering.policy.part_events import PartEffect, event
from tiering.table import part as parts_format
from tiering.table.part import PART_FILE, Part, PartName
from tiering.table.paths import part_name
from tiering.table.schema import TableDefinition

_GO_ON = "read the table as a whole, and go on with changes_since={}"
_REARRANGES = ("merge", "move", "tidy")
"""Commits whose undoing changes no row."""


class ArrivedPart(msgspec.Struct, frozen=True):
    """A part with new rows, as it came: it may have been merged or moved since."""

    revision: int
    part: Part
    keys: dict[str, str]
    """The object of each of its files."""

    def path(self, definition: TableDefinition, file: str) -> str:
        return f"{definition.part_directory(self.part.name)}/{file}"


def check_kept(disk: LoggedDisk, definition: TableDefinition, since: int) -> None:
    """Raise `Refused` where the log does not tell any more what came after the revision, or tells of none so high."""
    head, oldest = disk.revision or 0, disk.commits().oldest
    again = f"read the table as a whole, and go on with changes_since={head}"
    if since > head:
        raise Refused(
            f"disk {disk.name} is at revision {head}: {definition.full_name} cannot have changes after {since}",
            hint=f"frostline log {disk.name}",
        )
    if oldest > since + 1:
        raise Refused(
            f"what came into {definition.full_name} after revision {since} is not known any more: the log of disk "
            f"{disk.name} is kept from revision {oldest} on",
            hint=f"{again}; retention_seconds of the disk keeps more",
        )


def arrivals(
    disk: LoggedDisk, definition: TableDefinition, since: int, until: int, *, skip_deletes: bool = False
) -> Iterator[ArrivedPart]:
    """What came with since < revision <= until, in the order of the commits. Raises `Refused` for a commit that took
    rows away or brought some back, unless that is to be skipped; in any case where new rows cannot be told from old."""
    for entry in disk.commits().touching(definition.directory, since, until):
        commit = entry.commit
        for directory in _parts_touched(commit, definition):
            seen = event(commit, directory)
            if seen is None:
                continue
            if not seen.arrived or not _brings_rows(disk, commit, directory, seen):
                if not skip_deletes and _changes_rows(commit, seen):
                    raise _took_away(disk, definition, commit, directory, seen)
                continue
            yield _arrival(disk, commit, directory)


def _parts_touched(commit: Commit, definition: TableDefinition) -> list[str]:
    """Directories of parts of the table, those that go first."""
    begin = f"{definition.directory}/"
    changed = [path for operation in commit.operations for path in changed_paths(operation)]
    names = dict.fromkeys(path[len(begin) :].partition("/")[0] for path in changed if path.startswith(begin))
    return [f"{begin}{name}" for name in names if part_name(name) is not None]


def _brings_rows(disk: LoggedDisk, commit: Commit, directory: str, seen: PartEffect) -> bool:
    match seen.verb:
        case "inserted":
            return True
        case "moved in":
            return _is_new(disk, commit, directory)
        case "merged":
            return _came_merged(disk, commit, directory) and _is_new(disk, commit, directory)
    return False


def _changes_rows(commit: Commit, seen: PartEffect) -> bool:
    """Whether rows went, or came back, that are no new ones."""
    kind = commit.kind
    if seen.verb in ("merged", "merged away", "moved in", "moved out") or isinstance(kind, Tidied):
        return False
    if isinstance(kind, Dropped):
        return not kind.by_ttl
    if isinstance(kind, Undone):
        return kind.undone not in _REARRANGES
    return seen.text != "removed (every row was past its TTL)"


def _took_away(
    disk: LoggedDisk, definition: TableDefinition, commit: Commit, directory: str, seen: PartEffect
) -> Refused:
    part, revision = directory.rpartition("/")[2], commit.revision
    return Refused(
        f"part {part} of {definition.full_name} was {seen.text} by revision {revision} of disk {disk.name}: that is "
        "more than new rows",
        hint="read the table as a whole, and go on from there; option('deletes', 'skip') ignores removed rows",
    )


def _is_new(disk: LoggedDisk, commit: Commit, directory: str) -> bool:
    """Whether no row of the part that came from another disk was in this bucket before. Raises `Refused` where some
    may have been, as another part."""
    parent, _, name = directory.rpartition("/")
    came = PartName.parse(name)
    known = disk.commits().directories(f"{parent}/{came.partition}_")
    others = {path: found for path in known if (found := part_name(path.rpartition("/")[2])) is not None}
    meeting = [
        path
        for path, found in others.items()
        if found.partition == came.partition and found.min_block <= came.max_block and found.max_block >= came.min_block
    ]
    before = disk.commits().last_touching(meeting, 0, commit.revision - 1)
    if directory in before:
        return False
    if before:
        other = next(iter(before)).rpartition("/")[2]
        raise Refused(
            f"part {name}, which revision {commit.revision} of disk {disk.name} brought from another disk, may hold "
            f"rows of {other}, which was here before: new and old rows cannot be distinguished",
            hint=_GO_ON.format(commit.revision),
        )
    return True


def _came_merged(disk: LoggedDisk, commit: Commit, directory: str) -> bool:
    """Whether all parts that the merge took in lay on other disks. Raises `Refused` when some did and some did not:
    nothing says which of the rows are new here."""
    gone = {operation.path for operation in commit.operations if isinstance(operation, Remove)}
    parent, _, name = directory.rpartition("/")
    inputs = commit.kind.inputs if isinstance(commit.kind, Merged) else {}
    sources = sorted({*inputs, *_arrival(disk, commit, directory).part.sources})
    elsewhere = [
        source for source in sources if gone.isdisjoint({f"{parent}/{source}", *paths.ancestors(f"{parent}/{source}")})
    ]
    if elsewhere and len(elsewhere) < len(sources):
        raise Refused(
            f"part {name}, which revision {commit.revision} of disk {disk.name} merged, holds rows of {elsewhere[0]}, "
            "which was on another disk: new and old rows cannot be distinguished",
            hint=_GO_ON.format(commit.revision),
        )
    return bool(elsewhere)


def _arrival(disk: LoggedDisk, commit: Commit, directory: str) -> ArrivedPart:
    created = _created(commit, directory)
    described = created[PART_FILE]
    row = FileRow(
        f"{directory}/{PART_FILE}",
        described.size_bytes,
        described.sha256,
        described.key,
        described.inline,
        described.blob_set,
        commit.revision,
    )
    part = parts_format.decode(read_row(disk.store, row, disk=disk.name), path=f"{disk.name}:{row.path}")
    keys = {name: found.key for name, found in created.items() if found.key is not None}
    return ArrivedPart(commit.revision, part, keys)


def _created(commit: Commit, directory: str) -> dict[str, Create]:
    """The files that the commit leaves in the directory, by their names: made there, or made elsewhere and renamed."""
    files: dict[str, Create] = {}
    for operation in commit.operations:
        if isinstance(operation, Create):
            files[operation.path] = operation
        elif isinstance(operation, Rename):
            begin = f"{operation.source}/"
            for path in [path for path in files if path.startswith(begin)]:
                files[f"{operation.target}/{path.removeprefix(begin)}"] = files.pop(path)
    begin = f"{directory}/"
    return {path.removeprefix(begin): found for path, found in files.items() if path.startswith(begin)}
