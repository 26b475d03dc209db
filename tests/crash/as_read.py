"""Whether what is kept of parts is what the disks say: for who opens a store now, and for who has it open since before.

The second is a process like any other, as far as the store can tell: it has disks, a journal and a catalog of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from tests.crash.site import Site
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.freshness import Freshness
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import DiskTable
from tiering.engine.store import Store
from tiering.policy import ttl
from tiering.policy.due import dues_of
from tiering.table.part import range_of
from tiering.table.schema import TableDefinition


def watching(site: Site, *, has_read: bool) -> Store:
    """Somebody who looks at the store, and has read each part, or none; recovers and changes nothing."""
    store = site.open(recover=False, freshness=Freshness.CHANGES)
    for definition in store.definitions() if has_read else ():
        store.context.catalog.parts(definition, include_outdated=True)
    return store


def catalog_is_as_read(store: Store) -> Iterator[str]:
    """I1: the catalog, however little it had to read, shows what all the `part.json` say when each is read now."""
    fresh = _catalog(store, None)
    fresh.refresh(disks=())
    shown, read = ([*map(_all_of, _parts_in(catalog))] for catalog in (store.context.catalog, fresh))
    yield from (f"I1 the catalog shows {one}" for one in shown if one not in read)
    yield from (f"I1 the catalog does not show {one}" for one in read if one not in shown)
    if len(shown) != len(read):
        yield f"I1 the catalog shows {len(shown)} parts, and there are {len(read)}"


def index_is_as_read(store: Store, *watching: Store) -> Iterator[str]:
    """I1: a catalog that does not look into what shows no change shows the same, in sums, by partition and part by
    part. One that goes by what is kept now, and those of who had the store open before."""
    fresh, new = _catalog(store, None), _catalog(store, PartIndex(store.context.config.state_directory / "catalog.db"))
    with closing(new):
        for watcher in watching:  # who may be the first to hear of the last commit
            watcher.context.catalog.refresh(Freshness.CHANGES)
        new.refresh(Freshness.CHANGES, disks=())
        fresh.refresh(disks=())
        yield from _is_as_read(new, fresh, "who opens now")
        for number, watcher in enumerate(watching, 1):
            yield from _is_as_read(watcher.context.catalog, fresh, f"who looked before ({number})")


def _catalog(store: Store, index: PartIndex | None) -> Catalog:
    context = store.context
    journal = context.journal
    return Catalog(
        context.config,
        context.disks,
        dropping=journal.being_dropped,
        merges=lambda uuid: journal.work.merges(table_uuid=uuid),
        index=index,
    )


def _is_as_read(catalog: Catalog, fresh: Catalog, who: str) -> Iterator[str]:
    if catalog.tables() != fresh.tables():
        yield f"I1 {who} sees other tables"
        return
    for definition in fresh.tables():
        read = fresh.parts(definition, include_outdated=True)
        lines = [*_sums_are_as_read(catalog.sums(definition), read), *_times_are_as_read(catalog, definition, read)]
        yield from (f"I1 {who}: {definition.full_name}: {line}" for line in lines)
        for partition in {stored.name.partition for stored in read} | {"none"}:
            shown = catalog.partition(definition, partition, include_outdated=True)
            wanted = [stored for stored in read if stored.name.partition == partition]
            if [*map(_all_of, shown)] != [*map(_all_of, wanted)]:
                yield f"I1 {who} sees {_names(shown)} in {partition} of {definition.full_name}, not {_names(wanted)}"
        shown = catalog.parts(definition, include_outdated=True)
        if [*map(_all_of, shown)] != [*map(_all_of, read)]:
            yield f"I1 {who} sees {_names(shown)} of {definition.full_name}, not {_names(read)}"


def _names(parts: list[StoredPart]) -> str:
    return ", ".join(f"{stored.facts.name} on {stored.disk}" for stored in parts) or "no part"


def _sums_are_as_read(sums: Mapping[str, DiskTable] | None, read: list[StoredPart]) -> Iterator[str]:
    if sums is None:
        return
    if any(stored.state != "active" for stored in read):
        yield "there are sums, and not all of its parts are active"
    partitions = {(disk, name): totals for disk, whole in sums.items() for name, totals in whole.partitions.items()}
    for disk, name in {*partitions, *((stored.disk, stored.name.partition) for stored in read)}:
        parts = [stored for stored in read if (stored.disk, stored.name.partition) == (disk, name)]
        rows, size_bytes = (sum(getattr(stored.facts, what) for stored in parts) for what in ("rows", "size_bytes"))
        shown = partitions.get((disk, name))
        if shown is None or (shown.parts, shown.rows, shown.bytes) != (len(parts), rows, size_bytes):
            yield f"the sums of {name} on {disk} are {shown}, and should be those of {_names(parts)}"
        elif shown.values is not None and {shown.values} != {stored.facts.partition_values for stored in parts}:
            yield f"the values of {name} on {disk} are {shown.values}"
        elif any(shown.highest.get(range_of(one.name.max_block), 0) < one.name.max_block for one in parts):
            yield f"a block number in {name} on {disk} is higher than the index says"


def _times_are_as_read(catalog: Catalog, definition: TableDefinition, read: list[StoredPart]) -> Iterator[str]:
    newest = max((stored.facts.created for stored in read), default=None)
    if catalog.newest(definition) != newest:
        yield f"the newest part is of {catalog.newest(definition)}, and should be of {newest}"
    policy = catalog.config.policies.get(definition.policy)
    dues = [(dues_of(definition, one.facts, one.disk, policy).acting, one.name.partition) for one in read]
    for at in {due for due, _ in dues if due is not None}:
        names = {name for due, name in dues if due is not None and due <= at}
        due = catalog.due(definition, at)  # of a part that is being dropped, too
        if not names <= due or (names != due and catalog.sums(definition) is not None):
            yield f"{due} are due at {at}, and should be {names}"


def _parts_in(catalog: Catalog) -> Iterator[StoredPart]:
    for definition in catalog.tables():
        yield from catalog.parts(definition, include_outdated=True)


def _all_of(stored: StoredPart) -> tuple[object, ...]:
    facts, part = stored.facts, stored.part
    said = (facts.name, facts.rows, facts.size_bytes, facts.created, facts.replaces)
    due = ttl.due_times(stored.definition, facts)
    where = (stored.definition, stored.disk, stored.volume, stored.revision, stored.state, stored.name)
    return (
        *where,
        part,
        due == ttl.due_times(stored.definition, part),
        said == (*(part.name, part.rows, part.size_bytes, part.created, part.replaces),),
    )
