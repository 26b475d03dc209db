"""`frostline files`: what it lists, read by an engine that knows nothing of Frostline, is what `query` answers."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

import frostline
from tests.homes import Home

Rows = list[list[Any]]


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "one", capsys)


def value(dice: random.Random, kind: str) -> Any:
    if dice.random() < 0.2:
        return None
    plain = {"int32": dice.randrange(1000), "double": dice.random(), "string": str(dice.random()), "date": "2026-01-02"}
    return plain.get(kind, {"a": dice.randrange(9), "b": [str(dice.randrange(9))]})


def put(home: Home, dice: random.Random, first: int) -> None:
    kinds = {column["name"]: column["type"] for column in home.json("table", "show", "d.t")["columns"]}
    lines = [
        {name: value(dice, {"float64": "double"}.get(kind, kind)) for name, kind in kinds.items()}
        | {"k": first + number, "p": number % 2}
        for number in range(6)
    ]
    path = home.path / f"{first}.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    home("insert", "d.t", str(path))


def read_elsewhere(urls: list[str], columns: list[str]) -> Rows:
    statement = f"SELECT {', '.join(columns)} FROM read_parquet({urls!r}, union_by_name = true) ORDER BY k"
    found: Rows = json.loads(json.dumps(duckdb.execute(statement).fetchall(), default=str))
    return found


def answered(home: Home, columns: list[str], *more: str) -> Rows:
    found: Rows = home.json("query", f"SELECT {', '.join(columns)} FROM d.t ORDER BY k", *more)["rows"]
    return found


@pytest.mark.parametrize("seed", range(2))
def test_an_engine_reads_the_listed_files(home: Home, seed: int) -> None:
    """Hot, cold, merged, and at every revision of the bucket."""
    dice = random.Random(seed)
    kinds = dice.sample(["int32", "double", "string", "date", "struct<a: int64, b: list<string>>"], 3)
    columns = ["k", "p", *(f"c{number}" for number in range(3))]
    declared = [word for number, kind in enumerate(kinds) for word in ("--column", f"c{number}:{kind}")]
    home("table", "create", "d.t", "--column", "k:int64", "--column", "p:int32", *declared, "--order-by", "k",
         "--partition-by", "p")  # fmt: skip
    past: dict[int, Rows] = {}
    for step in range(4):
        put(home, dice, step * 10)
        match dice.randrange(3):
            case 0:
                home("merge", "d.t", "--final")
            case 1:
                home("move", "d.t", "--partition", str(dice.randrange(2)), "--to-disk", "s3")
        listed = home.json("files", "d.t")["files"]
        assert read_elsewhere([file["url"] for file in listed], columns) == answered(home, columns)
        for file in listed:
            data = Path(file["url"].removeprefix("file://")).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
        assert sum(file["rows"] for file in listed) == 6 * (step + 1)
    for partition in "01":
        home("move", "d.t", "--partition", partition, "--to-disk", "s3")
    with frostline.open(home.configuration) as store:
        head = store.object_disk("s3").revision
    for revision in {head, *dice.sample(range(2, head), min(3, head - 2))}:
        past[revision] = answered(home, columns, "--revision", str(revision))
        urls = home("files", "d.t", "--revision", str(revision), "--urls").split()
        assert (read_elsewhere(urls, columns) if urls else []) == past[revision]
    assert len(past[head]) == 24


def test_what_the_list_says(home: Home) -> None:
    home.create()
    assert home("files", "d.t", "--urls") == ""
    home("files", "d.t")
    assert "No files" in home.error
    home.insert(1, 2)
    home.to_bucket()
    home.insert(3)
    both = home.json("files", "d.t")
    assert (both["table"], both["schema_version"], len(both["files"])) == ("d.t", 1, 2)
    (cold,) = home.json("files", "d.t", "--disk", "s3")["files"]
    assert (cold["partition"], cold["rows"], cold["disk"], cold["schema_version"]) == ("all", 2, "s3", 1)
    assert home("files", "d.t", "--urls", "--disk", "s3") == f"{cold['url']}\n"
    text = home("files", "d.t")
    assert all(str(part) in text for part in (cold["part"], cold["url"], cold["sha256"]))
    with frostline.open(home.configuration) as store:
        assert [file.url for file in store.table("d.t").files()] == [file["url"] for file in both["files"]]
    home("table", "alter", "d.t", "--add-column", "x:int64")
    home("files", "d.t")
    assert "2 files older than" in home.error


def test_lists_that_are_refused(home: Home) -> None:
    home.create()
    home.insert(1)
    home("files", "d.nope", code=10)
    home("files", "d.t", "--disk", "nope", code=10)
    home("files", "d.t", "--revision", "x", code=2)
    home("files", "d.t", "--revision", "999", code=10)
    part = home.json("parts", "d.t")["parts"][0]["part"]
    for path in (home.path / "ssd").rglob(f"{part}/*.parquet"):
        path.unlink()
    home("files", "d.t", code=10)
    assert "no file" in home.error
