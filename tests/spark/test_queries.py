"""SQL of Spark over tables: the rows are those of DuckDB, no more is read than the query needs, and nothing is left."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import duckdb
import pytest

import spark_tiering
from oplog.errors import NotFound, UsageError
from spark_tiering.queries import frames
from spark_tiering.queries.required import Need
from spark_tiering.queries.sql import _given
from spark_tiering.reading.read_options import read_options
from tests.spark.stores import insert, opened, table
from tiering.catalog.tables import drop_parts
from tiering.merge.request import MergeRequest
from tiering.table.schema import Column, PartitionField, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, 23, 30, tzinfo=UTC)
ROWS = 500
COLUMNS = {
    "k": "int64",
    "moment": "timestamp[us, Europe/Berlin]",
    "local": "timestamp[s]",
    "day": "date",
    "s": "string",
    "u": "uint64",
    "x": "decimal(12, 3)",
    "f": "float64",
    "Weird_Name": "int32",
}
ADDED: tuple[tuple[Any, ...], ...] = (
    ("added", "string", True, "none"),
    ("since", "timestamp[us, UTC]", True, "2026-03-29T01:30:00.000001Z"),
    ("until", "timestamp[ms]", True, "2026-03-29 02:30:00.001"),
    ("price", "decimal(10, 2)", True, "-1.25"),
    ("large", "uint64", True, 2**64 - 1),
    ("opened", "date", True, "1500-02-28"),
    ("ratio", "float32", True, 0.1),
    ("yes", "bool", True, True),
    ("Weird_Name", "string"),
)


def _rows(first: int, count: int = 200) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    floats = (0.0, -0.0, float("nan"), None, 1.5)
    return {
        "k": list(numbers),
        "moment": [START + timedelta(hours=number) for number in numbers],
        "local": [(START + timedelta(hours=number)).replace(tzinfo=None) for number in numbers],
        "day": [date(2026, 1, 1) + timedelta(days=number // 24) if number % 13 else None for number in numbers],
        "s": [("it's", "50%", "a_b", "", None, 'q"uote', "ä漢")[number % 7] for number in numbers],
        "u": [2**64 - 1 - number if number % 5 else None for number in numbers],
        "x": [Decimal(number) / 8 for number in numbers],
        "f": [floats[number % 5] for number in numbers],
        "Weird_Name": [number % 3 for number in numbers],
    }


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`db.t`, some parts of which are older than columns and the name and type of another, and from which rows were
    dropped; `db.small`; on an SSD and a bucket in a directory whose name means something to others."""
    home = tmp_path_factory.mktemp("queries") / "k=1 {a,b}%20*"
    home.mkdir()
    document = {
        "state_path": str(home / "state"),
        "disks": {
            "ssd": {"type": "local", "path": str(home / "ssd")},
            "s3": {"type": "object_disk", "url": f"file://{quote(str(home))}/bucket/"},
        },
        "policies": {
            "tiers": {"volumes": [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]},
        },
    }
    file = home / "frostline.yaml"
    file.write_text(json.dumps(document))
    with opened(file) as store:
        old = table("db.t", COLUMNS, ["k"], PartitionField("month", "moment"), row_group_rows=50)
        store.create_table(old)
        insert(store, old, _rows(0))
        for part in store.parts("db.t"):
            store.apply(store.plan_manual_move("db.t", partition=part.name.partition, to_disk="s3"))
        gone = _rows(5000)
        insert(store, old, {**gone, "moment": [START + timedelta(days=3000)] * 200})
        drop_parts(store.context, [part for part in store.parts("db.t") if part.disk == "ssd"], reason="a test")
        insert(store, old, _rows(200, 100))
        for part in store.parts("db.t"):
            if part.disk == "ssd":
                store.apply(store.plan_manual_move("db.t", partition=part.name.partition, to_disk="s3"))
        store.merge("db.t", MergeRequest(final=True))  # the objects of what was merged or dropped stay for a while
        columns = [Column(9, "Renamed", "int64") if column.id == 9 else column for column in old.columns]
        columns += [Column(10 + number, *added) for number, added in enumerate(ADDED)]
        changes = {"columns": tuple(columns), "version": 2, "schema_version": 2, "last_column_id": 9 + len(ADDED)}
        new = TableDefinition(**{**{name: getattr(old, name) for name in old.__struct_fields__}, **changes})
        store.alter_table(old, new)
        later = _rows(1000)
        later["Renamed"] = later.pop("Weird_Name")
        fresh = {name: [None] * 200 for name, *_ in ADDED}
        insert(store, new, {**later, **fresh, "added": ["new"] * 200})
        small = table("db.small", {"k": "int64", "name": "string", "x": "int32"}, ["k"])
        store.create_table(small)
        insert(store, small, {"k": [1, 2, 1001, None], "name": ["one", "two", None, "none"], "x": [1, 2, 3, None]})
    return file


