"""`frostline demo DIR` deletes what a demo made there, and nothing that somebody else did (I1)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from oplog.errors import Refused
from tiering.cli.demo.directory import MARKER, begin, write_configuration
from tiering.cli.main import run


class Asked(Exception):
    """The question was put."""


def ask(question: str) -> None:
    raise Asked(question)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a demo leaves, with its two tables, one of them moved to the bucket."""
    directory = tmp_path / "demo"
    begin(directory, ask)
    monkeypatch.setenv("FROSTLINE_HOME", str(directory))
    monkeypatch.chdir(tmp_path)
    (directory / "data").mkdir()
    (directory / "data" / "weather.csv").write_text("id\n1\n")
    for table in ("nyc.flights", "nyc.weather"):
        make(directory, table)
    assert run(["move", "nyc.flights", "--partition", "all", "--to-disk", "s3", "-q"]) == 0
    (directory / "plan.json").write_text("{}")
    write_configuration(directory, directory / "frostline.yaml", "limits:\n  workers: 4\n")
    return directory


def make(directory: Path, table: str) -> None:
    source = directory / "data" / "weather.csv"
    assert run(["table", "create", table, "--like", str(source), "--order-by", "id", "-q"]) == 0
    assert run(["insert", table, str(source), "-q"]) == 0


def test_what_a_demo_left_is_replaced_without_a_question(demo: Path) -> None:
    begin(demo, ask)
    assert [path.name for path in demo.iterdir()] == [MARKER]


@pytest.mark.in_turn
@pytest.mark.parametrize("lost", [(), ("ssd", "state"), ("state",)], ids=str)
def test_a_table_of_a_user_stops_it_wherever_it_is(demo: Path, lost: tuple[str, ...]) -> None:
    make(demo, "my.precious")
    for name in lost:
        shutil.rmtree(demo / name)
    with pytest.raises(Asked, match=r"more than a demo made: table my\.precious"):
        begin(demo, ask)
    assert (demo / "bucket").is_dir()
    begin(demo, lambda question: None)
    assert [path.name for path in demo.iterdir()] == [MARKER]


def test_a_table_that_was_dropped_is_nobodys(demo: Path) -> None:
    make(demo, "my.precious")
    assert run(["table", "drop", "my.precious", "--yes", "-q"]) == 0
    begin(demo, ask)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "name", ["thesis.txt", "data/mine.csv", "ssd/mine", "new-machine/mine", "backups/backups/mine", "a/b/mine.csv"]
)
def test_a_file_of_a_user_stops_it(demo: Path, name: str) -> None:
    path = demo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("years of work")
    shown = "backup mine" if name.startswith("backups") else "a/b" if name.startswith("a/") else name
    with pytest.raises(Asked, match=shown):
        begin(demo, ask)
    assert path.read_text() == "years of work"


@pytest.mark.parametrize("name", ["frostline.yaml", "a/frostline.yaml"])
def test_a_changed_configuration_stops_it(demo: Path, name: str) -> None:
    path = demo / name
    path.parent.mkdir(exist_ok=True)
    write_configuration(demo, path, "keeper: {}\n")
    path.write_text("mine: 1\n")
    with pytest.raises(Asked, match=f"the configuration {name}"):
        begin(demo, ask)


@pytest.mark.parametrize("damaged", ["ssd", "bucket"])
def test_a_store_that_cannot_be_read_stops_it(demo: Path, damaged: str) -> None:
    pattern = "ssd/store/*/*/table.json" if damaged == "ssd" else "bucket/**/operations/*"
    for path in demo.glob(pattern):
        path.write_bytes(b"{")
    with pytest.raises(Asked, match="which cannot be read"):
        begin(demo, ask)


def test_a_directory_that_no_demo_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(Refused, match="no earlier demo"):
        begin(tmp_path, lambda question: None)


def test_the_command_refuses_without_a_yes(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(demo, "my.precious")
    assert run(["demo", str(demo)]) == 13
    said = capsys.readouterr().err
    assert "table my.precious" in said
    assert "--yes" in said


def test_a_careless_umask_leaves_the_configuration_trusted(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        begin(tmp_path / "demo", ask)
        write_configuration(tmp_path / "demo", tmp_path / "demo" / "frostline.yaml", "limits:\n  workers: 4\n")
    finally:
        os.umask(before)
    assert not (tmp_path / "demo" / "frostline.yaml").stat().st_mode & 0o022
