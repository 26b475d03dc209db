"""Two revisions of an object disk, compared: which files, parts and tables differ, and which commits did it.

Both file tables are built in files of a scratch directory and read once, in step, so that memory is that of the
difference. The commits are found by the index of the log; of one that is no longer kept nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import why_not_writable
from disks.file_table.commits import Commits
from disks.file_table.row_bytes import read_row
from disks.file_table.table import FileTable
from disks.host.locks import OwnedDirectory
from disks.host.scratch import task_scratch
from disks.object_disk.history import available
from disks.object_disk.references import inventory
from disks.workers.progress import SILENT, Progress
from oplog import replay
from oplog.entry import Commit
from oplog.errors import Damaged, NotFound, UsageError
from oplog.replay import ChangedPath, FileRow
from oplog.revision import OPERATIONS_PREFIX, SNAPSHOTS_PREFIX
from restore.history.part_changes import Changed, FileCounts, altered, compare_parts
from tiering.policy.part_events import PartEffect, event
from tiering.table import part as parts_format
from tiering.table import schema
from tiering.table.part import Part
from tiering.table.schema import TableDefinition


class PartChange(msgspec.Struct, frozen=True):
    """A part that is there at one of the revisions only, or whose files differ."""

    table: str
    part: str
    change: str
    """added, removed or changed."""
    what: str
    """What the commit did to it: merged from …, moved to …, dropped."""
    rows: int | None
    """None when its `part.json` cannot be read."""
    bytes: int
    files: int
    commit: Commit | None
    """The newest commit between the revisions that touched it; None when it is no longer kept."""


class TableChange(msgspec.Struct, frozen=True):
    """A table that came, went or was altered."""

    table: str
    change: str
    """created, dropped or altered."""
    details: tuple[str, ...]
    commit: Commit | None


class DiskDiff(msgspec.Struct):
    """The difference between two revisions of a disk."""

    disk: str
    before: int
    after: int
    tables: list[TableChange] = msgspec.field(default_factory=list)
    parts: list[PartChange] = msgspec.field(default_factory=list)
    files: FileCounts = msgspec.field(default_factory=FileCounts)
    other_files: int = 0
    """Files that differ and belong to no part and are no table's definition: reservations, marks, foreign files."""
    paths: list[tuple[str, str, int]] = msgspec.field(default_factory=list)
    """(added, removed or changed; path; bytes) of every file, when they were asked for."""

    @property
    def empty(self) -> bool:
        return not (self.files.added or self.files.removed or self.files.changed)


def diff(
    disk: LoggedDisk,
    before: int,
    after: int,
    *,
    scope: str | None = None,
    paths: bool = False,
    progress: Progress = SILENT,
    reading: Callable[[int], None] = lambda count: None,
) -> DiskDiff:
    """Compare the disk right after two revisions; `scope` is the directory of a table. 0 is the empty disk. `reading`
    gets the log entries that had to be read to find the commits.

    Raises `NotFound`, naming the revisions that are kept, and `UsageError` when the first one is the later.
    """
    if before > after:
        raise UsageError(
            f"revision {before} is later than {after}",
            hint=f"name the older one first: diff {disk.name} {after} {before}",
        )
    with ExitStack() as stack:
        scratch = _scratch(disk)
        stack.callback(scratch.remove)
        task = stack.enter_context(progress.task("reading two revisions", items=2))
        tables = []
        for name, revision in (("before", before), ("after", after)):
            tables.append(stack.enter_context(closing(_table_at(disk, revision, scratch.path / f"{name}.db"))))
            task.advance(items=1)
        views = [stack.enter_context(table.read()) for table in tables]
        result = DiskDiff(disk.name, before, after)
        changes = list(compare_parts(_counted(replay.diff(*views), result, scope, paths)))
        _describe(disk, result, changes, tables[0], tables[1], disk.commits(reading))
    return result


def _scratch(disk: LoggedDisk) -> OwnedDirectory:
    """Beside the cached table; where nothing can be written there, below the machine's temporary directory."""
    if why_not_writable(disk.state_path) is None:
        return OwnedDirectory(disk.state_path / "scratch")
    return task_scratch("frostline-diff")


def _table_at(disk: LoggedDisk, revision: int, path: Path) -> FileTable:
    try:
        return disk.table_at(revision, path=path)
    except NotFound as error:
        listing = [*disk.store.list(OPERATIONS_PREFIX), *disk.store.list(SNAPSHOTS_PREFIX)]
        raise NotFound(
            f"revision {revision} of disk {disk.name} is not kept, or does not exist",
            hint=available(inventory(listing)),
        ) from error


