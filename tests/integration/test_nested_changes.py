"""Fields within columns: ids in the table and in every file, changes by their paths, and tables older than the ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frostline
from tests.homes import Home
from tiering.table import schema
from tiering.table.columns.nested_ids import field_id, nested_fields
from tiering.table.schema import PLAIN_FORMAT

KIND = "struct<lat: double, stops: list<struct<name: string>>, tags: map<string, int32>>"


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "one", capsys)


def put(home: Home, keys: range, rows: list[Any], *, name: str = "geo", table: str = "d.t") -> None:
    path = home.path / f"{keys.start}.json"
    path.write_text("\n".join(json.dumps({"k": key, name: row}) for key, row in zip(keys, rows, strict=True)))
    home("insert", table, str(path))


def rows(home: Home, what: str = "*") -> list[list[Any]]:
    answer = home.json("query", f"SELECT {what} FROM d.t ORDER BY k")
    found: list[list[Any]] = answer["rows"]
    return found


def files(home: Home) -> list[Path]:
    """The data files of the active parts."""
    with frostline.open(home.configuration) as store:
        return [
            Path(store.context.disk(stored.disk).location(stored.path(file.name)).url.removeprefix("file://"))  # type: ignore[union-attr]
            for stored in store.parts("d.t")
            for file in stored.part.files
        ]


def ids(kind: pa.DataType) -> list[int | None]:
    return [number for field in nested_fields(kind) for number in (field_id(field), *ids(field.type))]


def ids_in(path: Path) -> list[int | None]:
    """All ids as Arrow has them, column by column; the engine's reader of footers has the same."""
    read = pq.read_schema(path)
    found = [number for field in read for number in (field_id(field), *ids(field.type))]
    told = duckdb.execute(f"SELECT name, field_id FROM parquet_schema('{path}')").fetchall()
    assert [number for _, number in told if number is not None and number >= 0] == found
    assert {name for name, number in told[1:] if number is None or number < 0} <= {"list", "key_value"}
    return found


def make_older(home: Home) -> None:
    """The table as a version made it that gave no ids to nested fields; it has no parts yet."""
    with frostline.open(home.configuration) as store:
        old = store.definition("d.t")
        columns = tuple(msgspec.structs.replace(column, nested_ids=()) for column in old.columns)
        plain = msgspec.structs.replace(old, columns=columns, format=PLAIN_FORMAT, last_column_id=len(columns))
        store.alter_table(old, plain)


def test_every_file_has_the_ids_of_all_fields(home: Home) -> None:
    """Inserted, merged, in the bucket, and merged there; by `--like`, too."""
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    expected = [1, *range(2, 3), *range(3, 10)]
    for start in (0, 10):
        put(home, range(start, start + 2), [{"lat": 1.5, "stops": [{"name": "a"}], "tags": {"x": 1}}, None])
    assert [ids_in(path) for path in files(home)] == [expected] * 2
    home("merge", "d.t", "--final")
    assert [ids_in(path) for path in files(home)] == [expected]
    put(home, range(20, 21), [{"lat": 2.5}])
    home("move", "d.t", "--partition", "all", "--to-disk", "s3")
    home("merge", "d.t", "--cold", "--final")
    assert [ids_in(path) for path in files(home)] == [expected]
    sample = home.path / "sample.parquet"
    sample.write_bytes(files(home)[0].read_bytes())
    home("table", "create", "d.u", "--like", str(sample), "--order-by", "k")
    with frostline.open(home.configuration) as store:
        (_, like) = store.definition("d.u").columns
        assert like.nested_ids == tuple(range(3, 10))


