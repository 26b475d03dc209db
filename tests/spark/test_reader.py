"""Tables as data frames: the rows of the table and no others, every value as it is, for as long as was promised."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import spark_tiering
from disks.garbage.rules import GcRules
from oplog import pins
from oplog.errors import Damaged, Refused
from spark_tiering.arrow_types import carried_schema
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.reader import Projection, read_share
from spark_tiering.reading.scan_planning import plan_scan
from tests.servers import Server
from tests.spark.stores import insert, opened, read, rows_of, table, to_bucket, write_config
from tiering.config.units import format_time
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table import definitions
from tiering.table.schema import Column, PartitionField, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {
    "k": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "f32": "float32",
    "f64": "float64",
    "s": "string",
    "b": "binary",
    "t": "bool",
    "d": "date",
    "ts_s": "timestamp[s]",
    "ts_ms": "timestamp[ms, UTC]",
    "ts_us": "timestamp[us, Europe/Berlin]",
    "x": "decimal(12, 3)",
    "l": "list<uint64>",
    "ll": "list<string>",
}
MOMENT = datetime(2026, 1, 2, 3, 4, 5)
VALUES: dict[str, list[Any]] = {
    "k": [1, 2, 3],
    "u8": [0, 255, None],
    "u16": [0, 65535, None],
    "u32": [0, 2**32 - 1, None],
    "u64": [0, 2**64 - 1, None],
    "i8": [-128, 127, None],
    "f32": [0.5, -1.25, None],
    "f64": [1e300, -0.0, None],
    "s": ["", "ä漢", None],
    "b": [b"", b"\x00\xff", None],
    "t": [True, False, None],
    "d": [date(1970, 1, 1), date(2026, 2, 28), None],
    "ts_s": [MOMENT, datetime(1969, 12, 31), None],
    "ts_ms": [MOMENT.replace(microsecond=789000), datetime(1969, 12, 31), None],
    "ts_us": [MOMENT.replace(microsecond=789123), datetime(1969, 12, 31), None],
    "x": [Decimal("1.500"), Decimal("-999999999.999"), None],
    "l": [[2**64 - 1, None], [], None],
    "ll": [["a", None, ""], [], None],
}
LOGS = {"service": "string", "ts": "timestamp[us, UTC]", "status": "int32", "size": "int64", "note": "string"}
START = datetime(2026, 1, 1, tzinfo=UTC)


def logs(name: str = "db.logs", **settings: int) -> TableDefinition:
    return table(name, LOGS, ["service", "ts"], PartitionField("day", "ts"), **settings)


def log_rows(day: int, rows: int = 500, salt: int = 0) -> dict[str, list[Any]]:
    return {
        "service": [f"s{(number * 7 + salt) % 50:03d}" for number in range(rows)],
        "ts": [START + timedelta(days=day, seconds=number * 60 + salt) for number in range(rows)],
        "status": [200 + number % 5 if number % 11 else None for number in range(rows)],
        "size": [number * 1000 + salt for number in range(rows)],
        "note": [f"note {number}" for number in range(rows)],
    }


@pytest.fixture(scope="module")
def config(ministack: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`db.logs`: two days in the bucket, one on the SSD, small row groups; `db.types`: a column of each type."""
    file = write_config(tmp_path_factory.mktemp("reader"), ministack)
    with opened(file) as store:
        definition = logs(row_group_rows=100)
        store.create_table(definition)
        for day in (0, 1):
            for salt in (0, 1):
                insert(store, definition, log_rows(day, salt=salt))
        to_bucket(store, "db.logs")
        insert(store, definition, log_rows(2))
        kinds = table("db.types", TYPES, ["k"])
        store.create_table(kinds)
        insert(store, kinds, VALUES)
        to_bucket(store, "db.types")
    return file


@pytest.fixture
def fresh(ministack: Server, tmp_path: Path) -> Path:
    """A store of a test's own, whose bucket keeps nothing that is not needed."""
    return write_config(tmp_path, ministack, retention_seconds=0)


