"""Prints the result of a query as a table, CSV, JSON or Parquet, streaming where the format allows it."""

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disks.workers.progress import SILENT
from oplog.errors import UsageError
from tiering.cli.frame.interruptible import interruptible
from tiering.cli.frame.output import Output, counted, encode
from tiering.cli.reports.plain_csv import write_plain_csv
from tiering.cli.reports.query_progress import shown
from tiering.config.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from disks.workers.progress import Progress
    from tiering.engine.store import Store
    from tiering.query.query import QueryResult

    _Pieces = Iterator[Any]
    """Rows as JSON values, some at a time; Arrow's batches where `write` asks for these."""


def tell_behind(output: Output, store: "Store", sql: str) -> None:
    """Say beside the answer which replicated tables it names may lack rows here: what others inserted or merged could
    not be taken over, or nobody here takes it over. Asks Keeper for nothing."""
    from tiering.facts.replicas import is_followed, replica_trouble

    for definition in store.definitions():
        if not definition.is_replicated or not re.search(rf"\b{re.escape(definition.name)}\b", sql, re.IGNORECASE):
            continue
        trouble = replica_trouble(store.context.config, store.context.journal, definition)
        if not trouble.waiting:
            if not is_followed(store.context.config):
                output.note(
                    f"{definition.full_name}: the answer may lack rows that other replicas inserted since the last "
                    "'frostline replica sync' here: no daemon runs"
                )
            continue
        waiting = counted(trouble.waiting, "entry", "entries")
        output.beside.setdefault("replicas_behind", []).append(
            {"table": definition.full_name, "waiting": trouble.waiting, "error": trouble.error}
        )
        output.note(
            f"{definition.full_name}: the answer may lack rows: {waiting} could not be fetched here "
            f"({trouble.error}); 'frostline replica status' shows how far this replica is"
        )


FORMATS = ("table", "csv", "json", "parquet")


def choose(name: str, *, json: bool, to_file: bool) -> str:
    """The format to write. Raises `UsageError` for one that is unknown or does not fit."""
    if name not in FORMATS:
        raise UsageError(f"unknown output format: {name}", hint=f"one of: {', '.join(FORMATS)}")
    if json and not to_file:
        return "json"
    if name == "parquet" and not to_file and sys.stdout.isatty():
        raise UsageError("Parquet is not for terminals", hint="add -o FILE.parquet")
    return name


def write(result: "QueryResult", chosen: str, file: str | None, output: Output, progress: "Progress") -> None:
    """Write all rows to stdout or the file; a remark on stderr says how much was read."""
    if chosen == "csv" and not file and sys.stdout.isatty():  # its rows come where a bar would be
        progress = SILENT
    if file:
        chosen = _of_file(chosen, Path(file))
    is_arrow = chosen == "parquet" or (chosen == "csv" and not _is_plain_csv(result))
    answered: Any = interruptible(result.batches() if is_arrow else result.plain_rows())
    with closing(shown(answered, result, progress)) as pieces:
        if file:
            rows = _write_file(result, pieces, chosen, Path(file), output)
        else:
            rows = _write_stdout(result, pieces, chosen, output)
    if chosen != "json" or file:
        output.note(
            f"{counted(rows, 'row')}; read {format_size(result.bytes_read)} from {counted(result.parts_read, 'part')}"
            + (f", {counted(result.requests, 'request')}" if result.requests else "")
        )


def _write_stdout(result: "QueryResult", pieces: "_Pieces", chosen: str, output: Output) -> int:
    if chosen in ("csv", "parquet"):
        return _stream(result, pieces, chosen, sys.stdout.buffer)
    names = [column["name"] for column in _columns(result)]
    rows = [row for piece in pieces for row in piece]
    if chosen == "json":
        output.document(_document(result, rows), indent=2 if sys.stdout.isatty() else 0)
    else:
        output.table(names, [[_cell(value) for value in row] for row in rows], empty="No rows.", shout=False)
    return len(rows)


def _of_file(chosen: str, path: Path) -> str:
    """The format, by the file's name where none was chosen."""
    if chosen == "table":
        chosen = {".csv": "csv", ".json": "json", ".parquet": "parquet"}.get(path.suffix, chosen)
    if chosen == "table":
        raise UsageError(f"which format for {path}?", hint="use --output-format csv, json or parquet")
    return chosen


def _write_file(result: "QueryResult", pieces: "_Pieces", chosen: str, path: Path, output: Output) -> int:
    """Beside the name first: a query that fails half way leaves no half file."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as stream:
            if chosen == "json":
                rows = [row for piece in pieces for row in piece]
                stream.write(encode({**_document(result, rows), **output.beside}, indent=0) + b"\n")
                count = len(rows)
            else:
                count = _stream(result, pieces, chosen, stream)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _stream(result: "QueryResult", pieces: "_Pieces", chosen: str, stream: Any) -> int:
    if chosen == "csv" and _is_plain_csv(result):
        return write_plain_csv(result.columns, pieces, stream)
    if chosen == "csv":
        from pyarrow import csv

        writer: Any = csv.CSVWriter(stream, _csv_schema(result.schema))
    else:
        from pyarrow import parquet

        writer = parquet.ParquetWriter(stream, result.schema, compression="zstd")
    count = 0
    with writer:
        for batch in pieces:
            if chosen == "csv":
                _write_csv(batch, writer, stream)
            else:
                writer.write_batch(batch)
            count += batch.num_rows
    stream.flush()
    return count


def _is_plain_csv(result: "QueryResult") -> bool:
    return result.is_plain and not result.may_be_long


def _csv_schema(schema: "pa.Schema") -> "pa.Schema":
    """Lists, maps and structs are JSON texts, bytes hexadecimal ones."""
    import pyarrow as pa

    kinds = [pa.string() if _is_text_in_csv(field.type) else field.type for field in schema]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def _is_text_in_csv(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _write_csv(batch: "pa.RecordBatch", writer: Any, stream: Any) -> None:
    """Where Arrow's writer has no text for a column's moments they are texts, in this batch alone."""
    import pyarrow as pa
    from pyarrow import csv

    from tiering.query.plain_values import plain_values
    from tiering.table.columns.types import first_far

    def text(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else encode(value, indent=0).decode()

    def written_as(column: pa.Array) -> pa.Array:
        if _is_text_in_csv(column.type):
            return pa.array(map(text, plain_values(column)), pa.string())
        if first_far(column) is not None:
            return pa.array([value and value.replace("T", " ") for value in plain_values(column)], pa.string())
        return column

    arrays = [written_as(column) for column in batch.columns]
    written = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    if written.schema == _csv_schema(batch.schema):
        writer.write_batch(written)
    else:
        csv.write_csv(written, stream, csv.WriteOptions(include_header=False))


def _document(result: "QueryResult", rows: list[list[Any]]) -> dict[str, Any]:
    return {
        "columns": _columns(result),
        "rows": rows,
        "row_count": len(rows),
        "parts_read": result.parts_read,
        "bytes_read": result.bytes_read,
        "requests": result.requests,
        "bytes_fetched": result.bytes_fetched,
    }


def _columns(result: "QueryResult") -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in result.columns]


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value + 0.0).removesuffix(".0")  # all of it; no -0
    if isinstance(value, dict | list):
        return encode(value, indent=0).decode()
    return str(value)
