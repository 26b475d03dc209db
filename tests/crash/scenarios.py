"""The operations that crash tests stop: for each a small store to begin with and the one call that changes it.

Everything here runs in children of the fork server or in the test itself; a store lives below one directory (`Site`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from disks.effects import op, write_new_file
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from oplog.errors import AlreadyExists, FrostlineError, NotFound
from oplog.kinds import Dropped, OtherKind, undone_revision
from restore.history.undo import undo
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.crash.site import (
    JANUARY,
    OTHER,
    ROWS_A_PART,
    TABLE,
    Site,
    collect,
    drop_january,
    events,
    hot,
    insert,
    mixed,
    move,
    rows,
    tables,
)
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import rename_table
from tiering.table.schema import Column, MoveToVolume, TtlRule

if TYPE_CHECKING:
    from tiering.insert.uploaded.part_writer import WriteJob, WrittenPart


@dataclass(frozen=True, slots=True)
class Scenario:
    """`act` is the operation under test. Called again after a crash and recovery it must end in the same state."""

    name: str
    prepare: Callable[[Store, Site], None]
    act: Callable[[Store, Site], None]
    fresh: bool = False
    """The act opens the store itself, for the first time."""
    keeps_rows: bool = False
    """No query may see a difference, not even after it."""


def _cold(store: Store, site: Site) -> None:
    hot(store, site)
    move(store, "cold")


def _late(store: Store, site: Site) -> None:
    """Three parts whose rule was due before they came: they wait on the SSD."""
    rule = TtlRule(after_seconds=86400, column="ts", action=MoveToVolume("cold"))
    store.create_table(msgspec.structs.replace(events(), policy="waiting", ttl=(rule,)))
    store.create_table(events(2, name=OTHER))
    for first in (0, 1000, 2000):
        insert(store, first, months=(1,))


def _wait_over(store: Store, site: Site) -> None:
    """The pass at the end of their wait, which merges them and moves what comes of it."""
    store.context.clock = lambda: datetime.now(UTC) + timedelta(hours=2)
    store.tick()
    store.refresh()
    assert [(part.disk, part.facts.rows) for part in store.parts(TABLE)] == [("s3", 3 * ROWS_A_PART)]


def _cold_groups(store: Store, site: Site) -> None:
    """Two partitions in the bucket to be merged, of three parts and of two, whose keys meet."""
    tables(store, site)
    for first, months in ((0, (1, 2)), (30, (1,)), (50, (1, 2))):
        insert(store, first, months=months)
    move(store, "cold")
    with op("fs.mkdir", site.scratch):
        site.scratch.mkdir()


def _foreign(store: Store, site: Site) -> None:
    """Everything as another machine left it in the bucket: this one does not know its block numbers as its own."""
    _cold(store, site)
    _forget_ranges(store)


def _foreign_in_order(store: Store, site: Site) -> None:
    """The same where merges go by the order of inserts, with newer rows of this machine, some of them hot."""
    store.create_table(msgspec.structs.replace(events(), merge_mode="replacing"))
    store.create_table(events(2, name=OTHER))
    insert(store, 0)
    move(store, "cold")
    _forget_ranges(store)
    insert(store, 1000)
    move(store, "cold", JANUARY)
    insert(store, 2000, months=(1,))


def _forget_ranges(store: Store) -> None:
    definition = store.definition(TABLE)
    with store.disk("ssd").transaction(OtherKind("test")) as transaction:
        transaction.remove(f"{definition.directory}/blocks-0.json")
        transaction.commit()
    with store.context.journal.file.write("test") as connection:
        connection.execute("DELETE FROM block_ranges WHERE table_uuid = ?", (definition.uuid,))


def _garbage(store: Store, site: Site) -> None:
    """Objects that dropped parts left, and commits no retained revision needs."""
    _cold(store, site)
    drop_january(store, site)
    store.object_disk("s3").write_snapshot()


def _garbage_beside_hot(store: Store, site: Site) -> None:
    """Some garbage in the bucket, and a February that is still hot."""
    mixed(store, site)
    insert(store, 3000, months=(1,))
    move(store, "cold", JANUARY)
    drop_january(store, site)
    insert(store, 4000, months=(1,))
    move(store, "cold", JANUARY)


def _history(store: Store, site: Site) -> None:
    """Moves, a drop, a file with two names that lost its first, and blobs of a transaction that never committed."""
    mixed(store, site)
    disk = store.disk("s3")
    with disk.transaction(OtherKind("test")) as transaction:
        transaction.create("linked/one.bin", b"shared " * 100)
        transaction.commit()
    with disk.transaction(OtherKind("test")) as transaction:
        transaction.link("linked/one.bin", "linked/two.bin")
        transaction.commit()
    with disk.transaction(OtherKind("test")) as transaction:
        transaction.remove("linked/one.bin")
        transaction.commit()
    with disk.transaction(OtherKind("test")) as transaction:  # a later commit shows that it is not under way any more
        transaction.create("never/committed.bin", b"orphan " * 100)
    drop_january(store, site)


def _drop_all_parts(store: Store, site: Site) -> None:
    """On two disks: the bucket's commit alone would leave half of them."""
    from tiering.catalog import tables

    tables.drop_parts(store.context, store.parts(TABLE), reason="test")


