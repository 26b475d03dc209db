"""Merges on real disks: nothing lost, nothing doubled, order kept, memory of earlier inserts kept; what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks.base import Disk
from disks.registry import open_disk
from oplog.errors import Conflict, Damaged, Locked, NoSpace
from oplog.kinds import Moved, OtherKind, TableAltered
from tiering.catalog import blocks, tables
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.context import Context
from tiering.catalog.new_parts import INSERT_CLAIM
from tiering.catalog.reservation import Reservations
from tiering.config.settings import Config, embedded
from tiering.insert.insert import insert
from tiering.journal.journal import Journal
from tiering.merge import merger
from tiering.merge.merger import merge
from tiering.merge.output import output_name, recompression_level
from tiering.merge.planning import plan_merges
from tiering.merge.request import MergeRequest
from tiering.parquet import sorted_merge
from tiering.parquet.sorted_input import SortedInput
from tiering.parquet.sorted_merge import clusters
from tiering.parquet.sorting import sort_table
from tiering.table import definitions
from tiering.table.schema import TableDefinition

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("text", pa.string())])


def make_context(config: Config, **replaced: Disk) -> Context:
    state = config.state_directory
    state.mkdir(parents=True, exist_ok=True)
    disks = {name: open_disk(name, disk, state) for name, disk in config.disks.items()} | replaced
    catalog = Catalog(config, disks)
    return Context(config, disks, catalog, Journal(state), Reservations(config, disks), clock=lambda: NOW)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    opened = make_context(embedded(tmp_path))
    yield opened
    opened.journal.close()
    for disk in opened.disks.values():
        disk.close()


def define(context: Context, **changes: object) -> TableDefinition:
    options: dict[str, object] = {"like": SCHEMA, "order_by": "key,ts", "policy": "hot_cold", **changes}
    definition = definitions.define_table("db.t", **options)  # type: ignore[arg-type]
    return tables.create(context, definition)


def rows(keys: list[int | None], *, text: str = "x", day: int = 1) -> pa.Table:
    stamps = [datetime(2026, 1, day, tzinfo=UTC) + timedelta(seconds=number) for number in range(len(keys))]
    return pa.table({"key": keys, "ts": stamps, "text": [f"{text}{number}" for number in range(len(keys))]}, SCHEMA)


def put(context: Context, definition: TableDefinition, *tables_: pa.Table) -> list[StoredPart]:
    for table in tables_:
        insert(context, definition, [table.to_batches()])
    context.catalog.refresh()
    return context.catalog.parts(definition)


def stored_rows(context: Context, definition: TableDefinition) -> list[dict[str, object]]:
    """Every row of the active parts, read with another reader than the merge's."""
    context.catalog.refresh()
    found: list[dict[str, object]] = []
    for stored in context.catalog.parts(definition):
        for file in stored.part.files:
            data = context.disk(stored.disk).read(stored.path(file.name))
            found.extend(pq.read_table(pa.BufferReader(data)).to_pylist())
    return found


def test_a_merge_keeps_every_row_in_order_and_leaves_one_part(context: Context) -> None:
    """I3, I4: one part with all the rows replaces the inputs at once."""
    definition = define(context)
    inputs = [rows([5, 1, None, 3]), rows([2, 4, 4, None], text="y"), rows([9, 0], text="z")]
    parts = put(context, definition, *inputs)
    result = merge(context, definition, parts, reason="test")
    assert (result.rows_in, result.rows_out, result.output) == (10, 10, "all_1_3_1")
    merged = stored_rows(context, definition)
    assert [row["key"] for row in merged] == [0, 1, 2, 3, 4, 4, 5, 9, None, None]
    expected = [row for table in inputs for row in table.to_pylist()]
    assert sorted(map(str, merged)) == sorted(map(str, expected))
    assert [stored.part.name for stored in context.catalog.parts(definition, include_outdated=True)] == ["all_1_3_1"]
    (record,) = context.journal.work.merges()
    assert (record.state, record.rows_out) == ("done", 10)


