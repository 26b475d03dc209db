"""Seeded mistakes in what partitions say of their rows, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.crash.seeding import replaced

_LIMITS = "tests/integration/test_partition_values.py"
_PROPERTIES = "tests/property/test_partition_values.py::test_partitions_tell_the_truth"


def _bounds_of_the_first_value(type_text: str, stored: Any, *, up: bool) -> Any:
    from tiering.table.pruning import domain_value

    value = domain_value(type_text, stored)
    cut = up and value is not None and type_text.startswith("timestamp[ns") and value % 1000 == 0
    return value + 999 if cut else value


def _rounded(value: Decimal, width: int, scale: int) -> Decimal:
    step = Decimal(width).scaleb(-scale)
    return value - (value % step + step) % step


def _kept_in_the_type() -> None:
    from tiering.table import transforms

    original = transforms._truncated

    def truncated(values: Any, width: int) -> Any:
        import pyarrow as pa

        floors = original(values, width)
        return floors.cast(values.type, safe=False) if pa.types.is_integer(values.type) else floors

    replaced("tiering.table.transforms", "_truncated", truncated)()


def _exact_conditions(column: str, operator: str, value: Any, kind: Any) -> str:
    from spark_tiering.queries.required import _moment_text

    return f'"{column}" {operator} {_moment_text(value.value(), kind)}'


Mistake = tuple[str, str, str, Callable[[], None]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "partitions: wrapped values are believed",
        "pruning believes what truncate of the least numbers became in an older version",
        f"{_LIMITS}::test_wrapped_values_are_read_right_and_mended",
        replaced("tiering.table.pruning", "may_be_wrong", lambda field, stored, column: False),
    ),
    (
        "partitions: other ids than before",
        "the lowest partition of truncate gets another id than older versions gave it",
        f"{_LIMITS}::test_wrapped_values_are_read_right_and_mended",
        replaced("tiering.table.transforms", "lowest_id", lambda field, value, type_text: value),
    ),
    (
        "partitions: merges keep what was said",
        "a merge takes over a value that an older version computed wrongly",
        f"{_LIMITS}::test_wrapped_values_are_read_right_and_mended",
        replaced("tiering.merge.output", "mended_values", lambda values, columns, definition: values),
    ),
    (
        "partitions: truncate wraps",
        "the multiple below the least number of a type is kept in that type",
        f"{_PROPERTIES}[truncate-int32-10]",
        _kept_in_the_type,
    ),
    (
        "partitions: decimals of 28 digits",
        "truncate of decimals rounds, and fails where there are more digits",
        f"{_PROPERTIES}[truncate-decimal(38, 0)-10]",
        replaced("tiering.table.transforms", "_floor", _rounded),
    ),
    (
        "partitions: a microsecond is one moment",
        "a partition of nanoseconds is taken to hold the first of them alone",
        f"{_LIMITS}::test_nanoseconds_of_one_microsecond_are_one_partition",
        replaced("tiering.table.pruning", "_widened", _bounds_of_the_first_value),
    ),
    (
        "partitions: a wider type, another id",
        "a column gets a type in which its lowest partition has another id",
        f"{_LIMITS}::test_a_wider_type_keeps_the_ids_of_partitions",
        replaced("tiering.table.columns.widening", "lowest_id", lambda field, floor, kind: floor),
    ),
    (
        "ttl: long rules wrap",
        "a rule longer than nanoseconds reach deletes what came before some day of the future",
        f"{_LIMITS}::test_rules_longer_than_nanoseconds_reach_delete_nothing",
        replaced("tiering.merge.rows", "EARLIEST_PLAUSIBLE", datetime(1, 1, 1, tzinfo=UTC)),
    ),
    (
        "spark: microseconds compared as nanoseconds",
        "a condition of Spark on microseconds is asked of the nanoseconds that they were cut from",
        "tests/unit/spark_tiering/test_required.py::test_conditions_on_nanoseconds_lose_no_row",
        replaced("spark_tiering.queries.required", "_cut_comparison", _exact_conditions),
    ),
)
