"""The inbox, as the screens look at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oplog.errors import FrostlineError
from tiering.config.units import counted

if TYPE_CHECKING:
    from tiering.daemon.inbox.status import InboxTable
    from tiering.engine.store import Store


def inbox_tables(store: Store) -> list[InboxTable]:
    """As `inbox status` has them; none where none is configured. Raises `NotFound` where there is no directory."""
    from tiering.daemon.inbox.status import inbox_status

    path = store.context.config.inbox.path
    if path is None:
        return []
    return inbox_status(Path(path), {definition.full_name for definition in store.definitions()}).tables


def inbox_problems(store: Store, *, runs: bool) -> Iterator[str]:
    """What somebody has to look at: files that cannot be read, and files that nobody takes. `runs`: whether a daemon
    does; what else keeps files from going in it says itself."""
    try:
        tables = inbox_tables(store)
    except FrostlineError:  # none was made yet; Jobs says so
        return
    if failing := [table for table in tables if table.failed]:
        yield _failed_files(failing)
    for table in tables:
        if table.waiting and not runs:
            yield f"{counted(len(table.waiting), 'file')} for {table.table} and no daemon that inserts them"


def _failed_files(tables: Sequence[InboxTable]) -> str:
    """How many files of which tables failed, and why the first did: one line, however many they are."""
    total, table = sum(len(table.failed) for table in tables), tables[0]
    file, why = table.failed[0].file, table.failed[0].error
    first = why if why.startswith(f"{file}: ") else ": ".join(filter(None, (file, why)))
    if len(tables) == 1:
        return f"{counted(total, 'file')} of {table.table} failed; {first}"
    return f"{counted(total, 'file')} of {counted(len(tables), 'table')} failed; of {table.table} {first}"
