"""I1, I16: an older copy of an SSD is adopted. Its rows count once, those that a bucket's log shows gone stay gone, and
those that nobody else has are kept."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command_line import Frostline

Command = tuple[str, ...]

_COLUMNS = ("--column", "k:int64", "--column", "g:string", "--order-by", "k", "--partition-by", "identity(g)")
_MERGE: Command = ("merge", "d.t", "--final")
_COLD_MERGE: Command = (*_MERGE, "--cold")
_TO_BUCKET: Command = ("move", "d.t", "--partition", "mon", "--to-disk", "s3")
_BACK: Command = ("move", "d.t", "--partition", "mon", "--to-disk", "ssd")
_DROP: Command = ("partition", "drop", "d.t", "mon", "-y")
_DETACH: Command = ("partition", "detach", "d.t", "mon")
_REPLACE: Command = ("insert", "d.t", "nine.csv", "--replace-partitions", "-y")
_RESTORE: Command = ("restore", "s3", "--revision", "1", "--apply", "-y")
_UNDO_MERGE: Command = ("undo", "s3", "3", "-y")

GONE: dict[str, Sequence[Command]] = {
    "dropped": [_TO_BUCKET, _DROP],
    "merged in the bucket, dropped": [_TO_BUCKET, _COLD_MERGE, _DROP],
    "merged on the SSD, moved, dropped": [_MERGE, _TO_BUCKET, _DROP],
    "merged, moved there and back and there, dropped": [_MERGE, _TO_BUCKET, _BACK, _TO_BUCKET, _DROP],
    "replaced": [_TO_BUCKET, _REPLACE],
    "merged, replaced": [_TO_BUCKET, _COLD_MERGE, _REPLACE],
    "detached": [_TO_BUCKET, _DETACH],
    "merged, detached": [_MERGE, _TO_BUCKET, _DETACH],
    "restored away": [_TO_BUCKET, _RESTORE],
    "merged, restored away": [_MERGE, _TO_BUCKET, _RESTORE],
}
"""What takes the rows of the partition away for good, where the bucket's log shows it."""

THERE: dict[str, Sequence[Command]] = {
    "moved": [_TO_BUCKET],
    "moved there and back": [_TO_BUCKET, _BACK],
    "merged on the SSD": [_MERGE],
    "merged on the SSD, moved": [_MERGE, _TO_BUCKET],
    "merged in the bucket": [_TO_BUCKET, _COLD_MERGE],
    "merged in the bucket, moved back": [_TO_BUCKET, _COLD_MERGE, _BACK],
    "merged in the bucket, undone": [_TO_BUCKET, _COLD_MERGE, _UNDO_MERGE],
    "merged on the SSD, moved there and back": [_MERGE, _TO_BUCKET, _BACK],
    "detached and attached": [_TO_BUCKET, _DETACH, ("partition", "attach", "d.t", "mon")],
}
"""After these every row is in the table; the merged part may have lain on the newer SSD, which is gone."""


def rows(frostline: Frostline) -> list[int]:
    return [int(k) for (k,) in frostline.json("query", "select k from d.t order by k")["rows"]]


def insert(frostline: Frostline, *keys: int, partition: str = "mon") -> None:
    Path("rows.csv").write_text("k,g\n" + "".join(f"{key},{partition}\n" for key in keys))
    frostline("insert", "d.t", "rows.csv")


def filled(frostline: Frostline, home: Path, *inserts: Sequence[int], window: int = 1000) -> None:
    """A table with these inserts on its SSD; a copy of everything is taken."""
    frostline("table", "create", "d.t", *_COLUMNS, "--setting", f"deduplication_window={window}")
    for keys in inserts:
        insert(frostline, *keys)
    shutil.copytree(home, home.with_name("older"), symlinks=True)


