"""What a log says, as rows and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from restore.history.part_changes import FileCounts
from restore.history.undo_context import PartNote
from tiering.config.units import counted, format_size

if TYPE_CHECKING:
    from oplog.entry import Commit
    from restore.history.diff import DiskDiff
    from restore.history.undo_context import UndoPlan

_SHOWN = 50
"""How many lines of one kind a text shows; the document has all."""


class CommitRow(msgspec.Struct, frozen=True):
    """A commit in short."""

    revision: int
    time: datetime
    kind: str
    actor: str
    reason: str

    @classmethod
    def of(cls, commit: Commit) -> CommitRow:
        return cls(commit.revision, commit.time, commit.kind.word, commit.actor, commit.reason)


class LogRow(CommitRow, frozen=True):
    """An entry of `log --json`."""

    operations: int
    bytes: int


class TableDiff(msgspec.Struct, frozen=True):
    """A table that was created, dropped or altered."""

    table: str
    change: str
    details: tuple[str, ...]
    commit: CommitRow | None


class PartDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A part that only one of two revisions has, or whose files differ."""

    table: str
    part: str
    change: str
    what: str
    rows: int | None
    bytes: int
    files: int
    commit: CommitRow | None


class PathDiff(msgspec.Struct, frozen=True):
    """A file that differs."""

    change: str
    path: str
    bytes: int


class DiffDocument(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """`diff --json`."""

    disk: str
    before: int
    after: int
    tables: list[TableDiff]
    parts: list[PartDiff]
    files: FileCounts
    other_files: int
    paths: list[PathDiff] | UnsetType = UNSET
    """With `--files`."""


class UndoDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`undo --json`: the preview, and the commit that carried it out, if one did."""

    disk: str
    undoes: CommitRow
    parts_removed: Sequence[PartNote]
    parts_back: Sequence[PartNote]
    tables_back: Sequence[str]
    altered: Sequence[str]
    files_removed: int
    files_back: int
    notes: Sequence[str]
    done: str | None
    applied: bool
    commit: int | None
    dry_run: bool


def log_row(commit: Commit) -> LogRow:
    """An entry with its size."""
    row = CommitRow.of(commit)
    return LogRow(**asdict(row), operations=len(commit.operations), bytes=commit.size_bytes)


def diff_document(diff: DiskDiff, *, files: bool) -> DiffDocument:
    """The difference, with its files or without."""

    def by(commit: Commit | None) -> CommitRow | None:
        return CommitRow.of(commit) if commit else None

    return DiffDocument(
        disk=diff.disk,
        before=diff.before,
        after=diff.after,
        tables=[TableDiff(change.table, change.change, change.details, by(change.commit)) for change in diff.tables],
        parts=[PartDiff(**{**asdict(change), "commit": by(change.commit)}) for change in diff.parts],
        files=diff.files,
        other_files=diff.other_files,
        paths=[PathDiff(*path) for path in diff.paths] if files else UNSET,
    )


_SIGNS = {"added": "+", "created": "+", "removed": "-", "dropped": "-", "changed": "~", "altered": "~"}


def diff_lines(diff: DiskDiff, *, files: bool) -> Iterator[str]:
    """The differences for people; not yet escaped."""
    yield f"disk {diff.disk}, from revision {diff.before} to {diff.after}: {_counts(diff.files)}"
    for table in diff.tables:
        yield f"  {_SIGNS[table.change]} table {table.table} {table.change}{_by(table.commit)}"
        for detail in table.details:
            yield f"      {detail}"
    by_table: dict[str, list[Any]] = {}
    for part in diff.parts:
        by_table.setdefault(part.table, []).append(part)
    for name, parts in by_table.items():
        yield f"  {name}"
        for part in parts[:_SHOWN]:
            rows = f"{counted(part.rows, 'row')}, " if part.rows is not None else ""
            yield (
                f"    {_SIGNS[part.change]} {part.part}  {part.what} "
                f"({rows}{format_size(part.bytes)}){_by(part.commit)}"
            )
        if len(parts) > _SHOWN:
            yield f"      … and {counted(len(parts) - _SHOWN, 'part')} more: --json names them"
    if diff.other_files:
        yield (
            f"  {counted(diff.other_files, 'other file')}: names of tables, marks of block numbers; --files names them"
        )
    if files:
        for change, path, size in diff.paths:
            yield f"  {_SIGNS[change]} {path}  {format_size(size)}"


def _by(commit: Commit | None) -> str:
    if commit is None:
        return ""
    return f"  by revision {commit.revision}, {commit.actor or 'unknown'}, {commit.time:%Y-%m-%d %H:%M}"


def _counts(files: FileCounts) -> str:
    changed = f", {files.changed:,} changed" if files.changed else ""
    return (
        f"{counted(files.added, 'file')} added ({format_size(files.added_bytes)}), "
        f"{files.removed:,} removed ({format_size(files.removed_bytes)}){changed}"
    )


def undo_document(planned: UndoPlan, done: int | None, *, dry_run: bool) -> UndoDocument:
    """What an undo would do, or did."""
    from restore.history.part_changes import altered

    return UndoDocument(
        disk=planned.disk,
        undoes=CommitRow.of(planned.commit),
        parts_removed=planned.parts_removed,
        parts_back=planned.parts_back,
        tables_back=planned.tables_back,
        altered=altered(*planned.alter) if planned.alter else [],
        files_removed=len(planned.removes),
        files_back=len(planned.creates),
        notes=planned.notes,
        done=planned.done or None,
        applied=done is not None,
        commit=done,
        dry_run=dry_run,
    )


def undo_lines(planned: UndoPlan) -> Iterator[str]:
    """What an undo would do, for people; not yet escaped."""
    from restore.history.part_changes import altered

    commit = planned.commit
    yield f"revision {commit.revision} of disk {planned.disk}: {commit.kind.word} by {commit.actor or 'unknown'}"
    yield f"  {commit.time:%Y-%m-%d %H:%M:%S}  {commit.reason}"
    yield "undoing it"
    for table in planned.tables_back:
        yield f"  brings back   table {table}"
    yield from _part_lines("removes     ", planned.parts_removed)
    yield from _part_lines("brings back ", planned.parts_back)
    if planned.alter:
        for change in altered(*planned.alter):
            yield f"  alters        {planned.alter[1].full_name}: {change}"
    else:
        yield (
            f"  in all        {counted(len(planned.removes), 'file')} removed, "
            f"{counted(len(planned.creates), 'file')} back; no bytes are copied"
        )
    for note in planned.notes:
        yield f"  note          {note}"


def _part_lines(change: str, parts: Sequence[PartNote]) -> Iterator[str]:
    for note in parts[:_SHOWN]:
        held = f"{counted(note.rows, 'row')}, {format_size(note.size_bytes)}"
        yield f"  {change}  part {note.part} of {note.table} ({held})"
    if len(parts) > _SHOWN:
        rows = sum(note.rows for note in parts[_SHOWN:])
        yield f"  {change}  {counted(len(parts) - _SHOWN, 'part')} more ({counted(rows, 'row')})"
