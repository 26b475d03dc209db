"""Tables in Spark's own catalogue: it remembers which table of the store each is, for reads and for writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

import spark_tiering
from oplog.errors import NotFound, UsageError
from tests.spark.stores import insert, opened, rows_of, table
from tests.spark.stores import read as read_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = [(1, "one"), (2, "two")]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """`db.t` with two rows and `db.other` of the same columns without any, in a bucket that is a directory."""
    from benchmarks.spark_data import configuration

    file = configuration(tmp_path)
    file.write_text(file.read_text().replace('"cold": {"volumes"', '"tiers": {"volumes"'))
    with opened(file) as store:
        for name in ("db.t", "db.other"):
            store.create_table(table(name, {"k": "int64", "Name": "string"}, ["k"]))
        insert(store, store.definition("db.t"), {"k": [1, 2], "Name": ["one", "two"]})
    return file


@pytest.fixture
def session(spark: SparkSession, config: Path) -> Iterator[SparkSession]:
    """The session with the formats of both tables; what a test leaves in the catalogue goes."""
    assert spark_tiering.formats(spark, config=config) == ["frostline.db.other", "frostline.db.t"]
    yield spark
    for found in spark.catalog.listTables():
        if not found.isTemporary:
            spark.sql(f"drop table {found.name}")


def _held(config: Path, name: str = "db.t") -> list[tuple[Any, ...]]:
    with opened(config) as store:
        rows = store.query(f"SELECT * FROM {name}").read_all().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def _frame(session: SparkSession, *rows: tuple[int, str], columns: str = "k bigint, Name string") -> DataFrame:
    return session.createDataFrame(list(rows), columns)


def _read_all(frame: DataFrame) -> None:
    if frame.isStreaming:
        with TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    else:
        frame.collect()


class TestTheCatalogue:
    @pytest.mark.in_turn
    def test_a_table_of_it_is_read_and_written_by_sql_and_by_frames(self, session: SparkSession, config: Path) -> None:
        session.sql("create table t using frostline.db.t")
        assert rows_of(session.table("t")) == ROWS
        assert session.sql("select NAME from T where K = 2").collect()[0][0] == "two"
        session.sql("insert into t values (3, 'three')")
        session.sql("insert into t (name, k) values ('four', 4)")
        _frame(session, (5, "five")).write.insertInto("t")
        _frame(session, (6, "six"), columns="K bigint, NAME string").writeTo("t").append()
        _frame(session, (7, "seven")).write.format("frostline.db.t").mode("append").saveAsTable("t")
        added = [(3, "three"), (4, "four"), (5, "five"), (6, "six"), (7, "seven")]
        assert _held(config) == ROWS + added
        assert rows_of(session.table("t")) == ROWS + added
        assert _held(config, "db.other") == []

    def test_each_stands_for_its_own_table_wherever_rows_come_from(self, session: SparkSession, config: Path) -> None:
        session.sql("create table t using frostline.db.t")
        session.sql("create table other using frostline.db.other")
        session.sql("insert into other select * from t")
        assert _held(config, "db.other") == ROWS
        assert _held(config) == ROWS

    def test_what_is_saved_as_a_new_name_of_it_goes_into_the_table(self, session: SparkSession, config: Path) -> None:
        _frame(session, (3, "three")).write.format("frostline.db.t").saveAsTable("made")
        session.sql("create table asked using frostline.db.t as select 4L as k, 'four' as Name")
        assert rows_of(session.table("made")) == rows_of(session.table("asked")) == [*ROWS, (3, "three"), (4, "four")]

    def test_another_session_is_told_of_the_formats_and_finds_it(self, session: SparkSession, config: Path) -> None:
        session.sql("create table t using frostline.db.t")
        later = session.newSession()
        spark_tiering.formats(later, ["db.t"], config=config)
        assert rows_of(later.table("t")) == ROWS

    @pytest.mark.in_turn
    def test_a_stream_writes_to_it_and_reads_it(self, session: SparkSession, config: Path, tmp_path: Path) -> None:
        session.sql("create table t using frostline.db.t")
        session.sql("create table other using frostline.db.other")
        stream = session.readStream.table("t").writeStream.trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("other").awaitTermination()
        assert _held(config, "db.other") == ROWS

    def test_to_drop_it_there_drops_no_row(self, session: SparkSession, config: Path) -> None:
        session.sql("create table t using frostline.db.t")
        session.sql("drop table t")
        assert _held(config) == ROWS


class TestRefused:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("create table t using frostline options (table 'db.t')", "table would be forgotten.*using frostline.db.t"),
            ("create table t using frostline options (path 'db.t')", "path would be forgotten.*using frostline.db.t"),
            ("create table t using frostline", "the table would be forgotten"),
            ("create table t using frostline.db.t options (filter 'k = 1')", "filter would be forgotten"),
            ("create table t using frostline.db.t location '/somewhere'", "path would be forgotten"),
        ],
    )
    def test_options_that_the_catalogue_would_forget(self, session: SparkSession, statement: str, message: str) -> None:
        with pytest.raises(Exception, match=f"(?s){message}") as caught:
            session.sql(statement)
        assert "Traceback" not in str(caught.value)

    def test_properties_and_comments_of_sparks_own_are_no_options(self, session: SparkSession) -> None:
        session.sql("create table t using frostline.db.t comment 'mine' tblproperties ('team' = 'a', 'filter' = 'x')")
        assert rows_of(session.table("t")) == ROWS

    @pytest.mark.in_turn
    @pytest.mark.parametrize("change", ["add columns (more int)", "add column more string after k"])
    def test_a_column_that_spark_alone_has_is_refused(self, session: SparkSession, config: Path, change: str) -> None:
        """Spark asks no source in Python about it, and says that it is done."""
        session.sql("create table t using frostline.db.t")
        session.sql(f"alter table t {change}")
        with pytest.raises(Exception, match=r"no column 'more'.*Spark's catalogue only.*frostline table alter"):
            session.sql("select * from t").collect()
        session.sql("drop table t")
        session.sql("create table t using frostline.db.t")
        assert rows_of(session.table("t")) == ROWS == _held(config)

    @pytest.mark.in_turn
    @pytest.mark.parametrize(("change", "field"), [("add column p.b int", "p.b"), ("rename column p.a to z", "p.z")])
    def test_a_field_of_a_struct_that_spark_alone_has_is_refused(
        self, session: SparkSession, config: Path, change: str, field: str
    ) -> None:
        """I15. Arrow would read it as null, whatever the rows hold."""
        with opened(config) as store:
            store.create_table(table("db.deep", {"k": "int64", "p": "struct<a: int64>"}, ["k"]))
            insert(store, store.definition("db.deep"), {"k": [1], "p": [{"a": 7}]})
        spark_tiering.formats(session, ["db.deep"], config=config)
        session.sql("create table deep using frostline.db.deep")
        session.sql(f"alter table deep {change}")
        for read in (session.read, session.readStream):
            with pytest.raises(Exception, match=rf"no column '{field}'.*frostline table alter") as caught:
                _read_all(read.table("deep"))
            assert "Traceback" not in str(caught.value)

    @pytest.mark.parametrize("change", ["add columns (more int)", "rename column k to n", "drop column k"])
    def test_a_query_that_alters_columns_is_told_of_the_verb(self, session: SparkSession, change: str) -> None:
        session.sql("create table t using frostline.db.t")
        with pytest.raises(UsageError, match="no query but a statement") as caught:
            spark_tiering.sql(session, f"alter table t {change}")
        assert "frostline table alter" in caught.value.hint

    def test_a_frame_that_is_saved_without_its_format(self, session: SparkSession) -> None:
        with pytest.raises(Exception, match=r"which table\?.*spark_tiering.formats"):
            _frame(session, (3, "three")).write.format("frostline").saveAsTable("t")

    def test_a_table_unknown_to_the_catalogue_says_the_way_round(self, session: SparkSession) -> None:
        session.sql("create table t (k bigint) using frostline options (path 'db.t')")  # asks nobody
        with pytest.raises(Exception, match=r"which table\?.*using frostline.db.table"):
            session.table("t").collect()

    def test_rows_are_not_replaced_by_a_word_that_does_not_arrive(self, session: SparkSession, config: Path) -> None:
        session.sql("create table t using frostline.db.t")
        for write in (
            lambda: session.sql("insert overwrite t values (3, 'three')"),
            lambda: _frame(session, (3, "three")).write.insertInto("t", overwrite=True),
        ):
            with pytest.raises(Exception, match=r"does not say which rows.*insertInto"):
                write()
        assert _held(config) == ROWS

    @pytest.mark.in_turn
    def test_a_format_of_one_table_takes_no_other(self, session: SparkSession) -> None:
        assert session.read.format("frostline.db.t").option("filter", "k > 1").load().count() == 1
        with pytest.raises(Exception, match=r"frostline.db.t is of db.t, and not of db.other"):
            session.read.format("frostline.db.t").load("db.other").count()

    def test_names_that_are_one_to_spark_and_a_table_that_is_missing(self, spark: SparkSession, config: Path) -> None:
        with opened(config) as store:
            store.create_table(table("db.T", {"k": "int64"}, ["k"]))
        with pytest.raises(UsageError, match=r"these are one: db.T, db.t"):
            spark_tiering.formats(spark, config=config)
        with pytest.raises(NotFound, match=r"no such table: db.none"):
            spark_tiering.formats(spark, ["db.none"], config=config)


def test_a_new_session_of_the_same_spark_is_told_of_the_format(spark: SparkSession, config: Path) -> None:
    spark_tiering.register(spark)
    later = spark.newSession()
    assert rows_of(read_source(later, config, "db.t")) == ROWS
    assert rows_of(read_source(spark, config, "db.t")) == ROWS


def test_the_end_of_a_stream_is_refused_where_load_can_know_it(spark: SparkSession, config: Path) -> None:
    """Spark says only at the start whether a source is read as a stream, unless an option does."""
    spark_tiering.register(spark)
    for name, value in (("revision", "1"), ("timestamp", "2026-01-01")):
        reader = spark.readStream.format("frostline").option("config", str(config)).option(name, value)
        with pytest.raises(Exception, match="a stream has no end"):
            reader.option("maxRevisionsPerTrigger", 1).load("db.t")
