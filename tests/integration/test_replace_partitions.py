"""`insert --replace-partitions`: what the touched partitions held goes in the commit that brings the rows (I1, I2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oplog.errors import Refused
from tests.homes import Home
from tiering.catalog.new_parts import DIGEST_CLAIM
from tiering.config.reading import load
from tiering.engine import write_job
from tiering.engine.store import Store


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """In the bucket day 1 has the rows 1 and 2 in two parts, day 2 the row 3."""
    home = Home(tmp_path, "one", capsys)
    home(
        *("table", "create", "d.t", "--column", "k:int64", "--column", "day:int64", "--order-by", "k"),
        *("--partition-by", "day"),
    )
    home("insert", "d.t", file(home, (1, 1), (3, 2)))
    home("insert", "d.t", file(home, (2, 1)))
    cold(home)
    return home


@pytest.fixture
def other(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """Another machine of the same bucket."""
    other = Home(tmp_path, "other", capsys)
    other("restore", "s3", "--apply")
    return other


def file(home: Home, *rows: tuple[int, int]) -> str:
    """Of (k, day)."""
    source = home.path / "rows.csv"
    source.write_text("\n".join(["k,day", *(f"{key},{day}" for key, day in rows)]))
    return str(source)


def cold(home: Home, *days: str) -> None:
    for day in days or ("1", "2"):
        home("move", "d.t", "--partition", day, "--to-disk", "s3")


def insert_cold(home: Home, key: int, day: int) -> None:
    home("insert", "d.t", file(home, (key, day)))
    cold(home, str(day))


def store_of(home: Home) -> Store:
    return Store.open(load(home.configuration), actor="test")


def rows(*found: tuple[int, int]) -> list[pa.RecordBatch]:
    return [pa.record_batch({"k": [key for key, _ in found], "day": [day for _, day in found]})]


def test_a_partition_s_rows_go_with_one_commit_and_undo_returns(home: Home) -> None:
    before = home.head()
    done = home.json("insert", "d.t", file(home, (10, 1), (30, 3)), "--replace-partitions")
    assert home.keys() == [3, 10, 30]
    assert (done["rows"], len(done["parts"]), done["disk"], done["revision"]) == (2, 2, "s3", before + 1)
    assert [name.split("_")[0] for name in done["replaced"]] == ["1", "1"]
    reason = home.json("log", "s3", "--limit", "1")["entries"][0]["reason"]
    assert reason == "insert replaced partitions of d.t"
    home("undo", "s3", str(done["revision"]))
    assert home.keys() == [1, 2, 3]
    assert home.json("fsck", "--read-data")["ok"]


def test_the_same_again_and_an_insert_of_the_same_rows(home: Home) -> None:
    again = file(home, (10, 1), (11, 1))
    for _ in range(2):
        home("insert", "d.t", again, "--replace-partitions")
        assert home.keys() == [3, 10, 11]
    home("insert", "d.t", again, "--replace-partitions", "--select", "k, day", "--default", "day=1")
    home("merge", "d.t", "--final")
    assert home.keys() == [3, 10, 11]


@pytest.mark.in_turn
@pytest.mark.parametrize("block_rows", [2, 100])
def test_the_same_file_inserted_after_a_replace_is_known(home: Home, block_rows: int) -> None:
    """I11 on one machine: what a replace brought counts as inserted, by the blocks that an insert makes, until an undo
    takes it back."""
    home("table", "alter", "d.t", "--setting", f"insert_block_rows={block_rows}")
    again = file(home, *((key, key % 2 + 1) for key in range(10, 17)))
    done = home.json("insert", "d.t", again, "--replace-partitions")
    keys = list(range(10, 17))
    for _ in range(2):
        told = home.json("insert", "d.t", again)
        assert (told["rows"], told["parts"], home.keys()) == (0, [], keys)
        home("insert", "d.t", again, "--replace-partitions")  # the rows by themselves
        assert home.keys() == keys
        home("merge", "d.t", "--final")
    assert home.json("insert", "d.t", again, "--dedup-by", "none")["rows"] == len(keys)
    assert done["duplicates"] == 0


def test_after_the_undo_of_a_replace_its_file_goes_in(home: Home) -> None:
    again = file(home, (10, 1), (11, 2))
    done = home.json("insert", "d.t", again, "--replace-partitions")
    home("undo", "s3", str(done["revision"]))
    assert home.json("insert", "d.t", again)["rows"] == 2
    assert home.keys() == [1, 2, 3, 10, 11]


def test_rows_that_a_replace_took_away_go_in_again(home: Home) -> None:
    first = file(home, (1, 1), (3, 2))
    home("insert", "d.t", first)
    assert home.keys() == [1, 2, 3]
    home("insert", "d.t", file(home, (10, 1), (30, 2)), "--replace-partitions")
    assert home.json("insert", "d.t", file(home, (1, 1), (3, 2)))["rows"] == 2


@pytest.mark.in_turn
@pytest.mark.parametrize(("window", "remembered"), [(0, 1), (1, 1), (2, 2), (3, 3), (1000, 3)])
def test_of_many_blocks_those_of_the_window_are_remembered(home: Home, window: int, remembered: int) -> None:
    """Where they are not all remembered, one digest is nobody else's: no undo or restore takes some blocks for all."""
    for setting in ("insert_block_rows=2", f"deduplication_window={window}"):
        home("table", "alter", "d.t", "--setting", setting)
    source, digests = file(home, *((key, 5) for key in range(10, 16))), []
    for _ in range(2):
        home("insert", "d.t", source, "--replace-partitions")
        with store_of(home) as store:
            (part,) = (stored.part for stored in store.table("d.t").parts() if stored.name.partition == "5")
            digests.append(set(part.digests))
    assert len(digests[0]) == remembered
    assert (digests[0] == digests[1]) is (window >= 3)


