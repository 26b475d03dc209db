"""A copy that `move --keep-source` left only makes reads faster: the part is the bucket's, for every verb that changes
it. Guards I1."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.homes import Home

IN_BUCKET = [1, 2, 3, 4, 5, 6]
Change = Callable[[Home], object]


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """B has copies of six parts of the bucket beside three parts of its own. A sees the bucket alone."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a.create()
    for key in IN_BUCKET:
        b.insert(key)
    b("move", "d.t", "--partition", "all", "--to-disk", "s3", "--keep-source")
    for key in (7, 8, 9):
        b.insert(key)
    return a, b


def merge(*options: str) -> Change:
    return lambda home: home("merge", "d.t", *options)


def tick(home: Home) -> None:
    for _ in range(2):
        home("tick", "--believe-clock")


def recompress(home: Home) -> None:
    home("table", "alter", "d.t", "--add-column", "ts:timestamp[us, UTC]", "--default", "2013-01-01T00:00:00Z")
    home("merge", "d.t", "--final")
    home("table", "alter", "d.t", "--ttl", "1d on ts recompress zstd(9)")
    tick(home)


def detach_and_attach(home: Home) -> None:
    home("partition", "detach", "d.t", "all")
    home("partition", "attach", "d.t", "all")


def undo(home: Home) -> None:
    home("merge", "d.t", "--cold", "--final")
    home("undo", "s3", str(home.head()))


def repair(home: Home) -> None:
    home("fsck", "--repair")


CHANGES: dict[str, Change] = {
    "merge": merge(),
    "final": merge("--final"),
    "cold": merge("--cold", "--final"),
    "adopt": merge("--adopt", "--final"),
    "drop deleted": merge("--final", "--drop-deleted"),
    "tick": tick,
    "recompress": recompress,
    "detach": detach_and_attach,
    "undo": undo,
    "repair": repair,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_leaves_the_rows_of_copies_in_the_bucket(homes: tuple[Home, Home], change: Change) -> None:
    a, b = homes
    change(b)
    assert b.keys() == [*IN_BUCKET, 7, 8, 9]
    assert a.keys() == IN_BUCKET
    shutil.rmtree(b.path)
    assert a.keys() == IN_BUCKET


def test_a_merge_takes_the_part_of_the_bucket_and_drops_copies(homes: tuple[Home, Home]) -> None:
    a, b = homes
    (cold, hot) = b.json("merge", "d.t", "--final")["merges"]
    assert (cold["rows_out"], hot["rows_out"]) == (6, 3)
    assert {(part["disk"], part["rows"]) for part in b.json("parts")["parts"]} == {("s3", 6), ("ssd", 3)}
    assert len(list((b.path / "ssd").glob("store/*/*/all_*/part.json"))) == 1
    assert a.keys() == IN_BUCKET


def test_copies_are_not_merged_while_the_bucket_is_away(homes: tuple[Home, Home], tmp_path: Path) -> None:
    a, b = homes
    (tmp_path / "s3").rename(tmp_path / "away")
    (tmp_path / "s3").touch()
    b("merge", "d.t", "--final")
    tick(b)
    (tmp_path / "s3").unlink()
    (tmp_path / "away").rename(tmp_path / "s3")
    assert a.keys() == IN_BUCKET
    assert b.keys() == [*IN_BUCKET, 7, 8, 9]


def test_a_backup_has_the_part_of_the_bucket(homes: tuple[Home, Home], tmp_path: Path) -> None:
    """Restored, the rows are where other machines see them."""
    a, b = homes
    with b.configuration.open("a") as file:
        file.write(f"backup: {{repository: '{(tmp_path / 'backups').as_uri()}'}}\n")
    b("backup", "init")
    b("backup", "create", "one")
    b("table", "drop", "d.t")
    b("backup", "restore", "one")
    assert b.keys() == [*IN_BUCKET, 7, 8, 9]
    assert a.keys() == IN_BUCKET


def test_a_drained_bucket_keeps_no_part_behind_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "a", capsys, buckets=("s3", "s4"))
    home.create()
    home.insert(1)
    home("move", "d.t", "--partition", "all", "--to-disk", "s3", "--keep-source")
    home("disk", "drain", "s3")
    assert [part["disk"] for part in home.json("parts", "--all")["parts"]] == ["ssd", "s4"]
    assert home.keys() == [1]


def test_spark_reads_the_bucket_where_it_reaches_no_ssd(homes: tuple[Home, Home]) -> None:
    from spark_tiering.reading.read_options import ReadOptions
    from spark_tiering.reading.scan_planning import plan_scan

    _, b = homes
    scan = plan_scan(ReadOptions("d.t", str(b.configuration), local_disks="skip"))
    pieces = [piece for share in scan.shares for piece in share]
    assert [piece.label.partition(":")[0] for piece in pieces] == ["s3"] * len(IN_BUCKET)
