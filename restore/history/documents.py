"""What a log says, as documents and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from tiering.config.units import counted

if TYPE_CHECKING:
    from oplog.entry import Commit
    from restore.history.diff import DiskDiff
    from restore.history.part_changes import FileCounts
    from restore.history.undo_context import PartNote, UndoPlan

_SHOWN = 50
"""How many lines of one kind a text shows; the document has all."""


def log_document(commit: Commit) -> dict[str, Any]:
    """One entry of `log --json`."""
    return {**commit_document(commit), "operations": len(commit.operations), "bytes": commit.size_bytes}


def commit_document(commit: Commit) -> dict[str, Any]:
    """A commit in short."""
    return {
        "revision": commit.revision,
        "time": commit.time,
        "kind": commit.kind.word,
        "actor": commit.actor,
        "reason": commit.reason,
    }


def diff_document(diff: DiskDiff, *, files: bool) -> dict[str, Any]:
    """`diff --json`."""
    document: dict[str, Any] = {
        "disk": diff.disk,
        "from": diff.before,
        "to": diff.after,
        "tables": [
            {
                "table": change.table,
                "change": change.change,
                "details": change.details,
                "commit": commit_document(change.commit) if change.commit else None,
            }
            for change in diff.tables
        ],
        "parts": [
            {
                "table": change.table,
                "part": change.part,
                "change": change.change,
                "what": change.what,
                "rows": change.rows,
                "bytes": change.bytes,
                "files": change.files,
                "commit": commit_document(change.commit) if change.commit else None,
            }
            for change in diff.parts
        ],
        "files": asdict(diff.files),
        "other_files": diff.other_files,
    }
    if files:
        document["paths"] = [{"change": change, "path": path, "bytes": size} for change, path, size in diff.paths]
    return document


_SIGNS = {"added": "+", "created": "+", "removed": "-", "dropped": "-", "changed": "~", "altered": "~"}


def diff_lines(diff: DiskDiff, *, files: bool) -> Iterator[str]:
    """The differences for people; not yet escaped."""
    from tiering.config.units import format_size

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
    from tiering.config.units import format_size

    changed = f", {files.changed:,} changed" if files.changed else ""
    return (
        f"{counted(files.added, 'file')} added ({format_size(files.added_bytes)}), "
        f"{files.removed:,} removed ({format_size(files.removed_bytes)}){changed}"
    )


def undo_document(planned: UndoPlan, done: int | None, *, dry_run: bool) -> dict[str, Any]:
    """`undo --json`: the preview, and the commit that carried it out, if one did."""
    from restore.history.part_changes import altered

    return {
        "disk": planned.disk,
        "undoes": commit_document(planned.commit),
        "parts_removed": [asdict(note) for note in planned.parts_removed],
        "parts_back": [asdict(note) for note in planned.parts_back],
        "tables_back": planned.tables_back,
        "altered": altered(*planned.alter) if planned.alter else [],
        "files_removed": len(planned.removes),
        "files_back": len(planned.creates),
        "notes": planned.notes,
        "done": planned.done or None,
        "applied": done is not None,
        "commit": done,
        "dry_run": dry_run,
    }


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
    from tiering.config.units import format_size

    for note in parts[:_SHOWN]:
        held = f"{counted(note.rows, 'row')}, {format_size(note.size_bytes)}"
        yield f"  {change}  part {note.part} of {note.table} ({held})"
    if len(parts) > _SHOWN:
        rows = sum(note.rows for note in parts[_SHOWN:])
        yield f"  {change}  {counted(len(parts) - _SHOWN, 'part')} more ({counted(rows, 'row')})"
