"""What an insert makes of inputs that are not as the table is: columns chosen, renamed, left out, filled in; rows that
cannot be taken kept in a file. DuckDB and pyarrow read the same inputs for comparison."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from oplog.errors import FrostlineError, LimitReached, NotFound, UsageError
from tests.homes import Home
from tests.opened_sources import open_sources
from tiering.insert.bad_rows import BadRows
from tiering.insert.inputs import source_files
from tiering.insert.inputs.sources import source_schema
from tiering.insert.reshaping import parse_reshaping
from tiering.table.definitions import define_table

TABLE = define_table(
    "d.t",
    columns=["k:int64 not null", "name:string", "at:timestamp[us, UTC]", "price:decimal(8, 2)", "n:int16"],
    order_by="k",
    policy="p",
)
EVENTS = [
    {
        "id": number,
        "user": {"name": f"u{number % 3}", "address": {"city": "Köln" if number % 2 else None}},
        "time": f"2026-01-01T00:00:{number:02d}Z",
        "mixed": number if number % 2 else {"deep": True},
        "cents": number,
    }
    for number in range(20)
]


def read(
    path: Path | str, bad: BadRows | None = None, stdin: bytes = b"", file_format: str | None = None, **words: Any
) -> list[dict[str, Any]]:
    reshaping = parse_reshaping(TABLE, **words)
    batches = open_sources([str(path)], file_format, TABLE, reshaping=reshaping, bad=bad, stdin=io.BytesIO(stdin))
    return [row for batch in batches for row in batch.to_pylist()]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


class TestColumns:
    def test_fields_of_nested_json_as_duckdb_sees_them(self, tmp_path: Path) -> None:
        """A column of several types that nobody asked for is in nobody's way."""
        source = lines(tmp_path / "log.jsonl", EVENTS)
        found = read(source, select="id as k, user.name, time AS at, cents as n")
        columns = 'id AS k, "user".name AS name, "time"::TIMESTAMPTZ AS at, NULL AS price, cents AS n'
        expected = duckdb.sql(f"SELECT {columns} FROM '{source}'").fetchall()
        assert [(row["k"], row["name"], row["at"], row["price"], row["n"]) for row in found] == expected

    def test_fields_deeper_in_and_of_structs_that_are_null(self, tmp_path: Path) -> None:
        rows = [*EVENTS[:2], {"id": 2, "user": None}, {"id": 3, "user": {"address": None}}]
        table = pa.Table.from_pylist([{"id": row["id"], "user": row["user"]} for row in rows])
        pq.write_table(table, tmp_path / "in.parquet")
        for source in (lines(tmp_path / "in.jsonl", rows), tmp_path / "in.parquet"):
            found = read(source, select="id as k,user.address.city as name")
            assert [(row["k"], row["name"]) for row in found] == [(0, None), (1, "Köln"), (2, None), (3, None)]

    def test_a_name_with_a_dot_is_found_first(self, tmp_path: Path) -> None:
        rows = [{"id": 1, "user.name": "whole", "user": {"name": "inside"}}]
        assert read(lines(tmp_path / "in.jsonl", rows), select="id as k,user.name")[0]["name"] == "whole"
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
        assert read(tmp_path / "in.parquet", select="id as k,user.name")[0]["name"] == "whole"

    def test_renamed_columns_are_read_as_the_types_of_the_table(self, tmp_path: Path) -> None:
        """`007` is a text where the column is one, whatever its name in the file."""
        source = tmp_path / "in.csv"
        source.write_text("id,zip,at\n1,007,2026-01-01 00:00:00\n2,,\n")
        found = read(source, rename=["id:k", "zip:name"])
        assert [(row["k"], row["name"]) for row in found] == [(1, "007"), (2, None)]
        found = read(source, select="id as k,zip as name")
        assert [(row["name"], row["at"]) for row in found] == [("007", None), (None, None)]

    @pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
    def test_unknown_columns_are_refused_or_ignored(self, ending: str, tmp_path: Path) -> None:
        source = write(pa.table({"k": [1, 2], "more": ["a", "b"]}), tmp_path / f"in.{ending}")
        with pytest.raises(UsageError, match="unknown columns: more"):
            read(source)
        assert [row["k"] for row in read(source, ignore_unknown=True)] == [1, 2]

    @pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
    def test_defaults_stand_where_the_input_has_nothing(self, ending: str, tmp_path: Path) -> None:
        source = write(pa.table({"k": [1, 2, 3], "n": [7, None, 9]}), tmp_path / f"in.{ending}")
        found = read(source, default=["n=-1", "price=2.50", "name="])
        assert [row["n"] for row in found] == [7, -1, 9]
        assert {(str(row["price"]), row["name"]) for row in found} == {("2.50", "")}

    def test_a_default_fills_a_sort_column_that_is_missing(self, tmp_path: Path) -> None:
        source = write(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
        with pytest.raises(UsageError, match="sort column k is missing"):
            read(source)
        assert read(source, default=["k=5"])[0]["k"] == 5

    @pytest.mark.parametrize(
        ("words", "kind", "said"),
        [
            ({"select": "a as k", "rename": ["b:n"]}, UsageError, "do not go together"),
            ({"select": "a as nope"}, NotFound, "nope"),
            ({"select": "a as k,,b as n"}, UsageError, "not a list of columns"),
            ({"select": "a as k,b as k"}, UsageError, "filled twice"),
            ({"select": "a as k,a as n"}, UsageError, "names a twice"),
            ({"rename": ["a"]}, UsageError, "A:B"),
            ({"rename": ["a:nope"]}, NotFound, "nope"),
            ({"default": ["n"]}, UsageError, "COLUMN=VALUE"),
            ({"default": ["nope=1"]}, NotFound, "nope"),
            ({"default": ["n=many"]}, UsageError, "does not fit column n"),
            ({"default": ["n=70000"]}, UsageError, "does not fit column n"),
            ({"default": ["n=1", "n=2"]}, UsageError, "twice"),
        ],
    )
    def test_words_that_make_no_sense(self, words: dict[str, Any], kind: type[FrostlineError], said: str) -> None:
        with pytest.raises(kind) as caught:
            parse_reshaping(TABLE, **words)
        assert said in caught.value.message + caught.value.hint

    @pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
    @pytest.mark.parametrize("words", [{"select": "k,nope as n"}, {"rename": ["nope:n"]}])
    def test_a_column_that_the_input_does_not_have(self, ending: str, words: dict[str, Any], tmp_path: Path) -> None:
        source = write(pa.table({"k": [1]}), tmp_path / f"in.{ending}")
        with pytest.raises(UsageError, match=r"in\..*nope"):
            read(source, **words)
        assert read(source, default=["n=3"], **words)[0]["n"] == 3

    def test_a_path_through_what_is_no_struct(self, tmp_path: Path) -> None:
        source = write(pa.table({"k": [1], "list": [[1]]}), tmp_path / "in.parquet")
        with pytest.raises(UsageError, match="cannot be taken out of list"):
            read(source, select="k,list.n")


class TestBadRows:
    def test_csv_keeps_the_lines_that_duckdb_rejects(self, tmp_path: Path) -> None:
        good = [f'{number},"a,\n{number}",{number % 9}' for number in range(300)]
        wrong = {40: "x,a,1", 41: "1,a", 170: "1,a,1,1", 250: "2,b,99999"}
        text = [wrong.get(number, row) for number, row in enumerate(good)]
        source = tmp_path / "in.csv"
        source.write_text("k,name,n\n" + "\n".join(text) + "\n")
        kept = tmp_path / "bad.jsonl"
        with BadRows(10, kept) as bad:
            found = read(source, bad)
        expected = duckdb.sql(
            f"SELECT k, name, n FROM read_csv('{source}', ignore_errors=true, "
            "columns={'k': 'BIGINT', 'name': 'VARCHAR', 'n': 'SMALLINT'}, quote='\"', header=true, null_padding=false)"
        ).fetchall()
        assert [(row["k"], row["name"], row["n"]) for row in found] == expected
        assert len(expected) == 296
        records = [json.loads(line) for line in kept.read_text().splitlines()]
        assert [record["text"] for record in records] == list(wrong.values())
        all_lines = source.read_text().split("\n")
        assert [all_lines[record["line"] - 1] for record in records] == list(wrong.values())
        assert {record["source"] for record in records} == {str(source)}

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        source = tmp_path / "in.csv"
        source.write_bytes(b"k,name\n1,a\n2,\xff\xfe\n3,c\n")
        with BadRows(1, tmp_path / "bad.jsonl") as bad:
            assert [row["k"] for row in read(source, bad)] == [1, 3]
        assert "not UTF-8" in (tmp_path / "bad.jsonl").read_text()

    def test_json_lines_that_are_none_or_do_not_fit(self, tmp_path: Path) -> None:
        rows: list[Any] = [{"k": number, "n": 1} for number in range(100)]
        wrong = {3: "{", 50: '{"k": "many"}', 51: "[1]", 77: '{"k": 5, "at": 17}', 98: '{"k": 5, "n": 40000}'}
        source = lines(tmp_path / "in.jsonl", [wrong.get(number, row) for number, row in enumerate(rows)])
        with BadRows(5, tmp_path / "bad.jsonl") as bad:
            found = read(source, bad)
        assert [row["k"] for row in found] == [number for number in range(100) if number not in wrong]
        records = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert [(record["line"], record["text"]) for record in records] == [
            (number + 1, text) for number, text in wrong.items()
        ]

    def test_rows_of_formats_with_types(self, tmp_path: Path) -> None:
        table = pa.table({"k": pa.array([1, None, 3, 4], pa.int64()), "n": pa.array([1, 2, 70_000, 4], pa.int64())})
        pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
        with BadRows(2, tmp_path / "bad.jsonl") as bad:
            assert [row["k"] for row in read(tmp_path / "in.parquet", bad)] == [1, 4]
        records = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert [(record["row"], record["values"]) for record in records] == [
            (2, {"k": None, "n": 2}),
            (3, {"k": 3, "n": 70_000}),
        ]

    def test_more_than_allowed_stop_it(self, tmp_path: Path) -> None:
        source = lines(tmp_path / "in.jsonl", [{"k": 1}, "{", "{", {"k": 2}])
        with pytest.raises(LimitReached, match="more than 1 bad rows"), BadRows(1, tmp_path / "bad.jsonl") as bad:
            read(source, bad)
        assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 2

    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_wrong_columns_are_no_bad_rows(self, ending: str, tmp_path: Path) -> None:
        source = write(pa.table({"key": [1, 2]}), tmp_path / f"in.{ending}")
        with pytest.raises(UsageError, match="unknown columns: key"), BadRows(9, None) as bad:
            read(source, bad)

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="nowhere"), BadRows(1, tmp_path / "nowhere" / "bad.jsonl"):
            pass