def expected(config: Path, sql: str) -> list[tuple[Any, ...]]:
    with opened(config) as store:
        found = store.query(sql).read_all()
    return sorted(zip(*(_values(column) for column in found.columns), strict=True), key=repr)


def _values(column: Any) -> list[Any]:
    # Spark gives local times without a zone; the session's zone is that of this machine.
    values = column.to_pylist()
    return [value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value for value in values]


class TestTypes:
    def test_every_type_arrives_with_every_value(self, spark: SparkSession, config: Path) -> None:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        frame = read(spark, config, "db.types").orderBy("k")
        kinds = dict(frame.dtypes)
        assert kinds["u8"] == "smallint"
        assert kinds["u64"] == "decimal(20,0)"
        assert kinds["ts_s"] == "timestamp_ntz"
        assert kinds["ts_ms"] == "timestamp"
        assert kinds["l"] == "array<decimal(20,0)>"
        found = [row.asDict() for row in frame.collect()]
        for name, values in VALUES.items():
            got = [row[name] for row in found]
            if name in ("ts_ms", "ts_us"):
                got = [value and value.astimezone(UTC).replace(tzinfo=None) for value in got]
            assert got == values, name

    def test_nanoseconds_are_refused_by_name_or_truncated(
        self, spark: SparkSession, ministack: Server, tmp_path: Path
    ) -> None:
        file = write_config(tmp_path, ministack, hot=False)
        definition = table("db.nanos", {"k": "int64", "at": "timestamp[ns]"}, ["k"])
        with opened(file) as store:
            store.create_table(definition)
            insert(store, definition, {"k": [1, 2], "at": [1_700_000_000_123_456_789, None]})
        with pytest.raises(Exception, match=r"column at is timestamp\[ns\].*truncate"):
            read(spark, file, "db.nanos").count()
        assert rows_of(read(spark, file, "db.nanos", columns="k")) == [(1,), (2,)]
        truncated = rows_of(read(spark, file, "db.nanos", nanoseconds="truncate"))
        assert truncated == [(1, datetime(2023, 11, 14, 22, 13, 20, 123456)), (2, None)]

    @pytest.mark.in_turn
    def test_a_schema_of_the_users_own_names_the_columns(self, spark: SparkSession, config: Path) -> None:
        read(spark, config, "db.logs")
        reader = (
            spark.read.format("frostline").option("config", str(config)).schema("size decimal(30,0), status bigint")
        )
        frame = reader.load("db.logs")
        assert frame.dtypes == [("size", "decimal(30,0)"), ("status", "bigint")]
        assert len(rows_of(frame)) == 2500
        narrow = spark.read.format("frostline").option("config", str(config)).schema("size tinyint").load("db.logs")
        with pytest.raises(Exception, match=r"column size .* int8"):
            narrow.collect()


