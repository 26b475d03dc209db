"""A small store that tests of the dashboard look at and change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.crash import mutants
from tests.homes import Home
from tiering.engine.store import Store
from tiering.journal.records import NewMove

mutants.apply_from_environment()

DUE, STAYS = "202001_1_1_0", "209902_1_1_0"
"""The two parts of `d.events`: what a rule has made due for the bucket long ago, and will make due in a long time."""


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a store lies that was made once, below `made` as it was then."""
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture
def home(kept: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """`d.events` with a rule, and `d.small` with none; all on the SSD. Each test finds it as it was made."""
    root, made = kept / "root", kept / "made"
    shutil.rmtree(root, ignore_errors=True)
    if made.exists():
        shutil.copytree(made, root)
        return _home(root, capsys)
    home = _made(root, capsys)
    shutil.copytree(root, made)
    return home


def due_move(store: Store) -> NewMove:
    """The move that is due, as who begins it writes it down."""
    return NewMove(
        table="d.events",
        table_uuid=store.definition("d.events").uuid,
        part=DUE,
        source="ssd",
        target="s3",
        bytes=1_000_000,
        reason_kind="manual",
        reason_detail="by hand",
    )


def _home(root: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """It writes its configuration; of the file system of the tests nobody is told how full it is."""
    home = Home(root, "a", capsys)
    with home.configuration.open("a") as file:
        file.write("daemon: {low_space_ratio: 0}\n")
    return home


def _made(root: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = _home(root, capsys)
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
