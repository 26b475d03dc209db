"""How parts become tables of the engine: one table of many paths, with exactly the columns' types."""

from __future__ import annotations

import ctypes
import os
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext

from disks.config import LocalDiskConfig
from tests.tiers import define, make_context, put_part, put_table
from tiering.catalog.context import Context
from tiering.query.engine_errors import cleaned
from tiering.query.engine_files import _paths_in
from tiering.query.parquet_tables import EngineSession
from tiering.query.selection import select_files
from tiering.query.served_files import ServedFiles
from tiering.table.pruning import Compare
from tiering.table.schema import TableDefinition
from tiering.table.types import arrow_schema

_IN_OPEN = 0x20


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})


@pytest.fixture
def table(context: Context) -> TableDefinition:
    definition = define("u.many", {"k": "int64"}, ["k"])
    put_table(context, definition)
    for block in range(1, 6):
        put_part(context, definition, "ssd", pa.table({"k": pa.array([block], pa.int64())}), block)
    return definition


def test_many_files_are_one_table(context: Context, table: TableDefinition) -> None:
    with ExitStack() as closing:
        selection = select_files(context, table, context.catalog.parts(table))
        session = EngineSession(context, closing)
        frame = session.planned(lambda: session.frame(table, selection.files))
        assert frame.execution_plan().display_indent().count("DataSourceExec") == 1
        assert sorted(frame.to_pydict()["k"]) == [1, 2, 3, 4, 5]
        assert selection.parts_read == 5


def test_declaring_a_table_opens_no_file(context: Context, table: TableDefinition) -> None:
    files = select_files(context, table, context.catalog.parts(table)).files
    libc = ctypes.CDLL(None, use_errno=True)
    opened = libc.inotify_init1(os.O_NONBLOCK)
    for file in files:
        assert file.location is not None
        path = file.location.url.removeprefix("file://")
        assert libc.inotify_add_watch(opened, path.encode(), _IN_OPEN) > 0
    with ExitStack() as closing:
        closing.callback(os.close, opened)
        frame = EngineSession(context, closing).frame(table, files)
        with pytest.raises(BlockingIOError):
            os.read(opened, 4096)
        frame.execution_plan()
        assert os.read(opened, 4096), "planning reads the footers"


@pytest.mark.parametrize("text_views", [False, True])
def test_common_types_are_read_without_a_cast(context: Context, text_views: bool) -> None:
    columns = {"k": "int64", "name": "string", "ts": "timestamp[us, UTC]", "price": "decimal(10, 2)"}
    definition = define("u.plain", columns, ["k"])
    put_table(context, definition)
    rows = pa.Table.from_pylist(
        [{"k": 1, "name": "a", "ts": datetime(2026, 1, 1, tzinfo=UTC)}], arrow_schema(definition)
    )
    put_part(context, definition, "ssd", rows, 1)
    with ExitStack() as closing:
        files = select_files(context, definition, context.catalog.parts(definition)).files
        frame = EngineSession(context, closing, text_views=text_views).frame(definition, files)
        assert len(files) == 1
        assert "CAST" not in frame.logical_plan().display_indent().upper()


_VALUES: dict[str, object] = {
    "bool": True,
    "int8": -1,
    "int16": -2,
    "int32": -3,
    "int64": -4,
    "uint8": 1,
    "uint16": 2,
    "uint32": 3,
    "uint64": 2**64 - 1,
    "float32": 0.5,
    "float64": 0.25,
    "string": "a text that is longer than twelve bytes",
    "binary": b"\x00\xff",
    "date": date(2026, 2, 3),
    "timestamp[s]": datetime(2026, 2, 3, 4, 5, 6),
    "timestamp[ns]": datetime(2026, 2, 3, 4, 5, 6),
    "timestamp[us, UTC]": datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
    "timestamp[ms, Europe/Berlin]": datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    "decimal(38, 2)": Decimal("1.25"),
    "list<string>": ["x", None],
    "list<list<int64>>": [[1], []],
    "list<timestamp[us, Asia/Tokyo]>": [datetime(2026, 2, 3, tzinfo=UTC)],
}


@pytest.mark.parametrize("text_views", [False, True])
def test_a_table_has_exactly_the_types_of_its_columns(context: Context, text_views: bool) -> None:
    names = {kind: f'{kind} of "{number}"' for number, kind in enumerate(_VALUES)}
    definition = define("u.types", {"k": "int64"} | {name: kind for kind, name in names.items()}, ["k"])
    put_table(context, definition)
    rows = pa.table(
        {
            field.name: pa.array([1 if field.name == "k" else _VALUES[kind]], field.type)
            for field, kind in zip(arrow_schema(definition), ["int64", *_VALUES], strict=True)
        }
    )
    for block in (1, 2):
        put_part(context, definition, "ssd", rows, block)
    with ExitStack() as closing:
        files = select_files(context, definition, context.catalog.parts(definition)).files
        frame = EngineSession(context, closing, text_views=text_views).frame(definition, files)
        found = frame.to_arrow_table()
    views = {pa.string(): pa.string_view()} if text_views else {}
    assert found.schema.types == [views.get(field.type, field.type) for field in arrow_schema(definition)]
    assert found.cast(rows.schema).to_pylist() == rows.to_pylist() * 2


def test_the_plan_names_its_files(tmp_path: Path) -> None:
    """Should a new version of the engine encode plans otherwise, this fails, and every file of a query is looked at."""
    for number in (1, 2):
        pq.write_table(pa.table({"k": [number]}), tmp_path / f"{number}.parquet")
    plan = SessionContext().read_parquet(str(tmp_path)).execution_plan()
    assert {str(tmp_path / f"{number}.parquet").lstrip("/") for number in (1, 2)} <= _paths_in(plan)


def test_pruned_parts_are_not_even_located(context: Context, table: TableDefinition) -> None:
    selection = select_files(context, table, context.catalog.parts(table), Compare("k", "=", 3))
    assert [file.stored.part.name for file in selection.files] == ["all_3_3_0"]
    assert (selection.parts_read, selection.parts_pruned) == (1, 4)


@pytest.mark.parametrize("before", [None, "maybe"])
@pytest.mark.parametrize("name", ["AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_ENDPOINT_URL_S3", "NO_PROXY"])
def test_the_environment_is_as_it_was(name: str, before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    served = ServedFiles()
    served.engine_store()
    served.close()
    assert os.environ.get(name) == before


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("DataFusion error: Error during planning: no", "no"),
        ('SQL error: ParserError("Expected: x, found: \\"y\\"")', 'Expected: x, found: "y"'),
        ("Optimizer rule 'simplify_expressions' failed\ncaused by\nArrow error: Cast error: bad", "Cast error: bad"),
        ("", "the query failed"),
    ],
)
def test_messages_without_wrappings(said: str, kept: str) -> None:
    assert cleaned(said) == kept
