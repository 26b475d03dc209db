"""`partition attach T FILE…`: data files of parts come in as they are, once; what does not fit changes nothing.

Guards I2 (all or nothing on a disk) and I5 (the bytes are those that part.json says)."""

from __future__ import annotations

import hashlib
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oplog.errors import Conflict, UsageError
from tests.homes import Home
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.insert import attach_files
from tiering.insert.inputs import decoded_size, source_parquet
from tiering.parquet.part_files import write_part_files
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table

MOST_BYTES = 1 << 30
COLUMNS = ("--column", "day:date", "--column", "k:int64")


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    one = Home(tmp_path, "one", capsys)
    for name in ("d.t", "d.copy"):
        one("table", "create", name, *COLUMNS, "--order-by", "k", "--partition-by", "month(day)")
    add(one, "d.t", [("2026-01-01", 3), ("2026-01-02", 1), ("2026-02-01", 2)])
    return one


def add(home: Home, table: str, rows: list[tuple[str, int]], *options: str) -> None:
    source = home.path / "rows.csv"
    source.write_text("\n".join(["day,k", *(f"{day},{key}" for day, key in rows)]))
    home("insert", table, str(source), *options)


def files(home: Home, table: str = "d.t") -> list[str]:
    """The data files of the table's parts, each copied elsewhere: January's first."""
    aside = home.path / "aside"
    aside.mkdir(exist_ok=True)
    found = []
    for part in sorted(one["part"] for one in home.json("parts", table)["parts"]):
        (directory,) = [place for place in (home.path / "ssd").rglob(part) if ".frostline" not in place.parts]
        found += [
            str(shutil.copyfile(file, aside / f"{part}-{file.name}")) for file in sorted(directory.glob("*.parquet"))
        ]
    return found


def keys(home: Home, table: str) -> list[int]:
    return [row[0] for row in home.json("query", f"SELECT k FROM {table} ORDER BY k")["rows"]]


@pytest.mark.in_turn
def test_files_become_parts_as_they_are_and_once(home: Home) -> None:
    sources = files(home)
    dry = home.json("partition", "attach", "d.copy", *sources, "-n")
    assert (dry["rows"], dry["parts"], dry["dry_run"], keys(home, "d.copy")) == (3, [], True, [])
    done = home.json("partition", "attach", "d.copy", *sources)
    assert (done["rows"], len(done["parts"]), done["duplicates"]) == (3, 2, 0)
    assert keys(home, "d.copy") == [1, 2, 3]
    digests = [hashlib.sha256(Path(source).read_bytes()).hexdigest() for source in sources]
    with Store.open(load(home.configuration)) as store:
        originals, copies = (
            {
                file.sha256: (stored.name.partition, msgspec.structs.replace(file, name=""))
                for stored in store.parts(table)
                for file in stored.part.files
            }
            for table in ("d.t", "d.copy")
        )
    assert set(copies) == set(digests)
    assert copies == originals, "what part.json says of them is found again from the bytes"
    home("fsck", "--read-data")
    again = home.json("partition", "attach", "d.copy", *sources)
    assert (again["rows"], again["parts"], again["duplicates"]) == (0, [], 2)
    add(home, "d.copy", [("2026-01-01", 3), ("2026-01-02", 1), ("2026-02-01", 2)])
    assert keys(home, "d.copy") == [1, 2, 3], "an insert of the same rows knows them"


def test_a_file_of_a_merge_is_known_while_its_part_is_there(home: Home) -> None:
    add(home, "d.t", [("2026-01-05", 9)])
    home("merge", "d.t", "--final")
    (january, _) = files(home)
    assert home.json("partition", "attach", "d.t", january)["duplicates"] == 1
    home("partition", "drop", "d.t", "202601")
    assert home.json("partition", "attach", "d.t", january)["rows"] == 3
    assert keys(home, "d.t") == [1, 2, 3, 9]


def refused(home: Home, *what: str, code: int = 2) -> str:
    before = home.json("parts")
    home("partition", "attach", "d.copy", *what, code=code)
    error = home.error
    assert home.json("parts") == before
    return error


