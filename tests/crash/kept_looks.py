"""Whether what is kept of parts is what the disks say: for who opens a store now, and for who has it open since before.

The second is a process like any other, as far as the store can tell: it has disks, a journal and a catalog of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import msgspec

from tests.crash.site import Site
from tiering.catalog import tables
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.journal.kept_looks import PartSums
from tiering.journal.kept_parts import KeptParts
from tiering.policy import part_sums, ttl
from tiering.table.schema import TableDefinition


def watching(site: Site, *, has_read: bool) -> Store:
    """Somebody who looks at the store, and has read each part, or none; recovers and changes nothing."""
    store = site.open(recover=False, anew=False)
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


def looks_are_as_read(store: Store, *watching: Store) -> Iterator[str]:
    """I1: a catalog that does not look into what shows no change shows the same, in sums, by partition and part by
    part. One that goes by what is kept now, and those of who had the store open before."""
    kept = KeptParts(store.context.config.state_directory / "catalog.db")
    fresh, new = _catalog(store, None), _catalog(store, kept)
    with closing(kept):
        for watcher in watching:  # who may be the first to hear of the last commit
            watcher.context.catalog.refresh(anew=False)
        new.refresh(disks=(), anew=False)
        fresh.refresh(disks=())
        yield from _is_as_read(new, fresh, "who opens now")
        for number, watcher in enumerate(watching, 1):
            yield from _is_as_read(watcher.context.catalog, fresh, f"who looked before ({number})")


def _catalog(store: Store, kept: KeptParts | None) -> Catalog:
    context = store.context
    journal = context.journal
    return Catalog(
        context.config,
        context.disks,
        dropping=lambda: tables.being_dropped(journal),
        merges=lambda uuid: journal.work.merges(table_uuid=uuid),
        kept=kept,
    )


def _is_as_read(catalog: Catalog, fresh: Catalog, who: str) -> Iterator[str]:
    if catalog.tables() != fresh.tables():
        yield f"I1 {who} sees other tables"
        return
    for definition in fresh.tables():
        read = fresh.parts(definition, include_outdated=True)
        if (sums := catalog.sums(definition)) is not None:
            yield from (f"{line}, for {who}" for line in _sums_are_as_read(catalog.config, definition, sums, read))
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


def _sums_are_as_read(
    config: Config, definition: TableDefinition, sums: Mapping[str, PartSums], read: list[StoredPart]
) -> Iterator[str]:
    policy = config.policies.get(definition.policy)
    for disk in {*sums, *(stored.disk for stored in read)}:
        shown = sums.get(disk, PartSums())
        wanted = part_sums.of([stored for stored in read if stored.disk == disk], policy)
        if _but_for_ranges(shown) != _but_for_ranges(wanted):
            yield f"I1 the sums of {definition.full_name} on {disk} are {shown}, and should be {wanted}"
        if any(shown.highest.get(index, 0) < number for index, number in wanted.highest.items()):
            yield f"I1 a number of {definition.full_name} on {disk} is higher than the kept ones"
    if any(stored.state != "active" for stored in read):
        yield f"I1 {definition.full_name} has sums, and not all of its parts are active"


def _but_for_ranges(sums: PartSums) -> PartSums:
    """Which ranges of numbers there were may be known longer than the parts in them."""
    partitions = {
        partition: msgspec.structs.replace(found, first_range=0, last_range=0)
        for partition, found in sums.partitions.items()
    }
    return msgspec.structs.replace(sums, highest={}, partitions=partitions)


def _parts_in(catalog: Catalog) -> Iterator[StoredPart]:
    for definition in catalog.tables():
        yield from catalog.parts(definition, include_outdated=True)


def _all_of(stored: StoredPart) -> tuple[object, ...]:
    facts, part = stored.facts, stored.part
    said = (facts.name, facts.rows, facts.size_bytes, facts.created, facts.replaces)
    due = ttl.due_times(stored.definition, facts)
    place = (stored.definition, stored.disk, stored.volume, stored.revision, stored.state, stored.name)
    return (
        *place,
        part,
        due == ttl.due_times(stored.definition, part),
        said == (*(part.name, part.rows, part.size_bytes, part.created, part.replaces),),
    )
