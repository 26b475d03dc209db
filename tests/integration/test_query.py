"""SQL and scans over parts on an SSD, in a directory bucket and on a real S3 server: right answers, little read, no
partial result when something is missing (P55: errors name the object and the next step), and nothing written ever."""

from __future__ import annotations

import decimal
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from oplog.errors import Damaged, FrostlineError, NotFound, UsageError
from oplog.kinds import Moved
from tests.servers import Server
from tests.tiers import altered, define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.query import selection
from tiering.query.query import QueryResult, run_sql
from tiering.query.scan import scan
from tiering.table.schema import Column, PartitionField, TableDefinition

DAYS = 12
ROWS_A_DAY = 500
START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {
    "ts": "timestamp[us, UTC]",
    "Carrier": "string",
    "delay": "int64",
    "price": "decimal(10, 2)",
    "score": "float64",
    "day": "date",
    "late": "bool",
    "note": "string",
}


def day_rows(day: int, rows: int = ROWS_A_DAY) -> pa.Table:
    """A day of flights, with nulls and NaN."""
    chance = random.Random(day)
    moments = [START + timedelta(days=day, seconds=86_400 * number // rows) for number in range(rows)]
    scores = [chance.choice([None, float("nan"), chance.random() * 10]) for _ in range(rows)]
    return pa.table(
        {
            "ts": pa.array(moments, pa.timestamp("us", "UTC")),
            "Carrier": [chance.choice(["AA", "BB", "UA", None]) for _ in range(rows)],
            "delay": pa.array([day * 1000 + number for number in range(rows)], pa.int64()),
            "price": pa.array([decimal.Decimal(number) / 4 for number in range(rows)], pa.decimal128(10, 2)),
            "score": pa.array(scores, pa.float64()),
            "day": pa.array([date(2026, 1, 1) + timedelta(days=day)] * rows, pa.date32()),
            "late": [chance.choice([True, False, None]) for _ in range(rows)],
            "note": [f"flight {chance.randrange(10**9)} of day {day}" for _ in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def context(ministack: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    home = tmp_path_factory.mktemp("a b%41#")  # names that are not their own URL
    disks = {
        "ssd": LocalDiskConfig(path=str(home / "ssd")),
        "directory": ObjectDiskConfig(url=(home / "bucket").as_uri() + "/store/"),
        "s3": ministack.disk(f"s3://{ministack.new_bucket()}/store/"),
        "memory": ObjectDiskConfig(url=f"memory://{uuid.uuid4().hex}/"),
    }
    opened = make_context(home, disks)
    yield opened
    for disk in opened.disks.values():
        disk.close()


@pytest.fixture(scope="module")
def flights(context: Context) -> TableDefinition:
    definition = define("nyc.flights", COLUMNS, ["Carrier", "ts"], partition_by=(PartitionField("day", "ts"),))
    put_table(context, definition)
    names = list(context.disks)
    for day in range(DAYS):
        put_part(context, definition, names[day % len(names)], day_rows(day), day + 1)
    return definition


@pytest.fixture(scope="module")
def everything(flights: TableDefinition) -> pa.Table:
    return pa.concat_tables([day_rows(day) for day in range(DAYS)])


def query(context: Context, sql: str) -> QueryResult:
    return run_sql(context, sql, resolver(context))


def answer(context: Context, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = query(context, sql).read_all().to_pylist()
    return rows


def test_a_query_sees_all_tiers(context: Context, everything: pa.Table) -> None:
    result = query(context, "SELECT count(*) AS n, SUM(delay) AS total, max(note) AS note FROM nyc.flights")
    assert result.columns == [("n", "int64"), ("total", "decimal(38, 0)"), ("note", "string")]
    rows = result.read_all().to_pylist()
    assert rows == [
        {
            "n": everything.num_rows,
            "total": pc.sum(everything["delay"]).as_py(),
            "note": pc.max(everything["note"]).as_py(),
        }
    ]
    assert result.parts_read == DAYS
    assert result.parts_pruned == 0
    assert result.bytes_read > 0


def test_group_order_join_and_case_of_names(context: Context, everything: pa.Table) -> None:
    rows = answer(
        context, "select Carrier, count(*) as n from nyc.flights group by Carrier order by Carrier nulls last"
    )
    counts = {item["values"]: item["counts"] for item in pc.value_counts(everything["Carrier"]).to_pylist()}
    assert {row["Carrier"]: row["n"] for row in rows} == counts
    assert [row["Carrier"] for row in rows] == ["AA", "BB", "UA", None]
    joined = answer(
        context, "select a.delay from nyc.flights a join nyc.flights b on a.delay = b.delay + 1 where b.delay = 3000"
    )
    assert joined == [{"delay": 3001}]


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        ("ts >= '2026-01-03' and ts < '2026-01-05'", 2),
        ("ts between timestamp '2026-01-03 00:00:00' and timestamp '2026-01-03 12:00:00'", 1),
        ("day = date '2026-01-04'", 1),
        ("day in ('2026-01-04', '2026-01-09')", 2),
        ("delay > 11000", 1),
        ("delay >= 3000 and not (delay > 3100)", 1),
        ("delay is null", 0),
        ("note like 'zebra%'", 0),
        ("Carrier is not null and late", DAYS),
        ("extract(month from ts) = 2", DAYS),
        ("score > 1000", DAYS),
        ("delay = 1 or Carrier = 'ZZ'", 1),
        ("delay in (select delay from nyc.flights where delay = 5)", DAYS),
    ],
)
def test_parts_that_cannot_match_are_not_opened(
    context: Context, flights: TableDefinition, condition: str, parts: int
) -> None:
    result = query(context, f"select count(*) as n from nyc.flights where {condition}")
    result.read_all()
    assert result.parts_read == parts
    assert result.parts_read + result.parts_pruned >= DAYS


_CONDITIONS = [
    "ts > '2026-01-04T12:00:00Z'", "ts <= '2026-01-06'", "Carrier = 'AA'", "Carrier <> 'AA'", "Carrier is null",
    "Carrier like 'B%'", "note like 'flight 1%2%'", "note not like 'flight 9%'", "delay between 2100 and 4100",
    "delay not in (1, 2, 3)", "delay % 7 = 3", "price > 100.5", "price = 20", "score < 5", "score >= 9",
    "score = 'NaN'", "not score > 5", "late", "not late", "late is not true", "day <> '2026-01-02'",
    "Carrier in ('AA', null)", "coalesce(Carrier, 'x') = 'x'", "cast(delay as varchar) like '30%'", "true", "false",
    "day < '2026-01-03'",
    "ts < now()", "delay + 1 > 11000", "starts_with(note, 'flight 5')", "note between 'flight 3' and 'flight 4'",
]  # fmt: skip


def _condition(chance: random.Random, depth: int = 0) -> str:
    if depth > 2 or chance.random() < 0.35:
        return chance.choice(_CONDITIONS)
    kind = chance.choice(["and", "and", "or", "not", "is true", "is not false"])
    left = _condition(chance, depth + 1)
    if kind == "not":
        return f"not ({left})"
    if kind.startswith("is"):
        return f"({left}) {kind}"
    return f"({left}) {kind} ({_condition(chance, depth + 1)})"


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(6))
def test_pruning_changes_no_answer(
    context: Context, flights: TableDefinition, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    for _ in range(15):
        condition = _condition(chance)
        sql = f"select count(*) as n, sum(delay) as s from nyc.flights where {condition}"
        pruned = answer(context, sql)
        with monkeypatch.context() as patch:
            patch.setattr(selection, "matching_files", lambda _predicate, part, _definition: part.files)
            assert pruned == answer(context, sql), condition


def test_only_needed_columns_and_row_groups_are_read(context: Context) -> None:
    rows = pa.table(
        {
            "k": pa.array(range(200_000), pa.int64()),
            "wide": pa.array([f"{number * 2654435761 % 2**32:x}" * 4 for number in range(200_000)]),
        }
    )
    settings = {"row_group_rows": 10_000}
    definition = define("big.t", {"k": "int64", "wide": "string"}, ["k"])
    definition = altered_settings(definition, settings)
    put_table(context, definition)
    (stored,) = put_part(context, definition, "s3", rows, 1)
    whole = query(context, "select max(wide), sum(k) from big.t")
    whole.read_all()
    narrow = query(context, "select sum(k + 1) from big.t")
    narrow.read_all()
    some = query(context, "select max(wide) from big.t where k between 50000 and 51000")
    some.read_all()
    assert whole.bytes_read > 0.9 * stored.part.size_bytes
    assert 0 < narrow.bytes_read < 0.3 * whole.bytes_read
    assert 0 < some.bytes_read < 0.1 * whole.bytes_read


def altered_settings(definition: TableDefinition, settings: dict[str, Any]) -> TableDefinition:
    raw = {field: getattr(definition, field) for field in definition.__struct_fields__}
    raw["settings"] = type(definition.settings)(**settings)
    return TableDefinition(**raw)


# ---- errors


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        ("selec 1", UsageError, "selec"),
        ("select nope from nyc.flights", UsageError, "nope"),
        ("select * from nyc.nope", NotFound, "nyc.nope"),
        ("select * from nope", NotFound, "nope"),
        ("select * from '/etc/passwd'", NotFound, "/etc/passwd"),
        ("select sum(Carrier) from nyc.flights", UsageError, "sum"),
        ("select 1; select 2", UsageError, "single"),
        ("", UsageError, "SQL"),
        ("select cast(Carrier as int) from nyc.flights", UsageError, "convert"),
    ],
)
def test_bad_sql_is_a_clear_error(
    context: Context, flights: TableDefinition, sql: str, kind: type[FrostlineError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        query(context, sql).read_all()
    assert "Error:" not in caught.value.message
    assert "Traceback" not in caught.value.message


def test_a_column_called_like_an_sql_word_is_asked_for_in_quotes(context: Context, flights: TableDefinition) -> None:
    with pytest.raises(UsageError, match="syntax error") as caught:
        query(context, "select Carrier, at from nyc.flights").read_all()
    assert '"at"' in caught.value.hint
    assert query(context, 'select Carrier as "at" from nyc.flights limit 1').read_all().column_names == ["at"]


@pytest.mark.parametrize(
    "sql",
    [
        "create table nyc.x as select 1",
        "create external table x stored as csv location '/etc/passwd'",
        "create view nyc.v as select 1",
        "copy (select 1) to '{}'",
        "insert into nyc.flights select * from nyc.flights",
        "drop table nyc.flights",
        "delete from nyc.flights",
        "update nyc.flights set delay = 1",
        "/* sly */ -- comment\n set threads = 1",
        "explain analyze insert into nyc.flights select * from nyc.flights",
    ],
)
def test_a_query_only_reads(context: Context, flights: TableDefinition, tmp_path: Path, sql: str) -> None:
    target = tmp_path / "copied.csv"
    with pytest.raises(FrostlineError):
        query(context, sql.format(target)).read_all()
    assert not target.exists()


@pytest.mark.in_turn
@pytest.mark.parametrize("disk", ["ssd", "directory", "s3", "memory"])
@pytest.mark.parametrize(
    "sql",
    ["select sum(k) from gone.{} t", "select count(*) from gone.{} where k < 50", "select * from gone.{} limit 150"],
)
def test_a_missing_file_is_an_error_never_a_smaller_answer(
    context: Context, request: pytest.FixtureRequest, disk: str, sql: str
) -> None:
    table = f"t{abs(hash(request.node.name)) % 10**8}"
    definition = define(f"gone.{table}", {"k": "int64"}, ["k"])
    put_table(context, definition)
    for block in range(1, 4):
        put_part(context, definition, disk, pa.table({"k": pa.array(range(block * 100), pa.int64())}), block)
    stored = context.catalog.parts(definition)[1]
    path = stored.path(stored.part.files[0].name)
    what = remove_behind_our_back(context, disk, path)
    with pytest.raises(Damaged) as caught:
        query(context, sql.format(table)).read_all()
    assert stored.part.name in caught.value.message
    assert disk in caught.value.message
    assert what in caught.value.message
    assert "fsck" in caught.value.hint
    with pytest.raises(Damaged):
        scan(context, definition, context.catalog.parts(definition)).read_all()


@pytest.mark.parametrize("disk", ["ssd", "directory", "s3"])
def test_rows_of_objects_are_counted_without_a_request(
    context: Context, request: pytest.FixtureRequest, disk: str
) -> None:
    """`part.json` says how many there are: an object that is gone makes the answer neither smaller nor an error. A
    file of this machine is looked at all the same."""
    table = f"t{abs(hash(request.node.name)) % 10**8}"
    definition = define(f"counted.{table}", {"k": "int64", "n": "int64"}, ["k"])
    put_table(context, definition)
    for block in range(1, 4):
        rows = pa.table({"k": pa.array(range(100), pa.int64()), "n": pa.array(range(100), pa.int64())})
        put_part(context, definition, disk, rows, block)
    before = requests_of(context, disk)
    asked = [
        f"select count(*) from counted.{table}",
        f"select count(1) + 0 from counted.{table} where 1 = 1",
        f"select count(*) / 300 * 300 from counted.{table} a, (select 1) b",
        f"select count(*) from (select 7 from counted.{table} limit 1000)",
    ]
    for sql in asked:
        assert query(context, sql).read_all().to_pylist()[0].popitem()[1] == 300
    assert requests_of(context, disk) == before
    stored = context.catalog.parts(definition)[1]
    remove_behind_our_back(context, disk, stored.path(stored.part.files[0].name))
    if disk != "s3":
        with pytest.raises(Damaged):
            query(context, asked[0]).read_all()
    else:
        assert query(context, asked[0]).read_all().to_pylist() == [{"count_star()": 300}]


@pytest.mark.parametrize("disk", ["memory", "s3"])
def test_a_small_object_is_read_in_one_request(context: Context, request: pytest.FixtureRequest, disk: str) -> None:
    """Whatever the engine wants of it: what a file begins with, its columns, its footer."""
    table = f"t{abs(hash(request.node.name)) % 10**8}"
    definition = define(f"small.{table}", {"k": "int64", "n": "int64", "s": "string"}, ["k"])
    put_table(context, definition)
    for block in range(1, 4):
        numbers = pa.array(range(100), pa.int64())
        put_part(context, definition, disk, pa.table({"k": numbers, "n": numbers, "s": [f"{block}"] * 100}), block)
    for sql, answer in (
        ("select sum(n) from {}", 3 * 4950),
        ("select sum(n) from {} where k < 10", 3 * 45),
        ("select count(*) from {} where k < 10 and s < '9'", 30),
    ):
        before = requests_of(context, disk)
        assert int(query(context, sql.format(f"small.{table}")).read_all().to_pylist()[0].popitem()[1]) == answer
        assert requests_of(context, disk) == {**before, "GET": before.get("GET", 0) + 3}


def requests_of(context: Context, name: str) -> dict[str, int]:
    """What was asked of the disk's bucket so far; nothing is, where it has none."""
    disk = context.disk(name)
    return dict(disk.store.counts()) if isinstance(disk, ObjectDisk) else {}  # type: ignore[attr-defined]


def remove_behind_our_back(context: Context, name: str, path: str) -> str:
    """Delete the file's bytes and nothing else; gives the name of what was deleted."""
    disk = context.disk(name)
    if isinstance(disk, ObjectDisk):
        key = disk.stat(path).key
        assert key is not None
        assert disk.store.delete([key]) == {key: None}
        return key
    Path(disk.location(path).url.removeprefix("file://")).unlink()
    return path


@pytest.mark.parametrize("cut", [0, 20, 0.5])
def test_a_truncated_file_is_named(context: Context, cut: float) -> None:
    definition = define(f"cut.t{str(cut).replace('.', '_')}", {"k": "int64"}, ["k"])
    put_table(context, definition)
    put_part(context, definition, "ssd", pa.table({"k": pa.array(range(1000), pa.int64())}), 1)
    put_part(context, definition, "ssd", pa.table({"k": pa.array(range(5000), pa.int64())}), 2)
    stored = context.catalog.parts(definition)[0]
    path = Path(context.disk("ssd").location(stored.path("data-0000.parquet")).url.removeprefix("file://"))
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[: int(cut * len(data)) if cut < 1 else len(data) - int(cut)])
    with pytest.raises(Damaged, match=stored.part.name):
        query(context, f"select sum(k) from {definition.full_name}").read_all()


def test_a_part_that_moved_meanwhile_is_found_again(context: Context) -> None:
    definition = define("moved.t", {"k": "int64"}, ["k"])
    put_table(context, definition)
    rows = pa.table({"k": pa.array(range(1000), pa.int64())})
    (stored,) = put_part(context, definition, "ssd", rows, 1)
    stale = [stored]
    put_part(context, definition, "s3", rows, 1)
    with context.disk("ssd").transaction(Moved()) as transaction:
        transaction.remove(stored.directory)
        transaction.commit()
    answers = iter([stale])

    def resolve(name: str) -> tuple[TableDefinition, Any]:
        parts = next(answers, context.catalog.parts(definition))
        return definition, lambda predicate: (parts, 0)

    assert run_sql(context, "select sum(k) as s from moved.t", resolve).read_all().to_pylist() == [{"s": 499500}]


# ---- older schemas


def test_columns_are_found_by_field_id(context: Context) -> None:
    first = define("old.t", {"k": "int64", "a": "int32", "b": "string", "gone": "int64"}, ["k"])
    put_table(context, first)
    put_part(
        context,
        first,
        "s3",
        pa.table({"k": [1, 2], "a": pa.array([10, 20], pa.int32()), "b": ["x", None], "gone": [7, 8]}),
        1,
    )
    k, a, b, _ = first.columns
    second = altered(
        first,
        [
            k,
            Column(id=a.id, name="renamed", type="int64"),  # renamed and widened
            Column(id=5, name="a", type="string", default="new"),  # takes the old name
            b,
            Column(id=6, name="gone", type="date"),  # dropped, then added again
        ],
    )
    put_table(context, second)
    put_part(
        context,
        second,
        "ssd",
        pa.table({"k": [3], "renamed": [30], "a": ["own"], "b": ["y"], "gone": [date(2026, 1, 1)]}),
        2,
    )
    expected = [
        {"k": 1, "renamed": 10, "a": "new", "b": "x", "gone": None},
        {"k": 2, "renamed": 20, "a": "new", "b": None, "gone": None},
        {"k": 3, "renamed": 30, "a": "own", "b": "y", "gone": date(2026, 1, 1)},
    ]
    assert answer(context, "select * from old.t order by k") == expected
    assert answer(context, "select k from old.t where a = 'new' and renamed > 15") == [{"k": 2}]
    assert answer(context, "select count(*) as n from old.t") == [{"n": 3}]
    assert answer(context, "select sum(renamed) as n from old.t where gone is null") == [{"n": 30}]
    rows = scan(context, second, context.catalog.parts(second), filter=[("gone", "is null")]).read_all()
    assert sorted(rows["k"].to_pylist()) == [1, 2]
    assert rows.schema.field("renamed").type == pa.int64()


# ---- scan


def test_scan_gives_the_table_back(context: Context, flights: TableDefinition, everything: pa.Table) -> None:
    table = scan(context, flights, context.catalog.parts(flights)).read_all()
    assert table.schema.names == list(COLUMNS)
    assert table.sort_by("delay").drop_columns(["score"]).equals(everything.sort_by("delay").drop_columns(["score"]))


def test_scan_filters_and_columns(context: Context, flights: TableDefinition, everything: pa.Table) -> None:
    parts = context.catalog.parts(flights)
    chosen: Any = [
        ("ts", ">=", "2026-01-03"),
        ("ts", "<", datetime(2026, 1, 5, tzinfo=UTC)),
        ("Carrier", "in", ["AA", "BB"]),
    ]
    table = scan(context, flights, parts, columns=["delay", "Carrier"], filter=chosen).read_all()
    mask = (
        (pc.field("ts") >= pa.scalar(datetime(2026, 1, 3, tzinfo=UTC), pa.timestamp("us", "UTC")))
        & (pc.field("ts") < pa.scalar(datetime(2026, 1, 5, tzinfo=UTC), pa.timestamp("us", "UTC")))
        & pc.field("Carrier").isin(["AA", "BB"])
    )
    expected = everything.filter(mask).select(["delay", "Carrier"]).sort_by("delay")
    assert table.sort_by("delay").equals(expected)
    as_expression = scan(context, flights, parts, columns=["delay", "Carrier"], filter=mask).read_all()
    assert as_expression.sort_by("delay").equals(expected)
    either = scan(context, flights, parts, columns=["delay"], filter=[[("delay", "=", 3)], [("delay", "=", 4000)]])
    assert sorted(either.read_all()["delay"].to_pylist()) == [3, 4000]
    for condition, rows in [
        (("price", "between", [1, decimal.Decimal("1.5")]), 3 * DAYS),
        (("day", "=", "2026-01-02"), ROWS_A_DAY),
        (("note", "starts with", "flight"), ROWS_A_DAY * DAYS),
        (("delay", "not in", [0]), ROWS_A_DAY * DAYS - 1),
        (("delay", "is not null"), ROWS_A_DAY * DAYS),
    ]:
        assert scan(context, flights, parts, columns=["delay"], filter=[condition]).read_all().num_rows == rows


@pytest.mark.parametrize(
    "chosen",
    [
        [("nope", "=", 1)],
        [("delay", "~", 1)],
        [("delay", "=", "x")],
        [("day", "=", "2026-01-01T12:00:00")],
        ["delay"],
        [("delay", "=")],
    ],
)
def test_a_bad_filter_is_a_clear_error(context: Context, flights: TableDefinition, chosen: Any) -> None:
    with pytest.raises((UsageError, NotFound)):
        scan(context, flights, context.catalog.parts(flights), filter=chosen)


def test_an_empty_table(context: Context) -> None:
    definition = define("empty.t", {"k": "int64", "s": "string"}, ["k"])
    put_table(context, definition)
    context.catalog.refresh()
    assert answer(context, "select count(*) as n, max(s) as s from empty.t") == [{"n": 0, "s": None}]
    assert scan(context, definition, []).read_all().num_rows == 0


def test_a_reader_that_is_left_early_releases_its_lease(context: Context, flights: TableDefinition) -> None:
    reader = scan(context, flights, context.catalog.parts(flights))
    next(iter(reader))
    del reader
    result = query(context, "select * from nyc.flights")
    next(result.batches())
    result.reader.close()
