"""A table as the index of parts has it, against the catalog that reads each part: after each step of another process,
for who opens now, for who has been open before, and for who keeps nothing (I1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks.object_disk.table_disk import TableDisk
from oplog.kinds import Inserted
from tests.crash.as_read import _all_of
from tests.unit.tiering.catalog.histories import STEPS, TABLE, cached_store, drop, insert, move
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.copies.source_copies import NOTHING_LISTED, SourceCopies
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.past import PastTable
from tiering.catalog.index.table import IndexedTable
from tiering.catalog.lineage import Lineage
from tiering.catalog.states import States
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.table.part import PART_FILE


@pytest.fixture(params=[True, False])
def config(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Config]:
    """Also of a store whose files were all written just now."""
    with cached_store(tmp_path, settled=request.param) as config:
        yield config


def reader(store: Store, index: PartIndex, **options: frozenset[str]) -> IndexedTable:
    context = store.context
    states = States(context.config, context.catalog.lineage, context.catalog.copies)
    return IndexedTable(index, context.disks, states, store.definition(TABLE), **options)  # type: ignore[arg-type]


def is_as_read(one: IndexedTable, fresh: Catalog) -> bool:
    """Part by part, by partition and in sums."""
    definition = one.definition
    read = fresh.parts(definition, include_outdated=True)
    moment = one.scan(every_file=False)
    assert [*map(_all_of, one.everything())] == [*map(_all_of, read)]
    for name in {stored.name.partition for stored in read} | {"none"}:
        wanted = [stored for stored in read if stored.name.partition == name]
        assert [*map(_all_of, one.partition(name))] == [*map(_all_of, wanted)]
    assert moment.are_all_active == all(stored.state == "active" for stored in read)
    for disk, table in moment.tables.items():
        there = [stored for stored in read if stored.disk == disk]
        assert (table.parts, table.rows) == (len(there), sum(stored.facts.rows for stored in there))
    return True


def fresh_of(store: Store) -> Catalog:
    context = store.context
    catalog = Catalog(
        context.config,
        context.disks,
        merges=lambda uuid: context.journal.work.merges(table_uuid=uuid),
        copies=context.journal.source_copies,
    )
    catalog.refresh(disks=())
    return catalog


def copy(store: Store, stored: StoredPart, target: str) -> None:
    """A second copy of the part, on this disk."""
    disk = store.disk(stored.disk)
    with store.disk(target).transaction(Inserted()) as transaction:
        for info in disk.walk(stored.directory):
            transaction.create(info.path, disk.read(info.path))
        transaction.commit()


@pytest.mark.in_turn
def test_after_each_step_the_index_is_what_the_catalog_reads(config: Config) -> None:
    path = config.state_directory / "index.db"
    with Store.open(config) as store, closing(PartIndex(path)) as open_before, closing(PartIndex(None)) as memory:
        for name, step in STEPS.items():
            step(store)
            if name == "drop the table":
                break
            for index in (open_before, memory):
                assert is_as_read(reader(store, index), fresh_of(store)), name
            with closing(PartIndex(path)) as new:
                assert is_as_read(reader(store, new), fresh_of(store)), name


def test_a_copy_that_comes_to_a_second_disk_is_a_duplicate(config: Config) -> None:
    """And is one for who opens then; what is moved to a disk is active when its original goes."""
    path = config.state_directory / "index.db"
    with Store.open(config) as store, closing(PartIndex(path)) as index:
        one = reader(store, index)
        one.scan(every_file=False)
        move(store, "cold")
        assert is_as_read(one, fresh_of(store))
        disk, stored = store.disk("ssd"), store.parts(TABLE)[0]
        copy(store, stored, "ssd")
        assert is_as_read(one, fresh_of(store))
        assert sorted(part.state for part in one.everything()) == ["active", "active", "active", "duplicate"]
        with closing(PartIndex(path)) as new:
            assert is_as_read(reader(store, new), fresh_of(store))
        with disk.transaction(Inserted()) as transaction:
            transaction.remove(stored.directory)
            transaction.commit()
        assert is_as_read(one, fresh_of(store))


def test_parts_that_are_being_dropped_are_gone(config: Config) -> None:
    with Store.open(config) as store, closing(PartIndex(config.state_directory / "index.db")) as index:
        dropped, *rest = store.parts(TABLE)
        one = reader(store, index, dropping=frozenset([dropped.directory]))
        moment = one.scan(every_file=False)
        assert [part.label for part in one.everything()] == [part.label for part in rest]
        assert [part.label for part in one.partition("202601")] == [rest[0].label]
        assert not moment.are_all_active
        assert is_as_read(reader(store, index), fresh_of(store))


def test_who_reads_after_others_have_gone_on_reads_now(config: Config) -> None:
    """All partitions of one question at one moment."""
    path = config.state_directory / "index.db"
    with Store.open(config) as store, closing(PartIndex(path)) as index, closing(PartIndex(path)) as other:
        one = reader(store, index)
        one.scan(every_file=False)
        insert(store, 3)
        insert(store, 41)
        reader(store, other).scan(every_file=False)
        assert [part.name.partition for part in one.partitions(["202602", "202601"])] == ["202601"] * 3 + ["202602"] * 2


@pytest.mark.in_turn
@pytest.mark.parametrize("is_kept", [True, False])
def test_each_revision_of_the_past_is_what_the_bucket_had(config: Config, is_kept: bool) -> None:
    """By the index of now, which stays what it is; and where there is none."""
    path = config.state_directory / "index.db"
    with Store.open(config) as store, closing(PartIndex(path)) as index:
        for name, step in STEPS.items():
            if name == "drop the table":
                break
            step(store)
        insert(store, 3)
        move(store, "cold")
        drop(store)
        bucket = store.object_disk("s3")
        copy(store, next(stored for stored in store.parts(TABLE) if stored.disk == "s3"), "ssd")
        if is_kept:
            now = reader(store, index).scan(every_file=False)
        held = []
        for revision in range(1, (bucket.revision or 0) + 1):
            with closing(bucket.at(revision, briefly=True)) as then:
                disks = {"s3": then}
                states = States(config, Lineage(disks), SourceCopies(disks, NOTHING_LISTED))
                fresh = Catalog(config, disks, stand_still=True)
                fresh.refresh(disks=())
                for table in fresh.tables():
                    past = PastTable(index, disks, states, table)
                    assert is_as_read(past, fresh), revision
                    held.append(past.is_by_itself)
        assert held.count(is_kept) < len(held) / 2
        assert not is_kept or reader(store, index).scan(every_file=False) == now


@pytest.mark.in_turn
@pytest.mark.parametrize("every_file", [True, False])
def test_a_part_that_moves_between_two_disks_is_seen(
    config: Config, every_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a disk that was not looked at yet to one that was: it would be seen on neither."""
    with Store.open(config) as acting, Store.open(config) as store, closing(PartIndex(None)) as index:
        move(acting, "cold")
        store.refresh()
        one, moved = reader(store, index), list[object]()
        one.scan(every_file=False)
        insert(acting, 3)
        move(acting, "cold")
        store.refresh()
        look_over = TableDisk.look_over

        def moving(self: TableDisk, *arguments: Any) -> object:
            if self is store.disk("s3") and arguments[1] == PART_FILE and not moved:
                moved.append(arguments)
                move(acting, "hot")
            return look_over(self, *arguments)

        monkeypatch.setattr(TableDisk, "look_over", moving)
        one.scan(every_file=every_file)
        assert moved
        assert {part.label for part in one.everything()} == {part.label for part in acting.parts(TABLE)}
        assert {part.disk for part in one.everything()} == {"ssd"}