def _drop_table(store: Store, site: Site) -> None:
    with suppress(NotFound):
        store.drop_table(TABLE)


def _create_table(store: Store, site: Site) -> None:
    with suppress(AlreadyExists):
        store.create_table(events())


def _alter_table(store: Store, site: Site) -> None:
    definition = store.definition(TABLE)
    if len(definition.columns) == 3:
        extra = Column(id=4, name="extra", type="int64")
        wider = msgspec.structs.replace(
            definition, columns=(*definition.columns, extra), last_column_id=4, schema_version=2
        )
        store.alter_table(definition, wider)


def _rename_table(store: Store, site: Site) -> None:
    with suppress(NotFound):  # it has the other name
        definition = store.definition(TABLE)
        store.alter_table(definition, rename_table(definition, "other.name"))


def _renamed(store: Store, site: Site) -> None:
    mixed(store, site)
    _rename_table(store, site)


def _collect(store: Store, site: Site) -> None:
    """What only a later clock allows: the store's clock is two days ahead, so all garbage is old."""
    with site.open(ahead=timedelta(days=2), recover=False) as later:
        report = collect(later, "s3")
        if report.refused or report.failed:
            raise FrostlineError(f"gc: {report.refused} {report.failed}")


def _quarantine(store: Store, site: Site) -> None:
    """Announce, and a day later delete: two runs."""
    for days in (2, 4):
        with site.open(ahead=timedelta(days=days), recover=False) as later:
            report = collect(later, "s3", quarantine=timedelta(hours=24))
            if report.refused or report.failed:
                raise FrostlineError(f"gc: {report.refused} {report.failed}")


def _first_open(store: Store, site: Site) -> None:
    with site.open() as fresh:
        fresh.create_table(events(), if_not_exists=True)


def _reopen(store: Store, site: Site) -> None:
    with site.open() as again:
        again.parts()


def _rebuild(store: Store, site: Site) -> None:
    """`restore s3 --apply` with nothing but the bucket."""
    config = site.config()
    disk = open_disk("s3", config.disks["s3"], config.state_directory)
    try:
        assert isinstance(disk, ObjectDisk)
        restore(disk, RebuildRequest(apply=True))
    finally:
        disk.close()


def _dropped(store: Store, site: Site) -> None:
    mixed(store, site)
    drop_january(store, site)


def _undo_the_drop(store: Store, site: Site) -> None:
    """`restore s3 --revision N --apply`, to the revision before the first drop."""
    disk = store.object_disk("s3")
    dropped = min(found.commit.revision for found in disk.entries() if isinstance(found.commit.kind, Dropped))
    restore(disk, RebuildRequest(revision=dropped - 1, apply=True))
    store.refresh()


def _merged(store: Store, site: Site) -> None:
    _cold(store, site)
    _merge(store)


def _altered(store: Store, site: Site) -> None:
    mixed(store, site)
    _alter_table(store, site)


