"""The store of a stream, open from one batch to the next in the process in which Spark plans or commits them.

Spark uses these processes again, and ends them when they were idle for a minute. To open a store and to close it costs
as much as a commit of a small batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiering.config.reading import load
from tiering.config.settings import Config
from tiering.engine import recovery
from tiering.engine.store import Store

_kept: list[tuple[Config, Store]] = []
"""At most one."""


@contextmanager
def cached_store(file: Path | None, *, actor: str, recover: bool) -> Iterator[Store]:
    """As `Store.open` of the configuration, which is read each time: the store is as it is now, and with `recover` what
    a crash left is finished. It stays open after the block, unless that ended with an error."""
    config = load(file)
    if _kept and _kept[0][0] == config:
        _, store = _kept.pop()
        try:
            _look_again(store, recover=recover)
        except BaseException:
            store.close()
            raise
    else:
        close_kept()
        store = Store.open(config, actor=actor, recover=recover)
    try:
        yield store
    except BaseException:
        store.close()
        raise
    close_kept()
    _kept.append((config, store))


def close_kept() -> None:
    """Close the store that is kept, if there is one."""
    while _kept:
        _kept.pop()[1].close()


def _look_again(store: Store, *, recover: bool) -> None:
    if not recover:
        store.refresh()
        return
    if store.context.identities is not None:
        store.context.identities.look()
    store.recovered = recovery.recover(store.context)
