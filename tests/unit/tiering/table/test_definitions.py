"""From command line words to table definitions, and the changes of a table."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oplog.errors import NotFound, UsageError
from tiering.table import schema
from tiering.table.columns.types import default_scalar
from tiering.table.definitions import (
    add_column,
    define_table,
    drop_column,
    parse_column,
    parse_order_by,
    parse_settings,
    rename_column,
    set_ttl,
    widen_column,
)
from tiering.table.merge_modes import MergeMode, parse_merge_mode
from tiering.table.rule_texts import parse_partition_by, parse_ttl, ttl_text
from tiering.table.schema import Delete, MoveToDisk, MoveToVolume, PartitionField, Recompress, TableDefinition, TtlRule

DAY = 86400


def table(**changes: Any) -> TableDefinition:
    options: dict[str, Any] = {
        "columns": ["carrier:string", "ts:timestamp", "n:int32", "v:int64"],
        "order_by": "carrier, ts",
        "policy": "hot_cold",
        "partition_by": "month(ts)",
        "ttl": ["7d on ts to volume cold"],
        "merge_mode": "summing:n",
    }
    return define_table("nyc.flights", **{**options, **changes})


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("7d on ts to volume cold", MoveToVolume("cold")),
        ("30d on ts to disk s3", MoveToDisk("s3")),
        ("after 30d on ts: to disk if exists s3", MoveToDisk("s3", if_exists=True)),
        ("365d on ts delete", Delete()),
        ("1w on ts recompress zstd(9)", Recompress("zstd", 9)),
        ("1w on ts recompress zstd 19", Recompress("zstd", 19)),
        ("0s ON ts TO VOLUME Cold", MoveToVolume("Cold")),
    ],
)
def test_ttl_rules(text: str, action: object) -> None:
    rule = parse_ttl(text)
    assert (rule.column, rule.action) == ("ts", action)
    assert parse_ttl(ttl_text(rule)) == rule


@pytest.mark.parametrize(
    "text", ["", "7d", "7d on ts", "7d on ts to cold", "ts to volume cold", "7d on ts recompress lz4", "x on ts delete",
             "7d on ts to volume cold now", "7d on ts recompress zstd(99)"],
)  # fmt: skip
def test_what_is_no_ttl_rule(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ttl(text)


def test_partitions() -> None:
    assert parse_partition_by("day(ts)") == (PartitionField("day", "ts"),)
    assert parse_partition_by("months( ts ), bucket(16, id),c") == (
        PartitionField("month", "ts"),
        PartitionField("bucket", "id", 16),
        PartitionField("identity", "c"),
    )
    assert parse_partition_by("truncate(c, 2)") == (PartitionField("truncate", "c", 2),)
    assert parse_partition_by("") == ()
    for text in (
        "week(ts)",
        "day()",
        "bucket(id)",
        "bucket(0, id)",
        "day(ts",
        "day(ts),,",
        "day(ts), day(ts)",
        "day(a,b)",
    ):
        with pytest.raises(UsageError):
            parse_partition_by(text)


def test_columns_orders_modes_and_settings() -> None:
    column = parse_column("id: int not null", column_id=3)
    assert (column.id, column.type, column.nullable) == (3, "int32", False)
    assert parse_order_by("a, b") == ("a", "b")
    assert parse_merge_mode("replacing:v, d") == MergeMode("replacing", "v", "d")
    assert parse_merge_mode("aggregating:a=min, b = anyLast").functions == (("a", "min"), ("b", "anyLast"))
    settings = parse_settings(["target_file_size_bytes=10MiB", "min_part_age_to_move_seconds=1h", "row_group_rows=5"])
    assert (settings.target_file_size_bytes, settings.min_part_age_to_move_seconds) == (10 << 20, 3600)
    assert parse_column('"a:b, ""c""": int64').name == 'a:b, "c"'
    assert parse_order_by('größe, "a, b", 2nd') == ("größe", "a, b", "2nd")
    assert parse_merge_mode('aggregating:"a=b"=min').functions == (("a=b", "min"),)
    for mode in ('replacing:"a, b"', 'summing:"a:b",größe', 'aggregating:"a=b"=min'):
        assert parse_merge_mode(str(parse_merge_mode(mode))) == parse_merge_mode(mode)
    for bad in ("id", "id:", ":int64", "a\tb:int64", " :int64", "\ud800:int64", f"{'a' * 256}:int64"):
        with pytest.raises(UsageError):
            parse_column(bad)
    for bad in ("", "a,a", ","):
        with pytest.raises(UsageError):
            parse_order_by(bad)
    for bad in (
        "other", "ordinary:x", "summing", "summing:a,a", "summing:a,", "replacing:a,b,c", "replacing:a,",
        "replacing:a,a", "aggregating", "aggregating:a", "aggregating:a=", "aggregating:=min", "aggregating:a=count",
        "aggregating:a=min,a=max",
    ):  # fmt: skip
        with pytest.raises(UsageError):
            parse_merge_mode(bad)
    with pytest.raises(UsageError, match="'a=median'") as raised:
        parse_merge_mode("aggregating:a=median")
    assert "min, max, sum, any, anyLast" in str(raised.value.hint)
    for bad in ("row_group_row=5", "row_group_rows", "row_group_rows=x", "row_group_rows=0", "compression_level=23"):
        with pytest.raises(UsageError):
            parse_settings([bad])