def _take_back(kind: str) -> Callable[[Store, Site], None]:
    """`undo s3 N --yes`, of the last commit of this kind that is no undo itself."""

    def act(store: Store, site: Site) -> None:
        disk = store.object_disk("s3")
        commits = [found.commit for found in disk.entries()]
        last = max(one.revision for one in commits if one.kind.word == kind and undone_revision(one.kind) is None)
        undo(store.context, disk, last)

    return act


def cold_merge(store: Store, site: Site) -> None:
    """`merge --cold --final`, each group in several shards, whose scratch directories lie in the site. Raises the error
    of a group that failed, after the other."""
    from tests import cold
    from tiering.merge.request import ColdOptions

    plans = store.plan_merges(TABLE, MergeRequest(final=True, cold=ColdOptions()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(site.scratch))
        report = cold.cold_merge(store, plans, shard_bytes=1) if plans else None
    if report is not None:
        assert not report.not_begun
        for failure in report.failures:
            raise failure.error


def _cold_beside_scratch(store: Store, site: Site) -> None:
    _cold(store, site)
    with op("fs.mkdir", site.scratch):
        site.scratch.mkdir()


def _uploaded(site: Site, job: WriteJob, first: int) -> list[WrittenPart]:
    """What a task of Spark writes: rows of January with keys from `first` on."""
    from tiering.insert.uploaded.part_writer import write_parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(site.scratch))
        return write_parts([rows(first, months=(1,))], job, 0, 0)


def _replace_january(store: Store, site: Site) -> None:
    """A job of Spark that writes other rows into January in the place of those that are there: task and commit."""
    from tiering.engine import write_job
    from tiering.insert.uploaded.once import OnceAJob

    asked = write_job.WriteOptions(TABLE, once=OnceAJob("january"), replaces="partitions")
    _, job = write_job.begin(store.context, asked)
    if job is None:
        return
    write_job.commit(store.context, asked, job, _uploaded(site, job, 7000))
    store.refresh()


def _stream_begun(store: Store, site: Site) -> None:
    """A batch is in."""
    tables(store, site)
    with op("fs.mkdir", site.scratch):
        site.scratch.mkdir()
    _take_batch(store, site, 0)


def _take_batch(store: Store, site: Site, batch: int) -> None:
    """Batch `batch` of a stream of Spark: what its tasks upload, and its commit on the driver. Spark asks for it again
    until it has noted that it is done."""
    from tiering.engine import write_job
    from tiering.insert.uploaded.once import OnceABatch

    asked = write_job.WriteOptions(TABLE, once=OnceABatch("clicks", "query"))
    _, job = write_job.begin(store.context, asked)
    assert job is not None
    of_batch = write_job.WriteOptions(TABLE, once=OnceABatch("clicks", "query", batch))
    write_job.commit(store.context, of_batch, job, _uploaded(site, job, 7000 + 100 * batch))
    store.refresh()


