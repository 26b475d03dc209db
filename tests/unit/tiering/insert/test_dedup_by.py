"""`insert --dedup-by`: what is known again, and beside what. Guards I11."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Frostline

FILES = ("a.csv", "b.csv", "c.jsonl")


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    """A table, and three files of which each reaches over a block's end and into two partitions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    frostline = Frostline(capsys)
    frostline(
        *("table", "create", "db.t", "--column", "k:int64", "--column", "p:int64", "--order-by", "k"),
        *("--partition-by", "p", "--setting", "insert_block_rows=40"),
    )
    for number, name in enumerate(FILES):
        keys = range(1000 * number, 1000 * number + 70)
        if name.endswith(".csv"):
            Path(name).write_text("k,p\n" + "".join(f"{key},{key % 2}\n" for key in keys))
        else:
            Path(name).write_text("".join(f'{{"k": {key}, "p": {key % 2}}}\n' for key in keys))
    return frostline


def put(frostline: Frostline, *arguments: str) -> tuple[int, int, int]:
    """Rows and duplicates of an insert, and what the table holds then."""
    done = frostline.json("insert", "db.t", *arguments)
    ((count, keys),) = frostline.json("query", "SELECT count(*), count(DISTINCT k) FROM db.t")["rows"]
    assert keys <= count
    return done["rows"], done["duplicates"], count


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("first", "then", "rows"),
    [
        ([("a.csv",)], ("a.csv", "b.csv"), 70),
        ([("a.csv",)], ("b.csv", "a.csv", "c.jsonl"), 140),
        ([("a.csv", "b.csv")], ("b.csv",), 0),
        ([("c.jsonl", "a.csv"), ("b.csv",)], FILES, 0),
    ],
)
def test_a_file_is_known_whatever_is_beside_it(
    frostline: Frostline, first: list[tuple[str, ...]], then: tuple[str, ...], rows: int
) -> None:
    for files in first:
        put(frostline, *files, "--dedup-by", "file")
    known = sum(len(files) for files in first)
    added, duplicates, count = put(frostline, *then, "--dedup-by", "file")
    assert (added, count) == (rows, 70 * known + rows)
    assert duplicates == 4 * (len(then) - rows // 70), "two blocks, each in two partitions"


def test_a_file_that_came_alone_is_known_without_the_option(frostline: Frostline) -> None:
    assert put(frostline, "a.csv") == (70, 0, 70)
    assert put(frostline, "b.csv", "a.csv", "--dedup-by", "file") == (70, 4, 140)
    assert put(frostline, "b.csv") == (0, 4, 140)


def test_a_file_is_known_after_a_merge_and_a_move(frostline: Frostline) -> None:
    put(frostline, "a.csv", "b.csv", "--dedup-by", "file")
    frostline("merge", "db.t", "--final")
    frostline("move", "db.t", "--partition", "1", "--to-volume", "cold")
    assert put(frostline, "c.jsonl", "b.csv", "--dedup-by", "file") == (70, 4, 210)


def test_the_same_file_twice_in_one_insert_goes_in_once(frostline: Frostline) -> None:
    assert put(frostline, "a.csv", "a.csv", "--dedup-by", "file") == (70, 4, 70)


def test_files_that_are_named_together_share_parts_by_default(frostline: Frostline) -> None:
    assert put(frostline, *FILES) == (210, 0, 210)
    assert len(frostline.json("parts", "db.t")["parts"]) == 12, "six blocks of 40 rows, each in two partitions"
    assert put(frostline, *FILES) == (0, 12, 210)


@pytest.mark.in_turn
def test_none_inserts_all_again_and_is_no_duplicate_of_anything(frostline: Frostline) -> None:
    put(frostline, "a.csv")
    assert put(frostline, "a.csv", "--dedup-by", "none") == (70, 0, 140)
    assert put(frostline, "a.csv", "--dedup-by", "none") == (70, 0, 210)
    assert put(frostline, "a.csv") == (0, 4, 210)
    frostline("merge", "db.t", "--final")
    ((count,),) = frostline.json("query", "SELECT count(*) FROM db.t")["rows"]
    assert count == 210
    assert frostline.json("fsck")["ok"]


def test_a_file_that_breaks_off_leaves_those_before_it_known(frostline: Frostline) -> None:
    Path("d.csv").write_text("k,p\n1,x\n")
    frostline("insert", "db.t", "a.csv", "b.csv", "d.csv", "--dedup-by", "file", code=2)
    Path("d.csv").write_text("k,p\n5000,1\n")
    assert put(frostline, "d.csv", "b.csv", "a.csv", "--dedup-by", "file") == (1, 8, 141)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--select", "SELECT 1 AS k, 1 AS p", "--dedup-by", "file"), "no file is named"),
        (("a.csv", "--replace-partitions", "--dedup-by", "none"), "the inserted rows replace themselves"),
        (("a.csv", "--dedup-by", "row"), "row"),
    ],
)
def test_what_makes_no_sense_is_refused(frostline: Frostline, arguments: tuple[str, ...], problem: str) -> None:
    frostline("insert", "db.t", *arguments, code=2)
    assert problem in frostline.error


def test_python(frostline: Frostline, tmp_path: Path) -> None:
    import pyarrow as pa

    from frostline import open as open_store

    first, second = (pa.table({"k": [number, number + 1], "p": [0, 0]}).to_batches() for number in (1, 10))
    with open_store() as store:
        table = store.table("db.t")
        assert table.insert(first).rows == 2
        assert table.insert_each([second, first]).rows == 2
        assert table.insert(first, again=True).rows == 2
        assert table.insert_each([first, second]).duplicates == 2
