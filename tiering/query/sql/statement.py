"""Which statements may run: one SELECT over tables, by what the engine's own parser says of it, and nothing else.

Only what is known to be harmless passes, before anything is bound. Refused are functions that read or write files,
those that change how the engine runs, views of the engine about itself. What the engine is locked by (`sql.session`)
is the second line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb

from oplog.errors import NotFound, UsageError
from tiering.query.sql.errors import READ_ONLY_HINT, sql_error
from tiering.query.sql.kept import KeptByText
from tiering.query.sql.local_files import FILE_FUNCTIONS, ParsedNode, with_paths
from tiering.table.names import folded

_TABLE_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"}
_FORBIDDEN_FUNCTIONS = {"nextval", "pg_sleep", "setseed", "setval", "sleep_ms", "write_log"}
_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_RESERVED = {"memory", "system", "temp", "information_schema", "pg_catalog"}
"""Names of the engine's own catalogs and schemas, which a database of ours may have nevertheless."""
_JOINS_BY_NAME = {"CROSS", "REGULAR"}
"""Kinds of joins that compare no other columns than those that the statement names."""
_SAMPLED = "sample"
"""All that a FROM may hold has it."""
_SOURCES = {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION"}
"""What a FROM may hold that is about no other columns than those that the statement names."""
_NAMING = {
    *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"),
    *("LAMBDA", "LAMBDA_REF", "OPERATOR", "SUBQUERY", "TYPE", "WINDOW"),
}
"""Expressions that are about no other columns than those that the statement names."""
_WITHOUT_PARENTHESES = {
    *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
    *("current_user", "localtime", "localtimestamp", "session_user", "user"),
}
"""Functions that SQL calls without parentheses, so that they look like columns."""
_EXPLAIN = "explain"
_PIVOT_HINT = "name them: PIVOT … ON column IN ('a', 'b') USING …"
_HINTS = {
    "EXPLAIN": "a plain EXPLAIN SELECT … shows the plan; after a query its last line says what was read",
    "COPY": "'frostline query SELECT … --output-format csv|json|parquet -o FILE' writes the answer; 'frostline insert' "
    "brings files in",
}
"""What works in place of a statement that does not."""


@dataclass(frozen=True)
class Statement:
    """A SELECT that may run."""

    text: str
    tables: tuple[str, ...]
    """Full names, as the statement writes them."""
    is_explained: bool
    files: tuple[str, ...] = ()
    """Local files that it reads beside tables: absolute paths."""
    means_unnamed: bool = True
    """Whether it may be about columns that it does not name."""
    functions: frozenset[str] = frozenset()
    """All that it may call, in lower case."""

    def may_mean(self, column: str) -> bool:
        """Whether it may be about the column of this name. If not, and none is read, the column need not be there."""
        return self.means_unnamed or folded(column.replace('"', '""')) in self._folded_text

    @cached_property
    def _folded_text(self) -> str:
        return folded(self.text)


_known: KeptByText[Statement] = KeptByText()
"""By what was asked. Those that read no files: then nothing but the text says what it is."""
_consistent: set[str] = set()
"""Functions that give the same for the same arguments whenever they are called; empty until the engine was asked."""


def read_statement(connection: duckdb.DuckDBPyConnection, sql: str, *, allow_files: bool = False) -> Statement:
    """The statement; with `allow_files` it may read local files that it names. Raises `UsageError` for what is no SQL
    or no SELECT, `NotFound` for a table without a database and for a file that is not there."""
    if not allow_files and (known := _known.get(sql)) is not None:
        return known
    try:
        found = connection.extract_statements(sql.encode().decode())
    except UnicodeEncodeError:
        raise UsageError("the statement is not UTF-8 text", hint="write it in UTF-8") from None
    except duckdb.Error as error:
        raise sql_error(error) from None
    if len(found) != 1:
        what = "there is no SQL" if not found else "a query is a single statement"
        raise UsageError(what, hint="write one SELECT; tables are named DB.TABLE")
    kind = found[0].type.name
    explained = _explained(sql) if kind == "EXPLAIN" else None
    if kind != "SELECT" and explained is None:
        if kind == "MULTI":  # the engine makes a type of the values first
            raise UsageError("PIVOT without the values of its columns is not possible here", hint=_PIVOT_HINT)
        hint = _HINTS.get(kind, READ_ONLY_HINT)
        raise UsageError(f"query only reads; {kind.replace('_', ' ')} is not possible here", hint=hint)
    text = (explained or sql).strip().rstrip(";").rstrip()
    parsed = _parsed(connection, text)
    files: tuple[str, ...] = ()
    if allow_files:
        text, files = with_paths(text, _nodes(parsed))
        parsed = _parsed(connection, text) if files else parsed
    nodes = list(_nodes(parsed))
    tables = _tables(nodes, allow_files=allow_files)
    if any(name.partition(".")[0].lower() in _RESERVED for name in tables):
        text = connection.execute("SELECT json_deserialize_sql($1)", [json.dumps(parsed)]).fetchall()[0][0]
    statement = Statement(
        text.rstrip(";"), tables, explained is not None, files, _means_unnamed(nodes), _functions(nodes)
    )
    if not allow_files:
        _known.put(sql, statement)
    return statement


def is_planned_alike(connection: duckdb.DuckDBPyConnection, statement: Statement) -> bool:
    """Whether the engine plans it the same way each time over the same tables: no time, chance or setting is in it."""
    if not _consistent:
        found = connection.execute(
            "SELECT lower(function_name) FROM duckdb_functions() WHERE function_type NOT IN ('table', 'pragma') "
            "GROUP BY ALL HAVING bool_and(coalesce(stability = 'CONSISTENT', false))"
        ).fetchall()
        _consistent.update(_TABLE_FUNCTIONS.union(name for (name,) in found))
    return not statement.files and statement.functions <= _consistent


def schema_of(database: str) -> str:
    """The schema in the engine of one of our databases."""
    return f"database {database}" if database.lower() in _RESERVED else database


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    parsed = json.loads(connection.execute("SELECT json_serialize_sql($1)", [text]).fetchall()[0][0])
    if parsed.get("error") or len(parsed["statements"]) != 1:
        raise UsageError(f"query only reads: {parsed.get('error_message', 'one SELECT')}", hint=READ_ONLY_HINT)
    return parsed


def _explained(sql: str) -> str | None:
    """What a plain EXPLAIN explains; None for any other, which may run what it explains."""
    rest = sql.strip()
    if rest[: len(_EXPLAIN)].lower() != _EXPLAIN:
        return None
    rest = rest[len(_EXPLAIN) :].strip()
    return None if rest.startswith("(") or rest[:7].lower() == "analyze" else rest


def _tables(nodes: list[ParsedNode], *, allow_files: bool) -> tuple[str, ...]:
    """The tables that it reads. In the nodes, those that need it get the engine's name for their database."""
    named_within = {entry["key"].lower() for node in nodes for entry in _common_tables(node)}
    found: dict[str, None] = {}
    for node in nodes:
        _check_node(node, allow_files=allow_files)
        if node.get("type") != "BASE_TABLE":
            continue
        path = node["qualified_name"]["path"]
        if len(path) == 2:
            found[".".join(path)] = None
            node["schema_name"] = path[0] = schema_of(path[0])
        elif len(path) > 2 or path[0].lower() not in named_within:
            hint = "tables are named database.table; 'frostline table list' shows them"
            raise NotFound(f"No such table: {'.'.join(path)}", hint=hint)
    return tuple(found)


def _means_unnamed(nodes: list[ParsedNode]) -> bool:
    """Whether it may be about columns that it does not name: all of them by a `*`, those at a place, those by which a
    kind of join compares, or those of a row of a table, which is taken for a value."""
    tables = {
        name.lower()
        for node in nodes
        if node.get("type") == "BASE_TABLE"
        for name in (node["qualified_name"]["path"][-1], node.get("alias") or "")
    }
    return any(
        ("class" in node and node["class"] not in _NAMING)
        or (_SAMPLED in node and "alias" in node and node["type"] not in _SOURCES)
        or (node.get("type") == "JOIN" and node["ref_type"] not in _JOINS_BY_NAME)
        or (node.get("type") == "BASE_TABLE" and bool(node["column_name_alias"]))
        or (node.get("class") == "COLUMN_REF" and node["column_names"][-1].lower() in tables)
        for node in nodes
    )


def _functions(nodes: list[ParsedNode]) -> frozenset[str]:
    called = {name.lower() for node in nodes if isinstance(name := node.get("function_name"), str) and name}
    looking_alike = {
        name.lower() for node in nodes if node.get("class") == "COLUMN_REF" for name in node["column_names"][:1]
    }
    return frozenset(called | (looking_alike & _WITHOUT_PARENTHESES))


def _nodes(value: Any) -> Iterator[ParsedNode]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _common_tables(node: ParsedNode) -> list[ParsedNode]:
    named = node.get("cte_map")
    found = list(named["map"]) if isinstance(named, dict) else []
    return [*found, {"key": node["cte_name"]}] if "cte_name" in node else found


def _check_node(node: ParsedNode, *, allow_files: bool) -> None:
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    if kind == "SHOW_REF":
        raise UsageError(
            "SHOW, DESCRIBE and SUMMARIZE are not possible here", hint="use 'frostline table list' and 'table show'"
        )
    if kind.endswith("_NODE") and kind not in _NODES:
        raise UsageError("query only reads; this statement would write", hint=READ_ONLY_HINT)
    if kind == "TABLE_FUNCTION":
        name = node["function"].get("function_name", "")
        if name.lower() in FILE_FUNCTIONS and not allow_files:
            raise UsageError(
                f"query reads no files: {name} is not possible here",
                hint="--allow-files lets it read local files; 'frostline insert' brings them into a table",
            )
        if name.lower() not in _TABLE_FUNCTIONS | FILE_FUNCTIONS:
            raise UsageError(
                f"the table function {name} is not possible here",
                hint="query reads tables, named DB.TABLE; 'frostline insert' brings files in",
            )
    if kind == "FUNCTION" and node.get("function_name", "").lower() in _FORBIDDEN_FUNCTIONS:
        raise UsageError(f"the function {node['function_name']} is not possible here", hint=READ_ONLY_HINT)