def _counted(
    differences: Iterator[ChangedPath], result: DiskDiff, scope: str | None, paths: bool
) -> Iterator[ChangedPath]:
    for difference in differences:
        if scope is not None and not difference.path.startswith(f"{scope}/"):
            continue
        result.files.count(difference)
        if paths:
            size = (difference.after or difference.before or _NO_FILE).size_bytes
            result.paths.append((_change(difference.before, difference.after), difference.path, size))
        yield difference


_UNREADABLE = (Damaged, NotFound)
_NO_FILE = FileRow("", 0, "", None, None, None, 0)


def _change(before: FileRow | None, after: FileRow | None) -> str:
    return "added" if before is None else "removed" if after is None else "changed"


def _describe(
    disk: LoggedDisk,
    result: DiskDiff,
    changes: list[Changed],
    before: FileTable,
    after: FileTable,
    commits: Commits,
) -> None:
    parts = [change for change in changes if change.is_part]
    tables = [change for change in changes if not change.is_part and (change.before or change.after)]
    named = [change.directory for change in (*parts, *tables)]
    touched = {
        directory: entry.commit
        for directory, entry in commits.last_touching(named, result.before, result.after).items()
    }
    # A table's directory is touched with every part of it: its definition says which commit wrote it.
    written = {change.directory: change.after.revision for change in tables if change.after is not None}
    defined = commits.read(written.values())
    touched |= {directory: defined[at].commit for directory, at in written.items() if at in defined}
    names = _Names(disk, before, after)
    result.parts = [_part_change(disk, names, change, touched.get(change.directory)) for change in parts]
    result.parts.sort(key=lambda change: (change.table, change.change, change.part))
    result.tables = [_table_change(disk, change, touched.get(change.directory)) for change in tables]
    result.other_files = sum(
        change.files.added + change.files.removed + change.files.changed for change in changes if not change.is_part
    ) - len(tables)


def _part_change(disk: LoggedDisk, names: _Names, change: Changed, commit: Commit | None) -> PartChange:
    row = change.after or change.before
    part = _read_part(disk, row) if row is not None else None
    seen: PartEffect | None = event(commit, change.directory) if commit is not None else None
    counts = change.files
    mixed = counts.changed or (counts.added and counts.removed)
    kind = "changed" if mixed else "removed" if counts.removed else "added"
    if seen is not None and seen.verb == "merged" and part is not None:
        seen = PartEffect("merged", arrived=True, sources=part.sources)
    return PartChange(
        table=names.of(change.table_directory),
        part=change.name,
        change=kind,
        what=seen.text if seen is not None else "by a commit that is no longer kept",
        rows=part.rows if part is not None else None,
        bytes=counts.removed_bytes if kind == "removed" else counts.added_bytes,
        files=counts.added + counts.removed + counts.changed,
        commit=commit,
    )


def _table_change(disk: LoggedDisk, change: Changed, commit: Commit | None) -> TableChange:
    old, new = (_read_table(disk, row) if row is not None else None for row in (change.before, change.after))
    known = new or old
    details = tuple(altered(old, new)) if old is not None and new is not None else ()
    word = "created" if change.before is None else "dropped" if change.after is None else "altered"
    return TableChange(known.full_name if known is not None else change.name, word, details, commit)


class _Names:
    """Tables by their directories, as they were called at the later revision, or the earlier one."""

    def __init__(self, disk: LoggedDisk, before: FileTable, after: FileTable) -> None:
        self._disk = disk
        self._tables = (after, before)
        self._known: dict[str, str] = {}

    def of(self, directory: str) -> str:
        if directory not in self._known:
            rows = (table.get(f"{directory}/{schema.TABLE_FILE}") for table in self._tables)
            row = next((row for row in rows if row is not None), None)
            definition = _read_table(self._disk, row) if row is not None else None
            uuid = directory.rpartition("/")[2]
            self._known[directory] = definition.full_name if definition is not None else uuid
        return self._known[directory]


def _read_part(disk: LoggedDisk, row: FileRow) -> Part | None:
    """The part of a `part.json`; None when it cannot be read: a difference is no place to fail for that."""
    try:
        return parts_format.decode(read_row(disk.store, row, disk=disk.name), path=row.path)
    except _UNREADABLE:
        return None


def _read_table(disk: LoggedDisk, row: FileRow) -> TableDefinition | None:
    try:
        return schema.decode(read_row(disk.store, row, disk=disk.name), path=row.path)
    except _UNREADABLE:
        return None