def test_fields_are_changed_by_their_paths(home: Home) -> None:
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    put(home, range(2), [{"lat": 1.5, "stops": [{"name": "a"}], "tags": {"x": 1}}, None])
    before = files(home)
    home("table", "alter", "d.t", "--add-column", "geo.alt:double", "--rename-column", "geo.lat:geo.latitude")
    home("table", "alter", "d.t", "--add-column", "geo.stops.element.at:int32")
    home("table", "alter", "d.t", "--drop-column", "geo.stops.element.name")
    home("table", "alter", "d.t", "--add-column", "geo.stops.element.name:string")
    home("table", "alter", "d.t", "--widen-column", "geo.tags.value:int64")
    stops = [{"at": None, "name": None}]
    assert rows(home) == [[0, {"latitude": 1.5, "stops": stops, "tags": {"x": 1}, "alt": None}], [1, None]]
    assert files(home) == before
    put(home, range(2, 3), [{"latitude": 2.5, "alt": 3.5, "stops": [{"name": "new"}], "tags": {"y": 1 << 40}}])
    assert rows(home, "geo.alt, geo.latitude") == [[None, 1.5], [None, None], [3.5, 2.5]]
    assert home.json("query", "SELECT k FROM d.t WHERE geo.latitude > 2")["rows"] == [[2]]
    assert home.json("query", "SELECT k FROM d.t WHERE geo.alt IS NULL ORDER BY k")["rows"] == [[0], [1]]
    home("merge", "d.t", "--final")
    given = [number for path in files(home) for number in ids_in(path)]
    assert rows(home, "geo.alt, geo.latitude") == [[None, 1.5], [None, None], [3.5, 2.5]]
    assert len(set(given)) == len(given)
    assert 6 not in given, "the id of a dropped field is not given again"


REFUSED = [
    (("--add-column", "geo.lat:int64"), 2, "there is a field geo.lat already"),
    (("--add-column", "geo.LAT:int64"), 2, "differ in case alone"),
    (("--add-column", "geo.stops.x:int64"), 2, "geo.stops is a list"),
    (("--add-column", "geo.lat.x:int64"), 2, "geo.lat is a float64"),
    (("--add-column", "geo.nope.x:int64"), 10, "there is no field geo.nope.x"),
    (("--add-column", "geo.id:uuid"), 2, "cannot be inside of another type"),
    (("--add-column", "geo.x:int64", "--default", "1"), 2, "it has no default"),
    (("--add-column", "geo.x:int64 not null"), 2, "it has no default and takes nulls"),
    (("--rename-column", "geo.lat:geo.stops"), 2, "there is a field stops beside geo.lat already"),
    (("--rename-column", "geo.lat:other.x"), 2, "cannot move field geo.lat"),
    (("--rename-column", "geo.tags.key:geo.tags.k"), 2, "geo.tags is a map"),
    (("--drop-column", "geo.stops.element.name"), 2, "its struct has no other field"),
    (("--drop-column", "geo.nope"), 10, "there is no field geo.nope"),
    (("--widen-column", "geo.lat:int64"), 2, "types may only widen"),
]


def test_changes_that_are_refused(home: Home) -> None:
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    for change, exit_code, message in REFUSED:
        home("table", "alter", "d.t", *change, code=exit_code)
        assert message in home.error
    assert home.json("table", "show", "d.t")["version"] == 1


def test_a_column_with_a_dot_in_its_name_comes_first(home: Home) -> None:
    columns = ("--column", "k:int64", "--column", "geo:struct<lat: double, n: int32>", "--column", '"geo.lat":string')
    home("table", "create", "d.t", *columns, "--order-by", "k")
    home("table", "alter", "d.t", "--rename-column", "geo.lat:latitude")
    home("table", "alter", "d.t", "--rename-column", "geo.lat:north")
    shown = {column["name"]: column["type"] for column in home.json("table", "show", "d.t")["columns"]}
    assert shown["latitude"] == "string"
    assert shown["geo"] == "struct<north: float64, n: int32>"


