"""Looks that are kept: never another answer than that of the disks, and no part is read that nobody asks for (I1)."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disks.local.disk import LocalDisk
from disks.object_disk.table_disk import TableDisk
from oplog.errors import FrostlineError
from oplog.kinds import Inserted
from tests.command_line import Frostline
from tests.crash.as_read import index_is_as_read
from tests.crash.harness import Failpoints, hooked
from tests.unit.tiering.catalog.histories import BEGIN, STEPS, TABLE, alter, cached_store, drop, insert, move
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context
from tiering.catalog.freshness import Freshness
from tiering.catalog.index import scan
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import DiskTable, PartitionTotals, encoded_sums
from tiering.catalog.stored import LazyPart, PartSource, StoredPart, described
from tiering.config.settings import Config
from tiering.engine import replication
from tiering.engine.store import Store
from tiering.facts.moves import plan_document
from tiering.merge.request import MergeRequest
from tiering.move.report import MoveReport
from tiering.policy.plan import Move
from tiering.table.part import PART_FILE
from tiering.table.schema import MoveToVolume, TtlRule

LATER = TtlRule(after_seconds=10 * 365 * 86400, column="ts", action=MoveToVolume("cold"))
"""A rule that nothing is due by is kept with the looks."""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    with cached_store(tmp_path, LATER) as config:
        yield config


@pytest.fixture
def config_of_now(tmp_path: Path) -> Iterator[Config]:
    """Of a store whose files were all written just now."""
    with cached_store(tmp_path, LATER, settled=False) as config:
        yield config


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The disks on which each file of a directory was looked at, or rows of the index were read."""
    seen: list[str] = []
    for disk in (LocalDisk, TableDisk):
        original = disk.look_over

        def look_over(self: LocalDisk | TableDisk, *arguments: object, original: object = original) -> object:
            among = arguments[3] if len(arguments) > 3 else None
            if arguments[1] == PART_FILE:
                seen.append(self.name if among is None else f"{self.name}: {', '.join(sorted(among))}")  # type: ignore[arg-type]
            return original(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(disk, "look_over", look_over)
    parts = PartIndex.parts

    def read(self: PartIndex, tables: Sequence[DiskTable], make: Any, partition: str | None = None) -> object:
        seen.append(f"rows of {partition or 'all'}")
        return parts(self, tables, make, partition)

    monkeypatch.setattr(PartIndex, "parts", read)
    return seen


def where(stored: StoredPart) -> tuple[str, str, int | None]:
    return stored.facts.name, stored.disk, stored.revision


@pytest.mark.in_turn
@pytest.mark.parametrize("files", ["config", "config_of_now"])
def test_looks_are_what_disks_say_after_each_step_of_another(request: pytest.FixtureRequest, files: str) -> None:
    """Of who opens now, of who is open all the time, and of who looked at nothing since the begin.
    Of another process."""
    config = request.getfixturevalue(files)
    with (
        Store.open(config) as acting,
        Store.open(config, freshness=Freshness.CHANGES) as other,
        Store.open(config) as late,
    ):
        for name, step in {"nothing": lambda store: None, **STEPS}.items():
            step(acting)
            other.context.catalog.refresh(Freshness.CHANGES)
            with Store.open(config, freshness=Freshness.CHANGES) as new:
                for store in (acting, other, new):
                    assert [*index_is_as_read(store)] == [], name
                assert [*map(where, new.parts())] == [*map(where, other.parts())], name
                assert len(new.plan(rest="none").moves) == len(acting.plan(rest="none").moves), name
            acting.refresh()
        late.context.catalog.refresh(Freshness.CHANGES)
        assert late.definitions() == []


def test_what_shows_no_change_is_neither_looked_into_nor_read(config: Config, looked_into: list[str]) -> None:
    with Store.open(config):
        pass
    looked_into.clear()
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert store.plan(rest="none").moves == ()
        assert store.context.catalog.sums(store.definition(TABLE))["ssd"].parts == 3  # type: ignore[index]
        assert looked_into == []
        looked_into.clear()
        assert [stored.facts.rows for stored in store.parts(TABLE, partition="202601")] == [1, 1]
        assert looked_into == ["rows of 202601"]
        assert store.tick(only="moves").moves.moved == ()
        assert "ssd" not in looked_into
        insert(store, 4)
        store.context.catalog.refresh(Freshness.CHANGES)
        assert "ssd: 202601_4_4_0" in looked_into


def test_a_plan_reads_the_partitions_of_which_something_is_due(config: Config, looked_into: list[str]) -> None:
    """And knows of the others how many they are, and when the first is due."""
    with Store.open(config):
        pass
    due = BEGIN + timedelta(days=1, seconds=LATER.after_seconds)
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        looked_into.clear()
        plan = store.plan(at=due - timedelta(seconds=1), rest="next")
        assert (plan.moves, plan.staying, plan.next_due, looked_into) == ((), 3, due, [])
        plan = store.plan(at=due + timedelta(days=5), rest="next")
        assert [move.part for move in plan.moves] == ["202601_1_1_0", "202601_2_2_0"]
        assert (plan.staying, plan.next_due) == (1, due + timedelta(days=39))
        assert plan_document(store, plan).requests == 3
        assert looked_into == ["rows of 202601"]
        for partition, count in (("202512", 0), ("202601", 2), ("202602", 1), ("202603", 0)):
            assert len(store.parts(TABLE)) == 3  # all are read by now
            assert len(store.parts(TABLE, partition=partition)) == count


def test_a_query_reads_the_partitions_that_may_hold_its_rows(config: Config, looked_into: list[str]) -> None:
    questions = {
        "ts < '2026-01-03'": (["rows of 202601"], 1),
        "ts >= '2026-02-01' AND k > 0": (["rows of 202602"], 1),
        "ts > '2027-01-01'": ([], 0),
        "k = 2": (["rows of all"], 1),
        "ts < '2026-01-03' OR k = 40": (["rows of all"], 2),
    }
    for condition, (read, count) in questions.items():
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            looked_into.clear()
            result = store.query(f"SELECT k FROM {TABLE} WHERE {condition}")
            assert len(result.read_all()) == count, condition
            assert (looked_into, result.parts_read + result.parts_pruned) == (read, 3), condition


@pytest.mark.in_turn
def test_a_query_of_the_past_reads_what_changed_and_is_asked(config: Config, looked_into: list[str]) -> None:
    """The look that is kept is one at the bucket of now. What is read of the past is not kept in its place."""
    with Store.open(config) as store:
        insert(store, 100)
        for partition in ("202601", "202602", "202604"):
            move_partition(store, partition)
        before = store.object_disk("s3").revision
        drop(store)
        insert(store, 3)
        insert(store, 70)
        for partition in ("202601", "202603"):
            move_partition(store, partition)
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        now = [where(stored) for stored in store.parts(TABLE)]
    changed = {"202601_5_5_0", "202602_3_3_0", "202603_6_6_0"}
    for condition, read, found in (
        ("ts < '2026-02-01'", set(), [1, 2]),
        ("ts >= '2026-04-01'", {"rows of 202604"}, [100]),
        ("ts >= '2026-03-01' AND ts < '2026-04-01'", set(), []),
        ("k > 0", {"rows of all"}, [1, 2, 40, 100]),
    ):
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            looked_into.clear()
            result = store.query(f"SELECT k FROM {TABLE} WHERE {condition} ORDER BY k", revision=before)
            assert result.read_all().column("k").to_pylist() == found
            looked = [what.removeprefix("s3: ").split(", ") for what in looked_into if what.startswith("s3")]
            assert len(looked) == 1
            assert set(looked[0]) == changed, condition
            rows = {what for what in looked_into if what.startswith("rows of")}
            assert rows == {f"rows of {name}" for name in ("202601", "202602", "202603")} | read, condition
            assert [where(stored) for stored in store.parts(TABLE)] == now


def test_a_look_overtaken_by_commits_is_of_the_state_before(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be taken for what the bucket held at that revision by who asks for the revision later."""
    with Store.open(config) as store:
        for partition in ("202601", "202602"):
            move_partition(store, partition)
    with Store.open(config):
        pass
    with Store.open(config) as acting, Store.open(config, freshness=Freshness.CHANGES) as looking:
        acting.context.catalog = Catalog(config, acting.context.disks)  # it keeps nothing of what it sees
        move_partition(acting, "202602", "hot")
        move_partition(acting, "202602")
        asked = acting.object_disk("s3").revision
        look_over, overtaken = TableDisk.look_over, []

        def overtaking(self: TableDisk, *arguments: Any) -> object:
            if self is looking.disk("s3") and arguments[1] == PART_FILE and not overtaken:
                overtaken.append(arguments)
                move_partition(acting, "202602", "hot")
            return look_over(self, *arguments)

        monkeypatch.setattr(TableDisk, "look_over", overtaking)
        target = scan.ScanTarget(looking.disk("s3"), looking.definition(TABLE), config.policy("hot_cold"))
        table = scan.scan(looking.context.catalog.index, target, every_file=False)
        assert len(overtaken[0]) == 4  # the names that were touched, and no others
        assert table.parts == 3
        answer = looking.query(f"SELECT k FROM {TABLE} ORDER BY k", revision=asked).read_all()
        assert answer.column("k").to_pylist() == [1, 2, 40]


@pytest.mark.parametrize("freshness", [Freshness.EVERY_FILE, Freshness.CHANGES])
def test_a_part_that_moves_between_two_looks_is_seen(
    config: Config, freshness: Freshness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a disk that was not looked at yet to one that was: it would be seen on neither, and its rows be missing."""
    with Store.open(config) as acting, Store.open(config) as looking:
        move_partition(acting, "202602")
        look_over, moved = TableDisk.look_over, []

        def moving(self: TableDisk, *arguments: Any) -> object:
            if self is looking.disk("s3") and arguments[1] == PART_FILE and not moved:
                moved.append(arguments)
                move_partition(acting, "202602", "hot")
            return look_over(self, *arguments)

        monkeypatch.setattr(TableDisk, "look_over", moving)
        looking.context.catalog.refresh(freshness)
        assert moved
        assert {where(stored)[:2] for stored in looking.parts()} == {
            (name, "ssd") for name in ("202601_1_1_0", "202601_2_2_0", "202602_3_3_0")
        }
        assert len(looking.query(f"SELECT k FROM {TABLE}").read_all()) == 3


@pytest.mark.parametrize("partition", [None, "202601"])
def test_a_kept_row_that_is_lost_leaves_no_part_out(config: Config, partition: str | None) -> None:
    """As a bit that flips in the number of a page's cells loses it: the rows that are left have their checksums."""
    with Store.open(config):
        pass
    with closing(sqlite3.connect(config.state_directory / "catalog.db")) as kept, kept:
        assert kept.execute("DELETE FROM parts WHERE name = '202601_1_1_0'").rowcount == 1
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert len(store.parts(TABLE, partition=partition)) == (3 if partition is None else 2)
        assert len(store.query(f"SELECT k FROM {TABLE} WHERE k > 0").read_all()) == 3
        assert [*index_is_as_read(store)] == []


def move_partition(store: Store, partition: str, volume: str = "cold") -> None:
    assert store.apply(store.plan_manual_move(TABLE, partition=partition, to_volume=volume)).failed == ()


def test_a_query_of_the_past_looks_only_into_its_partitions(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into those that may hold its rows."""
    with Store.open(config) as store:
        for partition in ("202601", "202602"):
            store.apply(store.plan_manual_move(TABLE, partition=partition, to_volume="cold"))
        revision = store.object_disk("s3").revision
        drop(store)
        read, seen = PartSource.read, set()

        def noted(self: PartSource, path: str, *arguments: object) -> object:
            seen.add(path.split("/")[-2])
            return read(self, path, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(PartSource, "read", noted)
        for condition, keys, names in (
            ("ts < '2026-02-01'", [1, 2], {"202601_1_1_0", "202601_2_2_0"}),
            ("ts > '2026-02-01'", [40], {"202602_3_3_0"}),
            ("k = 40", [40], {"202601_1_1_0", "202601_2_2_0", "202602_3_3_0"}),
        ):
            seen.clear()
            found = store.query(f"SELECT k FROM {TABLE} WHERE {condition} ORDER BY k", revision=revision).read_all()
            assert (found.column("k").to_pylist(), seen) == (keys, names)


def test_parts_that_a_query_looks_into_do_not_hold_what_they_say(config: Config) -> None:
    """Of many that no partition leaves out, and the statistics of each do; and of those that are read."""
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        for condition, count in (("k = 2", 1), ("k > 0", 3), ("k < 0", 0)):
            assert len(store.query(f"SELECT k FROM {TABLE} WHERE {condition}").read_all()) == count
        parts = [stored.described for stored in store.parts(TABLE)]
        assert [isinstance(one, LazyPart) and one.is_read for one in parts] == [False] * 3
        assert store.parts(TABLE)[0].part.rows == 1
        assert [stored.facts.name for stored, part in described(store.parts(TABLE)) if part.rows == 1] == [
            one.facts.name for one in parts
        ]


def test_a_query_goes_by_one_look(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by one for some partitions and by a later one for others, where another process commits to both meanwhile."""
    with Store.open(config) as acting:
        insert(acting, 70)
        with Store.open(config):
            pass
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            parts, asked, begun = PartIndex.parts, list[str | None](), list[str | None]()

            def read(self: PartIndex, tables: Sequence[DiskTable], make: Any, partition: str | None = None) -> object:
                if self is store.context.catalog.index:
                    asked.append(partition)
                if asked[1:] == ["202602"] and not begun:
                    begun.append(partition)
                    insert(acting, 3)
                    insert(acting, 41)
                    with Store.open(config):
                        pass
                return parts(self, tables, make, partition)

            monkeypatch.setattr(PartIndex, "parts", read)
            rows = store.query(f"SELECT k FROM {TABLE} WHERE ts < '2026-03-01' ORDER BY k").read_all()
            assert asked[:2] == ["202601", "202602"]
            assert rows.column("k").to_pylist() in ([1, 2, 40], [1, 2, 3, 40, 41])


def test_of_what_was_committed_only_that_is_looked_at(config_of_now: Config, looked_into: list[str]) -> None:
    """By an insert, a merge, a drop, and while somebody reads what they took away."""
    with Store.open(config_of_now) as acting, Store.open(config_of_now, freshness=Freshness.CHANGES) as other:
        of_now(other)
        for step in (lambda store: insert(store, 3), lambda store: insert(store, 41), merge, drop):
            with acting.disk("ssd").read_lease():
                before = {stored.facts.name for stored in acting.parts(TABLE)}
                step(acting)
                looked_into.clear()
                other.context.catalog.refresh(Freshness.CHANGES, disks=())
                looks = {found for found in looked_into if found.startswith(("ssd", "rows of all"))}
                sums = other.context.catalog.sums(other.definition(TABLE))
            acting.refresh()
            after = {stored.facts.name for stored in acting.parts(TABLE)}
            assert looks <= {f"ssd: {', '.join(sorted(before ^ after))}"}
            assert sums is not None
            assert sums["ssd"].parts == len(after)
            assert [*index_is_as_read(other)] == []


def merge(store: Store) -> None:
    store.merge(TABLE, MergeRequest(partition="202601", final=True))


def of_now(store: Store) -> None:
    """It goes by a kept look from now on."""
    store.context.catalog.refresh(Freshness.CHANGES, disks=())
    assert store.context.catalog.sums(store.definition(TABLE)) is not None


def test_many_that_insert_side_by_side_each_look_at_what_is_new(config_of_now: Config, looked_into: list[str]) -> None:
    with Store.open(config_of_now) as one, Store.open(config_of_now, freshness=Freshness.CHANGES) as other:
        of_now(one)
        of_now(other)
        looked_into.clear()
        for day in range(3, 9):
            insert(one, day)
            insert(other, day + 40)
            insert(one, day + 40)  # the same rows
        assert {found for found in looked_into if found in ("ssd", "rows of all")} == set()
        for store in (one, other):
            store.context.catalog.refresh(Freshness.CHANGES, disks=())
            assert [*index_is_as_read(store)] == []
            assert sum(stored.facts.rows for stored in store.parts(TABLE)) == 3 + 12


def test_an_insert_reads_only_its_partition(config_of_now: Config, looked_into: list[str]) -> None:
    with Store.open(config_of_now, freshness=Freshness.CHANGES) as store:
        of_now(store)
        looked_into.clear()
        insert(store, 3)
        assert {found for found in looked_into if "s3" not in found} == {"rows of 202601"}


def test_a_part_that_comes_to_a_second_disk_is_a_duplicate(config_of_now: Config) -> None:
    """Where all parts were known to be active before."""
    with Store.open(config_of_now) as store, Store.open(config_of_now, freshness=Freshness.CHANGES) as other:
        disk, stored = store.disk("ssd"), store.parts(TABLE)[0]
        files = {info.path: disk.read(info.path) for info in disk.walk(stored.directory)}
        move(store, "cold")
        of_now(other)
        with disk.transaction(Inserted()) as transaction:
            for path, data in files.items():
                transaction.create(path, data)
            transaction.commit()
        other.context.catalog.refresh(Freshness.CHANGES, disks=())
        assert [*index_is_as_read(other)] == []
        assert other.context.catalog.has_inactive(other.definition(TABLE))


def test_a_hand_between_two_commits_is_seen(config_of_now: Config, tmp_path: Path) -> None:
    """However soon it is after the one, and before the other."""
    with Store.open(config_of_now) as store, Store.open(config_of_now, freshness=Freshness.CHANGES) as other:
        of_now(other)
        directory = tmp_path / "ssd" / store.parts(TABLE)[0].directory
        for begin, end in ((directory, tmp_path / "aside"), (tmp_path / "aside", directory)):
            insert(store, 5 if end != directory else 6)
            begin.rename(end)
            insert(store, 7 if end != directory else 8)
            other.context.catalog.refresh(Freshness.CHANGES, disks=())
            assert [*index_is_as_read(other)] == []


@pytest.mark.in_turn
def test_a_commit_that_died_is_seen(config_of_now: Config) -> None:
    """Wherever it is killed: before its line, or after. Each follows one that said all it did."""
    with Store.open(config_of_now) as store, Store.open(config_of_now, freshness=Freshness.CHANGES) as other:
        of_now(other)
        for at in itertools.count(1):
            insert(store, 100 + at)
            other.context.catalog.refresh(Freshness.CHANGES)
            failpoints = Failpoints("raise_before", at)
            with hooked(failpoints), suppress(FrostlineError, OSError):
                insert(store, 200 + at)
            other.context.catalog.refresh(Freshness.CHANGES)
            assert [*index_is_as_read(other)] == [], at
            if not failpoints.struck:
                break


def test_a_pass_looks_at_each_part_before_it_moves_one(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(config) as store:
        alter(store)
    with Store.open(config):
        pass
    looked: list[bool] = []
    moved = replication.moved

    def moving(context: Context, moves: Sequence[Move]) -> MoveReport:
        looked.append(context.catalog.freshness is Freshness.EVERY_FILE)
        return moved(context, moves)

    monkeypatch.setattr(replication, "moved", moving)
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert store.context.catalog.freshness is not Freshness.EVERY_FILE
        assert len(store.tick(only="moves").moves.moved) == 3
        assert looked == [True]
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert [*index_is_as_read(store)] == []
        assert store.plan(rest="none").moves == ()


def test_a_hand_that_takes_a_part_away_or_brings_one_is_seen(config: Config, tmp_path: Path) -> None:
    with Store.open(config) as store:
        directory = tmp_path / "ssd" / store.parts(TABLE)[0].directory
    for begin, end in ((directory, tmp_path / "aside"), (tmp_path / "aside", directory)):
        begin.rename(end)
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            assert [*index_is_as_read(store)] == []
            assert len(store.parts(TABLE)) == (2 if end != directory else 3)


def test_a_copy_of_the_disk_in_its_place_is_looked_into(config: Config, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "ssd", tmp_path / "copy", symlinks=True)
    with Store.open(config) as store:
        drop(store)
    with Store.open(config):
        pass
    shutil.rmtree(tmp_path / "ssd")
    (tmp_path / "copy").rename(tmp_path / "ssd")
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert [*index_is_as_read(store)] == []


def test_a_look_that_another_has_replaced_is_made_anew(config: Config) -> None:
    with Store.open(config, freshness=Freshness.CHANGES) as early:
        with Store.open(config) as store:
            insert(store, 3)
        with Store.open(config):
            pass
        assert len(early.parts(TABLE, partition="202601")) == 3
        assert len(early.parts(TABLE)) == 4


def test_removed_files_that_readers_hold_are_not_shown(config: Config) -> None:
    with Store.open(config) as store:
        with store.disk("ssd").read_lease():
            drop(store)
            with Store.open(config, freshness=Freshness.CHANGES) as other:
                assert [*index_is_as_read(other)] == []
                assert len(other.parts(TABLE)) == 2
        with Store.open(config, freshness=Freshness.CHANGES) as other:
            assert [*index_is_as_read(other)] == []
            assert len(other.parts(TABLE)) == 2


@pytest.mark.in_turn
@pytest.mark.parametrize("table", ["disk_tables", "sums"])
def test_no_flipped_bit_of_a_sum_is_believed(config: Config, table: str) -> None:
    file = config.state_directory / "catalog.db"
    for bit in range(0, 8 * 40, 61):
        with closing(sqlite3.connect(file)) as connection, connection:
            rows = connection.execute(f"SELECT crc32, data FROM {table}").fetchall()
            assert rows
            for crc32, value in rows:
                data = bytearray(value)
                data[bit // 8 % len(data)] ^= 1 << bit % 7
                connection.execute(f"UPDATE {table} SET data = ? WHERE crc32 = ?", (bytes(data), crc32))
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            assert [*index_is_as_read(store)] == []
        file.unlink(missing_ok=True)
        with Store.open(config):
            pass


@pytest.mark.in_turn
@pytest.mark.parametrize("what", ["sums", "values", "a part too few"])
def test_fsck_names_the_table_of_which_something_else_is_kept(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    frostline = Frostline(capsys)
    assert frostline.json("fsck")["problems"] == []
    kept = config.state_directory / "catalog.db"
    with closing(sqlite3.connect(kept)) as connection, connection:
        if what != "a part too few":
            table, data = connection.execute("SELECT disk_table, data FROM sums WHERE partition = '202601'").fetchone()
            totals = msgspec.json.decode(data, type=PartitionTotals)
            other = {"rows": totals.rows + 1} if what == "sums" else {"values": (1,)}
            row = (*encoded_sums(table, "202601", msgspec.structs.replace(totals, **other)), table)
            connection.execute("UPDATE sums SET data = ?, crc32 = ? WHERE partition = '202601' AND disk_table = ?", row)
        else:
            connection.execute("DELETE FROM parts WHERE name = (SELECT min(name) FROM parts)")
    problems = frostline.json("fsck", code=4)["problems"]
    assert [problem["disk"] for problem in problems] == ["ssd"]
    assert "keeps other parts or sums" in problems[0]["what"]
    assert frostline.json("fsck", "--repair")["problems"] == []
    assert not kept.exists()
    assert frostline.json("status")["rows"] == 3


def test_after_work_the_next_question_reads_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was done meanwhile, by another thread, counts."""
    with Store.open(config) as store:
        catalog, reads = store.context.catalog, 0
        original = Catalog._read

        def read(self: Catalog, *, every_file: bool) -> None:
            nonlocal reads
            original(self, every_file=every_file)
            reads += 1
            if reads == 1:
                self.refresh_later()

        monkeypatch.setattr(Catalog, "_read", read)
        catalog.refresh_later()
        assert [(len(catalog.tables()), reads) for _ in range(4)] == [(1, 1), (1, 2), (1, 2), (1, 2)]
        catalog.refresh_later()
        assert (len(catalog.parts(store.definition(TABLE))) > 0, reads) == (True, 3)
