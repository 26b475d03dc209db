"""Two machines with SSDs of their own and one bucket: no part is taken for another, no row is lost (I1, I2, P40)."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from oplog.errors import AlreadyExists, Conflict, DiskUnreachable, Refused
from oplog.kinds import OtherKind
from restore.check.check import check
from restore.rebuild.request import RebuildRequest
from tests.command_line import Frostline
from tests.integration.two_machines import insert, keys, machine, move_all
from tiering.catalog import blocks
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import add_column, define_table


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Config, Config]:
    first, second = machine(tmp_path, "a"), machine(tmp_path, "b")
    with Store.open(first) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
    return first, second


def test_names_of_two_machines_never_meet(configs: tuple[Config, Config]) -> None:
    with Store.open(configs[0]) as a, Store.open(configs[1]) as b:
        for number in range(3):
            insert(a, number)
            insert(b, 100 + number)
        assert not {part.part.name for part in a.parts()} & {part.part.name for part in b.parts()}
        move_all(a)
        move_all(b)
        assert keys(a) == keys(b) == [0, 1, 2, 100, 101, 102]


def test_a_merge_never_covers_a_part_on_the_other_machine(configs: tuple[Config, Config]) -> None:
    with Store.open(configs[0]) as a, Store.open(configs[1]) as b:
        insert(a, 1)
        insert(b, 10)
        insert(b, 11)
        insert(b, 12)
        names = sorted(part.part.name for part in b.parts() if part.disk == "ssd")
        for name in (names[0], names[2]):  # the one between them stays on b's SSD
            b.apply(b.plan_manual_move("d.t", part=name, to_disk="s3"))
        a.refresh()
        for part in [part.part.name for part in a.parts() if part.disk == "s3"]:
            with pytest.raises(Refused, match=f"another machine inserted {part}"):
                a.plan_manual_move("d.t", part=part, to_disk="ssd")
        a.refresh()
        a.merge("d.t", MergeRequest(final=True))
        move_all(a)
        move_all(b)
        assert keys(a) == keys(b) == [1, 10, 11, 12]


def test_an_open_store_writes_to_a_table_made_elsewhere(tmp_path: Path) -> None:
    """It takes one range of numbers for that, and none in vain, whoever asks for numbers first."""
    with Store.open(machine(tmp_path, "a")) as a, Store.open(machine(tmp_path, "b")) as b:
        for name, first in (("d.one", False), ("d.two", True)):
            a.create_table(define_table(name, columns=["k:int64"], order_by="k", policy="hot_cold"))
            b.refresh()
            if first:  # before any disk of this machine has the table, as a job of Spark does
                assert not b.disk("ssd").exists(b.definition(name).path)
                assert blocks.first_free(b.context, b.definition(name)) == 1_000_001
                assert blocks.first_free(b.context, b.definition(name)) == 1_000_001
            for number in range(3):
                b.table(name).insert(pa.table({"k": [number]}).to_batches())
            a.refresh()
            marks = [entry for entry in a.disk("s3").list(a.definition(name).directory) if entry.startswith("blocks-")]
            assert marks == ["blocks-0.json", "blocks-1.json"]
            numbers = {part.name.min_block for part in b.table(name).parts()}
            assert numbers == {1_000_001, 1_000_002, 1_000_003}


def test_losing_the_state_or_the_machine_never_repeats_a_name(tmp_path: Path, configs: tuple[Config, Config]) -> None:
    first, _ = configs
    with Store.open(first) as a:
        insert(a, 1)
        move_all(a)
        insert(a, 2)
    shutil.rmtree(tmp_path / "a" / "state")
    with Store.open(first) as a:
        insert(a, 3)
        # Which numbers the range gave is not known any more, so it gives none; the SSD remembers whose it is.
        assert {part.part.name.split("_")[1] for part in a.parts()} == {"1", "2", "1000001"}
        move_all(a)
    shutil.rmtree(tmp_path / "a")
    with Store.open(first) as a:
        assert keys(a) == [1, 2, 3]
        insert(a, 4)
        assert "all_2000001_2000001_0" in {part.part.name for part in a.parts()}
        assert keys(a) == [1, 2, 3, 4]


def test_a_restore_to_before_a_range_was_taken_does_not_free_it(configs: tuple[Config, Config]) -> None:
    from restore.rebuild.rebuild import restore

    with Store.open(configs[0]) as a, Store.open(configs[1]) as b:
        revision = a.object_disk("s3").revision
        insert(b, 10)
        restore(a.object_disk("s3"), RebuildRequest(revision=revision, apply=True))
        with Store.open(machine(Path(configs[0].state_path).parent.parent, "c")) as c:
            insert(c, 20)
            move_all(b)
            move_all(c)
            assert keys(c) == [10, 20]


def test_of_two_machines_that_alter_a_table_at_once_one_is_told(
    configs: tuple[Config, Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(configs[0]) as a, Store.open(configs[1]) as b:
        old = b.definition("d.t")
        theirs = add_column(old, "b:int64")
        refresh = b.context.catalog.refresh

        def late(**options: object) -> None:
            """The other machine alters the table right after this one has looked."""
            refresh()
            monkeypatch.undo()
            a.alter_table(a.definition("d.t"), add_column(a.definition("d.t"), "a:string"))

        monkeypatch.setattr(b.context.catalog, "refresh", late)
        with pytest.raises(AlreadyExists, match="altered meanwhile by another machine"):
            b.alter_table(old, theirs)
        for store in (a, b):
            store.refresh()
            assert [column.name for column in store.definition("d.t").columns] == ["k", "a"]
        b.alter_table(b.definition("d.t"), add_column(b.definition("d.t"), "b:int64"))
        a.refresh()
        assert [column.name for column in a.definition("d.t").columns] == ["k", "a", "b"]


def test_a_part_that_another_covers_only_by_name_is_kept(
    tmp_path: Path, configs: tuple[Config, Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine and its clone give out the same block numbers. Whatever else goes wrong then, no row is removed: the
    clone's disk is an older copy of the machine's, and when it is adopted, what only it has stays and counts.
    It is reported."""
    with Store.open(configs[0]) as a:
        insert(a, 0)
    clone = machine(tmp_path, "clone")
    shutil.copytree(tmp_path / "a", tmp_path / "clone")
    with Store.open(clone) as c:
        insert(c, 99)
    with Store.open(configs[0]) as a:
        insert(a, 1)
        insert(a, 2)
        a.merge("d.t", MergeRequest(final=True))
        move_all(a)
    with Store.open(clone) as c:
        with pytest.raises(DiskUnreachable, match="disk ssd was set back"):
            c.query("SELECT k FROM d.t")
        c.tick()
    (tmp_path / "clone.yaml").write_bytes(msgspec.json.encode(clone))
    monkeypatch.setenv("FROSTLINE_CONFIG", str(tmp_path / "clone.yaml"))
    (aside,) = Frostline(capsys).json("disk", "adopt", "ssd", "-y")["set_aside"]
    assert (aside["part"], aside["reason"]) == ("all_1_1_0", "duplicate")
    for _ in range(2):
        with Store.open(clone) as c:
            assert "all_2_2_0" in [stored.part.name for stored in c.parts()]
            assert any("all_2_2_0" in sentence for sentence in c.context.catalog.unproved)
            assert keys(c) == [0, 1, 2, 99]
            problems = check(c.context.disks).problems
            assert any("takes the place of all_2_2_0" in problem.what for problem in problems)