def test_a_table_older_than_the_ids_gets_them_by_a_change(home: Home) -> None:
    """Its files stay, and are read by the ids that their fields have by then; `fsck` counts them until a merge."""
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    make_older(home)
    row = {"lat": 1.5, "stops": [{"name": "a"}], "tags": {"x": 1}}
    put(home, range(1), [row])
    assert ids_in_older(files(home)[0]) == [1, 2] + [None] * 7
    assert home.json("fsck")["checked"]["parts_without_nested_ids"] == 1
    assert rows(home) == [[0, row]]
    home("table", "alter", "d.t", "--drop-column", "geo.lat")
    home("table", "alter", "d.t", "--add-column", "geo.lat:int64")
    put(home, range(1, 2), [{"lat": 7}])
    assert rows(home, "geo.lat, geo.stops[1].name") == [[None, "a"], [7, None]]
    assert home.json("query", "SELECT k FROM d.t WHERE geo.lat > 1")["rows"] == [[1]]
    checked = home.json("fsck")
    assert (checked["ok"], checked["checked"]["parts_without_nested_ids"]) == (True, 1)
    assert "1 part without ids of nested fields" in home("fsck")
    done = home.json("table", "rewrite", "d.t")
    assert [len(merge["inputs"]) for merge in done["merges"]] == [1]
    assert "parts_without_nested_ids" not in home.json("fsck")["checked"]
    assert rows(home, "geo.lat, geo.stops[1].name") == [[None, "a"], [7, None]]
    assert home.json("table", "rewrite", "d.t")["merges"] == []


def test_ranges_are_those_of_the_field_and_not_of_its_name(home: Home) -> None:
    """One that is dropped and added again is null in all older rows."""
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    put(home, range(2), [{"lat": 1.5}, {"lat": 2.5}])
    home("table", "alter", "d.t", "--drop-column", "geo.lat")
    home("table", "alter", "d.t", "--add-column", "geo.lat:double")
    assert home.json("query", "SELECT k FROM d.t WHERE geo.lat IS NULL ORDER BY k")["rows"] == [[0], [1]]


def ids_in_older(path: Path) -> list[int | None]:
    return [number for field in pq.read_schema(path) for number in (field_id(field), *ids(field.type))]


def test_rewriting_gives_ids_to_parts_on_every_disk(home: Home) -> None:
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    make_older(home)
    put(home, range(2), [{"lat": 1.5}, None])
    home("move", "d.t", "--partition", "all", "--to-disk", "s3")
    put(home, range(2, 3), [{"lat": 2.5}])
    before = rows(home)
    assert len(home.json("table", "rewrite", "d.t", "--dry-run")["merges"]) == 2
    assert len(home.json("table", "rewrite", "d.t")["merges"]) == 2
    assert [ids_in(path) for path in files(home)] == [[*range(1, 10)]] * 2
    assert {part["disk"] for part in home.json("parts", "d.t")["parts"]} == {"ssd", "s3"}
    assert rows(home) == before


def test_an_older_version_refuses_a_table_with_ids(home: Home) -> None:
    """It would lose them with its first change; tables without nested fields are as they were."""
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    home("table", "create", "d.u", "--column", "k:int64", "--order-by", "k")
    with frostline.open(home.configuration) as store:
        nested, flat = (schema.encode(store.definition(name)) for name in ("d.t", "d.u"))
    assert (json.loads(nested)["format"], json.loads(flat)["format"]) == (2, 1)
    assert b"nested_ids" not in flat


def test_a_file_with_other_ids_is_not_attached(home: Home) -> None:
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"geo:{KIND}", "--order-by", "k")
    put(home, range(1), [{"lat": 1.5}])
    (path,) = files(home)
    copy = home.path / "copy.parquet"
    copy.write_bytes(path.read_bytes())
    home("table", "alter", "d.t", "--drop-column", "geo.tags")
    home("table", "alter", "d.t", "--add-column", "geo.tags:map<string, int32>")
    home("partition", "attach", "d.t", str(copy), code=2)
    assert "other field ids within geo" in home.error
