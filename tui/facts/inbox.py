"""The inbox, as the screens look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oplog.errors import FrostlineError
from tiering.config.units import counted

if TYPE_CHECKING:
    from tiering.engine.store import Store


def inbox_document(store: Store) -> dict[str, Any]:
    """`inbox status --json`; without tables where none is configured. Raises `NotFound` where there is no directory."""
    from tiering.daemon.inbox.status import status_document

    path = store.context.config.inbox.path
    if path is None:
        return {"tables": []}
    return status_document(Path(path), {definition.full_name for definition in store.definitions()})


def inbox_problems(store: Store, *, runs: bool) -> Iterator[str]:
    """What somebody has to look at: files that cannot be read, and files that nobody takes. `runs`: whether a daemon
    does; what else keeps files from going in it says itself."""
    try:
        found = inbox_document(store)
    except FrostlineError:  # none was made yet; Jobs says so
        return
    if failing := [table for table in found["tables"] if table["failed"]]:
        yield _failed_files(failing)
    for table in found["tables"]:
        if table["waiting"] and not runs:
            yield f"{counted(len(table['waiting']), 'file')} for {table['table']} and no daemon that inserts them"


def _failed_files(tables: Sequence[Mapping[str, Any]]) -> str:
    """How many files of which tables failed, and why the first did: one line, however many they are."""
    total, table = sum(len(table["failed"]) for table in tables), tables[0]
    file, why = table["failed"][0]["file"], table["failed"][0]["error"] or ""
    first = why if why.startswith(f"{file}: ") else ": ".join(filter(None, (file, why)))
    if len(tables) == 1:
        return f"{counted(total, 'file')} of {table['table']} failed; {first}"
    return f"{counted(total, 'file')} of {counted(len(tables), 'table')} failed; of {table['table']} {first}"
