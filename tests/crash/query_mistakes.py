"""Seeded mistakes in what queries take for true, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_NESTED = "tests/integration/test_nested_types.py"
_WIDENING = "tests/integration/test_widening.py"


def _fields_are_their_structs() -> None:
    from tiering.query.sql import plan

    original = plan._Reader._scan

    def scan(self: Any, node: dict[str, Any], above: Any) -> bool:
        for index in node["column_indexes"]:
            index.pop("child_indexes", None)
        return original(self, node, above)

    plan._Reader._scan = scan  # type: ignore[method-assign]


Mistake = tuple[str, str, str, Callable[[], None]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "query: fields are their structs",
        "what the plan says of a struct's field is taken for what it says of the struct",
        f"{_NESTED}::test_a_field_of_a_struct_that_is_never_null_may_be_null",
        _fields_are_their_structs,
    ),
    (
        "query: a leaf a column",
        "of a nested column the first leaf alone is compared, and those of the columns after it are others",
        f"{_NESTED}::test_damage_in_any_leaf_is_found",
        replaced(
            "tiering.query.sql.session",
            "leaf_ranges",
            lambda kinds: [range(number, number + 1) for number, _ in enumerate(kinds)],
        ),
    ),
    (
        "widening: bounds compared as texts",
        "what part.json says of older parts is compared as it is written",
        f"{_WIDENING}::test_filters_find_rows_by_values_and_not_by_their_texts",
        replaced("tiering.table.pruning", "domain_value", lambda kind, value: None if value is None else str(value)),
    ),
    (
        "widening: keys compared as texts",
        "merges go by keys as they are written",
        f"{_WIDENING}::test_merges_order_parts_by_values_and_not_by_their_texts",
        replaced("tiering.parquet.sorted_merge", "from_json", lambda value, kind: str(value)),
    ),
    (
        "widening: any partition",
        "a column that names partitions gets values that are called otherwise",
        f"{_WIDENING}::test_a_partition_keeps_its_name",
        replaced("tiering.table.definitions", "check_partitions", nothing),
    ),
    (
        "insert: null structs have fields",
        "what lies under a struct that is null is taken for its fields",
        f"{_NESTED}::test_json_and_csv_bring_nested_values",
        replaced(
            "tiering.table.nested", "pc", type("Raw", (), {"struct_field": lambda array, path: array.field(path[0])})
        ),
    ),
)
