"""Why parts are left out, in words: by which condition, and each part once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig
from tests.tiers import define, make_context, put_part, put_table
from tiering.catalog.catalog import StoredPart
from tiering.query.pruning_reasons import predicate_text, pruning_reasons
from tiering.query.sql_filter import parse_filter
from tiering.table.pruning import TRUE, And, Compare, In, Not, Or, StartsWith, Unknown
from tiering.table.schema import TableDefinition

COLUMNS = {
    "k": "int64",
    "service": "string",
    "ts": "timestamp[us, UTC]",
    "day": "date",
    "ok": "bool",
    "price": "decimal(9, 2)",
    "raw": "binary",
}


@pytest.fixture
def definition() -> TableDefinition:
    return define("u.logs", COLUMNS, ["k"])


@pytest.fixture
def parts(tmp_path: Path, definition: TableDefinition) -> list[StoredPart]:
    """Ten, of k 0, 10, 20 and so on, the first five of service api."""
    context = make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})
    put_table(context, definition)
    for block in range(10):
        rows = pa.table({"k": pa.array([block * 10, block * 10 + 9]), "service": ["api" if block < 5 else "web"] * 2})
        for name in list(COLUMNS)[2:]:
            rows = rows.append_column(name, pa.nulls(2, {"ok": pa.bool_()}.get(name, pa.null())))
        put_part(context, definition, "ssd", rows, block + 1)
    return context.catalog.parts(definition)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("condition", "reasons"),
    [
        ("k >= 30 and k < 50", ["8 left out by k >= 30 AND k < 50"]),
        ("k < 80 and service = 'web'", ["5 left out by service = 'web'", "2 left out by k < 80"]),
        ("k = 5 or k = 95", ["8 left out by k = 5 OR k = 95"]),
        ("k = -1 or service = 'none'", ["10 left out by k = -1 OR service = 'none'"]),
        ("k >= 0", []),
    ],
)
def test_each_part_has_one_reason(
    definition: TableDefinition, parts: list[StoredPart], condition: str, reasons: list[str]
) -> None:
    found = pruning_reasons(definition, parts, parse_filter(condition, definition))
    assert [line.removeprefix("u.logs: ") for line in found] == reasons


def test_without_a_condition_none_is_left_out(definition: TableDefinition, parts: list[StoredPart]) -> None:
    assert pruning_reasons(definition, parts, TRUE) == []
    assert pruning_reasons(definition, parts, And((Unknown(), TRUE))) == []


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("ts >= '2026-01-02 03:04:05.5'", "ts >= '2026-01-02 03:04:05.500000'"),
        ("day = '2026-02-03'", "day = '2026-02-03'"),
        ("service = 'it''s'", "service = 'it''s'"),
        ("service like 'a%'", "service >= 'a' AND service < 'b'"),
        ("price < 1.50", "price < 1.50"),
        ("k is not null", "k IS NOT NULL"),
    ],
)
def test_conditions_read_as_they_were_written(definition: TableDefinition, condition: str, text: str) -> None:
    assert predicate_text(parse_filter(condition, definition), definition) == text


def test_what_has_no_plain_form(definition: TableDefinition) -> None:
    assert predicate_text(StartsWith("service", "a"), definition) == "service LIKE 'a%'"
    assert predicate_text(Or((Unknown(), Compare("k", "=", 1))), definition) == "... OR k = 1"
    assert (
        predicate_text(And((Or((TRUE, Unknown())), Not(In("k", (1, 2))))), definition)
        == "(true OR ...) AND NOT (k IN (1, 2))"
    )
    assert predicate_text(Compare("ts", "<", 1 << 80), definition) == f"ts < {1 << 80}"
    assert predicate_text(Compare("raw", "=", b"\x01"), definition) == "raw = '\\x01'"
    assert predicate_text(Compare("ok", "=", True), definition) == "ok = true"
    assert predicate_text(Compare("k", "=", 1), definition) == "k = 1"
    assert predicate_text(Compare("price", "=", Decimal("1.00")), definition) == "price = 1.00"
    assert predicate_text(Compare("k", "=", None), definition) == "k = NULL"
    assert predicate_text(Or(()), definition) == "false"
