"""A store whose disks are exchanged, moved or taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Frostline

COUNT = "select count(*) from d.t"


def files_below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*")) if directory.exists() else []


def count(frostline: Frostline, *more: str) -> int:
    return int(frostline.json("query", COUNT, *more)["rows"][0][0])


@pytest.fixture
def store(frostline: Frostline, home: Path) -> Frostline:
    """300 rows in three partitions: one is in the bucket, two are on the SSD."""
    Path("rows.csv").write_text("ts,n\n" + "".join(f"2026-0{1 + n % 3}-01T00:00:00Z,{n}\n" for n in range(300)))
    frostline(
        *("table", "create", "d.t", "--column", "ts:timestamp[us, UTC]", "--column", "n:int64"),
        *("--order-by", "n", "--partition-by", "month(ts)"),
    )
    frostline("insert", "d.t", "rows.csv")
    frostline("move", "d.t", "--partition", "202601", "--to-disk", "s3")
    assert count(frostline) == 300
    return frostline


def refused(frostline: Frostline, code: int) -> None:
    """Nothing of the table is answered or changed; what must work, works."""
    for verb in (
        ("query", COUNT),
        ("parts",),
        ("du",),
        ("cost",),
        ("insert", "d.t", "rows.csv"),
        ("merge", "d.t", "--final"),
        ("move", "d.t", "--partition", "202602", "--to-disk", "s3"),
        ("table", "drop", "d.t", "-y"),
        ("table", "alter", "d.t", "--add-column", "more:int64"),
    ):
        frostline(*verb, code=code)
    assert not frostline.json("fsck", code=4)["ok"]
    frostline("status")
    frostline("disks")
