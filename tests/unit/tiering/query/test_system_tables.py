"""What the store says of itself in SQL is what its catalog, its disks and their logs say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import NotFound
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context
from tiering.journal.records import NewMove
from tiering.query.query import run_sql
from tiering.query.system_tables import NAMES
from tiering.table.schema import TableDefinition


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    disks = {
        "ssd": LocalDiskConfig(path=str(tmp_path / "ssd")),
        "cold": ObjectDiskConfig(url=(tmp_path / "bucket").as_uri() + "/store/"),
    }
    opened = make_context(tmp_path, disks)
    yield opened
    opened.journal.close()


def filled(context: Context, name: str = "db.events") -> TableDefinition:
    definition = define(name, {"k": "int64", "Word": "string"}, ["k"])
    put_table(context, definition)
    for disk, block in (("ssd", 1), ("cold", 2), ("cold", 3)):
        rows = pa.table({"k": pa.array([block] * block, pa.int64()), "Word": ["w"] * block})
        put_part(context, definition, disk, rows, block)
    return definition


def asked(context: Context, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run_sql(context, sql, resolver(context)).read_all().to_pylist()
    return rows


def test_tables_and_columns(context: Context) -> None:
    definition = filled(context)
    (row,) = asked(context, "SELECT * FROM system.tables")
    facts = [stored.facts for stored in context.catalog.parts(definition)]
    assert row == {
        "database": "db",
        "name": "events",
        "uuid": definition.uuid,
        "policy": definition.policy,
        "parts": 3,
        "rows": 6,
        "bytes": sum(one.size_bytes for one in facts),
    }
    columns = asked(context, "SELECT position, name, type FROM system.columns WHERE \"table\" = 'events' ORDER BY 1")
    assert columns == [
        {"position": 1, "name": "k", "type": "int64"},
        {"position": 2, "name": "Word", "type": "string"},
    ]


def test_parts_and_disks_agree(context: Context) -> None:
    definition = filled(context)
    parts = asked(context, "SELECT * FROM system.parts ORDER BY part")
    stored = {one.facts.name: one for one in context.catalog.parts(definition)}
    assert [row["part"] for row in parts] == sorted(stored)
    for row in parts:
        one = stored[row["part"]]
        assert (row["disk"], row["rows"], row["bytes"]) == (one.disk, one.facts.rows, one.facts.size_bytes)
        assert (row["state"], row["revision"]) == ("active", one.revision)
        assert row["created"] == one.facts.created.astimezone(UTC)
    joined = "SELECT d.name, d.parts, count(p.part) AS counted, d.revision, d.problem FROM system.disks d "
    joined += "LEFT JOIN system.parts p ON p.disk = d.name GROUP BY 1, 2, 4, 5 ORDER BY 1"
    revision = context.disk("cold").revision
    assert asked(context, joined) == [
        {"name": "cold", "parts": 2, "counted": 2, "revision": revision, "problem": None},
        {"name": "ssd", "parts": 1, "counted": 1, "revision": None, "problem": None},
    ]


def test_the_log_has_every_revision_of_a_bucket(context: Context) -> None:
    filled(context)
    revision = context.disk("cold").revision
    assert revision is not None
    found = asked(context, "SELECT disk, revision, operations, time FROM system.log ORDER BY revision")
    assert [row["revision"] for row in found] == list(range(1, revision + 1))
    assert {row["disk"] for row in found} == {"cold"}
    assert all(row["operations"] > 0 and row["time"].tzinfo is not None for row in found)


def test_the_past_knows_nothing_of_what_came_after(context: Context) -> None:
    filled(context)
    logged = as_disk(context.disk("cold"), LoggedDisk)
    assert logged is not None
    disks = {"cold": logged.at(logged.revision - 1)}
    catalog = Catalog(context.config, disks)
    catalog.refresh()
    past = msgspec.structs.replace(context, disks=disks, catalog=catalog)
    assert asked(past, "SELECT count(*) AS parts FROM system.parts") == [{"parts": 1}]
    assert asked(past, "SELECT max(revision) AS newest FROM system.log") == [{"newest": logged.revision - 1}]


def test_they_stand_beside_tables_in_one_statement(context: Context) -> None:
    filled(context)
    sql = "SELECT e.k, t.rows FROM db.events e CROSS JOIN system.tables t WHERE e.k = 2 LIMIT 1"
    assert asked(context, sql) == [{"k": 2, "rows": 6}]


def test_moves_are_those_of_the_journal(context: Context) -> None:
    work = context.journal.work
    new = NewMove(
        table="db.events",
        table_uuid="u",
        part="all_1_1_0",
        source="ssd",
        target="cold",
        bytes=7,
        reason_kind="manual",
        reason_detail="by hand",
        actor="a test",
        keep_source=False,
    )
    first, second = work.plan_moves([new, msgspec.structs.replace(new, part="all_2_2_0")])
    work.set_move(first, "copying")
    work.set_move(first, "failed", error="no answer")
    found = asked(context, "SELECT * FROM system.moves ORDER BY id")
    assert [(row["id"], row["part"], row["state"], row["error"]) for row in found] == [
        (first, "all_1_1_0", "failed", "no answer"),
        (second, "all_2_2_0", "planned", None),
    ]
    assert {(row["database"], row["table"], row["source"], row["target"], row["bytes"]) for row in found} == {
        ("db", "events", "ssd", "cold", 7)
    }
    assert found[0]["created"] <= found[0]["updated"]


def test_an_empty_store_has_them_too(context: Context) -> None:
    for name in NAMES:
        rows = asked(context, f"SELECT * FROM {name}")
        assert bool(rows) is (name == "system.disks"), name


def test_a_table_of_that_name_goes_first(context: Context) -> None:
    filled(context, "system.parts")
    assert sorted(row["k"] for row in asked(context, "SELECT k FROM system.parts")) == [1, 2, 2, 3, 3, 3]
    assert asked(context, "SELECT name FROM system.tables") == [{"name": "parts"}]


def test_another_name_in_their_database_is_not_found(context: Context) -> None:
    with pytest.raises(NotFound, match=r"system\.nothing"):
        asked(context, "SELECT * FROM system.nothing")
