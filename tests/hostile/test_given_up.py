"""I16, I11: a disk that was given up stays given up until somebody adopts it, and adopting it doubles no row."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.command_line import Frostline

COUNT = "select count(*) from d.t"


def count(frostline: Frostline, *more: str) -> int:
    return int(frostline.json("query", COUNT, *more)["rows"][0][0])


def insert(frostline: Frostline, number: int) -> None:
    Path(f"{number}.csv").write_text(f"k,n\n{number},{100 + number}\n")
    frostline("insert", "d.t", f"{number}.csv")


def configure(home: Path, *hot: str, state: str = "state", cold: bool = True) -> None:
    """These local disks, and a bucket."""
    disks = {name: {"type": "local", "path": f"{home}/{name}"} for name in hot}
    volumes = [{"name": "hot", "disks": list(hot)}]
    if cold:
        disks["s3"] = {"type": "object_disk", "url": f"file://{home}/bucket/store/"}
        volumes.append({"name": "cold", "disks": ["s3"]})
    document = {"state_path": f"{home}/{state}", "disks": disks, "policies": {"p": {"volumes": volumes}}}
    Path("frostline.yaml").write_text(json.dumps(document))


@pytest.fixture
def store(home: Path, frostline: Frostline) -> Frostline:
    """Two rows in two parts, one on each of two SSDs."""
    configure(home, "one", "two")
    frostline("table", "create", "d.t", "--column", "k:int64", "--column", "n:int64", "--order-by", "k")
    insert(frostline, 0)
    insert(frostline, 1)
    assert {part["disk"] for part in frostline.json("parts")["parts"]} == {"one", "two"}
    return frostline


@pytest.fixture
def given_up(home: Path, store: Frostline) -> Frostline:
    """Disk `two` was given up, what lay there was inserted again, and the disk is back in the configuration."""
    give_up(home, store)
    (home / "away").rename(home / "two")
    configure(home, "one", "two")
    return store


def give_up(home: Path, store: Frostline, *, cold: bool = True) -> None:
    (home / "two").rename(home / "away")
    configure(home, "one", cold=cold)
    store("disk", "forget", "two", "-y")
    assert count(store) == 1
    insert(store, 0)
    insert(store, 1)
    assert count(store) == 2


def without_a_bucket(home: Path, frostline: Frostline) -> Frostline:
    """The same two rows, and nothing but the two SSDs."""
    configure(home, "one", "two", cold=False)
    frostline("table", "create", "d.t", "--column", "k:int64", "--column", "n:int64", "--order-by", "k")
    insert(frostline, 0)
    insert(frostline, 1)
    return frostline


def refused(store: Frostline) -> None:
    for verb in (
        ("query", COUNT),
        ("insert", "d.t", "0.csv"),
        ("merge", "d.t", "--final"),
        ("table", "drop", "d.t", "-y"),
    ):
        store(*verb, code=13)
        assert "was given up" in store.error
    assert store.json("query", COUNT, "--partial")["rows"] == [[2]]
    problems = store.json("fsck", code=4)["problems"]
    (problem,) = (one for one in problems if one["invariant"] == "I16")
    assert "was given up" in problem["what"]


def adopted(store: Frostline) -> None:
    """Adopting it sets its part aside, and nothing is there twice or missing."""
    planned = store.json("disk", "adopt", "two", "-n")["set_aside"]
    assert [one["reason"] for one in planned] == ["duplicate"]
    refused(store)
    assert store.json("disk", "adopt", "two", "-y")["set_aside"] == planned
    assert count(store) == 2
    document = store.json("query", COUNT)
    assert "parts_set_aside" not in document
    store("merge", "d.t", "--final")
    assert count(store) == 2
    assert store.json("fsck")["ok"]


def test_a_disk_that_comes_back_is_refused(given_up: Frostline) -> None:
    refused(given_up)
    adopted(given_up)


def test_taken_out_again_nothing_is_missed(home: Path, given_up: Frostline) -> None:
    configure(home, "one")
    assert count(given_up) == 2
    assert given_up.json("fsck")["ok"]


def test_a_lost_journal_asks_the_bucket(home: Path, given_up: Frostline) -> None:
    shutil.rmtree(home / "state")
    refused(given_up)
    adopted(given_up)
    shutil.rmtree(home / "state")
    assert count(given_up) == 2


def test_a_lost_journal_asks_the_other_ssd(home: Path, frostline: Frostline) -> None:
    without_a_bucket(home, frostline)
    give_up(home, frostline, cold=False)
    (home / "away").rename(home / "two")
    configure(home, "one", "two", cold=False)
    shutil.rmtree(home / "state")
    refused(frostline)


def test_the_journal_alone_knows_it(home: Path, frostline: Frostline) -> None:
    """Nothing on other disks says it: they could not be told."""
    without_a_bucket(home, frostline)
    give_up(home, frostline, cold=False)
    (note,) = home.rglob("given-up/*.json")
    note.unlink()
    (home / "away").rename(home / "two")
    configure(home, "one", "two", cold=False)
    refused(frostline)


def test_another_machine_asks_the_bucket(home: Path, given_up: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the disk and the bucket, and rows in the bucket that were inserted again."""
    given_up("move", "d.t", "--partition", "all", "--to-disk", "s3", code=13)
    configure(home, "one")
    given_up("move", "d.t", "--partition", "all", "--to-disk", "s3")
    configure(home, "two", state="second")
    given_up("query", COUNT, code=13)
    given_up("disk", "adopt", "two", "-y")
    assert count(given_up) == 2


