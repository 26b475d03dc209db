"""How long inserts of other replicas have waited for this one.

`min_unprocessed_insert_time`, as ClickHouse has it: when the oldest insert was agreed upon that this replica took over
and has not got, in whole seconds since 1970; `0` for none. It is said in the requests that change it. What a replica
has not even taken over can be read from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from oplog.errors import Damaged
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import Set
from zerocopy.replica import entries
from zerocopy.replica.connections import KnownTable
from zerocopy.replica.entries import Get
from zerocopy.replica.nodes import ReplicaNodes, TableNodes, number_of

_NONE = b"0"


def inserted(name: str, waiting: Mapping[str, bytes]) -> dict[str, int]:
    """When each of the entries was agreed upon by which another replica than `name` brings a part, by its node."""
    found = {path: entries.decode(data, path=path) for path, data in waiting.items()}
    return {path: _seconds(entry) for path, entry in found.items() if isinstance(entry, Get) and entry.replica != name}


def told(
    own: ReplicaNodes, kept: KnownTable, *, done: Iterable[str] = (), come: Mapping[str, int] | None = None
) -> list[Set]:
    """What is to be written when these entries of the queue are done and those have come; nothing where Keeper says so
    already."""
    gone = set(done)
    waiting = [at for path, at in kept.inserted.items() if path not in gone] + list((come or {}).values())
    data = str(min(waiting)).encode() if waiting else _NONE
    is_news = data != kept.oldest if kept.oldest is not None else bool(kept.inserted or come)
    return [Set(own.min_unprocessed, data)] if is_news else []


def believe(kept: KnownTable, said: Sequence[Set]) -> None:
    """These were written."""
    for one in said:
        kept.oldest = one.data


def lag_seconds(keeper: Keeper, nodes: TableNodes, name: str, log: Iterable[str], now: datetime) -> int:
    """How long the oldest insert has waited for the replica that it has not got, of those in the `log`: the names of
    the entries that it has not taken over."""
    node = keeper.find(nodes.replica(name).min_unprocessed)
    known = int(node.data) if node is not None and node.data.isdigit() else 0
    since = [known] if known else []
    paths = [f"{nodes.log}/{one}" for one in sorted(log, key=number_of)]
    for path, found in zip(paths, keeper.find_all(paths), strict=True):
        if found is None:
            continue
        try:
            since += inserted(name, {path: found.data}).values()
        except Damaged:  # the replica that takes it over reports it
            continue
    return max(0, int(now.timestamp()) - min(since)) if since else 0


def _seconds(entry: Get) -> int:
    return int(entry.time.timestamp())
