"""What an optimised plan of the engine reads: of each table the columns, and a filter that all rows pass that it uses.

Plans are made over empty tables whose columns have plain names, by those optimisations alone that are named here: none
that looks at the data. What is not understood restricts nothing; what has another form than here is read whole.

The filters are those of `json_serialize_plan`. The engine fails to write so a plan of several joins from which the
columns were removed that nobody reads ("Failed to bind column reference"). So they are left in it, and `EXPLAIN` says
which columns are read; but not whether it is all or none, then the other form has to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from tiering.query.sql.local_files import ParsedNode
from tiering.query.sql.plan_shapes import Summary, rows_enough, summary_of
from tiering.table.pruning import (
    TRUE,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    domain_value,
)
from tiering.table.schema import TableDefinition

FILTER_OPTIMIZERS = frozenset(
    {
        "expression_rewriter",
        "cte_inlining",
        "cte_filter_pusher",
        "filter_pullup",
        "filter_pushdown",
        "regex_range",
        "deliminator",
        "unnest_rewriter",
        "outer_join_simplification",
        "limit_pushdown",
        "top_n",
    }
)
"""Of a plan whose filters are read."""
COLUMN_OPTIMIZERS = FILTER_OPTIMIZERS | {
    "distinct_aggregate_rewrite",
    "unused_columns",
    "window_self_join",
}
"""Of a plan whose columns are read: also those by which the engine reads columns for what nobody wants afterwards."""
UNUSED_OPTIMIZERS = ("grouping_sets",)
"""No statement is run by these: they make a table of the rows, of which the engine then reads all columns."""
_COLUMN_NAME = re.compile(r"\bc(\d+)\b")
_NOT_A_NUMBER = re.compile(r'(?<!\\)"value":(-?)(?:-)?nan\b', re.IGNORECASE)
"""Written as JSON has it. Within a text, the quotes have a backslash."""
_ROW_NUMBER = 1 << 63
"""Numbers from here on are no columns: they count rows."""
_OPERATORS: dict[str, Operator] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "!=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED: dict[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_NANOSECONDS = {
    "TIMESTAMP": 1_000,
    "TIMESTAMP WITH TIME ZONE": 1_000,
    "TIMESTAMP_NS": 1,
    "TIMESTAMPTZ_NS": 1,
    "TIMESTAMP_MS": 1_000_000,
    "TIMESTAMP_S": 1_000_000_000,
}
_UNCLEAR = object()
"""A constant without a place in the column's domain: nothing follows from it."""


class ComparedField(msgspec.Struct, frozen=True):
    """What a condition is about: a column, or a field within its structs."""

    name: str
    """Of the column."""
    type: str
    fields: tuple[str, ...] = ()

    def within(self, field: Any) -> ComparedField | None:
        """The field of this name; None where there is none."""
        from tiering.table.columns.type_texts import field_type  # which needs Arrow, as columns of their own do not

        kind = field_type(self.type, (field,))
        return ComparedField(self.name, kind, (*self.fields, field)) if kind else None


_FieldOf = Callable[[Any], ComparedField | None]


class Access(msgspec.Struct, frozen=True):
    """What a plan reads of a table."""

    predicate: Predicate
    columns: frozenset[int]
    """By their places in the table."""

    @staticmethod
    def whole(definition: TableDefinition) -> Access:
        """All of it."""
        return Access(TRUE, frozenset(range(len(definition.columns))))


class PlanReads(msgspec.Struct, frozen=True):
    """What a statement reads."""

    tables: Mapping[str, Access]
    """By the names of the empty tables. One that is not here is not read."""
    stops_early: bool
    """Some rows may be enough."""
    is_filter_alone: bool
    """Nothing but filters over one scan."""
    summary: Summary | None = None
    """Where nothing else is wanted of the only scan."""
    rows_enough: int | None = None
    """So many rows of the only scan are enough; None where that is not known."""


def plan_reads(text: str, definitions: Mapping[str, TableDefinition]) -> PlanReads:
    """What the plan reads of the empty tables that stand for these."""
    try:
        plan = json.loads(_NOT_A_NUMBER.sub(r'"value":NaN', text))
        reader = _Reader(definitions)
        (root,) = plan["plans"]
        alone = reader.read(root)
        if reader.scans != text.count('"LOGICAL_GET"'):
            raise ValueError("there are scans elsewhere than among the inputs of the plan")
        found = {
            name: Access(
                Or(tuple(access.predicate for access in accesses)),
                frozenset().union(*(access.columns for access in accesses)),
            )
            for name, accesses in reader.accesses.items()
        }
        if reader.scans != 1:
            return PlanReads(found, reader.stops_early, alone)
        return PlanReads(found, reader.stops_early, alone, summary_of(root), rows_enough(root))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        # Written otherwise than it is here: all is read, of all tables.
        return PlanReads({name: Access.whole(table) for name, table in definitions.items()}, True, False)