def write(table: pa.Table, path: Path) -> Path:
    """The table in the format of the name, without compression."""
    path.write_bytes(_bytes(table, path.suffix))
    return path


def _bytes(table: pa.Table, suffix: str) -> bytes:
    sink = io.BytesIO()
    match suffix:
        case ".parquet":
            pq.write_table(table, sink)
        case ".orc":
            pa.orc.write_table(table, sink)
        case ".arrow":
            pa.feather.write_feather(table, sink)
        case ".csv":
            pa.csv.write_csv(table, sink)
        case _:
            rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
            sink.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    return sink.getvalue()


class TestFormats:
    ROWS = pa.table({"k": pa.array(range(1000), pa.int64()), "name": [f"n{number}" for number in range(1000)]})

    @pytest.mark.parametrize("compression", ["", ".gz", ".zst", ".lz4"])
    @pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".arrow", ".orc"])
    def test_every_format_with_every_compression(
        self, ending: str, compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(source_files, "BLOCK_BYTES", 1000)
        plain = _bytes(self.ROWS, ending)
        codec = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4"}.get(compression)
        data = pa.compress(plain, codec=codec, asbytes=True) if codec else plain
        path = tmp_path / f"in{ending}{compression}"
        path.write_bytes(data)
        expected = [{**row, "at": None, "price": None, "n": None} for row in self.ROWS.to_pylist()]
        assert read(path) == expected
        assert read("-", stdin=data, file_format=source_files._ENDINGS[ending]) == expected
        assert source_schema(str(path)).names == ["k", "name"]
        if not codec and ending == ".csv":
            return  # half of it is a CSV file, too
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(UsageError, match="in"):
            assert len(read(path)) == 1000

    def test_orc_of_several_stripes(self, tmp_path: Path) -> None:
        table = pa.table(
            {"k": pa.array(range(200_000), pa.int64()), "name": [f"{number:040d}" for number in range(200_000)]}
        )
        pa.orc.write_table(table, tmp_path / "in.orc", stripe_size=100_000)
        assert pa.orc.ORCFile(tmp_path / "in.orc").nstripes > 1
        batches = list(open_sources([str(tmp_path / "in.orc")], None, TABLE))
        assert len(batches) > 1
        assert pa.Table.from_batches(batches).select(["k", "name"]).cast(table.schema).equals(table)


class TestVerb:
    @pytest.fixture
    def home(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
        home = Home(tmp_path, "one", capsys)
        home("table", "create", "d.t", "--column", "k:int64", "--column", "name:string", "--order-by", "k")
        return home

    def test_all_of_it_at_once_and_again_doubles_nothing(self, home: Home, tmp_path: Path) -> None:
        source = lines(tmp_path / "in.jsonl", [*EVENTS, "{"])
        bad = tmp_path / "bad.jsonl"
        words = ("insert", "d.t", str(source), "--select", "id as k, user.nick as name")
        words = (*words, "--ignore-unknown", "--default", "name=nobody", "--skip-bad-rows", "3", str(bad))
        dry = home.json(*words, "-n")
        assert (dry["rows"], dry["bad_rows"], bad.exists()) == (20, 1, False)
        done = home.json(*words)
        assert (done["rows"], done["bad_rows"]) == (20, 1)
        assert json.loads(bad.read_text())["line"] == 21
        assert home.json("query", "SELECT count(*), min(name) FROM d.t")["rows"] == [[20, "nobody"]]
        assert home.json(*words)["duplicates"] == 1
        assert "1 row could not be inserted" in home(*words) + home.error
        assert home.json("query", "SELECT count(*) FROM d.t")["rows"] == [[20]]

    def test_moments_python_lacks_are_bad_rows_with_their_values(self, home: Home, tmp_path: Path) -> None:
        source, bad = tmp_path / "far.parquet", tmp_path / "bad.jsonl"
        moments = "[DATE '2024-01-01', 'infinity', NULL, '-infinity', '20000-01-01']"
        duckdb.sql(f"SELECT unnest(range(5)) AS k, unnest({moments}) AS d").write_parquet(str(source))
        home("table", "create", "d.far", "--like", str(source), "--order-by", "d,k")
        home("insert", "d.far", str(source), code=2)
        assert "infinite in row 2" in home.error
        home("insert", "d.far", str(source), "--skip-bad-rows", "3", str(bad))
        assert home.json("query", "SELECT k, d FROM d.far ORDER BY k")["rows"] == [[0, "2024-01-01"], [2, None]]
        kept = [json.loads(line) for line in bad.read_text().splitlines()]
        assert [(one["row"], one["values"]["k"]) for one in kept] == [(2, 1), (4, 3), (5, 4)]
        assert "20000-01-01" in kept[2]["values"]["d"]

    def test_bad_input(self, home: Home, tmp_path: Path) -> None:
        source = lines(tmp_path / "in.jsonl", [{"k": 1}, "{", "{"])
        home("insert", "d.t", str(source), "--skip-bad-rows", "1", str(tmp_path / "bad.jsonl"), code=8)
        home("insert", "d.t", str(source), "--skip-bad-rows", "-1", str(tmp_path / "bad.jsonl"), code=2)
        home("insert", "d.t", str(tmp_path / "*.jsonl"), "--skip-bad-rows", "9", str(source), code=2)
        assert source.read_text().startswith('{"k": 1}')
        home("insert", "d.t", str(source), "--skip-bad-rows", "many", "x", code=2)
        home("insert", "d.t", str(source), "--select", "nope", code=10)
        home("insert", "d.t", str(source), "--default", "k", code=2)
        assert home.json("query", "SELECT count(*) FROM d.t")["rows"] == [[0]]
