"""`ingest --spark` of Parquet and ORC that tasks read themselves: what `insert` takes goes in as `insert` has it, each
row once, and what is wrong with a file is an error that names it (I1, I2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from disks.stores.address import StoreAddress
from disks.stores.base import ObjectStore
from oplog.errors import Throttled
from spark_tiering.running.spark_runner import SparkRunner
from spark_tiering.writing import ingest
from tests.homes import Home
from tests.spark.ingested import contents, create, expected, home, rows, written
from tiering.engine import write_job

__all__ = ["home"]

TYPES = {
    "k": "int64",
    "int96": "timestamp[us, UTC]",
    "naive": "timestamp[ms]",
    "fine": "timestamp[ns, UTC]",
    "day": "date",
    "clock": "time[us]",
    "small": "uint8",
    "huge": "uint64",
    "exact": "decimal(20, 4)",
    "word": "string",
    "raw": "binary",
    "flag": "bool",
    "ratio": "float32",
    "id": "uuid",
    "tags": "map<string, map<string, int64>>",
    "points": "list<struct<x: int64, y: string>>",
    "of_text": "int32",
    "absent": "string",
}


def of_all_types(first: int, count: int) -> pa.Table:
    """Rows with values at the edges of their types, and nulls."""
    keys = range(first, first + count)
    moments = [None if key % 7 == 3 else datetime(2026, 1, 1, key % 24, 0, 0, key, UTC) for key in keys]
    return pa.table(
        {
            "k": pa.array(keys, pa.int32()),
            "int96": pa.array(moments, pa.timestamp("ns", "UTC")),
            "naive": pa.array([datetime(1500, 3, 1, key % 24) for key in keys], pa.timestamp("us")),
            "fine": pa.array([1_700_000_000_000_000_001 + key for key in keys], pa.timestamp("ns", "UTC")),
            "day": pa.array([None if key % 5 == 1 else date(1500, 2, 28) for key in keys], pa.date32()),
            "clock": pa.array([time(23, 59, 59, key) for key in keys], pa.time64("us")),
            "small": pa.array([255 - key % 9 for key in keys], pa.uint8()),
            "huge": pa.array([2**64 - 1 - key for key in keys], pa.uint64()),
            "exact": pa.array([Decimal(f"-{key}.0001") for key in keys], pa.decimal128(12, 4)),
            "word": pa.array([("é", "", "NA", None)[key % 4] for key in keys]).dictionary_encode(),
            "raw": pa.array([bytes([key % 256, 0, 255]) for key in keys], pa.large_binary()),
            "flag": pa.array([(True, False, None)[key % 3] for key in keys]),
            "ratio": pa.array([float("nan") if key % 4 == 2 else key / 3 for key in keys], pa.float32()),
            "id": pa.array([f"00000000-0000-4000-8000-{key:012d}" for key in keys]),
            "tags": pa.array(
                [[("a", [("b", key)]), ("c", [])] for key in keys],
                pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())),
            ),
            "points": pa.array([[{"x": key, "y": "y"}, None] if key % 2 else [] for key in keys]),
            "of_text": pa.array([str(key) for key in keys]),
        }
    )


def both(home: Home, columns: dict[str, str], files: list[str], *words: str, partition_by: str = "") -> list[Any]:
    """What the table holds when the files went in by `insert`, and by `ingest`."""
    found = []
    for number, flags in enumerate(([], ["--spark"])):
        table = f"d.both{number}"
        create(home, table, *(f"{name}:{kind}" for name, kind in columns.items()), partition_by=partition_by)
        home("ingest" if flags else "insert", table, *files, *words, *flags)
        found.append(home.json("query", f"SELECT * FROM {table} ORDER BY k")["rows"])
    return found


def smaller_tasks(monkeypatch: pytest.MonkeyPatch, *files: str, tasks: int = 4) -> None:
    size_bytes = sum(Path(file).stat().st_size for file in files)
    monkeypatch.setattr(ingest, "TASK_BYTES", -(-size_bytes // tasks))


def before_the_tasks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once, after the files were listed and before a task opens one."""
    shares_of = ingest.shares_of

    def acted(*arguments: Any) -> Any:
        monkeypatch.setattr(ingest, "shares_of", shares_of)
        act()
        return shares_of(*arguments)

    monkeypatch.setattr(ingest, "shares_of", acted)


