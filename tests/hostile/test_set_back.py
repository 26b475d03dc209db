"""I16, I18: a disk, a bucket, the state or a backup repository is set back to an older copy of itself, alone or with
others. What is noticed, by which verb, and the way out: docs/disasters.md."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from disks.base import Disk
from disks.local.disk import LocalDisk
from oplog.errors import FrostlineError
from oplog.kinds import Inserted
from tests.command_line import Frostline
from tests.crash.harness import Failpoints, Mode, hooked
from tiering.catalog.identities.identity import Identities
from tiering.journal.journal import Journal

COUNT = "select count(*) from d.t"


def count(frostline: Frostline, *more: str) -> int:
    return int(frostline.json("query", COUNT, *more)["rows"][0][0])


def insert(frostline: Frostline, partition: str, first: int, rows: int = 2) -> None:
    Path("rows.csv").write_text("k,g\n" + "".join(f"{first + n},{partition}\n" for n in range(rows)))
    frostline("insert", "d.t", "rows.csv")


def parts(frostline: Frostline) -> set[str]:
    return {part["part"] for part in frostline.json("parts")["parts"]}


class Copies:
    """Older copies of what lies below the home of a store."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def take(self) -> None:
        """Copy everything, as it is now."""
        shutil.copytree(self.home, self.home.with_name("older"), symlinks=True)

    def set_back(self, *names: str) -> None:
        """Put the older copies of these in the place of what there is."""
        for name in names:
            (self.home / name).rename(self.home.with_name(f"newer-{name.replace('/', '-')}"))
            shutil.copytree(self.home.with_name("older") / name, self.home / name, symlinks=True)

    def bring_back(self, *names: str) -> None:
        """Put in its place again what there was before."""
        for name in names:
            shutil.rmtree(self.home / name)
            self.home.with_name(f"newer-{name}").rename(self.home / name)


@pytest.fixture
def copies(home: Path, frostline: Frostline) -> Copies:
    """Two rows of a partition `mon` are on the SSD when everything is copied."""
    columns = ("--column", "k:int64", "--column", "g:string", "--order-by", "k")
    frostline("table", "create", "d.t", *columns, "--partition-by", "identity(g)")
    insert(frostline, "mon", 1)
    copies = Copies(home)
    copies.take()
    return copies


def refused(frostline: Frostline, code: int = 5) -> None:
    """Nothing is answered or changed, and fsck names it."""
    for verb in (
        ("query", COUNT),
        ("insert", "d.t", "rows.csv"),
        ("merge", "d.t", "--final"),
        ("table", "drop", "d.t", "-y"),
    ):
        frostline(*verb, code=code)
        assert "older copy" in frostline.error
    (problem,) = frostline.json("fsck", code=4)["problems"]
    assert problem["invariant"] == "I16"
    assert "older copy" in problem["what"]


