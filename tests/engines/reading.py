"""Reads snapshots of a published table with one engine, in a Python that has it:

    python reading.py ENGINE <requests.json >rows.json

A request is [url of the metadata, snapshot id]; its answer the rows, each an object of texts that compare equal where
the values do. Imports nothing of Frostline: that is not installed there.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def pyiceberg(url: str, snapshot: int) -> Rows:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(url).scan(snapshot_id=snapshot).to_arrow().to_pylist()


def polars(url: str, snapshot: int) -> Rows:
    import polars

    return polars.scan_iceberg(url, snapshot_id=snapshot).collect().to_dicts()


def duckdb(url: str, snapshot: int) -> Rows:
    import duckdb
    from duckdb_extensions import import_extension

    import_extension("avro")
    import_extension("iceberg")
    connection = duckdb.connect()
    connection.execute("LOAD avro; LOAD iceberg; SET timezone = 'UTC'")
    answer = connection.execute(f"SELECT * FROM iceberg_scan('{url}', snapshot_from_id = {snapshot})")
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def clickhouse(url: str, snapshot: int) -> Rows:
    import chdb
    import pyarrow.ipc

    os.chdir("/")  # the engine reads below the current directory only
    directory = url.removeprefix("file://").split("/metadata/")[0]
    sql = f"SELECT * FROM icebergLocal('{directory}') SETTINGS iceberg_snapshot_id = {snapshot}"
    data = chdb.query(sql, "Arrow").bytes()
    return pyarrow.ipc.open_file(io.BytesIO(data)).read_all().to_pylist() if data else []


def spark(url: str, snapshot: int) -> Rows:
    from pyspark.sql import SparkSession

    jars = ",".join(str(path) for path in Path(os.environ["ICEBERG_JARS"]).glob("*.jar"))
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    frame = session.read.format("iceberg").option("snapshot-id", snapshot).load(url)
    return [row.asDict(True) for row in frame.collect()]


def plain(value: Any) -> Any:
    """A text for each value, the same for the same value in any engine."""
    match value:
        case None | bool() | int() | str():
            return value
        case datetime.datetime():
            utc = value.astimezone(datetime.UTC) if value.tzinfo else value
            return utc.replace(tzinfo=None).isoformat()
        case datetime.date() | datetime.time():
            return value.isoformat()
        case float() | decimal.Decimal():
            return str(value)
        case bytes() | bytearray():
            return value.hex()
        case dict() | list() if not value:
            return []
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list() | tuple():
            if value and all(isinstance(pair, tuple) for pair in value):  # a map of Arrow's
                return {key: plain(inner) for key, inner in value}
            return [plain(inner) for inner in value]
    return str(value)


ENGINES = {function.__name__: function for function in (pyiceberg, polars, duckdb, clickhouse, spark)}

if __name__ == "__main__":
    read = ENGINES[sys.argv[1]]
    answers = []
    for url, snapshot in json.load(sys.stdin):
        try:
            answers.append({"rows": [plain(row) for row in read(url, snapshot)]})
        except Exception as error:  # the test says which snapshot
            answers.append({"error": f"{type(error).__name__}: {str(error)[:500]}"})
    json.dump(answers, sys.stdout)