@pytest.mark.in_turn
def test_rows_are_those_of_insert(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of types that Spark does not have, days of long ago, files without rows and with other columns."""
    few = of_all_types(600, 20).drop(["tags", "word", "day"])
    files = [
        written(home, "a.parquet", of_all_types(0, 500), row_group_size=100),
        written(home, "b.parquet", of_all_types(500, 100), use_deprecated_int96_timestamps=True),
        written(home, "c.parquet", few),
        written(home, "d.parquet", of_all_types(0, 0)),
        written(home, "e.parquet", pa.table({"k": [1000, 1001]})),
    ]
    smaller_tasks(monkeypatch, *files)
    inserted, ingested = both(home, TYPES, files, partition_by="day(int96)")
    assert len(inserted) == 622
    assert repr(ingested) == repr(inserted)  # NaN does not equal itself


def test_rows_of_orc_are_those_of_insert(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["k", "int96", "day", "exact", "flag", "ratio", "points", "of_text"]
    files = [written(home, f"{number}.orc", of_all_types(number * 100, 100).select(names)) for number in range(3)]
    smaller_tasks(monkeypatch, *files, tasks=2)
    inserted, ingested = both(home, {name: TYPES[name] for name in names}, files)
    assert len(inserted) == 300
    assert repr(ingested) == repr(inserted)


def test_columns_are_chosen_as_insert_chooses_them(home: Home) -> None:
    """Fields of structs, names with a dot, and a column that nothing is taken from."""
    user = pa.array([{"name": "ann", "age": 3}, None], pa.struct({"name": pa.string(), "age": pa.int64()}))
    file = written(home, "a.parquet", pa.table({"id": [1, 2], "user": user, "x.y": ["p", "q"], "more": [0, 0]}))
    columns = {"k": "int64", "name": "string", "dotted": "string", "empty": "int64"}
    inserted, ingested = both(home, columns, [file], "--select", "id as k, user.name, x.y as dotted")
    assert inserted == [[1, "ann", "p", None], [2, None, "q", None]]
    assert ingested == inserted
    for verb in (("insert",), ("ingest", "--spark")):
        home(verb[0], "d.both0", file, *verb[1:], "--select", "idd as k", code=2)
        assert f"{file}: there is no column idd" in home.error
        home(verb[0], "d.both0", file, *verb[1:], code=2)
        assert "id" in home.error
        assert "unknown column" in home.error


@pytest.mark.parametrize("name", ["_rows.parquet", ".rows.orc", "rows.parquet._COPYING_", "a [b]{c}*?%20é.parquet"])
def test_files_of_any_name_are_taken(home: Home, name: str) -> None:
    """Spark would pass over some."""
    kind = "orc" if ".orc" in name else "parquet"
    written(home, f"plain.{kind}", rows(0, 10))
    (home.path / f"plain.{kind}").rename(home.path / name)
    home("ingest", "d.t", str(home.path / name), "--format", kind, "--spark")
    assert contents(home) == expected(0, 10)
    again = home.json("ingest", "d.t", str(home.path / name), "--format", kind, "--spark")
    assert again["skipped"] == 1


def test_files_that_hadoop_lists_are_read_by_tasks_too(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose times it counts in milliseconds; what changed since is noticed."""
    written(home, "a.parquet", rows(0, 10))
    home("ingest", "d.t", f"file://{home.path}/a.parquet", "--spark")
    assert contents(home) == expected(0, 10)
    file = Path(written(home, "b.parquet", rows(10, 10)))
    before_the_tasks(monkeypatch, lambda: os.utime(file, (1, 1)))
    home("ingest", "d.t", f"file://{file}", "--spark", code=13)
    assert "b.parquet was written again" in home.error


def test_a_large_file_is_divided_among_tasks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(home, "a.parquet", rows(0, 4000), row_group_size=100)
    smaller_tasks(monkeypatch, file)
    done = home.json("ingest", "d.t", file, "--spark")
    assert done["spark"]["tasks"] == 4
    assert len(done["parts"]) == 8
    assert contents(home) == expected(0, 4000)
    assert home.json("fsck", "--read-data")["ok"]


def by_days(first: int, count: int) -> pa.Table:
    """Rows whose keys go through the days of three months, over and over."""
    keys = range(first, first + count)
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=key % 90) for key in keys]
    return rows(first, count).set_column(1, "at", pa.array(days, pa.timestamp("us", "UTC")))