def test_an_insert_under_way_knows_what_a_replace_brings(home: Home) -> None:
    """The insert has looked at the table before the replace commits the same rows."""
    with store_of(home) as inserting, store_of(home) as replacing:

        def batches() -> Iterator[pa.RecordBatch]:
            replacing.table("d.t").replace_partitions(rows((10, 1)))
            yield from rows((10, 1))

        done = inserting.table("d.t").insert(batches())
    assert (done.rows, done.duplicates) == (0, 1)
    assert home.keys() == [3, 10]


def test_while_a_replace_commits_no_insert_commits_the_same_rows(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []
    commit = write_job._commit

    def seen(context: Any, disk: Any, definition: Any, *rest: Any) -> Any:
        held.extend(context.journal.claimed(definition.uuid))
        return commit(context, disk, definition, *rest)

    monkeypatch.setattr(write_job, "_commit", seen)
    with store_of(home) as store:
        store.table("d.t").replace_partitions(rows((10, 1), (20, 2)))
    assert sorted(name.split("-")[1] for name in held if name.startswith(DIGEST_CLAIM)) == ["1", "2"]


def test_a_dry_run_says_what_would_go_and_changes_nothing(home: Home) -> None:
    before = home.head()
    told = home.json("insert", "d.t", file(home, (10, 1)), "--replace-partitions", "--dry-run")
    assert (told["rows"], told["parts"], len(told["replaced"]), told["revision"]) == (1, [], 2, None)
    assert "would replace 2 parts: 1_" in home(
        "insert", "d.t", file(home, (10, 1)), "--replace-partitions", "--dry-run"
    )
    assert (home.keys(), home.head()) == ([1, 2, 3], before)


def test_no_rows_replace_nothing(home: Home) -> None:
    before = home.head()
    home("insert", "d.t", file(home), "--replace-partitions", "--error-on-nothing", code=9)
    assert (home.keys(), home.head()) == ([1, 2, 3], before)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_rows_on_an_ssd_stay_and_the_way_out_is_named(home: Home, more: list[str]) -> None:
    home("insert", "d.t", file(home, (9, 1)))
    home("insert", "d.t", file(home, (10, 1)), "--replace-partitions", *more, code=13)
    assert "where undo cannot restore them" in home.error
    assert "frostline move d.t --partition 1 --to-disk s3" in home.error
    assert home.keys() == [1, 2, 3, 9]
    cold(home, "1")
    home("insert", "d.t", file(home, (10, 1)), "--replace-partitions", *more)
    assert home.keys() == ([1, 2, 3, 9] if more else [3, 10])


def test_a_value_that_does_not_fit_replaces_nothing(home: Home) -> None:
    source = home.path / "bad.csv"
    source.write_text("k,day\n10,1\nten,1\n")
    home("insert", "d.t", str(source), "--replace-partitions", code=2)
    assert home.keys() == [1, 2, 3]
    home("insert", "d.t", str(source), "--replace-partitions", "--skip-bad-rows", "1", str(home.path / "bad.jsonl"))
    assert home.keys() == [3, 10]


def test_a_policy_without_a_bucket_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "one", capsys, buckets=())
    home.create()
    source = home.path / "rows.csv"
    source.write_text("k\n1\n")
    home("insert", "d.t", str(source), "--replace-partitions", code=13)
    assert "rows of d.t: policy hot_cold has no bucket" in home.error