class TestSelection:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        "condition",
        [
            "",
            "service = 's007'",
            "service in ('s001', 's049') and size > 100000",
            "ts >= '2026-01-02T03:00:00Z' and ts < '2026-01-02T04:00:00Z'",
            "status is null",
            "status <> 203 or note like 'note 49%'",
            "not (service < 's040')",
            "service = 'nobody'",
            "1 = 0",
        ],
    )
    def test_the_rows_are_those_of_the_query(self, spark: SparkSession, config: Path, condition: str) -> None:
        sql = f"SELECT note, size FROM db.logs {'WHERE ' + condition if condition else ''}"
        assert rows_of(read(spark, config, "db.logs", columns="note, size", filter=condition)) == expected(config, sql)

    def test_files_and_row_groups_that_cannot_match_are_not_planned(self, config: Path) -> None:
        def planned(condition: str) -> tuple[int, int]:
            scan = plan_scan(ReadOptions("db.logs", config, filter=condition, on_this_machine=True))
            pieces = [piece for share in scan.shares for piece in share]
            groups = sum(5 if piece.row_groups is None else len(piece.row_groups) for piece in pieces)
            return len(pieces), groups

        assert planned("") == (5, 25)
        assert planned("ts < '2026-01-02'") == (2, 10)  # partitions
        assert planned("size > 499000") == (2, 10)  # the files' statistics
        assert planned("service = 's003'") == (5, 5)  # the sparse index
        assert planned("service = 's003' and ts < '2026-01-02'") == (2, 2)
        assert planned("1 = 0") == (0, 0)

    def test_large_files_are_divided_and_small_ones_put_together(self, spark: SparkSession, config: Path) -> None:
        one = read(spark, config, "db.logs")
        assert one.rdd.getNumPartitions() <= 2
        many = read(spark, config, "db.logs", partition_bytes=2000)
        assert many.rdd.getNumPartitions() >= 10
        assert rows_of(many) == rows_of(one)

    @pytest.mark.in_turn
    def test_nothing_leaks_from_one_query_to_the_next(self, spark: SparkSession, config: Path) -> None:
        """Spark 4.3 keeps pushed filters for all later queries of a data frame: so none may be taken."""
        for pushing in ("false", "true"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", pushing)
            try:
                frame = read(spark, config, "db.logs")
                assert frame.filter("service = 's003'").count() == 50
                assert frame.count() == 2500
                assert frame.filter("service = 's004'").union(frame).count() == 2550
                chosen = read(spark, config, "db.logs", filter="service = 's003'")
                assert chosen.filter("size > 100").count() <= chosen.count() == 50
            finally:
                spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"columns": "service, nope"}, "no column 'nope'"),
            ({"filter": "nope = 1"}, "nope"),
            ({"filter": "lower(service) = 's001'"}, "more than comparisons"),
            ({"provider": "frostline"}, "path would be forgotten"),
            ({"colums": "service"}, "no such option: colums.*did you mean 'columns'"),
            ({"revision": "999"}, "999"),
            ({"revision": "1", "timestamp": "2026-01-01"}, "either 'revision' or 'timestamp'"),
            ({"local_disks": "maybe"}, "option local_disks: expected auto, shared or skip"),
        ],
    )
    def test_mistakes_are_named_without_a_traceback(
        self, spark: SparkSession, config: Path, options: dict[str, str], message: str
    ) -> None:
        with pytest.raises(Exception, match=message) as caught:
            read(spark, config, "db.logs", **options).count()
        assert "Traceback" not in str(caught.value)


