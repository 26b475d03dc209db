"""Publications follow what was committed: after each verb that changes something, and in each pass of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oplog.errors import FrostlineError

if TYPE_CHECKING:
    from tiering.engine.store import Store


def publish_due(store: Store) -> list[str]:
    """Publish every table whose bucket has changed since its last publication; why those failed that did. They are
    published next time."""
    problems = []
    for definition in store.definitions():
        if definition.is_published and not store.context.stop.is_set():
            from tiering.iceberg.publication import Publication

            try:
                Publication(store, definition).publish()
            except FrostlineError as error:
                hint = f"; {error.hint}" if error.hint else ""
                problems.append(f"{definition.full_name} is not published as it is now: {error.message}{hint}")
    return problems
