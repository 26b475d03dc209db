"""Backups of the configured repository."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import to_builtins

from backup.documents import BackupRow, DrilledRow, VerifiedRow, backup_row
from tiering.config.units import counted
from tui.facts.listing import ListColumn, Listing, field, minute, number, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backup.repository import Repository
    from tiering.engine.store import Store


@contextmanager
def repository_of(store: Store) -> Iterator[Repository]:
    """The repository that the configuration or $FROSTLINE_BACKUP names. Raises `UsageError`, saying how to name one."""
    from backup.repository import Repository
    from backup.repository_location import repository_url

    context = store.context
    url = repository_url(context.config, None)
    with Repository.open(url, config=context.config, progress=context.progress, workers=context.workers) as repository:
        yield repository


def backups(store: Store) -> Listing:
    """`backup list`. Raises `UsageError` where no repository is configured."""
    with repository_of(store) as repository:
        rows = [backup_row(item) for item in repository.backups()]
        name = repository.name
    return Listing(
        columns=(
            ListColumn("name", "backup", 24, field("name"), grows=True),
            ListColumn("taken", "taken", 16, field("taken"), minute),
            ListColumn("size", "size", 10, field("bytes"), size, right=True),
            ListColumn("new", "new", 10, field("new_bytes"), size, right=True),
            ListColumn("parts", "parts", 6, field("parts"), number, right=True),
            ListColumn("verified", "verified", 19, _proved),
            ListColumn("drilled", "drilled", 19, lambda row: _outcome(row.drilled)),
            ListColumn("machine", "machine", 16, field("machine")),
        ),
        rows=rows[::-1],
        key=lambda row: f"{row.name} {row.id}",
        document=to_builtins,
        state=lambda row: (row.state, _proved(row)),
        summary=name,
        empty="No backups yet: frostline backup create.",
    )


def _proved(row: BackupRow) -> str:
    return _outcome(row.verified) if row.state == "complete" else row.state


def _outcome(record: VerifiedRow | DrilledRow | None) -> str:
    """What was found, and when; the detail has how deep it was looked."""
    if record is None:
        return "never"
    return f"{'ok' if record.ok else counted(record.problems, 'problem').upper()} {minute(record.time)}"