@pytest.mark.in_turn
def test_what_does_not_fit_is_named_and_changes_nothing(home: Home, tmp_path: Path) -> None:
    good = files(home)[0]
    rows = pq.read_table(good)

    def file(table: pa.Table, **options: Any) -> str:
        path = tmp_path / "strange.parquet"
        pq.write_table(table, path, **options)
        return str(path)

    plain = pa.table({name: rows.column(name) for name in rows.column_names})
    assert "has no field ids" in refused(home, good, file(plain))
    assert "is not sorted by k" in refused(home, good, file(rows.take([1, 0])))
    assert "is not sorted by k" in refused(home, good, file(rows.take([1, 0]), row_group_size=1))
    assert "other columns" in refused(home, good, file(rows.select(["day"])))
    march = rows.set_column(0, rows.schema.field(0), pa.array([date(2026, 3, 1)] * 2))
    wide = pa.concat_tables([rows, march])
    assert "rows of several partitions" in refused(home, file(wide.sort_by("k")))
    other = rows.set_column(1, rows.schema.field(1).with_type(pa.int32()), rows.column(1).cast(pa.int32()))
    assert "has k int32" in refused(home, file(other))
    assert "has no rows" in refused(home, file(rows.slice(0, 0)))
    (tmp_path / "text.parquet").write_text("no")
    assert "cannot be read as Parquet" in refused(home, str(tmp_path / "text.parquet"))
    assert "no such file" in refused(home, str(tmp_path / "gone.parquet"), code=10)
    assert "'frostline insert d.copy FILE'" in refused(home, file(plain))
    assert "one partition at a time" in refused(home, "202601", "202602")


def test_a_damaged_file_is_not_taken(home: Home) -> None:
    path = Path(files(home)[0])
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)
    refused(home, str(path))


def test_a_file_that_changes_meanwhile_is_not_taken(home: Home) -> None:
    path = Path(files(home)[0])
    with Store.open(load(home.configuration)) as store:
        definition = store.definition("d.copy")
        looked = attach_files.look_at(path, definition, MOST_BYTES)
        path.write_bytes(Path(files(home)[1]).read_bytes())
        with pytest.raises(Conflict, match="was changed while it was attached"):
            attach_files.attach_files(store.context, definition, [looked])
        store.refresh()
        assert store.parts("d.copy") == []


def test_rows_that_are_due_go_to_their_volume(home: Home) -> None:
    home("table", "alter", "d.copy", "--ttl", "1d on day to volume cold_s3")
    home("partition", "attach", "d.copy", files(home)[0])
    assert [part["disk"] for part in home.json("parts", "d.copy")["parts"]] == ["s3"]
    home("fsck", "--read-data")


def test_all_types_fit(tmp_path: Path) -> None:
    """What a part of the table is written as is what is asked of a file."""
    columns = [
        "k:int64 not null", "f:float32", "d:decimal(30,3)", "t:time[us]", "s:struct<a:int64,b:list<string>>",
        "m:map<string,int64>", "u:uuid", "w:duration", "b:binary", "e:string", "z:timestamp[ns]", "x:bool",
    ]  # fmt: skip
    definition = define_table("d.t", columns=columns, order_by="k", policy="p")
    schema = arrow_schema(definition)
    empty = [[number] if number == 0 else [None] for number in range(len(schema))]
    table = pa.table([pa.array(values, field.type) for values, field in zip(empty, schema, strict=True)], schema=schema)
    (file,) = write_part_files([table], definition, tmp_path)
    looked = attach_files.look_at(tmp_path / file.name, definition, MOST_BYTES)
    assert looked.file == file
    assert looked.partition.rows == 1


def of_one_group(path: Path, rows: int = 3000, **options: Any) -> Any:
    """A file of a part with one row group, whose values are alike, and the table's definition."""
    like = pa.schema([("k", pa.int64()), ("v", pa.string())])
    definition = define_table("d.t", order_by="k", policy="p", like=like)
    data = pa.table({"k": range(rows), "v": ["x" * 1000] * rows}).cast(arrow_schema(definition))
    pq.write_table(data, path, row_group_size=rows, compression="zstd", **options)
    return definition


@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False}, {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}}],
    ids=["dictionary", "plain", "prefixes"],
)
def test_a_row_group_is_looked_at_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """I24: memory is that of some rows, whatever a row group unpacks to. What is said of the file is the same."""
    definition = of_one_group(tmp_path / "a.parquet", **options)
    whole = attach_files.look_at(tmp_path / "a.parquet", definition, MOST_BYTES)
    for module in (decoded_size, source_parquet):
        monkeypatch.setattr(module, "MOST_DECODED_BYTES", 100_000)
    largest: list[int] = []
    seen = attach_files._check_texts
    monkeypatch.setattr(
        attach_files, "_check_texts", lambda path, rows: (largest.append(rows.nbytes), seen(path, rows))
    )
    assert attach_files.look_at(tmp_path / "a.parquet", definition, MOST_BYTES) == whole
    assert max(largest) <= 200_000
    assert len(whole.file.row_groups) == 1


def test_a_file_of_large_pages_is_refused(tmp_path: Path) -> None:
    definition = of_one_group(
        tmp_path / "a.parquet", 40_000, use_dictionary=False, data_page_size=1 << 30, max_rows_per_page=40_000
    )
    with pytest.raises(UsageError, match=r"a\.parquet: the pages of row group 0") as refused:
        attach_files.look_at(tmp_path / "a.parquet", definition, 20_000_000)
    assert "limits.decoded_bytes" in str(refused.value.hint)