class TestDisk:
    """The SSD alone is older: the journal knows its last transaction."""

    @pytest.mark.in_turn
    def test_after_an_insert(self, copies: Copies, frostline: Frostline) -> None:
        """The insert is the last that happened: nobody has counted since."""
        insert(frostline, "mon", 3)
        copies.set_back("ssd")
        refused(frostline)
        assert frostline.json("query", COUNT, "--partial")["rows"] == [[0]]
        copies.bring_back("ssd")
        assert count(frostline) == 4
        copies.set_back("ssd")
        frostline("disk", "adopt", "ssd", "-y")
        assert count(frostline) == 2
        insert(frostline, "mon", 3)
        assert count(frostline) == 4
        assert frostline.json("fsck")["ok"]

    @pytest.mark.in_turn
    def test_after_a_move_and_an_insert(self, copies: Copies, frostline: Frostline) -> None:
        """Counts stay level: a part went, another one came."""
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        insert(frostline, "tue", 3)
        copies.set_back("ssd")
        refused(frostline)
        found = frostline.json("disk", "adopt", "ssd", "-n")
        assert [(held["parts"], held["rows"]) for held in found["found"]["tables"]] == [(1, 2)]
        frostline("disk", "adopt", "ssd", "-y")
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]

    def test_what_was_dropped_in_the_bucket_stays_dropped(self, copies: Copies, frostline: Frostline) -> None:
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        frostline("partition", "drop", "d.t", "mon", "-y")
        insert(frostline, "tue", 3)
        copies.set_back("ssd")
        refused(frostline)
        (aside,) = frostline.json("disk", "adopt", "ssd", "-y")["set_aside"]
        assert (aside["part"], aside["reason"]) == ("mon_1_1_0", "dropped")
        assert count(frostline) == 0
        assert frostline.json("fsck")["ok"]

    @pytest.mark.in_turn
    @pytest.mark.parametrize("verb", ["drop", "detach"])
    def test_after_a_drop(self, copies: Copies, frostline: Frostline, verb: str) -> None:
        frostline("partition", verb, "d.t", "mon", *(("-y",) if verb == "drop" else ()))
        copies.set_back("ssd")
        refused(frostline)
        frostline("disk", "adopt", "ssd", code=13)
        assert "d.t: 1 part, 2 rows" in frostline("disk", "adopt", "ssd", "-n")

    def test_a_merge_gives_no_name_twice(self, copies: Copies, frostline: Frostline) -> None:
        insert(frostline, "mon", 3)
        first = parts(frostline)
        copies.set_back("ssd")
        frostline("disk", "adopt", "ssd", "-y")
        insert(frostline, "mon", 5)
        assert parts(frostline).isdisjoint(first - {"mon_1_1_0"})
        copies.home.with_name("older").rename(copies.home.with_name("oldest"))
        copies.take()
        frostline("merge", "d.t", "--final")
        merged = parts(frostline)
        shutil.rmtree(copies.home.with_name("newer-ssd"))
        copies.set_back("ssd")
        frostline("disk", "adopt", "ssd", "-y")
        frostline("merge", "d.t", "--final")
        assert parts(frostline).isdisjoint(merged)
        assert count(frostline) == 4

    def test_the_newer_one_after_the_older_was_adopted(self, copies: Copies, frostline: Frostline) -> None:
        insert(frostline, "mon", 3)
        copies.set_back("ssd")
        frostline("disk", "adopt", "ssd", "-y")
        insert(frostline, "mon", 5)
        copies.bring_back("ssd")
        refused(frostline)

    @pytest.mark.in_turn
    def test_a_version_without_stamps(self, copies: Copies, frostline: Frostline) -> None:
        """A disk and a journal of yesterday's version open, and are stamped by the next transaction."""
        for stamp in (copies.home / "ssd" / ".frostline").glob("stamp-*"):
            stamp.unlink()
        shutil.rmtree(copies.home.with_name("older"))
        copies.take()
        with closing(sqlite3.connect(copies.home / "state" / "journal.db", isolation_level=None)) as journal:
            journal.execute("DROP TABLE disk_stamps")
            journal.execute("DELETE FROM meta WHERE key IN ('journal', 'generation')")
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]
        insert(frostline, "mon", 3)
        assert count(frostline) == 4
        copies.set_back("ssd")
        refused(frostline)

    def test_a_disk_that_can_only_be_read(self, copies: Copies, frostline: Frostline) -> None:
        insert(frostline, "mon", 3)
        copies.set_back("ssd")
        Path("frostline.yaml").write_text(
            f"disks:\n  ssd: {{type: local, path: {copies.home}/ssd, read_only: true}}\n"
            f"  s3: {{type: object_disk, url: 'file://{copies.home}/bucket/store/'}}\n"
            "policies: {hot_cold: {volumes: [{name: hot, disks: [ssd]}, {name: cold, disks: [s3]}]}}\n"
        )
        frostline("query", COUNT, code=5)
        frostline("disk", "adopt", "ssd", "-y")
        assert count(frostline) == 2