DEFINITION = {"columns": ["k:int64"], "order_by": "k", "policy": "hot_cold"}


def test_of_two_machines_that_create_one_name_at_once_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either wrote: the bucket decides, and the loser has changed nothing anywhere (I2, P40)."""
    first, second = machine(tmp_path, "a"), machine(tmp_path, "b")
    with Store.open(first) as a, Store.open(second) as b:
        mine, theirs = define_table("d.n", **DEFINITION), define_table("d.n", **DEFINITION)
        looked = a.context.catalog.refresh

        def look_and_lose() -> None:
            looked()
            monkeypatch.undo()
            b.create_table(theirs)

        monkeypatch.setattr(a.context.catalog, "refresh", look_and_lose)
        with pytest.raises(AlreadyExists, match=r"d\.n exists already"):
            a.create_table(mine)
        assert not a.disk("ssd").exists(mine.directory)
        assert a.definition("d.n").uuid == b.definition("d.n").uuid == theirs.uuid
        assert a.create_table(define_table("d.n", **DEFINITION), if_not_exists=True).uuid == theirs.uuid
    with Store.open(first) as a:
        assert a.recovered == []
        assert not a.disk("ssd").exists(theirs.path)  # nobody has written to this disk: to open a store begins none
        assert [table.uuid for table in a.definitions()] == [theirs.uuid]
        a.tick()
        assert a.disk("ssd").exists(theirs.path)


def test_dropping_a_table_frees_its_name(tmp_path: Path) -> None:
    first, second = machine(tmp_path, "a"), machine(tmp_path, "b")
    with Store.open(first) as a, Store.open(second) as b:
        a.create_table(define_table("d.n", **DEFINITION))
        a.drop_table("d.n")
        assert not a.disk("s3").exists("names/d.n.json")
        b.create_table(define_table("d.n", **DEFINITION))
        a.refresh()
        assert a.definition("d.n").uuid == b.definition("d.n").uuid
        with pytest.raises(AlreadyExists):
            a.create_table(define_table("d.n", **DEFINITION))


def test_a_drop_of_an_older_table_leaves_the_name_to_the_younger(tmp_path: Path) -> None:
    """Both are there: made by a version that wrote no names, or in two buckets. Neither is chosen: the uuid says it."""
    with Store.open(machine(tmp_path, "a")) as a:
        old, new = define_table("d.n", **DEFINITION), define_table("d.n", **DEFINITION)
        a.create_table(old)
        with a.disk("s3").transaction(OtherKind("test")) as transaction:
            transaction.remove("names/d.n.json")
            transaction.remove(old.directory)
            transaction.commit()
        with a.disk("ssd").transaction(OtherKind("test")) as transaction:
            transaction.rename(old.directory, "aside")
            transaction.commit()
        a.create_table(new)
        with a.disk("ssd").transaction(OtherKind("test")) as transaction:
            transaction.rename("aside", old.directory)
            transaction.commit()
        a.refresh()
        for attempt in (lambda: a.definition("d.n"), lambda: a.query("SELECT * FROM d.n"), lambda: a.drop_table("d.n")):
            with pytest.raises(Conflict, match=f"(?s){min(old.uuid, new.uuid)}.*{max(old.uuid, new.uuid)}"):
                attempt()
        a.drop_table(old.uuid)
        assert a.definition("d.n").uuid == new.uuid
        assert a.disk("s3").exists("names/d.n.json")
        assert a.query("SELECT * FROM d.n").read_all().num_rows == 0


def test_a_name_whose_table_is_gone_can_be_taken(tmp_path: Path) -> None:
    """As after a restore of a revision that did not have the table."""
    with Store.open(machine(tmp_path, "a")) as a:
        table = define_table("d.n", **DEFINITION)
        a.create_table(table)
        for disk in ("s3", "ssd"):
            with a.disk(disk).transaction(OtherKind("test")) as transaction:
                transaction.remove(table.directory)
                transaction.commit()
        again = define_table("d.n", **DEFINITION)
        assert a.create_table(again).uuid == again.uuid
        a.drop_table("d.n")
        assert not a.disk("s3").exists("names/d.n.json")