def test_a_restore_keeps_it(home: Path, given_up: Frostline) -> None:
    configure(home, "one")
    given_up("restore", "s3", "--revision", "1", "--apply", "-y")
    shutil.rmtree(home / "state")
    configure(home, "one", "two")
    refused(given_up)


def test_an_undo_does_not_take_it_back(given_up: Frostline) -> None:
    (revision,) = [one["revision"] for one in given_up.json("log", "s3")["entries"] if one["kind"] == "give_up"]
    given_up("undo", "s3", str(revision), "-y", code=13)


def test_a_disk_that_was_replaced_is_adopted(home: Path, store: Frostline) -> None:
    """The other way to give a disk up: a new one at its place, and then the old one again."""
    (home / "two").rename(home / "away")
    store("disk", "replace", "two", "-y")
    insert(store, 0)
    insert(store, 1)
    assert count(store) == 2
    (home / "two").rename(home / "new") if (home / "two").exists() else None
    (home / "away").rename(home / "two")
    store("query", COUNT, code=13)
    store("disk", "adopt", "two", "-y")
    assert store.json("query", "select k from d.t order by k")["rows"] == [[0], [1]]
    assert store.json("fsck")["ok"]


def test_a_renamed_disk_is_not_given_up(home: Path, store: Frostline) -> None:
    (home / "two").rename(home / "three")
    configure(home, "one", "three")
    assert count(store) == 2
    store("disk", "forget", "two", "-y")
    assert count(store) == 2
    shutil.rmtree(home / "state")
    assert count(store) == 2


def test_some_of_its_rows_are_elsewhere(home: Path, store: Frostline) -> None:
    """A merged part of which one block was inserted again: setting it aside is told with every answer."""
    store("move", "d.t", "--partition", "all", "--to-disk", "two")
    store("merge", "d.t", "--final")
    where = {part["disk"] for part in store.json("parts")["parts"]}
    if where != {"two"}:
        store("move", "d.t", "--partition", "all", "--to-disk", "two")
    (home / "two").rename(home / "away")
    configure(home, "one")
    store("disk", "forget", "two", "-y")
    insert(store, 0)
    (home / "away").rename(home / "two")
    configure(home, "one", "two")
    (aside,) = store.json("disk", "adopt", "two", "-y")["set_aside"]
    assert aside["reason"] == "partly"
    document = store.json("query", COUNT)
    assert document["rows"] == [[1]]
    assert len(document["parts_set_aside"]) == 1
    insert(store, 1)
    assert "parts_set_aside" not in store.json("query", COUNT)


def test_fsck_names_rows_that_are_there_twice(home: Path, frostline: Frostline) -> None:
    """As a version that noted nothing left them: adopting the disk once more sets them aside."""
    given_up = without_a_bucket(home, frostline)
    give_up(home, given_up, cold=False)
    (note,) = home.rglob("given-up/*.json")
    note.unlink()
    (home / "away").rename(home / "two")
    configure(home, "one", "two", cold=False)
    identity = json.loads((home / "two" / ".frostline" / "disk.json").read_bytes())["id"]
    with closing(sqlite3.connect(home / "state" / "journal.db", isolation_level=None)) as journal:
        journal.execute(
            "INSERT INTO disks (name, id, kind, place, updated) VALUES ('two', ?, 'local', ?, '')",
            (identity, f"{home}/two"),
        )
    assert count(given_up) == 3
    problems = given_up.json("fsck", code=4)["problems"]
    assert {problem["invariant"] for problem in problems} == {"I1"}
    assert any("disk adopt" in problem["what"] for problem in problems)
    given_up("disk", "adopt", "two", "-y")
    assert count(given_up) == 2
    assert given_up.json("fsck")["ok"]