@pytest.mark.in_turn
def test_an_adoption_whose_renames_fail(home: Path, copies: Copies, frostline: Frostline) -> None:
    """What is set aside is committed, and in its place later: its stamp does not come behind the adoption's."""
    insert(frostline, "tue", 3)
    frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
    frostline("partition", "drop", "d.t", "mon", "-y")
    insert(frostline, "tue", 5)
    copies.set_back("ssd")
    shutil.rmtree(home.with_name("older"))
    copies.take()
    counting = Failpoints()
    with hooked(counting):
        frostline("disk", "adopt", "ssd", "-y")
    renames = [at for at, name in enumerate(counting.names, 1) if name == "fs.rename"]
    assert renames
    for at in renames:
        shutil.rmtree(home)
        shutil.copytree(home.with_name("older"), home, symlinks=True)
        with hooked(Failpoints("raise_before", at)):
            _, code = frostline.any("disk", "adopt", "ssd", "-y")
        shutil.rmtree(home / "state")
        if code == 0:
            assert count(frostline) == 0, at
        else:
            frostline("query", COUNT, code=5)
            frostline("disk", "adopt", "ssd", "-y")
            assert count(frostline) == 0, at


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", ["raise_before", "raise_after"])
def test_a_crash_at_any_effect_is_no_copy(tmp_path: Path, mode: Mode) -> None:
    """Wherever a transaction of a local disk ends: neither the disk nor the journal looks older, and the next
    transaction of another process is seen."""

    def look(root: Path) -> Identities:
        disk = LocalDisk("ssd", root / "ssd")
        found = Identities({"ssd": disk}, {"ssd": str(root)}, Journal(root / "state"))
        found.look()
        return found

    def write(disk: Disk, name: str) -> None:
        with disk.transaction(Inserted()) as transaction:
            transaction.create(f"store/{name}", name.encode())
            transaction.commit()

    counting = Failpoints()
    write(look(tmp_path / "first").disks["ssd"], "before")
    disk = look(tmp_path / "first").disks["ssd"]
    with hooked(counting):
        write(disk, "file")
    assert "journal.commit" in counting.names
    for at in range(1, len(counting.names) + 1):
        root = tmp_path / f"{at}"
        write(look(root).disks["ssd"], "before")
        disk = look(root).disks["ssd"]
        with hooked(Failpoints(mode, at)), suppress(OSError, FrostlineError):
            write(disk, "file")
        after = look(root)
        assert [fault.error.message for fault in after.faults] == [], f"{mode} effect {at}, {counting.names[at - 1]}"
        assert after.behind == ""
        write(after.disks["ssd"], "another")
        shutil.copytree(root / "ssd", root / "copy")
        write(after.disks["ssd"], "last")
        shutil.rmtree(root / "ssd")
        (root / "copy").rename(root / "ssd")
        assert [fault.kind for fault in look(root).faults] == ["older"]


class TestInsideOfADisk:
    """Only the tables of the SSD are set back (`store/`), and not its own directory, which says how far the disk is."""

    def test_parts_that_came_since_are_missed(self, copies: Copies, frostline: Frostline) -> None:
        """They were counted."""
        insert(frostline, "tue", 3)
        assert count(frostline) == 4
        copies.set_back("ssd/store")
        frostline("query", COUNT, code=5)
        assert "parts are missing from disk ssd" in frostline.error
        frostline("disk", "adopt", "ssd", "-y")
        assert count(frostline) == 2

    def test_parts_that_went_since_are_back(self, copies: Copies, frostline: Frostline) -> None:
        """Nobody can notice it: the part that is back looks like one that somebody put there."""
        frostline("partition", "drop", "d.t", "mon", "-y")
        assert count(frostline) == 0
        copies.set_back("ssd/store")
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]

    def test_with_the_state(self, copies: Copies, frostline: Frostline) -> None:
        """Nobody can notice what the tables lack: the counts are as old. The state is noticed."""
        insert(frostline, "tue", 3)
        assert count(frostline) == 4
        copies.set_back("ssd/store", "state")
        assert count(frostline) == 2
        assert "the journal is an older copy" in frostline.error
        given = parts(frostline)
        insert(frostline, "tue", 3)
        (new,) = parts(frostline) - given
        assert new != "tue_2_2_0"
        assert count(frostline) == 4


