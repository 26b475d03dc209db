"""JSON objects for maps: every entry arrives, nulls too, wherever the map lies; what a struct lacks is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oplog.errors import UsageError
from tiering.insert.inputs.source_files import find_sources
from tiering.insert.inputs.sources import read_each
from tiering.insert.reshaping import parse_reshaping
from tiering.table.definitions import define_table

TABLE = define_table(
    "d.t",
    columns=[
        "k:int64",
        "m:map<string, int64>",
        "s:struct<l: map<string, string>, n: int64>",
        "x:list<map<string, timestamp[us, UTC]>>",
        "deep:map<string, struct<a: int64, m: map<string, string>>>",
        "numbered:map<int64, string>",
    ],
    order_by="k",
    policy="p",
)


def _inserted(path: Path, text: str, **how: Any) -> dict[str, Any]:
    """Of the only row what is no null."""
    path.write_text(text)
    (row,) = (
        row
        for stream in read_each(find_sources([str(path)]), parse_reshaping(TABLE, **how))
        for batch in stream
        for row in batch.to_pylist()
    )
    return {name: value for name, value in row.items() if value is not None}


_CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"m": {"a": 1, "b": None}}, {"m": [("a", 1), ("b", None)]}),
    ({"m": {}}, {"m": []}),
    ({"m": None}, {}),
    ({"m": {"a": "7"}}, {"m": [("a", 7)]}),
    ({"m": [{"key": "a", "value": 1}]}, {"m": [("a", 1)]}),
    (
        {"s": {"l": {"q": 5, "w": None, "z": {"p": [1]}}}},
        {"s": {"l": [("q", "5"), ("w", None), ("z", '{"p": [1]}')], "n": None}},
    ),
    ({"x": [{"t": None}, None, {}]}, {"x": [[("t", None)], None, []]}),
    (
        {"deep": {"r": {"a": 1, "m": {"b": None}}, "u": None}},
        {"deep": [("r", {"a": 1, "m": [("b", None)]}), ("u", None)]},
    ),
    ({"numbered": [[1, "one"], [2, None]]}, {"numbered": [(1, "one"), (2, None)]}),
]


@pytest.mark.parametrize(("given", "expected"), _CASES)
def test_no_entry_is_lost(given: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    assert _inserted(tmp_path / "a.jsonl", json.dumps({"k": 1, **given}) + "\n") == {"k": 1, **expected}


@pytest.mark.parametrize(("given", "expected"), _CASES)
def test_texts_of_csv_hold_the_same(given: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    ((name, value),) = given.items()
    text = "" if value is None else json.dumps(json.dumps(value)).replace('\\"', '""')
    assert _inserted(tmp_path / "a.csv", f"k,{name}\n1,{text}\n") == {"k": 1, **expected}


def test_a_map_is_taken_out_of_an_object(tmp_path: Path) -> None:
    line = json.dumps({"k": 1, "u": {"labels": {"a": None}, "other": "x"}}) + "\n"
    assert _inserted(tmp_path / "a.jsonl", line, select="k,u.labels as m") == {"k": 1, "m": [("a", None)]}


def test_many_keys_are_no_columns(tmp_path: Path) -> None:
    """Each row has keys of its own."""
    lines = [json.dumps({"k": row, "m": {f"{row}-{n}": n for n in range(50)}}) for row in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    (stream,) = read_each(find_sources([str(tmp_path / "a.jsonl")]), parse_reshaping(TABLE))
    assert [len(row["m"]) for batch in stream for row in batch.to_pylist()] == [50] * 200


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_field_that_the_struct_lacks_is_refused_beside_a_map(ending: str, tmp_path: Path) -> None:
    inner = {"l": {"q": "5"}, "n": 3, "zz": 1}
    text = (
        json.dumps({"k": 1, "s": inner})
        if ending == "jsonl"
        else "k,s\n1," + json.dumps(json.dumps(inner)).replace('\\"', '""')
    )
    with pytest.raises(UsageError, match="does not have: zz"):
        _inserted(tmp_path / f"a.{ending}", text + "\n")
    found = _inserted(tmp_path / f"a.{ending}", text + "\n", ignore_unknown=True)
    assert found == {"k": 1, "s": {"l": [("q", "5")], "n": 3}}


@pytest.mark.parametrize("value", [5, "x", [1], {"a": "x"}, [["a", 1, 2]]])
def test_what_is_no_map_is_named(value: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="column m must be map<string, int64>, but row 1"):
        _inserted(tmp_path / "a.jsonl", json.dumps({"k": 1, "m": value}) + "\n")
