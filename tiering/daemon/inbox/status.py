"""What is in the inbox. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from disks.host.locks import lock_holder
from oplog.errors import FrostlineError
from tiering.daemon.inbox import records, table_inbox
from tiering.daemon.inbox.table_inbox import DONE, FAILED, REPORT, TableInbox


class WaitingFile(msgspec.Struct, frozen=True):
    """A file that is not taken yet."""

    file: str
    bytes: int


class FailedFile(msgspec.Struct, frozen=True):
    """A file that could not be inserted."""

    file: str
    error: str
    """Empty where there is no report any more."""


class InboxBatch(msgspec.Struct, frozen=True):
    """Files that are being inserted."""

    files: int
    rows: int
    state: str


class InboxTable(msgspec.Struct, frozen=True, kw_only=True):
    """The inbox of a table."""

    table: str
    waiting: list[WaitingFile]
    taken: int
    batch: InboxBatch | None
    done: int
    failed: list[FailedFile]


class InboxProblem(msgspec.Struct, frozen=True):
    """What is left alone, and why."""

    table: str
    file: str
    what: str


class InboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`inbox status --json`."""

    path: str
    running: bool
    pid: int | None
    tables: list[InboxTable]
    problems: list[InboxProblem]


class InboxFile(msgspec.Struct, frozen=True):
    """What became of a file."""

    table: str
    file: str
    state: str
    """`done`, `duplicate` or `failed`."""
    rows: int
    error: str


class InboxRun(msgspec.Struct, frozen=True):
    """`inbox run --json`."""

    files: list[InboxFile]
    rows: int
    parts: Sequence[str]
    problems: list[InboxProblem]


def inbox_status(root: Path, tables: set[str]) -> InboxStatus:
    """Raises `NotFound` where there is no inbox."""
    found, strange = table_inbox.tables_of(root)
    problems = [InboxProblem(item.table, item.file, item.what) for item in strange]
    rows = []
    for table in found:
        if table.name not in tables:
            problems.append(InboxProblem(records.shown(table.name), "", "there is no such table"))
        rows.append(_table(table, problems))
    holder = lock_holder(root / ".lock")
    return InboxStatus(path=str(root), running=holder is not None, pid=holder, tables=rows, problems=problems)


def _table(table: TableInbox, problems: list[InboxProblem]) -> InboxTable:
    name = records.shown(table.name)
    waiting, strange = table.listing()
    problems += [InboxProblem(name, item.file, item.what) for item in strange]
    going_in: InboxBatch | None = None
    try:
        if (batch := table.batch()) is not None:
            going_in = InboxBatch(len(batch.files), sum(file.rows for file in batch.files), batch.state)
    except FrostlineError as error:
        problems.append(InboxProblem(name, table_inbox.BATCH_FILE, error.message))
    return InboxTable(
        table=name,
        waiting=[WaitingFile(records.shown(file.name), file.size_bytes) for file in waiting],
        taken=len(table.taken()),
        batch=going_in,
        done=len(table.finished(DONE)),
        failed=[FailedFile(records.shown(file), _error(table, file)) for file in table.finished(FAILED)],
    )


def _error(table: TableInbox, name: str) -> str:
    """What the report says; empty where there is none any more."""
    try:
        return str(json.loads((table.path / FAILED / f"{name}{REPORT}").read_bytes())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