class TestState:
    def test_is_older_than_the_disk(self, copies: Copies, frostline: Frostline) -> None:
        """Numbers that were given since are not given again, though nothing shows them any more."""
        insert(frostline, "tue", 3)
        insert(frostline, "wed", 5)
        given = parts(frostline)
        frostline("partition", "drop", "d.t", "wed", "-y")
        copies.set_back("state")
        assert count(frostline) == 4
        assert "the journal is an older copy" in frostline.error
        assert count(frostline) == 4
        assert "older copy" not in frostline.error
        insert(frostline, "wed", 7)
        assert len(parts(frostline) - given) == 1
        assert count(frostline) == 6
        assert frostline.json("fsck")["ok"]

    def test_misses_nothing_that_moved_away_since(self, copies: Copies, frostline: Frostline) -> None:
        """It counted the parts of the disk before they moved to the bucket."""
        assert count(frostline) == 2
        shutil.rmtree(copies.home.with_name("older"))
        copies.take()
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        copies.set_back("state")
        (problem,) = frostline.json("fsck", code=4)["problems"]
        assert problem["invariant"] == "I18"
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]

    def test_fsck_says_it(self, copies: Copies, frostline: Frostline) -> None:
        insert(frostline, "tue", 3)
        copies.set_back("state")
        (problem,) = frostline.json("fsck", code=4)["problems"]
        assert problem["invariant"] == "I18"
        assert frostline.json("fsck")["ok"]

    def test_twice(self, copies: Copies, frostline: Frostline) -> None:
        """Of a range that was taken after the first time nothing is given again after the second."""
        given: set[str] = set()
        for turn in range(3):
            insert(frostline, "tue", 10 * turn)
            new = parts(frostline) - {"mon_1_1_0"}
            assert new.isdisjoint(given)
            given |= new
            frostline("partition", "drop", "d.t", "tue", "-y")
            copies.set_back("state")
            shutil.rmtree(copies.home.with_name("newer-state"))

    def test_and_the_disk_are_older_than_the_bucket(self, copies: Copies, frostline: Frostline) -> None:
        """A whole machine is rolled back: the log in the bucket has seen its disk and its journal further."""
        insert(frostline, "tue", 3)
        given = parts(frostline)
        for partition in ("mon", "tue"):
            frostline("move", "d.t", "--partition", partition, "--to-disk", "s3")
        frostline("partition", "drop", "d.t", "mon", "-y")
        frostline("partition", "drop", "d.t", "tue", "-y")
        copies.set_back("ssd", "state")
        frostline("query", COUNT, code=5)
        assert "older copy" in frostline.error
        frostline("disk", "adopt", "ssd", "-y")
        assert count(frostline) == 0
        insert(frostline, "tue", 5)
        assert parts(frostline).isdisjoint(given)
        assert frostline.json("fsck")["ok"]

    def test_is_lost_and_the_disk_is_older_than_the_bucket(self, copies: Copies, frostline: Frostline) -> None:
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        frostline("partition", "drop", "d.t", "mon", "-y")
        shutil.rmtree(copies.home / "state")
        copies.set_back("ssd")
        frostline("query", COUNT, code=5)
        frostline("disk", "adopt", "ssd", "-y")
        assert count(frostline) == 0