class TestThePast:
    @pytest.mark.in_turn
    def test_a_revision_and_a_time_show_the_table_as_it_was(
        self, spark: SparkSession, ministack: Server, tmp_path: Path
    ) -> None:
        file = write_config(tmp_path, ministack, hot=False)
        definition = logs()
        with opened(file) as store:
            store.create_table(definition)
            insert(store, definition, log_rows(0, 10))
            revision = store.object_disk("s3").revision
            before = format_time(datetime.now(UTC))
            insert(store, definition, log_rows(1, 20))
        assert read(spark, file, "db.logs").count() == 30
        assert read(spark, file, "db.logs", revision=revision).count() == 10
        assert read(spark, file, "db.logs", timestamp=before).count() == 10

    def test_a_data_frame_stays_readable_over_merges_and_collections(self, spark: SparkSession, fresh: Path) -> None:
        definition = logs()
        with opened(fresh) as store:
            store.create_table(definition)
            for salt in (0, 1):
                insert(store, definition, log_rows(0, salt=salt))
            to_bucket(store, "db.logs")
            insert(store, definition, log_rows(0, salt=2))
        frame = read(spark, fresh, "db.logs")
        assert frame.count() == 1500  # from now on it is this snapshot
        with opened(fresh) as store:
            store.merge("db.logs", MergeRequest(final=True))
            insert(store, definition, log_rows(0, salt=3))
            merged = {part.part.name for part in store.parts("db.logs")}
            deleted = _collect(store)
        assert not [name for name in merged if name.endswith("_0_0_0")]
        assert deleted == 0  # the pin keeps them
        assert frame.count() == 1500
        assert read(spark, fresh, "db.logs").count() == 2000

    def test_what_nobody_holds_is_collected(self, fresh: Path) -> None:
        """The other half of the test above: without a reader the same collection deletes."""
        definition = logs()
        with opened(fresh) as store:
            store.create_table(definition)
            for salt in (0, 1):
                insert(store, definition, log_rows(0, salt=salt))
            to_bucket(store, "db.logs")
            plan_scan(ReadOptions("db.logs", fresh, on_this_machine=True, lease=timedelta(0)))
            store.merge("db.logs", MergeRequest(final=True))
            assert _collect(store) > 0

    def test_a_long_retention_needs_no_pin(self, config: Path) -> None:
        plan_scan(ReadOptions("db.logs", config, on_this_machine=True))
        with opened(config) as store:
            assert pins.list_pins(store.object_disk("s3").store) == []
            plan_scan(ReadOptions("db.logs", config, on_this_machine=True, lease=timedelta(days=3)))
            (pin,) = pins.list_pins(store.object_disk("s3").store)
            assert pin.until is not None
            assert timedelta(days=2) < pin.until - datetime.now(UTC) <= timedelta(days=3)
            pins.release(store.object_disk("s3").store, pin.name)

    def test_a_lease_that_ran_out_is_an_error_and_not_fewer_rows(self, config: Path) -> None:
        scan = plan_scan(ReadOptions("db.logs", config, on_this_machine=True))
        with pytest.raises(Refused, match="was kept until"):
            list(read_share(scan.shares[0], _everything(scan.definition), datetime.now(UTC)))


def _collect(store: Store) -> int:
    """Delete what nothing names, however young."""
    report = store.gc("s3", GcRules(guard=timedelta(0), delete=True, max_delete_fraction=1.0, allow_short_guard=True))
    assert report.refused is None
    return report.deleted


def _everything(definition: TableDefinition) -> Projection:
    names = tuple(column.name for column in definition.columns)
    return Projection(definition, names, carried_schema(definition.columns))