def _sorted(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return "nan" if value != value else int(value) if isinstance(value, Decimal) and value == int(value) else value


def _duckdb(config: Path, query: str) -> list[tuple[Any, ...]]:
    """The same query in DuckDB over all rows of the tables."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA db")
    with opened(config) as store:
        for name in ("t", "small"):
            connection.register(name, store.table(f"db.{name}").scan().read_all())
            connection.execute(f"CREATE TABLE db.{name} AS SELECT * FROM {name}")
            connection.unregister(name)
    return connection.execute(query).fetchall()


QUERIES = [
    "select * from db.t",
    "select k, Renamed from db.t where Renamed = 2 and Weird_Name is null",
    "select k, since, until from db.t where since = timestamp '2026-03-29 01:30:00.000001' or ratio > 1",
    "select sum(Renamed), count(price), count(distinct large) from db.t where opened < date '1600-01-01'",
    "select count(*) from db.t",
    "select t.k, t.s from db.t where t.k between 40 and 60 or t.k >= 1190",
    "select k from db.t where s = 'it''s' and Renamed <> 1",
    "select k from db.t where s like '50%' or s like 'a_b%'",
    "select k from db.t where s is null or s in ('', 'q\"uote')",
    "select k from db.t where not (s = '50%') and added = 'none'",
    "select k from db.t where u > 18446744073709551000 and u <= 18446744073709551600",
    "select k from db.t where x > 5.125 and x < 130",
    "select k, f from db.t where f = 0 or f > 1",
    "select k from db.t where moment >= timestamp '2026-01-05 00:30:00' and moment < timestamp '2026-01-06 00:00:00.5'",
    "select k from db.t where day = date '2026-01-03' or day is null",
    "select k from db.t where k + 1 > 1195 and abs(k) > 0",
    "select k from db.t where 1 = 0",
    "select a.k, b.name from db.t a join db.small b on a.k = b.k where b.name is not null",
    "select a.k from db.t a join db.t b on a.k = b.k + 1000 where a.Renamed = 0 and b.s = 'ä漢'",
    "select k, (select max(k) from db.small where x < 3) m from db.t where exists "
    "(select 1 from db.small where small.k = t.k and name = 'two')",
    "with c as (select k, s, added from db.t) "
    "select c.k, d.added from c join c d on c.k = d.k where c.k < 5 or d.k > 1198",
    "select k from (select k, x, f from db.t) y where k in (select k from db.small where k is not null)",
    "select k, x from db.small where x = (select min(x) from db.small s where s.k = small.k)",
]


@pytest.mark.in_turn
@pytest.mark.parametrize("query", QUERIES)
def test_the_rows_are_those_of_duckdb(spark: SparkSession, config: Path, query: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    expected = _sorted(_duckdb(config, query))
    for native in ("always", "never"):
        found = spark_tiering.sql(spark, query, config=config, native=native).collect()
        assert _sorted(found) == expected, native


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Need]:
    """What was found to be needed of each table, by its name."""
    found: dict[str, Need] = {}
    original = frames._source_frame

    def source_frame(session: Any, definition: TableDefinition, asked: Any, given: Any, need: Need) -> Any:
        found[definition.full_name] = need
        return original(session, definition, asked, given, need)

    monkeypatch.setattr(frames, "_source_frame", source_frame)
    return found


def test_only_what_is_needed_is_read(spark: SparkSession, config: Path, needs: dict[str, Need]) -> None:
    frame = spark_tiering.sql(
        spark, "select s from db.t where k > 5 and x > 1 and upper(s) = 'A'", config=config, native="never"
    )
    assert needs["db.t"].columns == ("k", "s", "x")
    assert '"k" > 5' in needs["db.t"].filter
    (scan,) = [line for line in frame._jdf.queryExecution().toString().splitlines() if "BatchScan" in line]
    assert re.findall(r"([a-zA-Z_]+)#", scan) == ["k", "s", "x"]
    spark_tiering.sql(spark, "select count(*) from db.t", config=config, native="never")
    assert needs["db.t"] == Need(())
    # Of two scans both conditions count, and one without any leaves none.
    spark_tiering.sql(
        spark, "select k from db.t where k = 1 union all select k from db.t where k = 7", config=config, native="never"
    )
    assert '"k" = 1' in needs["db.t"].filter
    assert '"k" = 7' in needs["db.t"].filter
    spark_tiering.sql(
        spark, "select k from db.t where k = 1 union all select k from db.t", config=config, native="never"
    )
    assert needs["db.t"].filter == ""


def test_options_may_be_numbers_and_times() -> None:
    """`revision=3`, as `store.query` takes it."""
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    given = _given(None, {"revision": 3, "timestamp": moment, "lease": "2d", "changes_since": None})
    assert given == {"revision": "3", "timestamp": "2026-01-02T03:00:00+00:00", "lease": "2d"}
    assert read_options({"path": "d.t", "revision": given["revision"]}).revision == 3
    assert read_options({"path": "d.t", "timestamp": given["timestamp"]}).timestamp == moment


@pytest.mark.in_turn
def test_nothing_of_a_query_is_left_in_the_session(spark: SparkSession, config: Path) -> None:
    def state() -> tuple[Any, ...]:
        return (
            sorted(view.name for view in spark.catalog.listTables()),
            sorted((pair._1(), pair._2()) for pair in _pairs(spark)),
            type(spark).getActiveSession()._jsparkSession.equals(spark._jsparkSession),  # type: ignore[union-attr]
        )

    before = state()
    first = spark_tiering.sql(spark, "select k from db.t where k < 3", config=config)
    second = spark_tiering.sql(spark, "select count(*) from db.t", config=config)
    with pytest.raises(Exception, match="nope"):
        spark_tiering.sql(spark, "select nope from db.t", config=config)
    assert state() == before
    assert second.collect()[0][0] == ROWS
    assert first.count() == 3
    assert second.collect()[0][0] == ROWS
    assert first.union(first).count() == 6


def _pairs(spark: SparkSession) -> Any:
    found = spark._jsparkSession.sessionState().conf().getAllConfs().toSeq()
    return [found.apply(number) for number in range(found.size())]


def test_a_column_that_was_not_read_is_an_error_and_never_a_null(spark: SparkSession, config: Path) -> None:
    frame = spark_tiering.sql(spark, "select k from db.t where k < 3", config=config, native="never")
    with pytest.raises(Exception, match=r"column f was not read of db\.t"):
        frame.sort("f").collect()


def test_arguments_views_and_names_of_spark_work_beside(spark: SparkSession, config: Path) -> None:
    spark.range(3).createOrReplaceTempView("mine")
    try:
        query = "select t.k from db.t join mine on t.k = mine.id where t.k >= :least"
        assert sorted(row[0] for row in spark_tiering.sql(spark, query, {"least": 1}, config=config).collect()) == [
            1,
            2,
        ]
        assert spark_tiering.sql(spark, "select count(*) from mine").collect()[0][0] == 3
    finally:
        spark.catalog.dropTempView("mine")
    try:
        assert spark_tiering.views(spark, config=config) == ["db.small", "db.t"]
        assert spark.sql("select count(*) from `db.t` where added = 'none'").collect()[0][0] == 300
        assert spark.table("`db.small`").filter("x = 2").collect()[0]["name"] == "two"
    finally:
        for name in ("`db.t`", "`db.small`"):
            spark.sql(f"drop view if exists {name}")


@pytest.mark.parametrize(
    ("query", "kind", "message"),
    [
        ("select * from db.nothing", NotFound, "nothing"),
        ("set spark.sql.shuffle.partitions=3", UsageError, "no query but a statement"),
        ("create temporary view v as select * from db.t", UsageError, "no query but a statement"),
        ("insert into x select * from db.t", UsageError, "no query but a statement"),
    ],
)
def test_what_is_no_query_is_refused(
    spark: SparkSession, config: Path, query: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        spark_tiering.sql(spark, query, config=config)