@pytest.mark.in_turn
@pytest.mark.parametrize(("slots", "tasks", "parts"), [(2, 2, 180), (8, 16, 98)])
def test_files_that_mix_partitions_leave_few_parts(
    home: Home, monkeypatch: pytest.MonkeyPatch, slots: int, tasks: int, parts: int
) -> None:
    """Where few tasks run at once these are larger. Else rows come into ranges: a part for each range and partition,
    and not one of each partition by each task."""
    monkeypatch.setattr(SparkRunner, "slots", slots)
    create(home, "d.days", "k:int64", "at:timestamp[us, UTC]", "name:string not null", partition_by="day(at)")
    table = by_days(0, 4000)
    table = table.set_column(2, "name", pc.fill_null(table.column("name"), "none"))
    files = [written(home, f"{number}.parquet", table.slice(number * 500, 500)) for number in range(8)]
    smaller_tasks(monkeypatch, *files, tasks=8)
    done = home.json("ingest", "d.days", *files, "--spark")
    assert parts - 8 <= len(done["parts"]) <= parts
    assert done["spark"]["tasks"] >= tasks
    found = home.json("query", "SELECT * FROM d.days ORDER BY k")["rows"]
    home("table", "create", "d.same", "--like", files[0], "--order-by", "k")
    home("insert", "d.same", *files)
    assert found == home.json("query", "SELECT * FROM d.same ORDER BY k")["rows"]
    # What is wrong with a file is said as where tasks write what they read.
    bad = written(home, "bad.parquet", by_days(5000, 500))
    home("ingest", "d.days", *files, bad, "--spark", "--take-changed", code=2)
    assert f"{bad}: column name is null in row 1" in home.error
    assert len(home.keys("d.days")) == 4000


