"""Plans of one scan of which less is wanted than its rows: counts and outermost values, or the first rows that come."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tiering.query.sql.local_files import ParsedNode

_AGGREGATES = {"count_star": 0, "count": 1, "min": 1, "max": 1}
"""How many arguments each has."""
_OF_AN_AGGREGATE = {
    *("expression_class", "type", "alias", "return_type", "query_location", "query_location_length", "children"),
    *("arguments", "qname", "has_serialize", "aggregate_type"),
}
"""What is said of one that is about all rows, each once, in any order."""
_OF_AN_AGGREGATION = {
    *("type", "children", "types", "expressions", "group_index", "aggregate_index", "groupings_index"),
    *("estimated_cardinality", "has_estimated_cardinality"),
}
"""What is said of one without groups."""


class Summary(msgspec.Struct, frozen=True):
    """Of all rows that pass the filters of the scan, nothing else is wanted."""

    columns: frozenset[int]
    """Whose smallest or largest value or count is wanted, by their places in the table."""
    counts: bool
    """Whether it is wanted how many rows or values there are."""


def summary_of(root: ParsedNode) -> Summary | None:
    """What the plan wants of its one scan, whose filters are all directly above it; None where that is more."""
    node = _below(root, "LOGICAL_PROJECTION")
    if node["type"] != "LOGICAL_AGGREGATE_AND_GROUP_BY" or not _OF_AN_AGGREGATION.issuperset(node):
        return None
    places: list[int] = []
    counts = False
    for aggregate in node["expressions"]:
        *schema, name = aggregate.get("qname", {"path": [""]})["path"]
        arguments = aggregate.get("children", [])
        if (
            aggregate["type"] != "BOUND_AGGREGATE"
            or not _OF_AN_AGGREGATE.issuperset(aggregate)
            or aggregate["aggregate_type"] != "NON_DISTINCT"
            or schema != ["system", "main"]
            or _AGGREGATES.get(name) != len(arguments)
            or any(argument["type"] != "BOUND_REF" for argument in arguments)
        ):
            return None
        counts = counts or name.startswith("count")
        places += [argument.get("index", 0) for argument in arguments]
    (node,) = node["children"]
    while node["type"] == "LOGICAL_PROJECTION":
        given = [node["expressions"][place] for place in places]
        if any(one["type"] != "BOUND_REF" for one in given):
            return None
        places = [one.get("index", 0) for one in given]
        (node,) = node["children"]
    columns = _columns_at(_below_filters(node), places)
    return Summary(columns, counts) if columns is not None else None


def rows_enough(root: ParsedNode) -> int | None:
    """So many rows that pass the filters of the plan's one scan, which are all directly above it, are all that is
    wanted of it; None where that is not known."""
    node = _below(root, "LOGICAL_PROJECTION")
    if node["type"] != "LOGICAL_LIMIT":
        return None
    limit, offset = node["limit_val"], node["offset_val"]
    if limit["type"] != "CONSTANT_VALUE" or offset["type"] not in ("CONSTANT_VALUE", "UNSET"):
        return None
    node = _below_filters(_below(node["children"][0], "LOGICAL_PROJECTION"))
    if node["type"] != "LOGICAL_GET":
        return None
    return int(limit.get("constant_integer", 0)) + int(offset.get("constant_integer", 0))


def _below(node: ParsedNode, kind: str) -> ParsedNode:
    while node["type"] == kind:
        (node,) = node["children"]
    return node


def _below_filters(node: ParsedNode) -> ParsedNode:
    """What they filter. One that leaves columns out hides those above it from who reads the filters."""
    while node["type"] == "LOGICAL_FILTER" and not node.get("projection_map"):
        (node,) = node["children"]
    return node


def _columns_at(scan: ParsedNode, places: Sequence[int]) -> frozenset[int] | None:
    if scan["type"] != "LOGICAL_GET":
        return None
    read = scan["column_indexes"]
    given = scan.get("projection_ids") or range(len(read))
    chosen = [read[given[place]] for place in places]
    return None if any("child_indexes" in one for one in chosen) else frozenset(one.get("index", 0) for one in chosen)