@pytest.mark.parametrize(
    "changes",
    [
        {"order_by": "nope"},
        {"partition_by": "month(carrier)"},
        {"partition_by": "truncate(2, ts)"},
        {"ttl": ["1d on n delete"]},
        {"ttl": ["1d on nope delete"]},
        {"merge_mode": "summing:carrier"},
        {"merge_mode": "replacing:carrier"},
        {"merge_mode": "replacing:n,nope"},
        {"merge_mode": "replacing:n,price", "columns": ["ts:timestamp", "carrier:string", "n:int32", "price:float64"]},
        {"merge_mode": "replacing:ts"},
        {"merge_mode": "aggregating:nope=min"},
        {"merge_mode": "aggregating:carrier=max"},
        {"merge_mode": "aggregating:tags=min", "columns": ["ts:timestamp", "carrier:string", "tags:list<int64>"]},
        {"merge_mode": "aggregating:on=sum", "columns": ["ts:timestamp", "carrier:string", "on:bool"]},
        {"merge_mode": "aggregating:n=sum", "partition_by": "identity(n)"},
        {"columns": []},
        {"columns": ["a:int64", "a:string"], "order_by": "a"},
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((UsageError, NotFound)):
        table(**changes)


def test_a_file_gives_the_columns_and_words_override_them() -> None:
    like = pa.schema([pa.field("a", pa.large_string()), pa.field("b", pa.int64(), nullable=False)])
    made = define_table("x.y", like=like, columns=["b:int32", "c:date"], order_by="a", policy="p")
    assert [(column.id, column.name, column.type) for column in made.columns] == [
        (1, "a", "string"),
        (2, "b", "int32"),
        (3, "c", "date"),
    ]
    unknown = pa.schema([("t", pa.decimal256(50, 2)), ("a", pa.int64())])
    with pytest.raises(UsageError, match="column t: tables cannot hold"):
        define_table("x.y", like=unknown, order_by="a", policy="p")
    made = define_table("x.y", like=unknown, columns=["t:string"], order_by="a", policy="p")
    assert [(column.name, column.type) for column in made.columns] == [("t", "string"), ("a", "int64")]


def test_a_sample_does_not_bind_the_files_after_it() -> None:
    like = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            ("at", pa.timestamp("s")),
            ("seen", pa.list_(pa.struct([("at", pa.timestamp("ms", "UTC")), ("nothing", pa.null())]))),
        ]
    )
    made = define_table("x.y", like=like, order_by="k", policy="p")
    assert all(column.nullable for column in made.columns)
    assert [column.type for column in made.columns] == [
        "int64",
        "timestamp[us]",
        "list<struct<at: timestamp[us, UTC], nothing: string>>",
    ]


