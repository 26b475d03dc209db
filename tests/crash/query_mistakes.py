"""Seeded mistakes in what queries take for true, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_CASE = "tests/integration/test_case_only_columns.py"
_NESTED = "tests/integration/test_nested_types.py"
_PLAIN = "tests/unit/tiering/cli/test_plain_answers.py"
_FIELDS = "tests/integration/test_field_pruning.py"
_KEPT = "tests/unit/tiering/query/test_kept_plans.py"
_MOVING = "tests/unit/tiering/query/test_while_parts_move.py"
_WIDENING = "tests/integration/test_widening.py"
_CHANGES = "tests/integration/test_nested_changes.py"
_EXTENDING = "tests/integration/test_extending.py"


def _fields_share_a_range() -> None:
    from tiering.parquet import column_ranges
    from tiering.table import pruning

    def key(column: Any, fields: tuple[str, ...] = ()) -> str:
        return f"{column.id}.x" if fields else str(column.id)

    for module in (pruning, column_ranges):
        replaced(module.__name__, "range_key", key)()


def _values_beneath_nulls() -> None:
    import pyarrow as pa

    from tiering.parquet import column_ranges

    def add(self: Any, rows: pa.Table) -> None:
        for _, name, fields, known in self._found:
            found = rows.column(name).combine_chunks()
            for field in fields:
                found = found.field(field)
            known.add(pa.chunked_array([found]))

    column_ranges.FileRanges.add = add  # type: ignore[method-assign]


def _fields_of_some_files() -> None:
    from tiering.parquet import column_ranges

    original = column_ranges.ranged_fields
    replaced(
        "tiering.parquet.column_ranges",
        "ranged_fields",
        lambda definition: [(key, one, (), kind) for key, one, _, kind in original(definition)],
    )()


def _unknown_fields_are_null() -> None:
    from tiering.table import part, pruning

    original = pruning._Facts.range

    def found(self: Any, name: str, fields: tuple[str, ...]) -> Any:
        key = pruning.range_key(self.columns[name], fields)
        if key not in self._ranges:
            self._ranges = {**self._ranges, key: part.ColumnRange(nulls=self.rows)}
        return original(self, name, fields)

    pruning._Facts.range = found  # type: ignore[method-assign]


def _fields_are_texts() -> None:
    from tiering.query.sql import plan
    from tiering.table import pruning

    original = pruning.domain_value
    for module in (pruning, plan):
        replaced(
            module.__name__,
            "domain_value",
            lambda kind, value: str(value) if kind == "int32" and value is not None else original(kind, value),
        )()


Mistake = tuple[str, str, str, Callable[[], None]]


def _said_by_the_disk() -> None:
    from tiering.catalog.stored import described

    replaced("tiering.query.selection", "_described", described)()


def _read_for_nothing() -> None:
    from tiering.query.sql import planning

    planning.COLUMN_OPTIMIZERS = planning.FILTER_OPTIMIZERS | {"unused_columns"}


def _missing_where_no_engine_opens_it() -> None:
    from disks.memory import MemoryDisk
    from oplog.errors import NotFound

    def location(self: MemoryDisk, path: str) -> None:
        raise NotFound(f"{self.name}:{path} is in no place that an engine opens")

    MemoryDisk.location = location  # type: ignore[method-assign]


def _ids_of_dropped_fields_are_free() -> None:
    from tiering.table import definitions
    from tiering.table.columns import nested_ids

    def last(definition: Any) -> int:
        return max(number for column in definition.columns for number in (column.id, *column.nested_ids))

    for module in (definitions, nested_ids):
        replaced(module.__name__, "last_id", last)()


def _first_files_by_names() -> None:
    from tiering.table.schema import TableDefinition

    TableDefinition.first_nested_id = lambda self, column_id: None  # type: ignore[method-assign]


def _ranges_by_names() -> None:
    from tiering.parquet import column_ranges
    from tiering.table import names, pruning

    def key(column: Any, fields: tuple[str, ...] = ()) -> str:
        return names.path_text(str(column.id), fields)

    for module in (pruning, column_ranges):
        replaced(module.__name__, "range_key", key)()


MISTAKES: tuple[Mistake, ...] = (
    (
        "fields of older files go by their names",
        "a renamed field is null in older rows, and one that was dropped gives its values to another of its name",
        f"{_CHANGES}::test_fields_are_changed_by_their_paths",
        replaced("tiering.table.columns.nested_ids", "held_type", lambda kind, column, definition: None),
    ),
    (
        "fields of the first files have no ids",
        "a table older than the ids of nested fields takes one field for another of its name",
        f"{_CHANGES}::test_a_table_older_than_the_ids_gets_them_by_a_change",
        _first_files_by_names,
    ),
    (
        "an id of a nested field is given again",
        "a field that is dropped and added again has the values of the one before",
        f"{_CHANGES}::test_a_file_with_other_ids_is_not_attached",
        _ids_of_dropped_fields_are_free,
    ),
    (
        "ranges of nested fields go by their names",
        "parts are left out by the range of a field that was dropped, and another one has its name",
        f"{_CHANGES}::test_ranges_are_those_of_the_field_and_not_of_its_name",
        _ranges_by_names,
    ),
    (
        "a file with other ids of fields is attached",
        "an attached file gives its values to fields of the same names",
        f"{_CHANGES}::test_a_file_with_other_ids_is_not_attached",
        replaced("tiering.insert.attach_files", "has_ids_of", lambda kind, column, definition: True),
    ),
    (
        "a file that no engine opens is missing (I15)",
        "parts on a disk that only its reader reads are not answered",
        f"{_EXTENDING}::test_a_disk_type_on_the_command_line",
        _missing_where_no_engine_opens_it,
    ),
    (
        "a name means the first of two columns",
        "SQL over columns that differ in case alone answers the first one, whichever was meant",
        f"{_CASE}::test_sql_over_an_old_table_with_both_is_refused",
        replaced("tiering.query.query", "check_columns", nothing),
    ),
    (
        "a filter means the first of two columns",
        "a filter in SQL text compares the first of two columns that differ in case alone",
        f"{_CASE}::test_sql_over_an_old_table_with_both_is_refused",
        replaced("tiering.query.sql.planning", "check_columns", nothing),
    ),
    (
        "columns that differ in case come in",
        "a table gets two columns that SQL takes for one",
        f"{_CASE}::test_none_come_in_by_a_definition",
        replaced("tiering.table.definitions", "check_told_apart", nothing),
    ),
    (
        "letters are folded as Unicode has it",
        "É and é are refused, or get other names, though SQL tells them apart",
        f"{_CASE}::test_names_are_compared_as_the_engine_compares_them",
        replaced("tiering.table.names", "_FOLDED", str.maketrans("ABCÉ", "abcé")),
    ),
    (
        "query: fields are their structs",
        "what the plan says of a struct's field is taken for what it says of the struct",
        f"{_NESTED}::test_a_field_of_a_struct_that_is_never_null_may_be_null",
        replaced("tiering.query.sql.plan:ComparedField", "within", lambda self, field: self),
    ),
    (
        "query: fields go by another one",
        "two fields of a struct share what part.json says of one of them",
        f"{_FIELDS}::test_parts_are_left_out_by_fields_and_no_row_is_missed",
        _fields_share_a_range,
    ),
    (
        "query: values beneath nulls",
        "what lies beneath a struct that is null counts among the values of its fields",
        f"{_FIELDS}::test_what_lies_beneath_a_null_is_no_value",
        _values_beneath_nulls,
    ),
    (
        "query: fields of some files",
        "a part's ranges of fields are those of the files that have one",
        "tests/unit/tiering/parquet/test_parquet_file.py::test_fields_of_structs_have_ranges_as_in_the_footer",
        _fields_of_some_files,
    ),
    (
        "query: fields of older parts are null",
        "what part.json does not say of a field is taken for no value",
        f"{_FIELDS}::test_older_parts_say_nothing_of_fields_and_are_read",
        _unknown_fields_are_null,
    ),
    (
        "query: fields compared as texts",
        "what part.json says of fields is compared as it is written",
        f"{_FIELDS}::test_parts_are_left_out_by_fields_and_no_row_is_missed",
        _fields_are_texts,
    ),
    (
        "query: a leaf a column",
        "of a nested column the first leaf alone is compared, and those of the columns after it are others",
        f"{_NESTED}::test_damage_in_any_leaf_is_found",
        replaced(
            "tiering.table.columns.type_texts",
            "leaf_ranges",
            lambda kinds: [range(number, number + 1) for number, _ in enumerate(kinds)],
        ),
    ),
    (
        "query: a union begins with any column",
        "what the engine reads of parts of several versions when it needs no column is one that was not compared",
        "tests/integration/test_widening_nulls.py::test_the_past_takes_none",
        replaced("tiering.query.sql.session", "_united", lambda pieces, columns: " UNION ALL ".join(pieces)),
    ),
    (
        "query: read for nothing",
        "columns that the engine reads for what nobody wants are not among those that a plan reads",
        "tests/unit/tiering/query/test_unnamed_columns.py::test_the_answer_is_that_of_whole_tables",
        _read_for_nothing,
    ),
    (
        "query: a row of fewer columns",
        "columns that a statement means without their names are left out as those that it cannot mean",
        "tests/unit/tiering/query/test_unnamed_columns.py::test_the_answer_is_that_of_whole_tables",
        replaced("tiering.query.sql.statement", "_means_unnamed", lambda nodes: False),
    ),
    (
        "query: yesterday's empty table",
        "an engine plans over a table as it was when a statement named it first",
        "tests/unit/tiering/query/test_engine.py::test_a_table_that_was_altered_is_planned_as_it_is",
        replaced("tiering.query.sql.planning:EmptyTables", "_has", lambda self, name, _: name.lower() in self._known),
    ),
    (
        "query: a plan kept over an alter",
        "a statement that comes again reads the columns that it read before its table was altered",
        f"{_KEPT}::test_a_table_that_was_altered_is_planned_again",
        replaced("tiering.query.sql.planning:_Plan", "is_of", lambda self, definitions: True),
    ),
    (
        "query: yesterday's moment",
        "a statement about today that comes again is planned by the time at which it came first",
        f"{_KEPT}::test_what_time_or_chance_is_in_is_planned_each_time",
        replaced("tiering.query.sql.planning", "is_planned_alike", lambda connection, statement: True),
    ),
    (
        "query: time without parentheses",
        "a function that is called without parentheses is taken for a column",
        f"{_KEPT}::test_no_word_of_the_engine_is_a_function_unseen",
        replaced("tiering.query.sql.statement", "_WITHOUT_PARENTHESES", frozenset()),
    ),
    (
        "query: moments as the engine writes them",
        "an answer without Arrow has the engine's texts of moments",
        f"{_PLAIN}::test_the_same_with_and_without_arrow",
        replaced("tiering.query.sql.plain_answers", "_moment", lambda text: text),
    ),
    (
        "query: large whole numbers as numbers",
        "an answer without Arrow has whole numbers in JSON that no number there can be",
        f"{_PLAIN}::test_the_same_with_and_without_arrow",
        replaced("tiering.query.sql.plain_answers", "_whole", int),
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
        replaced("tiering.table.columns.nested", "struct_member", lambda array, number: array.field(number)),
    ),
    (
        "query: gone with what it says",
        "a part whose part.json is gone when a query asks for it is looked for no more",
        f"{_MOVING}::test_the_part_that_is_not_kept_any_more_is_not_there_either",
        _said_by_the_disk,
    ),
    (
        "query: begun again once",
        "a query whose parts move twice while it begins fails",
        f"{_MOVING}::test_parts_that_move_each_time",
        replaced("tiering.query.selection", "LOOKS", 2),
    ),
    (
        "query: a scan looks once",
        "a scan fails whose parts move when they have been chosen",
        f"{_MOVING}::test_a_scan_looks_again_as_well",
        replaced("tiering.query.selection", "LOOKS", 1),
    ),
    (
        "query: scratch of anybody",
        "a query puts its scratch files where somebody else made a directory, or a link, of that name",
        "tests/unit/disks/test_scratch.py",
        replaced("disks.host.scratch", "_is_ours", lambda directory: directory.mkdir(0o700, exist_ok=True) is None),
    ),
    (
        "query: scratch for ever",
        "what a killed query spilled stays",
        "tests/unit/tiering/query/test_engine.py::test_what_a_killed_query_left_goes_with_the_next_one",
        replaced("disks.host.scratch", "sweep", lambda parent: []),
    ),
)