def _insert_over_january(store: Store, site: Site) -> None:
    """`insert --replace-partitions` of other rows of January."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(site.scratch))
        store.table(TABLE).replace_partitions([rows(7000, months=(1,))])
    store.refresh()


def _file_aside(store: Store, site: Site) -> None:
    """The only data file of a part of the other table, copied elsewhere."""
    mixed(store, site)
    insert(store, 5000, months=(1,), table=OTHER)
    store.refresh()
    (stored,) = (one for one in store.parts(OTHER) if one.facts.rows == ROWS_A_PART and one.name.min_block > 1)
    (file,) = stored.part.files
    path = store.disk(stored.disk).local_path(f"{stored.definition.part_directory(stored.facts.name)}/{file.name}")
    assert path is not None
    write_new_file(site.root / "aside.parquet", path.read_bytes())


def _attach_file(store: Store, site: Site) -> None:
    store.table(TABLE).attach_files([site.root / "aside.parquet"])


def _repository(store: Store, site: Site) -> None:
    """January cold, February hot, and a repository without a backup."""
    from tests.crash import backing_up

    mixed(store, site)
    backing_up.init(site)


def _backed_up(store: Store, site: Site) -> None:
    _repository(store, site)
    _back_up(store, site)


def _back_up(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.back_up(store, site)


def _back_up_pinned(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.back_up(store, site, cold="pin")


def _backed_up_twice(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    _repository(store, site)
    backing_up.back_up_twice(store, site)


def _prune(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.prune(store, site)


def _damaged_backup(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    _repository(store, site)
    backing_up.damaged(store, site)


def _verify_backup(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.verify(store, site)


def _restore_backup(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.restore(store, site)


def _tree_backed_up(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.tree_backed_up(store, site)


def _restore_tree(store: Store, site: Site) -> None:
    from tests.crash import backing_up

    backing_up.restore_tree(store, site)


def _lose_local_state(store: Store, site: Site) -> None:
    mixed(store, site)
    store.disk("s3").close()
    shutil.rmtree(site.root / "state" / "disks" / "s3")


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("first_open", lambda store, site: None, _first_open, fresh=True),
        Scenario("create_table", lambda store, site: None, _create_table),
        Scenario("alter_table", mixed, _alter_table),
        Scenario("rename_table", mixed, _rename_table),
        Scenario("insert", mixed, lambda store, site: insert(store, 5000)),
        Scenario("merge", hot, lambda store, site: _merge(store), keeps_rows=True),
        Scenario("merge_cold", _cold, lambda store, site: _merge(store), keeps_rows=True),
        Scenario("cold_merge", _cold_groups, cold_merge, keeps_rows=True),
        Scenario("adopt", _foreign, lambda store, site: _adopt(store), keeps_rows=True),
        Scenario("adopt_in_order", _foreign_in_order, lambda store, site: _adopt(store), keeps_rows=True),
        Scenario("move", hot, lambda store, site: move(store, "cold"), keeps_rows=True),
        Scenario("late_rows", _late, _wait_over, keeps_rows=True),
        Scenario("move_back", _cold, lambda store, site: move(store, "hot"), keeps_rows=True),
        Scenario("spark_replace", _cold_beside_scratch, _replace_january),
        Scenario("spark_stream", _stream_begun, lambda store, site: _take_batch(store, site, 1)),
        Scenario("attach_files", _file_aside, _attach_file),
        Scenario("insert_replace", _cold_beside_scratch, _insert_over_january),
        Scenario("drop_parts", mixed, drop_january),
        Scenario("drop_all_parts", mixed, _drop_all_parts),
        Scenario("drop_table", mixed, _drop_table),
        Scenario("gc", _garbage, _collect, keeps_rows=True),
        Scenario("gc_beside_hot", _garbage_beside_hot, _collect, keeps_rows=True),
        Scenario("gc_history", _history, _collect, keeps_rows=True),
        Scenario("gc_quarantine", _history, _quarantine, keeps_rows=True),
        Scenario("restore_revision", _dropped, _undo_the_drop),
        Scenario("undo_drop", _dropped, _take_back("drop")),
        Scenario("undo_merge", _merged, _take_back("merge"), keeps_rows=True),
        Scenario("undo_alter", _altered, _take_back("alter_table")),
        Scenario("undo_rename", _renamed, _take_back("alter_table")),
        Scenario("backup_create", _repository, _back_up, keeps_rows=True),
        Scenario("backup_create_pin", _repository, _back_up_pinned, keeps_rows=True),
        Scenario("backup_verify", _damaged_backup, _verify_backup, keeps_rows=True),
        Scenario("backup_prune", _backed_up_twice, _prune, keeps_rows=True),
        Scenario("backup_restore", _backed_up, _restore_backup),
        Scenario("backup_restore_tree", _tree_backed_up, _restore_tree),
        Scenario("restore_cache", _lose_local_state, _rebuild, fresh=True, keeps_rows=True),
        Scenario("rebuild_on_open", _lose_local_state, _reopen, fresh=True, keeps_rows=True),
    )
}


def _adopt(store: Store) -> None:
    store.merge(TABLE, MergeRequest(final=True, adopt=True))


def _merge(store: Store) -> None:
    store.merge(TABLE, MergeRequest(final=True))