def set_back(home: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(home / name)
        shutil.copytree(home.with_name("older") / name, home / name, symlinks=True)


def adopted(frostline: Frostline, before: list[int]) -> None:
    """The rows are those from before, also after a merge, and nobody finds anything wrong."""
    frostline("disk", "adopt", "ssd", "-y")
    answer = frostline.json("query", "select k from d.t order by k")
    assert [int(k) for (k,) in answer["rows"]] == before
    assert "parts_set_aside" not in answer
    assert frostline.json("fsck")["ok"]
    frostline("merge", "d.t", "--final")
    assert rows(frostline) == before


@pytest.mark.in_turn
@pytest.mark.parametrize("way", GONE)
def test_what_a_log_shows_gone_stays_gone(home: Path, frostline: Frostline, way: str) -> None:
    filled(frostline, home, (1, 2), (3,))
    Path("nine.csv").write_text("k,g\n9,mon\n")
    for command in GONE[way]:
        frostline(*command)
    before = rows(frostline)
    assert not {1, 2, 3} & {*before}
    set_back(home, "ssd")
    adopted(frostline, before)
    assert len([*(home / "ssd").rglob("detached/dropped_*")]) == 2


@pytest.mark.in_turn
@pytest.mark.parametrize("state", ["as it is", "older", "lost"])
@pytest.mark.parametrize("way", THERE)
def test_what_nobody_else_has_is_kept(home: Path, frostline: Frostline, way: str, state: str) -> None:
    filled(frostline, home, (1, 2), (3,))
    for command in THERE[way]:
        frostline(*command)
    insert(frostline, 5, partition="tue")
    frostline("move", "d.t", "--partition", "tue", "--to-disk", "s3")
    assert rows(frostline) == [1, 2, 3, 5]
    set_back(home, "ssd", *(("state",) if state == "older" else ()))
    if state == "lost":
        shutil.rmtree(home / "state")
    adopted(frostline, [1, 2, 3, 5])


def test_what_a_merge_took_to_the_lost_disk_is_kept(home: Path, frostline: Frostline) -> None:
    """The log shows that a merge took the part from the bucket; what it made lay on the newer SSD alone."""
    Path("frostline.yaml").write_text(
        f"disks:\n  ssd: {{type: local, path: {home}/ssd}}\n"
        f"  s3: {{type: object_disk, url: 'file://{home}/bucket/'}}\n"
        "policies: {hot_cold: {volumes: [{name: all, disks: [ssd, s3]}]}}\n"
    )
    filled(frostline, home, (1, 2), (3,))
    frostline(*_BACK)
    shutil.rmtree(home.with_name("older"))
    shutil.copytree(home, home.with_name("older"))
    frostline("move", "d.t", "--part", "mon_1_1_0", "--to-disk", "s3")
    frostline(*_MERGE)
    assert [part["disk"] for part in frostline.json("parts")["parts"]] == ["ssd"]
    shutil.rmtree(home / "state")
    set_back(home, "ssd")
    adopted(frostline, [1, 2, 3])


@pytest.mark.in_turn
@pytest.mark.parametrize("window", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("way", ["merged on the SSD, moved", "merged in the bucket"])
def test_no_row_counts_twice_whatever_the_window(home: Path, frostline: Frostline, way: str, window: int) -> None:
    """A merged part remembers so many inserts; which rows are in it, its sources tell."""
    filled(frostline, home, (1,), (2,), (3,), (4,), window=window)
    for command in THERE[way]:
        frostline(*command)
    set_back(home, "ssd", "state")
    adopted(frostline, [1, 2, 3, 4])


@pytest.mark.in_turn
def test_nor_where_the_window_is_larger_now(home: Path, frostline: Frostline) -> None:
    filled(frostline, home, (1,), (2,), (3,), (4,), window=1)
    for command in THERE["merged on the SSD, moved"]:
        frostline(*command)
    frostline("table", "alter", "d.t", "--setting", "deduplication_window=1000")
    set_back(home, "ssd", "state")
    adopted(frostline, [1, 2, 3, 4])