@pytest.mark.in_turn
def test_rows_that_come_through_ranges_are_those_of_insert(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all types that Spark carries."""
    columns = {name: kind for name, kind in TYPES.items() if name != "fine"}
    tables = [of_all_types(number * 100, 100).drop(["fine"]) for number in range(6)]
    files = [written(home, f"{number}.parquet", table) for number, table in enumerate(tables)]
    smaller_tasks(monkeypatch, *files, tasks=6)
    monkeypatch.setattr(ingest, "are_mixed", lambda shares, reshaping: len(shares) > 1)
    inserted, ingested = both(home, columns, files, partition_by="day(int96)")
    assert len(inserted) == 600
    assert repr(ingested) == repr(inserted)


def bad_values(home: Home) -> list[tuple[str, str]]:
    """Files that cannot go in, and what is said of each."""
    good = rows(10, 300)
    texts = good.set_column(0, "k", pa.array([*map(str, range(299)), "three"]))
    nulls = good.set_column(0, "k", pa.array([*range(299), None], pa.int64()))
    struct = good.set_column(2, "name", pa.array([{"a": 1}] * 300))
    torn = Path(written(home, "torn.parquet", good))
    content = torn.read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    flipped = Path(written(home, "flipped.parquet", good, write_page_checksum=False, compression="zstd"))
    content = flipped.read_bytes()
    flipped.write_bytes(content[:4] + bytes(len(content) // 3) + content[4 + len(content) // 3 :])
    (home.path / "none.orc").write_bytes(b"")
    return [
        (written(home, "texts.parquet", texts, row_group_size=50), "column k must be int64, but row 300 has 'three'"),
        (written(home, "nulls.parquet", nulls, row_group_size=50), "column k is null in row 300"),
        (written(home, "struct.parquet", struct), "column name is struct<a: int64> in the input"),
        (str(torn), "cannot be read as parquet"),
        (str(flipped), "cannot be read as parquet"),
        (str(home.path / "none.orc"), "cannot be read as orc"),
    ]


@pytest.mark.in_turn
def test_a_wrong_file_is_said_and_nothing_of_its_batch_goes_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the words and the exit code of `insert`."""
    create(home, "d.strict", "k:int64 not null", "at:timestamp[us, UTC]", "name:string")
    for file, said in bad_values(home):
        good = written(home, f"good{Path(file).suffix}", rows(0, 10))
        with monkeypatch.context() as patch:
            smaller_tasks(patch, good, file, tasks=3)
            home("ingest", "d.strict", good, file, "--spark", code=2)
        assert f"{file}: {said}" in home.error or f"{file} {said}" in home.error
        home("insert", "d.strict", file, "--dry-run", code=2)
        assert f"{file}: {said}" in home.error or f"{file} {said}" in home.error
    assert home.keys("d.strict") == []
    home("ingest", "d.strict", good, "--spark")
    assert home.keys("d.strict") == list(range(10))


def test_a_file_that_goes_before_it_is_read_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that an executor does not see."""
    one, two = (written(home, f"{number}.parquet", rows(number * 10, 10)) for number in range(2))
    before_the_tasks(monkeypatch, Path(two).unlink)
    home("ingest", "d.t", one, two, "--spark", code=10)
    assert f"{two} is not there on " in home.error
    assert "all executors must see the files" in home.error
    assert contents(home) == []


@pytest.mark.parametrize("how", ["other rows", "cut", "touched"])
def test_a_file_rewritten_meanwhile_goes_in_when_listed_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one, two = (written(home, f"{number}.parquet", rows(number * 10, 10)) for number in range(2))

    def anew() -> None:
        match how:
            case "other rows":
                written(home, "1.parquet", rows(10, 20))
            case "cut":
                os.truncate(two, 100)
            case _:
                os.utime(two, (1, 1))

    before_the_tasks(monkeypatch, anew)
    home("ingest", "d.t", one, two, "--spark", code=13)
    assert f"{two} was written again" in home.error
    assert contents(home) == []
    if how == "cut":
        written(home, "1.parquet", rows(10, 10))
    home("ingest", "d.t", one, two, "--spark")
    assert contents(home) == expected(0, 30 if how == "other rows" else 20)


@dataclass(frozen=True)
class Busy:
    """A bucket that takes nothing at first, and counts how often it was asked."""

    address: StoreAddress
    notes: Path
    times: int

    def open(self) -> ObjectStore:
        asked = len(list(self.notes.iterdir()))
        (self.notes / str(asked)).touch()
        if asked < self.times:
            raise Throttled("the bucket asks for fewer requests")
        return self.address.open()


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_what_can_be_tried_again_is_tried_by_spark(home: Home, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """These tests' session tries twice, and then the bucket's answer is told."""
    begin, notes = write_job.begin, home.path / "notes"
    notes.mkdir()
    file = written(home, f"a.{kind}", rows(0, 10).filter(pc.field("k") != 9))
    for times in (2, 1):
        [note.unlink() for note in notes.iterdir()]

        def busy(*arguments: Any) -> Any:
            definition, job = begin(*arguments)
            assert job is not None
            return definition, replace(job, store=Busy(job.store, notes, times))  # noqa: B023  called at once

        monkeypatch.setattr(write_job, "begin", busy)
        home("ingest", "d.t", file, "--spark", code=5 if times == 2 else 0)
        assert ("the bucket asks for fewer requests" in home.error) == (times == 2)
        assert contents(home) == ([] if times == 2 else expected(0, 9))


DYING = """
import os, sys
from tiering.cli import main
from tiering.engine import write_job
when, arguments = sys.argv[1], sys.argv[2:]
commit, calls = write_job.commit, [0]

def dying(*given):
    calls[0] += 1
    if when == "before" and calls[0] == 2:
        os._exit(9)
    done = commit(*given)
    if when == "after" and calls[0] == 2:
        os._exit(9)
    return done

write_job.commit = dying
sys.exit(main.run(arguments))
"""


@pytest.mark.in_turn
@pytest.mark.parametrize(("when", "there"), [("before", 10), ("after", 20)])
def test_a_driver_that_dies_goes_on_after_its_last_commit(home: Home, when: str, there: int) -> None:
    """Of its second batch the tasks have written all when it dies; each row is there once in the end."""
    files = [written(home, f"{number}.parquet", rows(number * 10, 10)) for number in range(3)]
    words = ["ingest", "d.t", *files, "--spark", "--batch-bytes", "1"]
    command = [sys.executable, "-c", DYING, when, "-c", str(home.configuration), *words, "--master", "local[1]"]
    died = subprocess.run(command, capture_output=True, text=True, check=False)
    assert died.returncode == 9, died.stderr
    assert contents(home) == expected(0, there)
    done = home.json(*words)
    assert (done["skipped"], done["rows"]) == (there // 10, 30 - there)
    assert contents(home) == expected(0, 30)
    assert home.json("fsck", "--read-data")["ok"]


VALUES = ("eu", "a b", "a%20b", "x+y", "%5B1%5D", "NA", "__HIVE_DEFAULT_PARTITION__", "h#i?")


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_directories_are_columns_as_of_an_insert(home: Home, kind: str) -> None:
    """Read by Spark and by tasks; also where a link hides the directory's name, and where some file has none."""
    for table in ("d.spark", "d.insert"):
        create(home, table, "k:int64", "region:string", "day:date")
    files = []
    for number, value in enumerate(VALUES):
        path = home.path / "in" / f"region={value}" / "day=2026-01-02" / f"{number}.{kind}"
        path.parent.mkdir(parents=True)
        files.append(written(home, str(path), pa.table({"k": [number]})))
    plain = home.path / "in" / f"plain.{kind}"
    files.append(written(home, str(plain), pa.table({"k": [100]})))
    link = home.path / "in" / "region=linked" / f"link.{kind}"
    link.parent.mkdir()
    link.symlink_to(written(home, str(home.path / f"far.{kind}"), pa.table({"k": [200]})))
    files.append(str(link))
    done = home.json("ingest", "d.spark", *files, "--spark")
    home("insert", "d.insert", *files)
    found = [home.json("query", f"SELECT * FROM {table} ORDER BY k")["rows"] for table in ("d.spark", "d.insert")]
    assert found[0] == found[1]
    assert done["rows"] == len(VALUES) + 2
    assert {region for _, region, _ in found[0]} == {"eu", "a b", "x+y", "[1]", "NA", "h#i?", "linked", None}
    assert home.json("ingest", "d.spark", *files, "--spark")["files"] == 0


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_what_directories_cannot_say_is_refused(home: Home, kind: str) -> None:
    create(home, "d.h", "k:int64", "region:int64")
    here = home.path / "region=5"
    here.mkdir()
    (home.path / "region=abc").mkdir()
    bad = written(home, str(home.path / "region=abc" / f"a.{kind}"), pa.table({"k": [1]}))
    home("ingest", "d.h", bad, "--spark", code=2)
    assert f"region=abc/a.{kind}: the directory region=abc holds no int64" in home.error
    other = written(home, str(here / f"b.{kind}"), pa.table({"k": [1, 2], "region": [5, 6]}))
    home("ingest", "d.h", other, "--spark", code=2)
    assert f"b.{kind}" in home.error
    assert "in column region" in home.error
    same = written(home, str(here / f"c.{kind}"), pa.table({"k": [3], "region": [5]}))
    home("ingest", "d.h", same, "--spark")
    home("ingest", "d.h", other, "--spark", "--no-hive")
    assert home.json("query", "SELECT * FROM d.h ORDER BY k")["rows"] == [[1, 5], [2, 6], [3, 5]]
