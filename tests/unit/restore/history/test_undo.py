"""Undo: every kind of commit, reversed or refused, so that no row is lost or doubled.

Guards I1 (a part on exactly one disk), I2 (all or nothing), I6, I7 (the past stays as it was), P37, P39 and P42.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from disks.object_disk.disk import ObjectDisk
from oplog.errors import Locked
from oplog.kinds import BlocksAllocated, Dropped, OtherKind, Repaired, Undone
from restore.history.undo import preview, undo
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.crash.site import TABLE
from tests.unit.restore.history.undoing import (
    config,
    create,
    drop_january,
    insert,
    keys,
    move,
    parts,
    refused,
    take_back,
    volume,
)
from tests.unit.restore.history.undoing import disk as disk
from tests.unit.restore.history.undoing import store as store
from tiering.catalog.context import Context
from tiering.config.settings import Config, PolicyConfig
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table import definitions


def at_head(store: Store) -> tuple[Context, ObjectDisk, int]:
    """The newest revision, for `preview`."""
    disk = store.object_disk("s3")
    return store.context, disk, disk.revision


class TestInsert:
    def test_its_rows_go_and_come_back(self, store: Store) -> None:
        create(store)
        insert(store, 0)
        kept = keys(store)
        (added,) = insert(store, 1000)
        both = keys(store)
        undone = take_back(store)
        assert keys(store) == kept
        commit = next(iter(store.object_disk("s3").entries(undone - 1))).commit
        assert isinstance(commit.kind, Undone)
        assert commit.actor == "alice@here"
        assert commit.kind.undoes == undone - 1
        take_back(store, undone)
        assert keys(store) == both
        assert added in parts(store)

    def test_twice_says_so(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        revision = disk.revision
        done = take_back(store)
        planned, nothing = undo(store.context, disk, revision)
        assert nothing is None
        assert planned.done.startswith(f"Revision {revision} of disk s3 is undone")
        assert planned.done.endswith(f"by revision {done}.")
        assert disk.revision == done
        take_back(store, done)
        again = take_back(store, revision)
        assert keys(store) == []
        assert f"by revision {again}" in undo(store.context, disk, revision)[0].done

    def test_of_a_part_that_was_merged_since(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        revision = disk.revision
        insert(store, 1000)
        store.merge(TABLE, MergeRequest(final=True))
        refused(store, revision, "merged into 202601_1_2_1", f"by revision {disk.revision}")
        take_back(store)  # the merge
        take_back(store, revision)
        assert keys(store) == list(range(1000, 1040))

    def test_of_a_part_that_was_moved_away_since(self, store: Store, disk: ObjectDisk) -> None:
        create(store, "all")
        insert(store, 0)
        move(store, "s3")
        arrived = disk.revision
        move(store, "ssd")
        refused(store, arrived, "moved to ssd since")
        assert keys(store) == list(range(40))

    def test_redo_of_rows_that_were_inserted_again(self, store: Store) -> None:
        create(store)
        insert(store, 0)
        undone = take_back(store)
        insert(store, 0)
        refused(store, undone, "were inserted again since", "202601_2_2_0")
        assert keys(store) == list(range(40))

    def test_a_part_in_use_here(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        (name,) = insert(store, 0)
        uuid = store.definition(TABLE).uuid
        with store.context.journal.claim(uuid, [name], "move"), pytest.raises(Locked):
            undo(store.context, disk, disk.revision)
        take_back(store)


class TestMerge:
    def test_the_inputs_come_back(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        before = [*insert(store, 0), *insert(store, 1000)]
        rows_before = keys(store)
        store.merge(TABLE, MergeRequest(final=True))
        merge = disk.revision
        planned = preview(store.context, disk, merge)
        assert [note.part for note in planned.parts_removed] == ["202601_1_2_1"]
        assert sorted(note.part for note in planned.parts_back) == before
        assert sum(note.rows for note in planned.parts_back) == 80
        take_back(store, merge)
        assert parts(store) == dict.fromkeys(before, "s3")
        assert keys(store) == rows_before
        take_back(store)
        assert parts(store) == {"202601_1_2_1": "s3"}
        assert keys(store) == rows_before

    def test_of_inputs_that_lay_on_another_disk(self, store: Store, disk: ObjectDisk) -> None:
        """I1: the input on the SSD is gone; its rows are in the merged part alone."""
        create(store, "all")
        insert(store, 0)
        move(store, "s3")
        insert(store, 1000)
        first, second = (stored.part.name for stored in store.parts(TABLE))
        context = store.context
        # a merge over two volumes, as a policy of one volume with both disks would do it
        one = PolicyConfig(volumes=(volume("mixed", "s3", "ssd"),))
        mixed = Config(state_path=context.config.state_path, disks=context.config.disks, policies={"all": one})
        with Store.open(mixed) as other:
            other.merge(TABLE, MergeRequest(final=True))
            (merged,) = parts(other)
            on = parts(other)[merged]
        store.refresh()
        revision = disk.revision
        if on == "s3":
            refused(store, revision, "was merged from parts that would not all come back", second)
        else:
            refused(store, revision, f"{first} of {TABLE} are in part {merged} on disk ssd")
        assert keys(store) == [*range(40), *range(1000, 1040)]

    def test_of_a_part_that_was_merged_again(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        insert(store, 1000)
        store.merge(TABLE, MergeRequest(final=True))
        merge = disk.revision
        insert(store, 2000)
        store.merge(TABLE, MergeRequest(final=True))
        refused(store, merge, "merged into 202601_1_3_2")

    def test_of_a_partition_that_was_dropped_since(self, store: Store, disk: ObjectDisk) -> None:
        """P42: what was dropped does not come back through an older commit."""
        create(store)
        insert(store, 0)
        insert(store, 1000)
        store.merge(TABLE, MergeRequest(final=True))
        merge = disk.revision
        drop_january(store)
        refused(store, merge, "dropped since")
        assert keys(store) == []


class TestMove:
    def test_in_would_leave_the_part_on_no_disk(self, store: Store, disk: ObjectDisk) -> None:
        create(store, "all")
        insert(store, 0)
        move(store, "s3")
        hint = refused(store, disk.revision, "it would be nowhere")
        assert "--to-disk ssd" in hint

    def test_in_that_kept_its_source(self, store: Store) -> None:
        create(store, "all")
        (name,) = insert(store, 0)
        move(store, "s3", keep=True)
        take_back(store)
        assert parts(store) == {name: "ssd"}
        assert keys(store) == list(range(40))

    def test_out_would_make_two_copies(self, store: Store, disk: ObjectDisk) -> None:
        create(store, "all")
        insert(store, 0)
        move(store, "s3")
        move(store, "far")
        refused(store, disk.revision, "are on far since")
        assert keys(store) == list(range(40))

    def test_out_of_a_part_that_is_gone(self, store: Store, disk: ObjectDisk) -> None:
        """P42: the log of this disk does not know that the part was dropped on another one."""
        create(store, "all")
        insert(store, 0)
        move(store, "s3")
        move(store, "ssd")
        revision = disk.revision
        drop_january(store)
        refused(store, revision, "are on ssd since")


class TestDrop:
    def test_parts_come_back(self, store: Store) -> None:
        create(store)
        insert(store, 0, months=(1, 2))
        everything, placed = keys(store), parts(store)
        drop_january(store)
        assert keys(store) != everything
        take_back(store)
        assert keys(store) == everything
        assert parts(store) == placed

    def test_only_what_lay_here_comes_back(self, store: Store, disk: ObjectDisk) -> None:
        create(store, "hot_cold")
        insert(store, 0)
        move(store, "s3")
        insert(store, 1000)
        drop_january(store)
        planned = preview(store.context, disk, disk.revision)
        assert any("not what was on other disks" in note for note in planned.notes)
        take_back(store)
        assert keys(store) == list(range(40))

    def test_a_ttl_rule_would_drop_them_again(self, store: Store, disk: ObjectDisk) -> None:
        table = create(store)
        insert(store, 0)
        store.alter_table(table, definitions.set_ttl(table, ["1d on ts delete"]))
        store.context.journal.confirm_time(store.context.clock())  # no store here has a clock to compare
        assert store.tick(only="moves").deleted
        (commit,) = (entry.commit for entry in disk.entries(disk.revision - 1))
        assert commit.kind == Dropped(by_ttl=True)
        assert any("TTL rule that dropped it" in note for note in preview(*at_head(store)).notes)
        take_back(store)
        drop_january(store)
        assert not any("TTL" in note for note in preview(*at_head(store)).notes), "somebody dropped these"

    def test_a_table_comes_back(self, store: Store, disk: ObjectDisk, tmp_path: Path) -> None:
        create(store, "hot_cold")
        insert(store, 0)
        move(store, "s3")
        everything = keys(store)
        store.drop_table(TABLE)
        dropped = disk.revision
        assert preview(store.context, disk, dropped).tables_back == [TABLE]
        take_back(store)
        assert keys(store) == everything
        store.close()
        with Store.open(config(tmp_path)) as again:
            assert keys(again) == everything
            (new,) = insert(again, 5000)
            assert new.split("_")[1] != "1", "block numbers go on, although the journal forgot the table"
            assert keys(again) == [*everything, *range(5000, 5040)]

    def test_a_table_whose_name_is_taken(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        store.drop_table(TABLE)
        revision = disk.revision
        create(store, number=7)
        refused(store, revision, "another one has that name now")
        store.drop_table(TABLE)
        take_back(store, revision)
        assert keys(store) == list(range(40))

    def test_parts_of_a_table_that_was_dropped_later(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0, months=(1, 2))
        drop_january(store)
        parts_gone = disk.revision
        store.drop_table(TABLE)
        refused(store, parts_gone, "dropped since")
        take_back(store)
        take_back(store, parts_gone)
        assert len(keys(store)) == 80

    def test_redo_of_a_dropped_table(self, store: Store, disk: ObjectDisk) -> None:
        """The table lies on other disks again: what they have is hidden, and rows that came since speak against it."""
        create(store, "hot_cold")
        insert(store, 0)
        move(store, "s3")
        everything = keys(store)
        store.drop_table(TABLE)
        back = take_back(store)
        gone = take_back(store, back)
        assert store.definitions() == []
        again = take_back(store, gone)
        assert keys(store) == everything
        insert(store, 1000)
        assert any("ssd has of" in note for note in preview(store.context, disk, again).notes)
        move(store, "s3")
        hint = refused(store, again, "has parts that it did not bring")
        assert "table drop" in hint


class TestTables:
    def test_create(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        assert "table drop" in refused(store, disk.revision, "brought the definition")

    def test_alter_goes_the_way_of_an_alter(self, store: Store, disk: ObjectDisk) -> None:
        """Every disk has a table.json and the highest version counts: putting back the old bytes would do nothing."""
        old = create(store, "hot_cold")
        insert(store, 0)
        wider = store.alter_table(old, definitions.add_column(old, "extra:int64", default="7"))
        altered = disk.revision
        planned = preview(store.context, disk, altered)
        assert planned.alter is not None
        done = take_back(store)
        now = store.definition(TABLE)
        assert now.columns == old.columns
        assert now.version == wider.version + 1
        assert now.last_column_id == wider.last_column_id, "an id is never given out twice"
        assert store.context.catalog.disks_lacking_definition(now) == []
        assert "as it was before" in undo(store.context, disk, altered)[0].done
        take_back(store, done)
        assert store.definition(TABLE).columns == wider.columns
        assert set(store.table(TABLE).scan(columns=["extra"]).read_all()["extra"].to_pylist()) == {7}

    def test_a_dropped_column_shows_its_values_again(self, store: Store) -> None:
        old = create(store)
        insert(store, 0)
        store.alter_table(old, definitions.drop_column(old, "text"))
        take_back(store)
        assert store.table(TABLE).scan(columns=["text"]).read_all()["text"].to_pylist()[0].startswith("text 0")

    def test_alter_that_was_altered_again(self, store: Store, disk: ObjectDisk) -> None:
        old = create(store)
        new = store.alter_table(old, definitions.add_column(old, "extra:int64"))
        revision = disk.revision
        store.alter_table(new, definitions.set_ttl(new, ["9y on ts delete"]))
        refused(store, revision, "altered again since")

    def test_widening(self, store: Store, disk: ObjectDisk) -> None:
        old = create(store)
        new = store.alter_table(old, definitions.add_column(old, "small:int32"))
        store.alter_table(new, definitions.widen_column(new, "small:int64"))
        refused(store, disk.revision, "widened")

    def test_policy_that_would_strand_parts(self, store: Store, disk: ObjectDisk) -> None:
        old = create(store, "hot_cold")
        store.alter_table(old, definitions.set_policy(old, "all"))
        revision = disk.revision
        insert(store, 0)
        move(store, "far")
        refused(store, revision, "does not include the disk far")
        move(store, "ssd")
        take_back(store, revision)
        assert store.definition(TABLE).policy == "hot_cold"

    def test_block_ranges(self, store: Store, disk: ObjectDisk, tmp_path: Path) -> None:
        """P39: numbers that were given out stay given out."""
        create(store)
        with Store.open(config(tmp_path, "two"), actor="bob@there") as other:
            insert(other, 0)
        store.refresh()
        allocated = next(item.commit for item in disk.entries() if isinstance(item.commit.kind, BlocksAllocated))
        refused(store, allocated.revision, "gave block numbers")


def test_a_kind_that_is_not_known(store: Store, disk: ObjectDisk) -> None:
    """I15: what a later version meant by it nobody here can tell. Later commits can be undone, it cannot."""
    create(store)
    with disk.transaction(OtherKind("thawed", {"depth": "3"}), reason="from later") as transaction:
        transaction.create("shadow/x", b"x")
        transaction.commit()
    later = disk.revision
    insert(store, 0)
    assert refused(store, later, "of the kind thawed") == "upgrade frostline"
    take_back(store)
    assert keys(store) == []
    assert disk.read("shadow/x") == b"x"


class TestRestore:
    def test_an_undo_of_a_restore(self, store: Store, disk: ObjectDisk) -> None:
        create(store)
        insert(store, 0)
        early = disk.revision
        insert(store, 1000)
        both = keys(store)
        restore(disk, RebuildRequest(revision=early, apply=True))
        store.refresh()
        assert keys(store) == list(range(40))
        take_back(store)
        assert keys(store) == both

    def test_a_restore_after_it(self, store: Store, disk: ObjectDisk) -> None:
        """I7: an undo is a commit like any other; every revision around it can be restored."""
        create(store)
        insert(store, 0)
        insert(store, 1000)
        first = disk.revision
        undone = take_back(store)
        restore(disk, RebuildRequest(revision=first, apply=True))
        store.refresh()
        assert len(keys(store)) == 80
        restore(disk, RebuildRequest(revision=undone, apply=True))
        store.refresh()
        assert len(keys(store)) == 40


def test_files_outside_of_tables(store: Store, disk: ObjectDisk) -> None:
    """Links, renames and removes of a library user's own files."""

    def step(kind: str, *arguments: str) -> int:
        with disk.transaction(Repaired()) as transaction:
            if kind == "create":
                transaction.create(arguments[0], arguments[0].encode())
            else:
                getattr(transaction, kind)(*arguments)
            return transaction.commit() or 0

    def tree() -> set[str]:
        return {info.path for info in disk.walk()}

    step("create", "d/one")
    step("create", "d/two")
    link = step("link", "d/one", "e/three")
    rename = step("rename", "d", "f")
    assert tree() == {"f/one", "f/two", "e/three"}
    refusing = preview(store.context, disk, 1)
    assert refusing.objections
    take_back(store, rename)
    assert tree() == {"d/one", "d/two", "e/three"}
    assert disk.read("d/two") == b"d/two"
    take_back(store, link)
    assert tree() == {"d/one", "d/two"}
    take_back(store)
    assert tree() == {"d/one", "d/two", "e/three"}
    removed = step("remove", "d")
    take_back(store, removed)
    assert tree() == {"d/one", "d/two", "e/three"}