def explained_columns(text: str, definitions: Mapping[str, TableDefinition]) -> Mapping[str, frozenset[int]]:
    """The columns that the plan, that of `EXPLAIN (FORMAT json)`, reads of each of the empty tables; those where it is
    not said are not there."""
    found: dict[str, frozenset[int]] = {}
    unclear: set[str] = set()
    try:
        stack = list(json.loads(text))
        while stack:
            node = stack.pop()
            stack += node["children"]
            said = node["extra_info"]
            if (name := said.get("Table", "").rpartition(".")[2]) not in definitions:
                continue
            columns = _named_columns(said.get("Projections"))
            filtered = _COLUMN_NAME.findall(json.dumps(said.get("Filters", "")))
            found[name] = found.get(name, frozenset()).union(columns or (), map(int, filtered))
            if not columns or max(found[name]) >= len(definitions[name].columns):
                unclear.add(name)
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: columns for name, columns in found.items() if name not in unclear}


def _named_columns(said: Any) -> list[int] | None:
    names = [said] if isinstance(said, str) else said
    places = [_COLUMN_NAME.findall(name) for name in names]
    return [int(place) for found in places for place in found] if all(places) else None


class _Reader:
    def __init__(self, definitions: Mapping[str, TableDefinition]) -> None:
        self._definitions = definitions
        self.accesses: dict[str, list[Access]] = {}
        self.stops_early = False
        self.scans = 0

    def read(self, node: ParsedNode, above: Sequence[ParsedNode] = ()) -> bool:
        """Note the scans. `above` holds the conditions directly over the node. Whether there is nothing but filters."""
        kind = node["type"]
        if kind == "LOGICAL_GET":
            return self._scan(node, above)
        if kind == "LOGICAL_LIMIT":
            self.stops_early = True
        children = node.get("children", [])
        if kind == "LOGICAL_FILTER":
            (child,) = children
            # What a filter leaves out of its columns counts for those above it, which are none of ours then.
            kept = () if node.get("projection_map") else above
            alone = self.read(child, [*node["expressions"], *kept])
            return alone and len(kept) == len(above) and child["type"] in ("LOGICAL_GET", "LOGICAL_FILTER")
        below = [self.read(child) for child in children]
        return kind in ("LOGICAL_PROJECTION", "LOGICAL_EMPTY_RESULT") and all(below)

    def _scan(self, node: ParsedNode, above: Sequence[ParsedNode]) -> bool:
        self.scans += 1
        table = node.get("function_data", {}).get("table")
        definition = self._definitions.get(table)
        if definition is None:
            return False
        read = [index.get("index", 0) for index in node["column_indexes"]]
        given = node.get("projection_ids") or range(len(read))
        whole = ["child_indexes" not in index for index in node["column_indexes"]]

        def field_at(position: int) -> ComparedField | None:
            """None also for a field that the scan takes out of its struct: it may be null where the struct is not."""
            if not whole[position] or read[position] >= len(definition.columns):
                return None
            column = definition.columns[read[position]]
            return ComparedField(column.name, column.type)

        filters: list[Predicate] = []
        for entry in (node.get("table_filters") or {}).get("filters", []):
            own = field_at(entry["key"]) if node["table_filters_by_projection"] else None
            filters.append(_from_filter(entry["value"], own))
        filters += [_from_expression(condition, lambda position: field_at(given[position])) for condition in above]
        columns = frozenset(number for number in read if number < _ROW_NUMBER)
        self.accesses.setdefault(table, []).append(Access(And(tuple(filters)), columns))
        return True


def is_exact(predicate: Predicate) -> bool:
    """Whether all of it was understood."""
    match predicate:
        case Unknown():
            return False
        case And(children) | Or(children):
            return all(is_exact(child) for child in children)
        case Not(child):
            return is_exact(child)
        case _:
            return True


# ---- filters of a scan


def _from_filter(node: ParsedNode, column: ComparedField | None) -> Predicate:
    if column is None:
        return Unknown()
    match node["filter_type"]:
        case "LEGACY_CONSTANT_COMPARISON":
            return _compare(column, _OPERATORS.get(node["comparison_type"]), node["constant"])
        case "LEGACY_CONJUNCTION_AND":
            return And(tuple(_from_filter(child, column) for child in node["child_filters"]))
        case "LEGACY_CONJUNCTION_OR":
            return Or(tuple(_from_filter(child, column) for child in node["child_filters"]))
        case "LEGACY_STRUCT_EXTRACT":
            return _from_filter(node["child_filter"], column.within(node["child_name"]))
        case "LEGACY_IS_NULL":
            return IsNull(column.name, fields=column.fields)
        case "LEGACY_IS_NOT_NULL":
            return IsNull(column.name, negated=True, fields=column.fields)
        case "LEGACY_IN_FILTER":
            return _in(column, node["values"])
        case "LEGACY_OPTIONAL_FILTER":
            # It follows from another filter, or from what is joined or wanted of the rows: it may be left out.
            child = node.get("child_filter")
            found = _from_filter(child, column) if child else TRUE
            return found if is_exact(found) else TRUE
        case "EXPRESSION_FILTER":
            return _from_expression(node["expr"], lambda _: column)
        case _:
            return Unknown()


