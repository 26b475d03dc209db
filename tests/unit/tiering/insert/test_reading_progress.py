"""How far the reading of an insert's files is: told in bytes of the files, whatever they are packed with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disks.workers.progress import Silent
from tests.command_line import Frostline
from tests.unit.tiering.insert.bucket_objects import OBJECTS, csv_text
from tiering.insert.inputs import source_csv
from tiering.insert.inputs.source_files import find_sources
from tiering.insert.inputs.sources import read_each, total_bytes
from tiering.insert.reshaping import Reshaping
from tiering.table.definitions import define_table

TABLE = define_table("d.t", columns=["k:int64", "text:string"], order_by="k", policy="p")


class Told(Silent):
    """A task that remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        self.steps.append(size_bytes)


@pytest.mark.parametrize("name", OBJECTS)
def test_all_bytes_are_told_of_every_format(tmp_path: Path, name: str) -> None:
    for number in range(3):
        (tmp_path / f"{number}{name}").write_bytes(OBJECTS[name]())
    sources, task = find_sources([str(tmp_path / f"*{name}")]), Told()
    rows = sum(batch.num_rows for stream in read_each(sources, Reshaping(TABLE), task=task) for batch in stream)
    assert rows == 3000
    assert min(task.steps) >= 0
    assert sum(task.steps) == total_bytes(sources) == 3 * len(OBJECTS[name]())


def test_they_are_told_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_csv, "BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_bytes(csv_text())
    task = Told()
    for stream in read_each(find_sources([str(tmp_path / "a.csv")]), Reshaping(TABLE), task=task):
        next(stream)
        assert task.steps == [3000], "two blocks are read ahead"
        next(stream)
        assert task.steps == [3000, 1000]


def test_what_is_not_known_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(csv_text())
    sources = find_sources([str(tmp_path / "a.csv"), "-"], "csv")
    assert total_bytes(sources) is None


def test_a_long_insert_tells_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    frostline = Frostline(capsys)
    (tmp_path / "a.csv").write_bytes(csv_text())
    frostline("table", "create", "db.t", "--like", str(tmp_path / "a.csv"), "--order-by", "k")
    frostline("insert", "db.t", str(tmp_path / "a.csv"), "--json-progress")
    told = [json.loads(line)["progress"] for line in frostline.error.splitlines() if line.startswith("{")]
    (last,) = (one for one in told if one["task"].startswith("reading") and one["state"] == "done")
    assert (last["bytes"], last["bytes_done"]) == (len(csv_text()), len(csv_text()))