class TestPlaces:
    def test_parts_on_the_ssd_are_read_refused_or_left_out(self, spark: SparkSession, config: Path) -> None:
        assert read(spark, config, "db.logs", filter="ts >= '2026-01-03'").count() == 500
        assert read(spark, config, "db.logs", local_disks="skip").count() == 2000
        with pytest.raises(Refused, match=r"\(ssd\) have 1 part of db.logs, .*20260103") as caught:
            plan_scan(ReadOptions("db.logs", config))  # executors elsewhere
        assert "option('local_disks', 'skip')" in caught.value.hint
        assert plan_scan(ReadOptions("db.logs", config, filter="ts < '2026-01-03'")).shares  # not needed: not refused
        assert plan_scan(ReadOptions("db.logs", config, local_disks="shared")).shares

    def test_files_on_the_ssd_are_held_as_long_as_the_driver_runs(self, spark: SparkSession, config: Path) -> None:
        assert read(spark, config, "db.logs").count() == 2500
        notes = [
            json.loads(note.read_bytes()) for note in (config.parent / "ssd").glob(".frostline/readers/*/until.json")
        ]
        programs = {Path(f"/proc/{note['pid']}/comm").read_text().strip() for note in notes}
        assert "java" in programs

    def test_older_parts_have_todays_columns(self, spark: SparkSession, ministack: Server, tmp_path: Path) -> None:
        file = write_config(tmp_path, ministack, hot=False)
        old = table("db.t", {"k": "int64", "a": "int32", "gone": "string"}, ["k"])
        with opened(file) as store:
            store.create_table(old)
            insert(store, old, {"k": [1, 2], "a": [10, 20], "gone": ["x", "y"]})
            new = TableDefinition(
                **{
                    **{name: getattr(old, name) for name in old.__struct_fields__},
                    "columns": (
                        Column(1, "k", "int64"),
                        Column(2, "b", "int64"),
                        Column(4, "a", "string", default="none"),
                        Column(5, "n", "int32", nullable=False, default=7),
                    ),
                    "version": 2,
                    "schema_version": 2,
                    "last_column_id": 5,
                }
            )
            store.alter_table(old, new)
            insert(store, new, {"k": [3], "b": [30], "a": ["new"], "n": [8]})
        frame = read(spark, file, "db.t")
        assert rows_of(frame) == [(1, 10, "none", 7), (2, 20, "none", 7), (3, 30, "new", 8)]
        assert [field.nullable for field in frame.schema] == [True, True, True, False]
        assert rows_of(read(spark, file, "db.t", columns="a", filter="b <= 20")) == [("none",), ("none",)]
        assert rows_of(read(spark, file, "db.t", columns="a", filter="a = 'none'")) == [("none",), ("none",)]

    def test_older_parts_have_todays_fields(self, spark: SparkSession, ministack: Server, tmp_path: Path) -> None:
        """Renamed, added, dropped and added again within structs and lists; by Spark's own reader where it can."""
        file = write_config(tmp_path, ministack, hot=False)
        kind = "struct<a: int32, gone: string, more: list<struct<x: int32>>>"
        old = definitions.define_table("db.t", columns=["k:int64", f"o:{kind}"], order_by="k", policy="tiers")
        new = definitions.rename_column(old, "o.a:o.b")
        new = definitions.add_column(definitions.drop_column(new, "o.gone"), "o.gone:int64")
        new = definitions.add_column(new, "o.more.element.y:string")
        with opened(file) as store:
            policy = next(iter(store.config.policies))
            old, new = (msgspec.structs.replace(table, policy=policy) for table in (old, new))
            store.create_table(old)
            insert(store, old, {"k": [1, 2], "o": [{"a": 5, "gone": "x", "more": [{"x": 1}]}, None]})
            new = store.alter_table(old, new)
            insert(store, new, {"k": [3], "o": [{"b": 6, "gone": 7, "more": [{"x": 2, "y": "y"}]}]})
        first = {"b": 5, "more": [{"x": 1, "y": None}], "gone": None}
        expected = [first, None, {"b": 6, "more": [{"x": 2, "y": "y"}], "gone": 7}]
        for frame in (
            read(spark, file, "db.t"),
            spark_tiering.sql(spark, "SELECT * FROM db.t", config=file, local_disks="shared"),
        ):
            assert [row.asDict(recursive=True)["o"] for row in frame.orderBy("k").collect()] == expected
        assert rows_of(read(spark, file, "db.t", columns="k", filter="o.gone > 1")) == [(3,)]
        assert rows_of(read(spark, file, "db.t", columns="k", filter="o.b = 5")) == [(1,)]

    @pytest.mark.in_turn
    def test_a_column_that_took_no_nulls_takes_them(
        self, spark: SparkSession, ministack: Server, tmp_path: Path
    ) -> None:
        """A part of before in the bucket, one of after beside it, and both merged."""
        file = write_config(tmp_path, ministack, hot=False)
        old = table("db.t", {"k": "int64", "v": "int64"}, ["k"])
        sure = tuple(msgspec.structs.replace(column, nullable=column.name != "v") for column in old.columns)
        old = msgspec.structs.replace(old, columns=sure)
        new = definitions.widen_column(old, "v:int64 null")
        with opened(file) as store:
            store.create_table(old)
            insert(store, old, {"k": [1, 2], "v": [10, 20]})
            assert [field.nullable for field in read(spark, file, "db.t").schema] == [True, False]
            store.alter_table(old, new)
            insert(store, new, {"k": [3, 4], "v": [None, 40]})
        for merges in (False, True):
            if merges:
                with opened(file) as store:
                    store.merge("db.t", MergeRequest(final=True))
            frame = read(spark, file, "db.t")
            assert [field.nullable for field in frame.schema] == [True, True]
            assert rows_of(frame) == [(1, 10), (2, 20), (3, None), (4, 40)]
            assert rows_of(read(spark, file, "db.t", columns="k", filter="v is null")) == [(3,)]
            assert frame.where("v is not null").count() == 3

    def test_fields_of_structs_select_rows_and_files(
        self, spark: SparkSession, ministack: Server, tmp_path: Path
    ) -> None:
        file = write_config(tmp_path, ministack, hot=False)
        definition = table("db.f", {"k": "int64", "o": "struct<a: int64, s: struct<w: string>>"}, ["k"])
        with opened(file) as store:
            store.create_table(definition)
            for first in (0, 10, 20):
                values = [{"a": k, "s": None if k % 2 else {"w": str(k)}} for k in range(first, first + 10)]
                insert(store, definition, {"k": list(range(first, first + 9)), "o": [*values[:8], None]})
        condition = "o.a > 15 and o.s.w is not null"
        assert rows_of(read(spark, file, "db.f", columns="k", filter=condition)) == [(16,), (20,), (22,), (24,), (26,)]
        scan = plan_scan(ReadOptions("db.f", file, filter="o.a > 18", on_this_machine=True))
        assert sum(len(share) for share in scan.shares) == 1

    def test_a_null_where_none_may_be_is_an_error_and_not_a_zero(self, config: Path) -> None:
        """Spark asks for no nulls where the schema has none: it would take what lies below one for a value."""
        scan = plan_scan(ReadOptions("db.types", config))
        sure = [msgspec.structs.replace(column, nullable=column.name != "u8") for column in scan.definition.columns]
        wanted = _everything(msgspec.structs.replace(scan.definition, columns=tuple(sure)))
        with pytest.raises(Damaged, match=r"data-0000\.parquet cannot be read: column u8"):
            list(read_share(scan.shares[0], wanted, datetime.now(UTC) + timedelta(hours=1)))

    def test_an_object_that_is_gone_is_an_error_and_not_fewer_rows(self, config: Path, ministack: Server) -> None:
        scan = plan_scan(ReadOptions("db.types", config))
        (share,) = scan.shares
        (piece,) = share
        assert piece.store is not None
        store = piece.store.open()
        whole = store.get(piece.key)
        until = datetime.now(UTC) + timedelta(hours=1)
        everything = _everything(scan.definition)
        try:
            bucket, prefix = piece.store.config.url.removeprefix("s3://").split("/", 1)  # type: ignore[union-attr]
            broken = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
            ministack.client().put_object(Bucket=bucket, Key=prefix + piece.key, Body=broken)
            with pytest.raises(Damaged, match="is not what was written"):
                list(read_share(share, everything, until))
            store.delete([piece.key])
            with pytest.raises(Damaged, match="is gone"):
                list(read_share(share, everything, until))
        finally:
            ministack.client().put_object(Bucket=bucket, Key=prefix + piece.key, Body=whole)
        assert sum(batch.num_rows for batch in read_share(share, everything, until)) == 3

    def test_no_secret_reaches_options_plans_or_names(
        self, spark: SparkSession, config: Path, ministack: Server
    ) -> None:
        secret = ministack.secret_access_key
        assert secret in config.read_text()
        frame = read(spark, config, "db.logs", columns="service")
        assert frame.count() == 2500
        shown = [frame._jdf.queryExecution().toString(), str(spark.sparkContext.getConf().getAll())]
        scan = plan_scan(ReadOptions("db.logs", config, on_this_machine=True))
        shown += [repr(scan), str(scan), repr(scan.shares[0][0].store)]
        assert not [text for text in shown if secret in text]
