"""Merge modes as a user meets them on the command line: what queries see before a merge and after it (I13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiering.cli.main import run


class Shop:
    """A command line with a store of its own."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("FROSTLINE_HOME", str(home / "home"))
        monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
        monkeypatch.chdir(home)
        self.home, self.capfd = home, capfd

    def __call__(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        self.capfd.readouterr()
        found = run(["--json", "--no-progress", *arguments])
        answer = self.capfd.readouterr()
        assert found == code, answer.err
        return dict(json.loads(answer.out if code == 0 else answer.err))

    def create(self, mode: str, *columns: str, code: int = 0) -> dict[str, Any]:
        named = [word for column in columns for word in ("--column", column)]
        return self("table", "create", "d.t", *named, "--order-by", "k", "--merge-mode", mode, code=code)

    def insert(self, **columns: list[Any]) -> None:
        pq.write_table(pa.table(columns), self.home / "rows.parquet")
        self("insert", "d.t", str(self.home / "rows.parquet"))

    def rows(self) -> list[list[Any]]:
        return list(self("query", "SELECT * FROM d.t ORDER BY k")["rows"])


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, monkeypatch, capfd)


def test_aggregates_are_there_after_a_merge(frostline: Shop) -> None:
    frostline.create(
        "aggregating:low=min,high=max,n=sum,last=anyLast",
        "k:string", "low:float64", "high:float64", "n:int64", "last:string", "first:string",
    )  # fmt: skip
    for value, text in ((3.0, "a"), (1.0, "b"), (2.0, None)):
        frostline.insert(k=["x"], low=[value], high=[value], n=[1], last=[text], first=[text])
    assert len(frostline.rows()) == 3
    frostline("merge", "d.t", "--final")
    assert frostline.rows() == [["x", 1.0, 3.0, 3, "b", "a"]]


def test_deleted_keys_go_when_they_are_asked_to(frostline: Shop) -> None:
    frostline.create("replacing:v,gone", "k:int64", "v:int64", "gone:bool")
    frostline.insert(k=[1, 2], v=[1, 1], gone=[False, False])
    frostline.insert(k=[1], v=[2], gone=[True])
    frostline("merge", "d.t", "--final")
    assert frostline.rows() == [[1, 2, True], [2, 1, False]]
    (planned,) = frostline("merge", "d.t", "--final", "--drop-deleted", "--dry-run")["merges"]
    assert len(planned["inputs"]) == 1
    (done,) = frostline("merge", "d.t", "--final", "--drop-deleted")["merges"]
    assert (done["rows_in"], done["rows_out"]) == (2, 1)
    assert frostline.rows() == [[2, 1, False]]
    assert frostline("merge", "d.t", "--final", "--drop-deleted")["merges"] == []


def test_deleted_keys_go_in_a_bucket_too(frostline: Shop) -> None:
    frostline.create("replacing:v,gone", "k:int64", "v:int64", "gone:bool")
    for version, gone in ((1, False), (2, True), (3, True)):
        frostline.insert(k=[1, 2], v=[version, version], gone=[gone, False])
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("merge", "d.t", "--cold", "--final")
    assert frostline.rows() == [[1, 3, True], [2, 3, False]]
    (done,) = frostline("merge", "d.t", "--cold", "--drop-deleted")["merges"]
    assert (done["rows_in"], done["rows_out"]) == (2, 1)
    assert frostline.rows() == [[2, 3, False]]


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("aggregating:n=median", "n=median"),
        ("aggregating:k=min", "cannot use k"),
        ("aggregating:x=min", "no column 'x'"),
        ("aggregating:tags=max", "max of tags"),
        ("summing:tags", "cannot sum tags"),
        ("replacing:n,tags", "deleted rows, tags"),
    ],
)
def test_a_mode_that_does_not_fit_is_refused(frostline: Shop, mode: str, what: str) -> None:
    usage = mode != "aggregating:x=min"
    error = frostline.create(mode, "k:int64", "n:int64", "tags:list<int64>", code=2 if usage else 10)["error"]
    assert what in error["message"]


def test_a_sum_that_does_not_fit_changes_nothing(frostline: Shop) -> None:
    frostline.create("summing:n", "k:int64", "n:int64")
    for _ in range(2):
        frostline.insert(k=[1, 2], n=[2**62, 1])
        frostline.insert(k=[1], n=[2**62])
    before = frostline.rows()
    error = frostline("merge", "d.t", "--final", code=2)["error"]
    assert "sum of column n" in error["message"]
    assert frostline.rows() == before