class TestBucket:
    def test_is_older_than_the_state(self, copies: Copies, frostline: Frostline) -> None:
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        copies.set_back("bucket")
        frostline("query", COUNT, code=1)
        assert "restore s3" in frostline.error
        frostline("insert", "d.t", "rows.csv", code=1)
        problems = frostline.json("fsck", code=4)["problems"]
        assert [(problem["invariant"], problem["disk"]) for problem in problems] == [("I7", "s3")], problems
        copies.bring_back("bucket")
        assert count(frostline) == 2
        copies.set_back("bucket")
        frostline("restore", "s3", "--apply", "-y")
        refused(frostline)
        frostline("disk", "adopt", "s3", "-y")
        assert count(frostline) == 0
        insert(frostline, "mon", 1)
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]

    def test_is_adopted_after_a_merge(self, copies: Copies, frostline: Frostline) -> None:
        """Adopting it writes to it: levels of merged parts are noted there, also when nobody counted since."""
        insert(frostline, "mon", 3)
        frostline("merge", "d.t", "--final")
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        frostline("disk", "adopt", "s3", "-y")
        assert count(frostline) == 4
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "ssd")
        copies.set_back("bucket")
        frostline("restore", "s3", "--apply", "-y")
        frostline("query", COUNT, code=5)
        frostline("disk", "adopt", "s3", "-y")
        assert count(frostline) == 4
        assert frostline.json("fsck")["ok"]

    def test_and_the_state_are_older_than_the_disk(self, copies: Copies, frostline: Frostline) -> None:
        """Where nobody else knows it, the stamp of the SSD does: its part is in the bucket, and that lacks it."""
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        copies.set_back("bucket", "state")
        frostline("query", COUNT, code=5)
        assert "disk s3 was set back" in frostline.error
        frostline("disk", "adopt", "s3", "-y")
        assert count(frostline) == 0
        insert(frostline, "mon", 3)
        assert count(frostline) == 2
        assert parts(frostline).isdisjoint({"mon_1_1_0"})
        assert frostline.json("fsck")["ok"]

    @pytest.mark.in_turn
    def test_another_bucket_has_seen_it(self, home: Path, frostline: Frostline) -> None:
        """The machine went back with one of its buckets: the log in the other one says how far that was."""
        Path("frostline.yaml").write_text(
            f"disks:\n  ssd: {{type: local, path: {home}/ssd}}\n"
            f"  s3: {{type: object_disk, url: 'file://{home}/bucket/'}}\n"
            f"  far: {{type: object_disk, url: 'file://{home}/far/'}}\n"
            "policies: {hot_cold: {volumes: [{name: hot, disks: [ssd]}, {name: cold, disks: [s3, far]}]}}\n"
        )
        frostline("table", "create", "d.t", "--column", "k:int64", "--column", "g:string", "--order-by", "k")
        for disk in ("s3", "far"):
            insert(frostline, "mon", 1 if disk == "s3" else 3)
            frostline("move", "d.t", "--part", max(parts(frostline)), "--to-disk", disk)
        copies = Copies(home)
        copies.take()
        for disk in ("s3", "far"):
            insert(frostline, "mon", 5 if disk == "s3" else 7)
            frostline("move", "d.t", "--part", max(parts(frostline)), "--to-disk", disk)
        assert count(frostline) == 8
        copies.set_back("ssd", "state", "bucket")
        problems = [problem["what"] for problem in frostline.json("fsck", code=4)["problems"]]
        assert [sum(f"disk {name} " in one and "older copy" in one for one in problems) for name in ("s3", "ssd")] == [
            1,
            1,
        ]
        frostline("disk", "adopt", "ssd", "-y")
        frostline("query", COUNT, code=5)
        assert "disk s3 was set back" in frostline.error
        frostline("disk", "adopt", "s3", "-y")
        assert count(frostline) == 6
        assert frostline.json("fsck")["ok"]

    @pytest.mark.in_turn
    def test_each_of_five_is_noticed(self, home: Path, frostline: Frostline) -> None:
        """The stamp of the SSD names every bucket, whichever comes first by its id. No other log has seen the move."""
        buckets = [f"s{number}" for number in range(1, 6)]
        places = "".join(f"  {name}: {{type: object_disk, url: 'file://{home}/{name}/'}}\n" for name in buckets)
        Path("frostline.yaml").write_text(
            f"disks:\n  ssd: {{type: local, path: {home}/ssd}}\n{places}policies: {{hot_cold: {{volumes: "
            f"[{{name: hot, disks: [ssd]}}, {{name: cold, disks: [{', '.join(buckets)}]}}]}}}}\n"
        )
        columns = ("--column", "k:int64", "--column", "g:string", "--order-by", "k")
        frostline("table", "create", "d.t", *columns, "--partition-by", "identity(g)")
        insert(frostline, "mon", 1)
        copies = Copies(home)
        for name in buckets:
            insert(frostline, name, 1)
            copies.take()
            frostline("move", "d.t", "--partition", name, "--to-disk", name)
            copies.set_back(name, "state")
            frostline("query", COUNT, code=5)
            assert f"disk {name} was set back" in frostline.error
            copies.bring_back(name, "state")
            shutil.rmtree(home.with_name("older"))
        assert count(frostline) == 12

    def test_is_older_and_the_state_is_lost(self, copies: Copies, frostline: Frostline) -> None:
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        copies.set_back("bucket")
        shutil.rmtree(copies.home / "state")
        frostline("query", COUNT, code=5)
        assert "disk s3 was set back" in frostline.error

    def test_and_the_state_are_older_and_no_disk_was_written_to(self, copies: Copies, frostline: Frostline) -> None:
        """Nobody can notice it: a drop in a bucket is known to its log and to the state alone, and both are older. What
        was dropped is there again, and all is of one moment."""
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        assert count(frostline) == 2
        shutil.rmtree(copies.home.with_name("older"))
        copies.take()
        frostline("partition", "drop", "d.t", "mon", "-y")
        copies.set_back("bucket", "state")
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]
        frostline("partition", "drop", "d.t", "mon", "-y")
        assert count(frostline) == 0

    def test_has_a_table_again_whose_name_another_one_has(self, copies: Copies, frostline: Frostline) -> None:
        """It was dropped, and made again, after the copy."""
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        shutil.rmtree(copies.home.with_name("older"))
        copies.take()
        frostline("table", "drop", "d.t", "-y")
        frostline("table", "create", "d.t", "--column", "k:int64", "--column", "g:string", "--order-by", "k")
        insert(frostline, "mon", 7)
        copies.set_back("bucket")
        frostline("restore", "s3", "--apply", "-y")
        frostline("disk", "adopt", "s3", "-y")
        frostline("query", COUNT, code=1)
        assert "2 tables are called d.t" in frostline.error
        assert "set back" in frostline.error
        (problem,) = frostline.json("fsck", code=4)["problems"]
        assert problem["invariant"] == "I17"
        tables = {table["uuid"] for table in frostline.json("table", "list")["tables"]}
        older = json.loads(next(copies.home.with_name("older").glob("ssd/store/*/*/table.json")).read_bytes())["uuid"]
        assert older in tables
        frostline("table", "drop", older, "-y")
        assert count(frostline) == 2
        assert frostline.json("fsck")["ok"]

    def test_and_the_disk_are_older_than_the_state(self, copies: Copies, frostline: Frostline) -> None:
        insert(frostline, "tue", 3)
        given = parts(frostline)
        frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
        copies.set_back("bucket", "ssd")
        assert frostline.any("query", COUNT)[1] in (1, 5)
        frostline("restore", "s3", "--apply", "-y")
        frostline("query", COUNT, code=5)
        frostline("disk", "adopt", "ssd", "-y")
        frostline("disk", "adopt", "s3", "-y")
        assert count(frostline) == 2
        insert(frostline, "tue", 5)
        assert parts(frostline) - {"mon_1_1_0"} - given
        assert frostline.json("fsck")["ok"]


