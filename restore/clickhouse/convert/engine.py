"""Runs in a Python that has chdb, and imports nothing of ours: parts of a MergeTree table in, Parquet files out.

    python engine.py < request.json > answer.json

The request: `place` (an empty directory), `columns` (the table's, as CREATE TABLE has them), `select` (what a SELECT
has), `texts` (name, a condition that holds where the bytes are UTF-8), `parts` (the directory of a part's files, which
is used up, and the Parquet file to write, as a literal). Nothing is quoted here. The answer: `parts`, for each its rows
as they lie there (`all`), those that no lightweight DELETE marked (`rows`), and the names of texts that are none
(`bad`); or `error`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
"""A request, an answer or a part of one: this file imports nothing of ours and runs on Python 3.9."""


def main() -> None:
    """Answer one request. What chdb prints goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        answer: Json = {"parts": _converted(json.load(sys.stdin))}
    except Exception as error:  # noqa: BLE001  whatever it is, the caller tells it
        answer = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(out, "w") as stream:
        json.dump(answer, stream)


def _converted(request: Json) -> list[Json]:
    from chdb import session

    opened = session.Session(os.path.join(request["place"], "engine"))

    def ask(query: str) -> list[Any]:
        return [json.loads(line) for line in str(opened.query(query, "JSONCompactEachRow")).splitlines() if line]

    ask("CREATE DATABASE convert ENGINE = Atomic")
    return [_part(ask, f"t{number}", request, *paths) for number, paths in enumerate(request["parts"])]


def _part(ask: Callable[[str], list[Any]], table: str, request: Json, directory: str, literal: str) -> Json:
    ask(f"CREATE TABLE convert.{table} ({request['columns']}) ENGINE = MergeTree ORDER BY tuple()")
    ((place,),) = ask(f"SELECT data_paths[1] FROM system.tables WHERE database = 'convert' AND name = '{table}'")
    os.rename(directory, os.path.join(place, "detached", "all_1_1_0"))
    ask(f"ALTER TABLE convert.{table} ATTACH PART 'all_1_1_0'")
    wrong = ", ".join(f"countIf(NOT ({condition}))" for _, condition in request["texts"])
    ((everything,),) = ask(f"SELECT count() FROM convert.{table} SETTINGS apply_deleted_mask = 0")
    ((rows, *counts),) = ask(f"SELECT count(){', ' if wrong else ''}{wrong} FROM convert.{table}")
    ask(
        f"SELECT {request['select']} FROM convert.{table} INTO OUTFILE {literal} FORMAT Parquet "
        "SETTINGS output_format_parquet_string_as_string = 1"
    )
    ask(f"DROP TABLE convert.{table}")
    bad = [name for (name, _), count in zip(request["texts"], counts) if int(count)]  # noqa: B905  for Python 3.9
    return {"all": int(everything), "rows": int(rows), "bad": bad}


if __name__ == "__main__":
    main()