def test_a_merge_keeps_few_rows_ready(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory bound rests on this: what is sorted at once is bounded by what the files keep ready, not by them."""
    monkeypatch.setattr(sorted_merge, "_BATCH_ROWS", (10, 20))
    sizes: list[int] = []

    def counted(table: pa.Table, keys: Sequence[str]) -> pa.Table:
        sizes.append(table.num_rows)
        return sort_table(table, keys)

    monkeypatch.setattr(sorted_merge, "sort_table", counted)
    definition = define(context)
    parts = put(context, definition, *[rows(list(range(start, 3000, 3))) for start in range(3)])
    merge(context, definition, parts, reason="test")
    assert [row["key"] for row in stored_rows(context, definition)] == list(range(3000))
    assert sum(sizes) > 2900
    assert max(sizes) <= 3 * 2 * 20


def test_an_insert_that_was_merged_is_still_skipped(context: Context) -> None:
    """A merge keeps the digests of the blocks inside."""
    definition = define(context)
    first = rows([1, 2])
    merge(context, definition, put(context, definition, first, rows([3])), reason="test")
    again = insert(context, definition, [first.to_batches()])
    assert (again.rows, again.duplicates) == (0, 1)


def test_parts_with_a_part_between_them_are_not_merged(context: Context) -> None:
    """The output would cover the part in between and lose its rows."""
    definition = define(context)
    first, _, last = put(context, definition, rows([1]), rows([2]), rows([3]))
    with pytest.raises(Conflict, match="all_2_2_0"):
        merge(context, definition, [first, last], reason="test")
    assert len(stored_rows(context, definition)) == 3


def test_blocks_on_their_way_hold_merges_back(context: Context) -> None:
    """An insert that got its number and has not committed must not be covered when it does."""
    definition = define(context)
    parts = put(context, definition, rows([1]), rows([2]))
    with context.journal.claim(definition.uuid, [f"{INSERT_CLAIM}2-abc"], "insert"):
        assert plan_merges(context, definition, parts, MergeRequest(final=True)) == []
        with pytest.raises(Locked, match="block 2"):
            merge(context, definition, parts, reason="test")
    assert len(plan_merges(context, definition, parts, MergeRequest(final=True))) == 1


def test_a_part_that_is_being_moved_is_not_merged(context: Context) -> None:
    definition = define(context)
    parts = put(context, definition, rows([1]), rows([2]))
    with context.journal.claim(definition.uuid, [parts[0].part.name], "move"), pytest.raises(Locked):
        merge(context, definition, parts, reason="test")


def test_a_damaged_input_is_never_merged_into_good_looking_data(context: Context, tmp_path: Path) -> None:
    """P: a flipped bit must not get a fresh checksum."""
    definition = define(context)
    parts = put(context, definition, rows(list(range(100))), rows([2]))
    path = tmp_path / "ssd" / parts[0].path("data-0000.parquet")
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Damaged, match=r"data-0000\.parquet"):
        merge(context, definition, parts, reason="test")
    context.catalog.refresh()
    assert len(context.catalog.parts(definition)) == 2
    assert context.journal.work.merges()[0].state == "failed"


def test_a_merge_that_finds_no_space_changes_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = define(context)
    parts = put(context, definition, rows([1]), rows([2]))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "data-0000.parquet")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(NoSpace):
        merge(context, definition, parts, reason="test")
    monkeypatch.undo()
    assert len(stored_rows(context, definition)) == 2
    assert not list((Path(context.config.disks["ssd"].path or "")).glob(".frostline/staging/*/*"))


def test_inputs_on_two_disks_land_on_the_colder_one(context: Context) -> None:
    """A merge never warms data up; the inputs on the other disk are removed after the commit."""
    definition = define(context)
    first, second = put(context, definition, rows([1, 5]), rows([2, 4]))
    cold = context.disk("s3")
    with cold.transaction(Moved()) as transaction:
        for name in ("data-0000.parquet", "part.json"):
            transaction.create(first.path(name), context.disk("ssd").read(first.path(name)))
        transaction.commit()
    with context.disk("ssd").transaction(Moved()) as transaction:
        transaction.remove(first.directory)
        transaction.commit()
    context.catalog.refresh()
    parts = context.catalog.parts(definition)
    assert {stored.disk for stored in parts} == {"ssd", "s3"}
    result = merge(context, definition, parts, reason="test")
    assert result.disk == "s3"
    assert context.disk("ssd").list(second.directory) == []
    assert [row["key"] for row in stored_rows(context, definition)] == [1, 2, 4, 5]


def test_more_files_than_may_be_open_are_merged_in_steps(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intermediate files keep the order of equal keys, which `replacing` without a version depends on."""
    monkeypatch.setattr(sorted_merge, "MAX_OPEN_FILES", 2)
    definition = define(context, order_by="key", merge_mode="replacing")
    parts = put(context, definition, *[rows([1, 2], text=f"insert {number} ") for number in range(7)])
    result = merge(context, definition, parts, reason="test")
    assert (result.rows_in, result.rows_out) == (14, 2)
    assert [row["text"] for row in stored_rows(context, definition)] == ["insert 6 0", "insert 6 1"]


def test_disjoint_parts_are_read_one_after_the_other(context: Context) -> None:
    definition = define(context)
    parts = put(context, definition, rows([7, 8]), rows([1, 2]), rows([2, 3]), rows([9, None]), rows([20]))
    job = merger._Merge(context, definition, parts, output_name(parts), "test")
    with context.disk("ssd").transaction(OtherKind("test")) as transaction:
        groups = clusters(job._files(transaction.scratch() / "fetched"), definition)
    # the part with a null has no upper bound, so it meets what follows
    assert [[item.order for item in group] for group in groups] == [[1, 2], [0], [3, 4]]
    merge(context, definition, parts, reason="test")
    assert [row["key"] for row in stored_rows(context, definition)] == [1, 2, 2, 3, 7, 8, 9, 20, None]


def test_replacing_keeps_the_highest_version_and_summing_adds(context: Context) -> None:
    columns = ["key:int64", "version:int64", "amount:decimal(10,2)"]
    definition = define(context, like=None, columns=columns, order_by="key", merge_mode="replacing:version")
    schema = pa.schema([("key", pa.int64()), ("version", pa.int64()), ("amount", pa.decimal128(10, 2))])

    def table(*tuples: tuple[int, int | None, str]) -> pa.Table:
        import decimal

        return pa.Table.from_pylist(
            [{"key": key, "version": version, "amount": decimal.Decimal(amount)} for key, version, amount in tuples],
            schema,
        )

    parts = put(context, definition, table((1, 5, "1"), (2, 1, "2")), table((1, 4, "3"), (2, 1, "4"), (3, None, "5")))
    merge(context, definition, parts, reason="test")
    assert [str(row["amount"]) for row in stored_rows(context, definition)] == ["1.00", "4.00", "5.00"]


def test_tombstones_go_only_when_a_merge_holds_its_partition(context: Context) -> None:
    """Whether the parts left out are known, or another machine may have them."""
    columns = ["key:int64", "version:int64", "gone:bool"]
    definition = define(context, like=None, columns=columns, order_by="key", merge_mode="replacing:version,gone")

    def table(key: int, version: int, gone: bool) -> pa.Table:
        return pa.table({"key": [key], "version": [version], "gone": [gone]})

    parts = put(context, definition, table(1, 1, False), table(1, 2, True), table(1, 3, True), table(2, 1, False))
    merge(context, definition, parts[1:], reason="test", drop_deleted=True)
    assert [(row["key"], row["version"]) for row in stored_rows(context, definition)] == [(1, 1), (1, 3), (2, 1)]

    foreign = context.disk("s3")
    with foreign.transaction(OtherKind("test")) as transaction:
        transaction.create(blocks.mark_path(definition, 7), b"{}")
        transaction.commit()
    context.catalog.refresh()
    merge(context, definition, context.catalog.parts(definition), reason="test", drop_deleted=True)
    assert [(row["key"], row["version"]) for row in stored_rows(context, definition)] == [(1, 3), (2, 1)]

    with foreign.transaction(OtherKind("test")) as transaction:
        transaction.remove(blocks.mark_path(definition, 7))
        transaction.commit()
    context.catalog.refresh()
    merge(context, definition, context.catalog.parts(definition), reason="test")
    assert len(stored_rows(context, definition)) == 2
    merge(context, definition, context.catalog.parts(definition), reason="test", drop_deleted=True)
    assert [(row["key"], row["version"]) for row in stored_rows(context, definition)] == [(2, 1)]


def test_rows_past_their_ttl_go_and_an_empty_result_is_no_part(context: Context) -> None:
    definition = define(context, ttl=["30d on ts delete"])
    old, fresh = rows([1, 2], day=1), rows([3], day=31)
    result = merge(context, definition, put(context, definition, old, fresh), reason="test")
    assert (result.rows_in, result.rows_out) == (3, 1)
    assert [row["key"] for row in stored_rows(context, definition)] == [3]
    context.clock = lambda: NOW + timedelta(days=60)
    result = merge(context, definition, context.catalog.parts(definition), reason="test")
    assert (result.output, result.rows_out) == (None, 0)
    assert stored_rows(context, definition) == []


def test_parts_of_an_older_schema_are_merged_by_field_id(context: Context) -> None:
    definition = define(context)
    put(context, definition, rows([1, 2]))
    changed = definitions.add_column(
        definitions.rename_column(definitions.drop_column(definition, "text"), "key:id"), "n:int32", default="7"
    )
    changed = tables.replace(context, definition, changed, reason="test", kind=TableAltered())
    newer = pa.table({"id": [0], "ts": [NOW], "n": pa.array([1], pa.int32())})
    insert(context, changed, [newer.to_batches()])
    context.catalog.refresh()
    merge(context, changed, context.catalog.parts(changed), reason="test")
    assert [(row["id"], row["n"], "text" in row) for row in stored_rows(context, changed)] == [
        (0, 1, False),
        (1, 7, False),
        (2, 7, False),
    ]


def test_a_due_recompression_rule_sets_the_level(context: Context) -> None:
    definition = define(context, ttl=["30d on ts recompress zstd(19)"])
    parts = put(context, definition, rows([1], day=1))
    assert recompression_level(context, definition, parts, output_name(parts)) == 19
    assert merge(context, definition, parts, reason="test").output == "all_1_1_1"


def test_a_part_is_rewritten_once_when_a_recompression_is_due(context: Context) -> None:
    definition = define(context, ttl=["30d on ts recompress zstd(19)", "9000d on ts recompress zstd(20)"])
    (stored,) = put(context, definition, rows([1], day=1))
    (plan,) = plan_merges(context, definition, [stored], MergeRequest())
    assert (plan.parts, plan.reason) == ((stored,), "due: 30d on ts recompress zstd(19)")
    merge(context, definition, plan.parts, reason=plan.reason)
    context.catalog.refresh()
    (rewritten,) = context.catalog.parts(definition)
    assert rewritten.part.compression_level == 19
    assert plan_merges(context, definition, [rewritten], MergeRequest()) == []


def test_the_cold_volume_is_left_alone(context: Context) -> None:
    """prefer_not_to_merge: no merges are planned there."""
    definition = define(context)
    (stored,) = put(context, definition, rows([1]))[:1]
    cold = StoredPart(definition, stored.part, stored.name, "s3", "cold", 1)
    assert plan_merges(context, definition, [cold, cold], MergeRequest(final=True)) == []


def test_texts_of_many_values_are_read_as_they_are(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """To put large dictionaries together costs more than to move the texts."""
    begun: list[set[int]] = []
    original = SortedInput.begin

    def begin(run: SortedInput, encoded: set[int]) -> None:
        begun.append(encoded)
        original(run, encoded)

    monkeypatch.setattr(SortedInput, "begin", begin)
    definition = define(context)
    many, few = [f"value {number}" for number in range(3000)], ["one", "two"]
    for values, kept in ((few, {3}), (many, set())):
        texts = [value for value in values for _ in range(12_000 // len(values))]
        table = rows(list(range(len(texts)))).set_column(2, SCHEMA.field(2), [texts])
        parts = put(context, definition, table, table.slice(1))
        merge(context, definition, [part for part in parts if part.part.rows >= 11_999], reason="test")
        assert begun == [kept, kept]
        context.catalog.refresh()
        tables.drop_parts(context, context.catalog.parts(definition), reason="test")
        begun.clear()
