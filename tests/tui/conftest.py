"""A small store that tests of the dashboard look at and change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.homes import Home

DUE, STAYS = "202001_1_1_0", "209902_1_1_0"
"""The two parts of `d.events`: what a rule has made due for the bucket long ago, and will make due in a long time."""


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """`d.events` with a rule, and `d.small` with none; all on the SSD."""
    home = Home(tmp_path, "a", capsys)
    home(
        *("table", "create", "d.events", "--column", "ts:timestamp[ms]", "--column", "k:int64", "--order-by", "ts"),
        *("--partition-by", "month(ts)"),
    )
    rows = home.path / "events.csv"
    months = ("2020-01", "2099-02")
    rows.write_text("ts,k\n" + "".join(f"{month}-10T00:00:00,{k}\n" for month in months for k in range(5)))
    home("insert", "d.events", str(rows))
    home("table", "alter", "d.events", "--ttl", "30d on ts to volume cold_s3")  # else the insert obeys it at once
    home.create("d.small")
    home.insert(1, 2, 3, table="d.small")
    return home
