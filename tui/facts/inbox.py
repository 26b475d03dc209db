"""The inbox, as the screens look at it."""

from __future__ import annotations

from collections.abc import Iterator
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
    for table in found["tables"]:
        if failed := table["failed"]:
            file, why = failed[0]["file"], failed[0]["error"] or ""
            first = why if why.startswith(f"{file}: ") else ": ".join(filter(None, (file, why)))
            yield f"{counted(len(failed), 'file')} of {table['table']} failed; {first}"
        if table["waiting"] and not runs:
            yield f"{counted(len(table['waiting']), 'file')} for {table['table']} and no daemon that takes them in"
