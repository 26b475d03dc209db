"""`diff` and `blame`: what happened to parts and tables, in words, from logs, journal and parts themselves.

Guards I15 (what is not known is said to be unknown) and P37 (a question about one table tells of no other).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from disks.object_disk.disk import ObjectDisk
from oplog import entry, kinds, replay
from oplog.entry import Commit, Create, Remove
from oplog.errors import NotFound, UsageError
from oplog.kinds import Merged
from oplog.replay import ChangedPath, FileRow
from oplog.revision import commit_key, snapshot_key
from restore.history.blame import Blame, blame
from restore.history.diff import DiskDiff, diff
from restore.history.part_changes import compare_parts
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.crash.site import TABLE
from tests.memory_table import MemoryTable
from tests.unit.restore.history.undoing import config, create, drop_january, insert, move, take_back
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.policy.part_events import event
from tiering.table import definitions

UUID = "abcdef00-0000-4000-8000-000000000000"
HOME = f"store/abc/{UUID}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(config(tmp_path), actor="alice@here") as opened:
        yield opened


@pytest.fixture
def disk(store: Store) -> ObjectDisk:
    return store.object_disk("s3")


def told(found: Blame) -> list[tuple[str, str, str, int | None]]:
    return [(deed.part, deed.what, deed.disk, deed.revision) for deed in found.deeds]


def changes(found: DiskDiff) -> list[tuple[str, str, str]]:
    return [(part.change, part.part, part.what) for part in found.parts]


# Pure


def row(path: str, size: int = 1, sha256: str = "00" * 32) -> FileRow:
    return FileRow(path, size, sha256, "key", None, None, 1)


def test_differences_are_grouped_by_part() -> None:
    before = MemoryTable([row(f"{HOME}/p_1_1_0/data"), row(f"{HOME}/p_1_1_0/part.json"), row(f"{HOME}/table.json")])
    after = MemoryTable(
        [
            row(f"{HOME}/p_1_1_0/data"),
            row(f"{HOME}/p_1_1_0/part.json", sha256="11" * 32),
            row(f"{HOME}/p_2_2_0/data", 7),
            row(f"{HOME}/a/b/c.txt"),
            row(f"{HOME}/blocks-1.json"),
            row(f"{HOME}/table.json"),
            row("elsewhere/file"),
        ]
    )
    found = {change.directory: change for change in compare_parts(replay.diff(before, after))}
    assert set(found) == {f"{HOME}/p_1_1_0", f"{HOME}/p_2_2_0", f"{HOME}/a", HOME, ""}
    assert found[f"{HOME}/p_1_1_0"].files.changed == 1
    assert found[f"{HOME}/p_1_1_0"].before != found[f"{HOME}/p_1_1_0"].after
    assert found[f"{HOME}/p_2_2_0"].files.added_bytes == 7
    assert not found[HOME].is_part
    assert found[HOME].before is found[HOME].after is None, "table.json is the same"


def test_the_groups_stream() -> None:
    """Memory is that of one group: each is given out before the next one is read."""
    read: list[str] = []

    def differences() -> Iterator[ChangedPath]:
        for number in range(3):
            path = f"{HOME}/p_{number}_{number}_0/data"
            read.append(path)
            yield ChangedPath(path, None, row(path))

    assert next(iter(compare_parts(differences()))).name == "p_0_0_0"
    assert len(read) == 2


def commit(kind: str, *operations: Create | Remove, **details: str) -> Commit:
    """As an entry tells it."""
    read = kinds.decode(kind, details, name="x")
    return Commit(revision=9, previous="", writer="w", time=entry.now(), kind=read, operations=operations)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (commit("insert", Create(f"{HOME}/p_1_1_0/data", 1, "")), "inserted"),
        (commit("move", Create(f"{HOME}/p_1_1_0/data", 1, ""), sources='{"ssd": ["p_1_1_0"]}'), "moved in from ssd"),
        (commit("move", Create(f"{HOME}/p_1_1_0/data", 1, ""), sources='{"ssd": ["p_2_2_0"]}'), "moved in"),
        (commit("move", Remove(f"{HOME}/p_1_1_0"), moved_to="ssd"), "moved to ssd"),
        (commit("merge", Remove(f"{HOME}/p_1_1_0"), merged_into="p_1_5_1"), "merged into p_1_5_1"),
        (commit("merge", Remove(f"{HOME}/p_1_1_0")), "removed (every row was past its TTL)"),
        (commit("drop", Remove(HOME)), "dropped"),
        (commit("freeze", Create(f"{HOME}/p_1_1_0/data", 1, "")), "created (freeze)"),
        (commit("freeze", Remove(HOME)), "removed (freeze)"),
        (commit("tidy", Remove(f"{HOME}/p_1_1_0")), "removed (a merge had replaced it)"),
        (commit("restore", Remove(f"{HOME}/p_1_1_0/data"), revision="4"), "taken out (back to revision 4)"),
        (commit("undo", Create(f"{HOME}/p_1_1_0/data", 1, ""), undoes="7"), "brought back (undo of revision 7)"),
        (commit("drop", Remove(f"{HOME}/p_1_1_00")), None),
        (commit("insert", Create(f"{HOME}/p_1_1_00/data", 1, "")), None),
        (commit("alter_table", Remove(f"{HOME}/table.json"), Create(f"{HOME}/table.json", 1, "")), None),
    ],
)
def test_what_a_commit_did(made: Commit, text: str | None) -> None:
    found = event(made, f"{HOME}/p_1_1_0")
    assert (found.text if found else None) == text


def test_an_alter_that_was_taken_back_says_so() -> None:
    path = f"{HOME}/table.json"
    found = event(commit("alter_table", Remove(path), Create(path, 1, ""), undoes="7"), HOME)
    assert found is not None
    assert found.text == "rewritten (undo of revision 7)"


# Diff


def test_a_diff_in_words(store: Store, disk: ObjectDisk) -> None:
    table = create(store, "all")
    insert(store, 0)
    move(store, "s3")
    insert(store, 1000)
    move(store, "s3")
    begin = disk.revision
    store.merge(TABLE, MergeRequest(final=True))
    insert(store, 2000)
    move(store, "s3")
    store.alter_table(table, definitions.add_column(table, "extra:int64"))
    found = diff(disk, begin, disk.revision)
    assert changes(found) == [
        ("added", "202601_1_2_1", "merged from 202601_1_1_0, 202601_2_2_0"),
        ("added", "202601_3_3_0", "moved in from ssd"),
        ("removed", "202601_1_1_0", "merged into 202601_1_2_1"),
        ("removed", "202601_2_2_0", "merged into 202601_1_2_1"),
    ]
    assert [part.rows for part in found.parts] == [80, 40, 40, 40]
    assert {part.commit.revision for part in found.parts if part.commit} == {begin + 1, begin + 2}
    (altered,) = found.tables
    assert (altered.change, altered.details) == ("altered", ("column extra int64 added",))
    assert altered.commit is not None
    assert altered.commit.kind.word == "alter_table"
    assert found.files.added == 5
    assert found.files.removed == 4
    assert found.files.changed == 1
    assert found.other_files == 1
    assert diff(disk, disk.revision, disk.revision).empty


def test_inputs_on_another_disk_tell_what_they_became(store: Store, tmp_path: Path) -> None:
    """The log of their disk does not have the part that they were merged into, and says its name."""
    create(store, "all")
    for first, to in ((0, "s3"), (1000, "far")):
        insert(store, first)
        move(store, to)
    settings = config(tmp_path)
    one = PolicyConfig(volumes=(VolumeConfig(name="mixed", disks=("s3", "far")),))
    with Store.open(msgspec.structs.replace(settings, policies={"all": one}), actor="alice@here") as mixed:
        mixed.merge(TABLE, MergeRequest(final=True))
        (output,) = mixed.parts(TABLE)
        left = mixed.object_disk("far" if output.disk == "s3" else "s3")
        (commit,) = (found.commit for found in left.entries(left.revision - 1))
        assert commit.kind == Merged(merged_into=output.part.name)
        gone = "202601_1_1_0" if left.name == "s3" else "202601_2_2_0"
        words = [deed.what for deed in blame(mixed.context, TABLE, gone).deeds if deed.disk == left.name]
        assert words[-1] == f"merged into {output.part.name}"


def test_what_came_and_went_is_not_in_a_diff(store: Store, disk: ObjectDisk) -> None:
    create(store)
    begin = disk.revision
    insert(store, 0)
    take_back(store)
    assert diff(disk, begin, disk.revision).empty
    assert changes(diff(disk, begin, disk.revision - 1)) == [("added", "202601_1_1_0", "inserted")]
    assert changes(diff(disk, begin + 1, disk.revision)) == [
        ("removed", "202601_1_1_0", "taken out (undo of revision 2)")
    ]


def test_a_diff_of_one_table(store: Store, disk: ObjectDisk) -> None:
    """P37."""
    one = create(store)
    create(store, number=2, name="demo.other")
    insert(store, 0)
    insert(store, 0, table="demo.other")
    whole = diff(disk, 0, disk.revision)
    assert {part.table for part in whole.parts} == {TABLE, "demo.other"}
    assert {table.change for table in whole.tables} == {"created"}
    part = diff(disk, 0, disk.revision, scope=one.directory, paths=True)
    assert {part.table for part in part.parts} == {TABLE}
    assert {path.startswith(f"{one.directory}/") for _, path, _ in part.paths} == {True}
    assert part.files.added == len(part.paths) == 4


def test_a_diff_over_a_drop(store: Store, disk: ObjectDisk) -> None:
    create(store)
    insert(store, 0)
    begin = disk.revision
    store.drop_table(TABLE)
    found = diff(disk, begin, disk.revision)
    assert changes(found) == [("removed", "202601_1_1_0", "dropped")]
    assert [(table.table, table.change) for table in found.tables] == [(TABLE, "dropped")]
    assert found.parts[0].table == TABLE, "as it was called then"


def test_revisions_that_are_not_kept(store: Store, disk: ObjectDisk) -> None:
    create(store)
    insert(store, 0)
    insert(store, 1000)
    with pytest.raises(NotFound) as error:
        diff(disk, 1, 99)
    assert "0 to 3" in error.value.hint
    with pytest.raises(UsageError, match="later than"):
        diff(disk, 3, 1)
    disk.write_snapshot()
    disk.store.delete(
        [*(commit_key(revision) for revision in (1, 2)), *(snapshot_key(revision) for revision in (1, 2))]
    )
    with pytest.raises(NotFound) as error:
        diff(disk, 1, 3)
    assert "can be restored: 3" in error.value.hint
    assert not list((disk.state_path / "scratch").glob("*")), "I14: no leftovers"


def test_commits_that_are_no_longer_kept(store: Store, disk: ObjectDisk) -> None:
    """I15: a pinned revision can be compared although the commits in between are gone; who did it is not invented."""
    create(store)
    insert(store, 0)
    disk.write_snapshot()
    begin = disk.revision
    drop_january(store)
    insert(store, 1000)
    disk.write_snapshot()
    disk.store.delete([commit_key(revision) for revision in range(1, disk.revision)])
    found = diff(disk, begin, disk.revision)
    added, (change, part, reason) = changes(found)
    assert added == ("added", "202601_2_2_0", "inserted")
    assert (change, part) == ("removed", "202601_1_1_0")
    assert "no longer kept" in reason


# Blame


def test_the_history_of_a_part(store: Store, disk: ObjectDisk) -> None:
    create(store, "all")
    (name,) = insert(store, 0)
    move(store, "s3")
    first = disk.revision
    move(store, "far")
    left = disk.revision
    found = blame(store.context, TABLE, name)
    assert found.disk == "far"
    assert told(found) == [
        (name, "inserted", "", None),
        (name, "moved in from ssd", "s3", first),
        (name, "moved in from s3", "far", store.object_disk("far").revision),
        (name, "moved to far", "s3", left),
    ]
    assert {deed.actor for deed in found.deeds[1:]} == {"alice@here"}
    assert "requested" in found.deeds[1].reason


def test_merges_are_followed(store: Store, disk: ObjectDisk) -> None:
    create(store)
    one, two = *insert(store, 0), *insert(store, 1000)
    store.merge(TABLE, MergeRequest(final=True))
    merge = disk.revision
    found = blame(store.context, TABLE, "202601_1_2_1")
    assert found.followed == 3
    assert set(told(found)) == {
        (one, "inserted", "s3", 2),
        (two, "inserted", "s3", 3),
        (one, "merged into 202601_1_2_1", "s3", merge),
        (two, "merged into 202601_1_2_1", "s3", merge),
        ("202601_1_2_1", f"merged from {one}, {two}", "s3", merge),
    }
    gone = blame(store.context, TABLE, one)
    assert gone.disk is None
    assert gone.merged_into == "202601_1_2_1"
    assert [deed.what for deed in gone.deeds] == ["inserted", "merged into 202601_1_2_1"]


def test_what_happened_on_local_disks_is_in_the_journal(store: Store) -> None:
    create(store, "all")
    one, two = *insert(store, 0), *insert(store, 1000)
    store.merge(TABLE, MergeRequest(final=True))
    move(store, "s3")
    found = blame(store.context, TABLE, "202601_1_2_1")
    assert [(deed.part, deed.what, deed.source) for deed in found.deeds if deed.part == "202601_1_2_1"] == [
        ("202601_1_2_1", f"merged from {one}, {two}", "journal"),
        ("202601_1_2_1", "moved in from ssd", "log"),
    ]
    gone = blame(store.context, TABLE, one)
    assert [(deed.what, deed.source) for deed in gone.deeds] == [("merged into 202601_1_2_1", "journal")]


def test_drops_undos_and_restores(store: Store, disk: ObjectDisk) -> None:
    create(store)
    (name,) = insert(store, 0)
    drop_january(store)
    take_back(store)
    store.drop_table(TABLE)
    restore(disk, RebuildRequest(revision=4, apply=True))
    store.refresh()
    found = blame(store.context, TABLE, name)
    assert [deed.what for deed in found.deeds] == [
        "inserted",
        "dropped",
        "brought back (undo of revision 3)",
        "dropped",
        "brought back (back to revision 4)",
    ]
    assert found.disk == "s3"


def test_a_part_of_a_dropped_table(store: Store) -> None:
    create(store)
    (name,) = insert(store, 0)
    store.drop_table(TABLE)
    create(store, number=7)
    insert(store, 5000, months=(2,))
    found = blame(store.context, TABLE, name)
    assert [deed.what for deed in found.deeds] == ["inserted", "dropped"]
    assert found.disk is None


def test_nobody_knows_it(store: Store) -> None:
    create(store)
    insert(store, 0)
    with pytest.raises(NotFound, match="part 202601_9_9_0"):
        blame(store.context, TABLE, "202601_9_9_0")
    with pytest.raises(NotFound, match=r"No such table: no\.such"):
        blame(store.context, "no.such", "202601_1_1_0")
    with pytest.raises(UsageError):
        blame(store.context, TABLE, "junk")
    store.drop_table(TABLE)
    with pytest.raises(NotFound, match="part 202601_9_9_0"):
        blame(store.context, TABLE, "202601_9_9_0")


def test_without_the_local_state_the_log_tells_the_same(store: Store, tmp_path: Path) -> None:
    create(store)
    insert(store, 0)
    insert(store, 1000)
    store.merge(TABLE, MergeRequest(final=True))
    known = told(blame(store.context, TABLE, "202601_1_2_1"))
    store.close()
    shutil.rmtree(tmp_path / "one" / "state")
    read: list[int] = []
    with Store.open(config(tmp_path)) as fresh:
        assert told(blame(fresh.context, TABLE, "202601_1_2_1", reading=read.append)) == known


def test_a_query_at_a_revision_agrees_with_the_diff(tmp_path: Path) -> None:
    """I7: rows as they were then, with parts that were merged, moved away or dropped since."""
    from tests.unit.restore.history.undoing import volume
    from tiering.config.settings import Config, PolicyConfig

    both = config(tmp_path)
    one_bucket = Config(
        state_path=both.state_path,
        disks={name: disk for name, disk in both.disks.items() if name != "far"},
        policies={"hot_cold": PolicyConfig(volumes=(volume("hot", "ssd"), volume("cold", "s3")))},
    )
    with Store.open(one_bucket, actor="alice@here") as store:
        disk = store.object_disk("s3")
        create(store, "hot_cold")
        insert(store, 0)
        move(store, "s3")
        insert(store, 1000)
        move(store, "s3")
        store.merge(TABLE, MergeRequest(final=True))
        move(store, "ssd")
        move(store, "s3")
        drop_january(store)
        take_back(store)
        store.drop_table(TABLE)
        rows = {}
        for revision in range(1, disk.revision):
            (answer,) = store.query(f"SELECT count(*) FROM {TABLE}", revision=revision).read_all().to_pydict().values()
            rows[revision] = answer[0]
        assert rows == {1: 0, 2: 40, 3: 80, 4: 80, 5: 0, 6: 80, 7: 0, 8: 80}
        for revision in range(1, disk.revision - 1):
            found = diff(disk, revision, revision + 1)
            gained = sum(part.rows or 0 for part in found.parts if part.change == "added")
            lost = sum(part.rows or 0 for part in found.parts if part.change == "removed")
            assert rows[revision + 1] - rows[revision] == gained - lost
        with pytest.raises(NotFound):
            store.query(f"SELECT count(*) FROM {TABLE}", revision=disk.revision)
        with pytest.raises(NotFound):
            store.query(f"SELECT count(*) FROM {TABLE}", revision=99)
