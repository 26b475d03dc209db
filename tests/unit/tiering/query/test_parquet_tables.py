"""How parts become tables of the engine: one table of many paths, and what happens should its encoding ever change."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext

from disks.config import DiskConfig
from disks.stores.base import S3Connection
from tests.tiers import define, make_context, put_part, put_table
from tiering.catalog.context import Context
from tiering.query import parquet_tables
from tiering.query.engine_errors import cleaned
from tiering.query.parquet_tables import EngineSession, _engine_store, _paths_in, select_files, with_paths
from tiering.table.pruning import Compare
from tiering.table.schema import TableDefinition


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path, {"ssd": DiskConfig(type="local", path=str(tmp_path / "ssd"))})


@pytest.fixture
def table(context: Context) -> TableDefinition:
    definition = define("u.many", {"k": "int64"}, ["k"])
    put_table(context, definition)
    for block in range(1, 6):
        put_part(context, definition, "ssd", pa.table({"k": pa.array([block], pa.int64())}), block)
    return definition


@pytest.mark.parametrize("encoding_known", [True, False])
def test_many_files_are_one_table(
    context: Context, table: TableDefinition, encoding_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not encoding_known:
        monkeypatch.setattr(parquet_tables, "with_paths", lambda _plan, _urls: None)
    with ExitStack() as closing:
        selection = select_files(context, table, context.catalog.parts(table))
        session = EngineSession(context, closing)
        frame = session.frame(table, selection.files)
        session.check_complete(frame)
        assert frame.execution_plan().display_indent().count("DataSourceExec") == (1 if encoding_known else 5)
        assert sorted(frame.to_pydict()["k"]) == [1, 2, 3, 4, 5]
        assert selection.parts_read == 5


def test_a_plan_that_looks_otherwise_is_left_alone(tmp_path: Path) -> None:
    assert with_paths(b"", ["file:///a"]) is None
    assert with_paths(b"\x0a\xff", ["file:///a"]) is None
    assert with_paths(b"\x0a\x03\x0a\x01x", ["file:///a"]) is None
    two = b"".join(b"\x12\x09file:///a" for _ in range(2))
    assert with_paths(b"\x0a" + bytes([len(two)]) + two, ["file:///b"]) is None


def test_the_plan_names_its_files(tmp_path: Path) -> None:
    for number in (1, 2):
        pq.write_table(pa.table({"k": [number]}), tmp_path / f"{number}.parquet")
    plan = SessionContext().read_parquet(str(tmp_path)).execution_plan()
    assert {str(tmp_path / f"{number}.parquet").lstrip("/") for number in (1, 2)} <= _paths_in(plan)


def test_pruned_parts_are_not_even_located(context: Context, table: TableDefinition) -> None:
    selection = select_files(context, table, context.catalog.parts(table), Compare("k", "=", 3))
    assert [file.stored.part.name for file in selection.files] == ["all_3_3_0"]
    assert (selection.parts_read, selection.parts_pruned) == (1, 4)


@pytest.mark.parametrize("before", [None, "maybe"])
def test_the_environment_is_as_it_was(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    _engine_store(S3Connection("b", "us-east-1", "http://127.0.0.1:9", "a", "s", None, virtual_host_style=True))
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