# ---- expressions


def _from_expression(node: ParsedNode, column_at: Callable[[int], ComparedField | None]) -> Predicate:
    kind, children = node["type"], node.get("children", [])

    def column(child: ParsedNode) -> ComparedField | None:
        if child["type"] == "BOUND_REF":
            return column_at(child.get("index", 0))
        if _function(child) == "struct_extract" and (constant := _constant(child["children"][1])):
            outer = column(child["children"][0])
            return outer.within(constant.get("value")) if outer else None
        return None

    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        joined = tuple(_from_expression(child, column_at) for child in children)
        return And(joined) if kind == "CONJUNCTION_AND" else Or(joined)
    if kind == "OPERATOR_NOT":
        return Not(_from_expression(children[0], column_at))
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        found = column(children[0])
        return IsNull(found.name, kind == "OPERATOR_IS_NOT_NULL", found.fields) if found else Unknown()
    if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
        found = column(children[0])
        constants = [_constant(child) for child in children[1:]]
        if found is None or None in constants:
            return Unknown()
        listed = _in(found, [constant for constant in constants if constant is not None])
        return Not(listed) if kind == "COMPARE_NOT_IN" else listed
    if kind in _OPERATORS:
        return _from_comparison(_OPERATORS[kind], children, column)
    if kind == "BOUND_REF":
        return _is_true(column(node))
    if kind == "VALUE_CONSTANT":
        value = node["value"]
        return Or(()) if value["is_null"] else _truth(value)
    if _function(node) == "struct_extract":
        return _is_true(column(node))
    if _function(node) == "prefix":
        found, constant = column(children[0]), _constant(children[1])
        if found and found.type == "string" and constant and isinstance(constant.get("value"), str):
            return StartsWith(found.name, constant["value"], fields=found.fields)
    return Unknown()


def _function(node: ParsedNode) -> str:
    """The name of the function that is called; nothing where none is."""
    return str(node["qname"]["path"][-1]) if node["type"] == "BOUND_FUNCTION" and "qname" in node else ""


def _is_true(field: ComparedField | None) -> Predicate:
    return Compare(field.name, "=", True, field.fields) if field and field.type == "bool" else Unknown()


def _truth(value: ParsedNode) -> Predicate:
    if value["value"] is True:
        return TRUE
    return Or(()) if value["value"] is False else Unknown()


def _from_comparison(operator: Operator, children: Sequence[Any], column_of: _FieldOf) -> Predicate:
    left, right = children
    found, constant = column_of(left), _constant(right)
    if found is None:
        found, constant, operator = column_of(right), _constant(left), _MIRRORED[operator]
    return _compare(found, operator, constant) if found and constant else Unknown()


def _constant(node: ParsedNode) -> ParsedNode | None:
    return node["value"] if node["type"] == "VALUE_CONSTANT" else None


def _compare(column: ComparedField, operator: Operator | None, constant: ParsedNode) -> Predicate:
    value = _domain(column, constant)
    if operator is None or value is _UNCLEAR:
        return Unknown()
    return Compare(column.name, operator, value, column.fields)


def _in(column: ComparedField, constants: Sequence[ParsedNode]) -> Predicate:
    values = tuple(_domain(column, constant) for constant in constants)
    return Unknown() if _UNCLEAR in values else In(column.name, values, fields=column.fields)


def _domain(column: ComparedField, constant: ParsedNode) -> Any:
    """The constant in the domain of `tiering.table.pruning`; None for null, `_UNCLEAR` where it cannot be compared."""
    if constant["is_null"]:
        return None
    value, kind = constant["value"], constant["type"]["id"]
    if kind in _NANOSECONDS:
        fits = column.type.startswith("timestamp") and isinstance(value, int)
        return value * _NANOSECONDS[kind] if fits else _UNCLEAR
    if kind == "DATE":
        return value if column.type == "date" and isinstance(value, int) else _UNCLEAR
    if kind == "DECIMAL":
        fits = column.type.startswith("decimal") and isinstance(value, int)
        scale = constant["type"]["type_info"].get("scale", 0)
        value = Decimal(f"{value}E-{scale}") if fits else None
    elif column.type.startswith(("timestamp", "date", "decimal", "binary", "list")):
        return _UNCLEAR
    found = domain_value(column.type, value) if value is not None else None
    return _UNCLEAR if found is None else found