@pytest.mark.parametrize(
    ("field", "message", "way"),
    [
        (("a\tb", pa.int64()), r"^column a.b: not a column name: 'a\\tb'", "--rename-column 'a\tb:NEW'"),
        (
            ("i", pa.month_day_nano_interval()),
            "^column i: tables cannot",
            "--rename-column 'i:NEW', and --ignore-unknown",
        ),
        (("d", pa.decimal256(39, 1)), "^column d: tables cannot hold", "float64 all, rounded"),
        (("b", pa.bool8()), "^column b: tables cannot hold", "its values are stored as int8"),
        (("v", pa.list_view(pa.int8())), "^column v: tables cannot hold", "write it as a list"),
        (("u", pa.list_(pa.uuid())), "^column u: the type uuid cannot be inside", "string holds the same"),
        (("user", pa.struct([("a", pa.int8()), ("A", pa.int8())])), "^column user: the fields a and A", "rename one"),
    ],
)
def test_what_only_a_sample_has_is_said_with_a_way_round(
    field: tuple[str, pa.DataType], message: str, way: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        define_table("x.y", like=pa.schema([field]), order_by="t", policy="p")
    assert way in caught.value.hint
    assert "--column" in caught.value.hint


@pytest.mark.parametrize("function", ["min", "max", "any", "anyLast"])
def test_no_rule_deletes_by_what_merges_change(function: str) -> None:
    """I13: what was left of a key depended on which of its rows had met."""
    mode, rule = f"aggregating:ts={function},n=sum", "30d on ts delete"
    changes: dict[str, Any] = {"merge_mode": mode, "order_by": "carrier", "partition_by": ""}
    with pytest.raises(UsageError, match=f"delete by ts: merges change it .{function}.") as raised:
        table(**changes, ttl=[rule])
    assert "--order-by" in str(raised.value.hint)
    good = table(**changes, ttl=["30d on ts to volume cold", "30d on ts recompress zstd(3)"])
    with pytest.raises(UsageError, match="no rule can delete by ts"):
        set_ttl(good, [rule])
    for mode in ("replacing:ts", "replacing:n", "summing:n"):
        assert set_ttl(table(**{**changes, "merge_mode": mode}), [rule]).ttl == (parse_ttl(rule),)
    older = msgspec.structs.replace(good, ttl=(parse_ttl(rule),))
    assert rename_column(add_column(older, "extra:int32"), "ts:time").ttl == (parse_ttl("30d on time delete"),)
    assert len(set_ttl(older, [rule, "1d on ts to volume cold"]).ttl) == 2


def test_changes_keep_ids_and_count_versions() -> None:
    old = table()
    added = add_column(old, "extra:int32", default="5")
    assert (added.columns[-1].id, added.columns[-1].default, added.version, added.schema_version) == (5, 5, 2, 2)
    dropped = drop_column(added, "extra")
    again = add_column(dropped, "extra:string")
    assert again.columns[-1].id == 6  # the id of a dropped column never comes back
    renamed = rename_column(old, "ts:time")
    assert renamed.order_by == ("carrier", "time")
    assert renamed.partition_by == (PartitionField("month", "time"),)
    assert renamed.ttl == (TtlRule(7 * DAY, "time", MoveToVolume("cold")),)
    assert rename_column(old, "n:m").merge_mode == "summing:m"
    lasting = table(merge_mode="aggregating:n=max,v=anyLast")
    assert rename_column(lasting, "n:m").merge_mode == "aggregating:m=max,v=anyLast"
    with pytest.raises(UsageError, match="the merge mode of"):
        drop_column(lasting, "v")
    assert widen_column(old, "n:int64").column("n").type == "int64"
    assert set_ttl(old, []).ttl == ()
    assert set_ttl(old, []).schema_version == old.schema_version
    assert schema.decode(schema.encode(again), path="table.json") == again


def test_changes_that_break_the_table_are_refused() -> None:
    old = table()
    for broken in (
        lambda: drop_column(old, "ts"),
        lambda: drop_column(old, "n"),
        lambda: drop_column(old, "nope"),
        lambda: add_column(old, "n:int64"),
        lambda: add_column(old, "m:int64 not null"),
        lambda: add_column(old, "m:int64", default="x"),
        lambda: rename_column(old, "ts"),
        lambda: rename_column(old, "ts:n"),
        lambda: widen_column(old, "v:int32"),
        lambda: widen_column(old, "carrier:int64"),
    ):
        with pytest.raises((UsageError, NotFound)):
            broken()


DEFAULTS_OUT_OF_RANGE = [
    *(
        (f"{sign}int{bits}", str(number))
        for bits in (8, 16, 32, 64)
        for sign, number in (
            *(("", -(2 ** (bits - 1)) - 1), ("", 2 ** (bits - 1))),
            *(("u", -1), ("u", 2**bits), ("", 10**40), ("u", 10**40)),
        )
    ),
    *(("float32", text) for text in ("1e300", "-1e300", "nan", "inf")),
    *(("float64", text) for text in ("1e400", "nan", "-inf")),
    *(("decimal(10,2)", text) for text in ("99999999999999", "nan", "0.001", "1e9999999")),
    *((kind, text) for kind in ("date", "timestamp") for text in ("0000-01-01", "99999-01-01", "9999-99-99")),
    *(("bool", "maybe"), ("time", "25:00"), ("uuid", "x"), ("duration", f"{10**30}")),
]


@pytest.mark.parametrize(("kind", "text"), DEFAULTS_OUT_OF_RANGE)
def test_a_default_out_of_range_is_refused(kind: str, text: str) -> None:
    """I23: it is named, with the next step, and is no error of Python's."""
    with pytest.raises(UsageError, match=re.escape(text)) as refused:
        add_column(define_table("d.t", columns=["k:int64"], order_by="k", policy="p"), f"n:{kind}", default=text)
    assert refused.value.hint
    assert "unexpected" not in str(refused.value)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint8", "uint64"])
def test_the_least_and_the_greatest_default_are_taken(kind: str) -> None:
    bits, unsigned = int(kind.lstrip("uint")), kind[0] == "u"
    least, most = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for number in (least, most):
        table = define_table("d.t", columns=["k:int64"], order_by="k", policy="p")
        column = add_column(table, f"n:{kind}", default=str(number)).columns[-1]
        assert default_scalar(column).as_py() == number