def test_a_table_rewritten_from_itself_loses_no_later_row(
    home: Home, other: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that came after the table was read."""
    asked = Store.query

    def query(self: Store, *arguments: Any, **named: Any) -> Any:
        answer = asked(self, *arguments, **named)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "query", asked)
            insert_cold(other, 99, 1)
        return answer

    again = ("insert", "d.t", "--select", "SELECT k + 100 AS k, day FROM d.t WHERE day = 1", "--replace-partitions")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "query", query)
        home(*again, code=13)
    assert "rows that came after" in home.error
    assert home.keys() == [1, 2, 3, 99]
    home(*again)
    assert home.keys() == [3, 101, 102, 199]


def test_rows_that_come_while_the_rows_are_read_stop_it(home: Home, other: Home) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        insert_cold(other, 99, 1)
        yield from rows((10, 1))

    with store_of(home) as store, pytest.raises(Refused, match=r"partition 1 of d\.t .* came after"):
        store.table("d.t").replace_partitions(batches())
    assert home.keys() == [1, 2, 3, 99]


@pytest.mark.parametrize(("day", "left"), [(1, [1, 2, 3, 99]), (2, [3, 10, 99])])
def test_rows_that_come_right_before_the_commit(
    home: Home, other: Home, monkeypatch: pytest.MonkeyPatch, day: int, left: list[int]
) -> None:
    """Into the partition they stop it; into another one they are no matter."""
    held, looks = write_job.held_to_replace, [0]

    @contextmanager
    def meddled(*arguments: Any, **named: Any) -> Iterator[Any]:
        with held(*arguments, **named) as found:
            looks[0] += 1
            if looks[0] == 1:
                insert_cold(other, 99, day)
            yield found

    with monkeypatch.context() as patch, store_of(home) as store:
        patch.setattr(write_job, "held_to_replace", meddled)
        if day == 1:
            with pytest.raises(Refused, match="has rows that came after"):
                store.table("d.t").replace_partitions(rows((10, 1)))
        else:
            assert len(store.table("d.t").replace_partitions(rows((10, 1))).replaced) == 2
    assert looks[0] == (1 if day == 1 else 2)
    assert home.keys() == left


def test_a_quorum_is_for_replicated_tables(home: Home) -> None:
    home("insert", "d.t", file(home, (10, 1)), "--replace-partitions", "--quorum", "2", code=2)
    assert "--quorum is for replicated tables" in home.error
    assert home.keys() == [1, 2, 3]
