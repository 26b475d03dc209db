"""Queries read the parts that a filter of a field of a struct leaves, and find every row. Guards I15."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frostline
from tests.homes import Home

_KIND = "struct<id: int32, geo: struct<lat: float64, at: timestamp[s, UTC]>, plan: string>"


def _row(k: int) -> dict[str, Any]:
    geo = {"lat": k / 8, "at": f"2026-01-{1 + k // 10:02d}T00:00:{k % 10:02d}Z"}
    user = {"id": k, "geo": None if k % 7 == 0 else geo, "plan": None if k < 20 else f"plan {k // 10}"}
    return {"k": k, "user": None if k % 10 == 5 else user, "id": 1000 - k}


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """Five parts, of k 0 to 9, 10 to 19 and so on."""
    home = Home(tmp_path, "one", capsys)
    home(
        "table",
        "create",
        "d.t",
        "--column",
        "k:int64",
        "--column",
        f"user:{_KIND}",
        "--column",
        "id:int64",
        "--order-by",
        "k",
    )
    for first in range(0, 50, 10):
        _insert(home, range(first, first + 10))
    return home


def _insert(home: Home, keys: range) -> None:
    source = home.path / "rows.jsonl"
    source.write_text("".join(json.dumps(_row(k)) + "\n" for k in keys))
    home("insert", "d.t", str(source))


CONDITIONS: dict[str, tuple[int, Callable[[Any], bool]]] = {
    '"user".id > 35': (2, lambda user: user is not None and user["id"] > 35),
    '"user".id BETWEEN 12 AND 13': (1, lambda user: user is not None and 12 <= user["id"] <= 13),
    '"user".id >= 8': (5, lambda user: user is not None and user["id"] >= 8),
    '"user".geo.lat BETWEEN 0 AND 1': (1, lambda user: bool(user and user["geo"]) and user["geo"]["lat"] <= 1),
    "\"user\".geo.at >= '2026-01-05'": (1, lambda user: bool(user and user["geo"]) and user["id"] >= 40),
    '"user".plan IS NOT NULL': (3, lambda user: user is not None and user["plan"] is not None),
    "\"user\".plan LIKE 'plan 3%'": (1, lambda user: user is not None and user["plan"] == "plan 3"),
    '"user".id IN (3, 44)': (2, lambda user: user is not None and user["id"] in (3, 44)),
    '"user" IS NULL': (5, lambda user: user is None),
    '"user".geo IS NULL AND "user".id < 20': (2, lambda user: bool(user) and user["geo"] is None and user["id"] < 20),
    'NOT ("user".id < 30 OR "user".plan IS NULL)': (2, lambda user: user is not None and user["id"] >= 30),
}  # fmt: skip


def _check(home: Home, *, is_pruned: bool) -> None:
    for condition, (parts, holds) in CONDITIONS.items():
        found = home.json("query", f"SELECT k FROM d.t WHERE {condition} ORDER BY k")
        assert [k for (k,) in found["rows"]] == [k for k in range(50) if holds(_row(k)["user"])], condition
        if is_pruned:
            assert found["parts_read"] == parts, condition


@pytest.mark.in_turn
def test_parts_are_left_out_by_fields_and_no_row_is_missed(home: Home) -> None:
    _check(home, is_pruned=True)
    said = home("query", 'EXPLAIN SELECT k FROM d.t WHERE "user".geo.lat BETWEEN 0 AND 1 AND id > 0')
    assert "d.t: 4 left out by user.geo.lat >= 0.0 AND user.geo.lat <= 1.0" in said
    home.to_bucket()
    _check(home, is_pruned=True)
    home("merge", "d.t", "--final", "--cold")
    _check(home, is_pruned=False)
    assert home.json("query", 'SELECT k FROM d.t WHERE "user".id > 60')["parts_read"] == 0
    # A renamed column keeps its ranges; one that came in the place of another has none of that.
    home("table", "alter", "d.t", "--rename-column", "user:person")
    assert home.json("query", "SELECT k FROM d.t WHERE person.id > 60")["parts_read"] == 0
    home("table", "alter", "d.t", "--drop-column", "person")
    home("table", "alter", "d.t", "--add-column", f"person:{_KIND}")
    assert home.json("query", "SELECT count(*) FROM d.t WHERE person.id IS NULL")["rows"] == [[50]]


@pytest.mark.in_turn
def test_older_parts_say_nothing_of_fields_and_are_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside newer ones, and merged with them."""
    with monkeypatch.context() as older:
        older.setattr("tiering.parquet.column_ranges.fields_within", lambda kind: ())
        _insert(home, range(50, 60))
    found = home.json("query", 'SELECT k FROM d.t WHERE "user".id IN (3, 51)')
    assert (found["rows"], found["parts_read"]) == ([[3], [51]], 2)
    home("merge", "d.t", "--final")
    assert home.json("query", 'SELECT k FROM d.t WHERE "user".id > 56 ORDER BY k')["rows"] == [[57], [58], [59]]
    assert home.json("query", 'SELECT k FROM d.t WHERE "user".id > 60')["parts_read"] == 0


def test_what_lies_beneath_a_null_is_no_value(home: Home) -> None:
    """Arrow keeps values beneath a struct that is null."""
    home("table", "create", "d.n", "--column", "k:int64", "--column", "s:struct<a: int64>", "--order-by", "k")
    with frostline.open(home.configuration) as store:
        for k in (1, 2):
            beneath = pa.StructArray.from_arrays([pa.array([100 * k])], names=["a"], mask=pa.array([k == 1]))
            store.table("d.n").insert([pa.record_batch({"k": pa.array([k]), "s": beneath})])
    assert home.json("query", "SELECT k FROM d.n WHERE s.a IS NULL")["rows"] == [[1]]
    assert home.json("query", "SELECT k FROM d.n WHERE s.a IS NULL")["parts_read"] == 1
    assert home.json("query", "SELECT k FROM d.n WHERE s.a < 150")["parts_read"] == 0


def test_moments_of_fields_go_by_their_values(home: Home) -> None:
    zoned = datetime(2026, 1, 5, 0, 0, 8, tzinfo=UTC).isoformat()
    found = home.json("query", f"SELECT k FROM d.t WHERE \"user\".geo.at = '{zoned}'")
    assert (found["rows"], found["parts_read"]) == ([[48]], 1)
