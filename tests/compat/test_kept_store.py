"""A whole store as 0.2.0 left it: this version reads every row of it, and goes on from it.

Guards I7 (the past is what it was). The sample in `store-0.2` was made by `make_store.py` of that version and never
changes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.compat.make_store import KEPT, QUERIES, Home

SAMPLE = Path(__file__).parent / "store-0.2"
ANSWERS: dict[str, Any] = json.loads((SAMPLE / "answers.json").read_text())
MOST_BYTES = 1 << 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A machine that goes on with a copy of the sample."""
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / "home"
    for name in KEPT:
        shutil.copytree(SAMPLE / name, directory / name)
    return Home(directory)


def rows(home: Home) -> dict[str, Any]:
    """The rows of each table."""
    return {query: home.run("query", query)["rows"] for query in QUERIES}


@pytest.mark.in_turn
def test_rows_parts_and_commits_are_what_they_were(home: Home) -> None:
    assert home.facts() == ANSWERS


def test_fsck_finds_no_damage(home: Home) -> None:
    """The cached file table names the place where the bucket was: that is all there is to repair."""
    assert home.ask("fsck", "--repair", "--yes").document["set_aside"] == []
    assert home.ask("fsck", "--read-data").code == 0


def test_a_lost_state_is_rebuilt(home: Home) -> None:
    shutil.rmtree(home.directory / "state")
    home.run("restore", "s3", "--apply", "--yes")
    assert rows(home) == ANSWERS["rows"]


@pytest.mark.parametrize("backup", ["first", "second"])
def test_a_backup_is_verified_and_restored(home: Home, backup: str) -> None:
    assert home.ask("backup", "verify", backup).code == 0
    home.run("backup", "restore", backup, "--map-table", "demo.nested:demo.back", "--yes")
    restored = home.run("query", "SELECT * FROM demo.back ORDER BY ALL")["rows"]
    assert restored == ANSWERS["rows"]["SELECT * FROM demo.nested ORDER BY ALL"]


@pytest.mark.in_turn
def test_work_goes_on(home: Home, tmp_path: Path) -> None:
    """Inserts, merges, moves, an undo and a backup, on top of what was there."""
    late = tmp_path / "late.csv"
    late.write_text("time,host,reading,tag\n2025-01-15T00:00:00,zz,7.5,t\n")
    home.run("insert", "demo.events", str(late))
    home.run("move", "demo.events", "--partition", "202501", "--to-volume", "cold")
    home.run("merge", "demo.events", "--cold", "--final", "--partition", "202501")
    home.run("backup", "create", "third")
    before, after = (answer["SELECT * FROM demo.events ORDER BY ALL"] for answer in (ANSWERS["rows"], rows(home)))
    assert [row for row in after if row not in before] == [["2025-01-15T00:00:00", "zz", 7.5, "t"]]
    assert len(after) == len(before) + 1
    merged = home.run("log", "s3")["entries"]
    assert home.ask("undo", "s3", str(max(entry["revision"] for entry in merged)), "--yes").code == 0
    assert rows(home)["SELECT * FROM demo.events ORDER BY ALL"] == after


def test_the_sample_is_small_and_names_no_machine() -> None:
    files = [path for path in SAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        assert not any(word in path.read_bytes() for word in (b"/home/", b"/tmp/", b"/work", b"root@")), path