class TestRepository:
    """It refers to nothing but itself and to revisions that pins keep."""

    @pytest.fixture
    def repository(self, copies: Copies, frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> Frostline:
        """It has a backup when everything is copied, and another one since."""
        monkeypatch.setenv("FROSTLINE_BACKUP", f"file://{copies.home}/repository/")
        frostline("backup", "init", f"file://{copies.home}/repository/")
        frostline("backup", "create", "first")
        shutil.rmtree(copies.home.with_name("older"))
        copies.take()
        insert(frostline, "tue", 3)
        frostline("backup", "create", "second")
        frostline("backup", "list")
        return frostline

    def test_is_older_than_the_state(
        self, copies: Copies, repository: Frostline, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert caplog.text == ""
        copies.set_back("repository")
        repository("backup", "list")
        assert "of d.t as new as second" in caplog.text
        repository("backup", "create", "third")
        repository("backup", "verify", "third", "--read-data")
        assert count(repository) == 4
        assert repository.json("fsck")["ok"]

    def test_everything_else_is_older(self, copies: Copies, repository: Frostline) -> None:
        """The whole machine and its bucket went back: the backup has what is gone."""
        copies.set_back("ssd", "state", "bucket")
        assert count(repository) == 2
        repository("backup", "restore", "second", "-t", "d.t", "--drop-existing", "-y")
        assert count(repository) == 4
        assert repository.json("fsck")["ok"]