def in_the_bucket_again(home: Path, store: Frostline) -> None:
    """What was on the disk was inserted again and is in the bucket; the disk is back at its place."""
    give_up(home, store)
    store("move", "d.t", "--partition", "all", "--to-disk", "s3")
    (home / "away").rename(home / "two")


def test_another_machine_that_knew_the_disk(home: Path, store: Frostline) -> None:
    """Its journal knows the id from before: the note in the bucket counts all the same."""
    configure(home, "two", state="second")
    assert count(store) == 1
    configure(home, "one", "two")
    in_the_bucket_again(home, store)
    configure(home, "two", state="second")
    refused(store)
    adopted(store)
    shutil.rmtree(home / "second")
    assert count(store) == 2


def test_a_journal_from_before_it_was_given_up(home: Path, store: Frostline) -> None:
    """The state is set back to a copy that knows the disk."""
    shutil.copytree(home / "state", home / "older")
    in_the_bucket_again(home, store)
    shutil.rmtree(home / "state")
    (home / "older").rename(home / "state")
    configure(home, "one", "two")
    refused(store)
    adopted(store)


def test_a_note_that_cannot_be_taken_away(home: Path, store: Frostline) -> None:
    """The disk that says it can only be read: whoever adopts the disk is not refused for ever."""
    in_the_bucket_again(home, store)
    document = {
        "disks": {
            "one": {"type": "local", "path": f"{home}/one", "read_only": True},
            "two": {"type": "local", "path": f"{home}/two"},
            "s3": {"type": "object_disk", "url": f"file://{home}/bucket/store/"},
        },
        "policies": {"p": {"volumes": [{"name": "hot", "disks": ["one", "two"]}, {"name": "cold", "disks": ["s3"]}]}},
    }
    shutil.rmtree(home / "state")
    Path("frostline.yaml").write_text(json.dumps(document))
    store("query", COUNT, code=13)
    store("disk", "adopt", "two", "-y")
    assert count(store) == 2
    assert count(store) == 2


def test_drained_after_it_was_adopted(home: Path, given_up: Frostline) -> None:
    """It was given up, adopted, emptied and forgotten: it holds nothing, and nobody gave up a row with it."""
    given_up("disk", "adopt", "two", "-y")
    given_up("disk", "drain", "two")
    configure(home, "one")
    given_up("disk", "forget", "two", "-y")
    configure(home, "one", "two")
    assert count(given_up) == 2
    assert given_up.json("fsck")["ok"]


def test_a_row_whose_number_was_merged_over_has_a_way_out(home: Path, frostline: Frostline) -> None:
    """Its disk was given up, later rows were merged, and it is back: no merge knows the order, and says what to do."""
    configure(home, "one")
    columns = ("--column", "k:int64", "--column", "n:int64", "--order-by", "k")
    frostline("table", "create", "d.t", *columns, "--merge-mode", "replacing")
    for number in range(3):
        Path(f"{number}.csv").write_text(f"k,n\n7,{number}\n")
        if number == 2:
            (home / "one").rename(home / "away")
            frostline("disk", "replace", "one", "-y")
        frostline("insert", "d.t", f"{number}.csv")
        if number != 1:
            frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("merge", "d.t", "--final", "--cold")
    shutil.rmtree(home / "one")
    (home / "away").rename(home / "one")
    frostline("disk", "adopt", "one", "-y")
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("merge", "d.t", "--final", "--cold")
    assert "'frostline insert --replace-partitions'" in frostline.error
    assert frostline.json("query", "select n from d.t order by n")["rows"] == [[1], [2]]
    Path("kept.csv").write_text("k,n\n7,2\n")
    frostline("insert", "d.t", "kept.csv", "--replace-partitions")
    assert frostline.json("query", "select n from d.t")["rows"] == [[2]]
    assert frostline.json("fsck")["ok"]


@pytest.mark.parametrize(("window", "between"), [(0, 0), (1, 1), (2, 2)])
def test_equal_inserts_that_a_table_takes_are_no_fault(
    home: Path, frostline: Frostline, window: int, between: int
) -> None:
    """Its deduplication is off, or it has forgotten the first of them."""
    configure(home, "one")
    columns = ("--column", "k:int64", "--column", "n:int64", "--order-by", "k")
    for table in ("d.t", "d.other"):
        frostline("table", "create", table, *columns, "--setting", f"deduplication_window={window}")
    for number in (0, *range(1, between + 1), 0):
        insert(frostline, number)
    frostline("insert", "d.other", "0.csv")
    assert count(frostline) == 2 + between
    assert frostline.json("fsck")["ok"]
