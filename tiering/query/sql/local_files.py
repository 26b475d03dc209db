"""Local files that a statement reads beside tables, where it may: `read_csv('calls/*.csv')`.

Only files that are named in the statement as they stand, so that all of them are known before it is planned: the engine
is then allowed these and no others. Patterns are looked up here, since an engine that is locked looks none up.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oplog.errors import NotFound, UsageError
from tiering.query.sql.column_types import text

ParsedNode = dict[str, Any]
"""An object of the JSON that the engine writes of a statement or a plan; its keys change with the engine's version."""

FILE_FUNCTIONS = frozenset(
    {
        *("parquet_scan", "read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_json_objects"),
        *("read_ndjson", "read_ndjson_auto", "read_ndjson_objects", "read_parquet"),
    }
)


def with_paths(statement: str, nodes: Iterable[ParsedNode]) -> tuple[str, tuple[str, ...]]:
    """The statement with the absolute path of each file that it reads in place of names and patterns, and these paths.
    `nodes`: of the statement, as the engine's parser has them. Raises `UsageError`, and `NotFound` for files that are
    not there."""
    encoded = statement.encode()
    paths: dict[str, None] = {}
    named = [
        (node["function"]["function_name"], node["function"]["arguments"])
        for node in nodes
        if node.get("type") == "TABLE_FUNCTION" and node["function"].get("function_name", "").lower() in FILE_FUNCTIONS
    ]
    places = [(name, arguments[0]["expression"] if arguments else {}) for name, arguments in named]
    for function, node in sorted(places, key=lambda pair: -pair[1].get("query_location", 0)):
        files = [path for name in _names(function, node) for path in _files(name)]
        paths.update(dict.fromkeys(files))
        start = node["query_location"]
        listed = f"[{', '.join(map(text, files))}]".encode()
        encoded = encoded[:start] + listed + encoded[start + node["query_location_length"] :]
    return encoded.decode(), tuple(paths)


def _names(function: str, node: ParsedNode) -> Iterator[str]:
    """The names and patterns of a text, or of a list of texts."""
    if node.get("function_name") == "list_value":
        for argument in node["arguments"]:
            yield from _names(function, argument["expression"])
    elif node.get("literal", {}).get("kind") == "STRING":
        yield node["literal"]["text"]
    else:
        raise UsageError(
            f"{function} takes literal file names, such as {function}('calls/*.csv')",
            hint="a list of names works, too; what is computed does not",
        )


def _files(name: str) -> list[str]:
    if "://" in name:
        raise UsageError(f"{name} is no local file", hint="'frostline insert' takes s3:// and http(s):// addresses")
    path = str(Path(name).expanduser().absolute())
    found = [path] if os.path.isfile(path) else sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))
    if not found:
        raise NotFound(f"there is no file {name}", hint="names are meant from the working directory")
    return found
