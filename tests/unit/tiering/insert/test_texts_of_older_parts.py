"""Parts of older versions with bytes that are no text: they are named, and there is a way out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.homes import Home
from tests.unit.tiering.insert.foreign_tables import texts
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.table.columns import types


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    one = Home(tmp_path, "one", capsys)
    for name in ("d.t", "d.mended"):
        one("table", "create", name, "--column", "k:int64", "--column", "s:string", "--order-by", "k")
    with monkeypatch.context() as patch, Store.open(load(one.configuration)) as store:
        patch.setattr(types, "sound_column", lambda array, name, **_: array)
        batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), texts(b"a", b"m\xffm", b"z")], ["k", "s"])
        store.table("d.t").insert([batch])
    return one


def test_a_query_names_the_part_and_other_columns_work(home: Home) -> None:
    home("query", "SELECT s FROM d.t", code=1)
    assert "part all_1_1_0 has bytes" in home.error
    assert "Table.dataset()" in home.error
    assert home.json("query", "SELECT k FROM d.t ORDER BY k")["rows"] == [[1], [2], [3]]


def test_fsck_names_the_part_and_a_repair_leaves_it(home: Home) -> None:
    assert home.json("fsck")["problems"] == []
    for options in ((), ("--repair",)):
        (problem,) = home.json("fsck", "--read-data", *options, code=4)["problems"]
        assert problem["part"] == "all_1_1_0"
        assert problem["what"].endswith("in column s")
    assert home.json("query", "SELECT count(k) FROM d.t")["rows"] == [[3]]


def test_what_a_data_set_reads_goes_in_mended(home: Home) -> None:
    with Store.open(load(home.configuration)) as store:

        def mended() -> list[pa.RecordBatch]:
            found = []
            for batch in store.table("d.t").dataset().to_batches():
                values = batch.column("s").view(pa.binary()).to_pylist()
                mended = [None if value is None else value.decode(errors="replace") for value in values]
                found.append(batch.set_column(1, "s", pa.array(mended, pa.string())))
            return found

        store.table("d.mended").insert(mended())
    assert home.json("query", "SELECT s FROM d.mended ORDER BY k")["rows"] == [["a"], ["m\ufffdm"], ["z"]]


def test_a_merge_leaves_the_rows_as_they_are(home: Home) -> None:
    home("insert", "d.t", "--select", "SELECT 4::BIGINT AS k, 'b' AS s")
    home("merge", "d.t", "--final")
    with Store.open(load(home.configuration)) as store:
        table = store.table("d.t").dataset().to_table()
    assert table.column("s").combine_chunks().view(pa.binary()).to_pylist() == [b"a", b"m\xffm", b"z", b"b"]


def test_its_file_is_not_attached_and_its_other_rows_go_in(home: Home) -> None:
    (part,) = (path for path in (home.path / "ssd").rglob("data-0000.parquet") if "all_1_1_0" in path.parts)
    home("partition", "attach", "d.mended", str(part), code=2)
    assert "no UTF-8 text" in home.error
    home("insert", "d.mended", str(part), "--skip-bad-rows", "1", str(home.path / "bad.jsonl"))
    assert home.json("query", "SELECT s FROM d.mended ORDER BY k")["rows"] == [["a"], ["z"]]
