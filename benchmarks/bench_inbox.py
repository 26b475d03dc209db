"""1,000 CSV files of 1,000 rows until they can be queried, against DuckDB reading the glob and writing the same rows as
sorted, partitioned, zstd Parquet."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import uuid
from pathlib import Path

import pyarrow.csv as csv

from benchmarks import data
from benchmarks.measure import paired, python, ratio_figure, report, run, scratch
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.schema import PartitionField

DUCKDB = """
import duckdb, sys
source, target = sys.argv[1:]
duckdb.sql("SET threads = 2; SET preserve_insertion_order = true")
rows = f"SELECT *, strftime(ts AT TIME ZONE 'UTC', '%Y%m') AS month FROM read_csv('{source}/*.csv')"
duckdb.sql(f\"\"\"COPY ({rows} ORDER BY month, service, ts)
TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (month), ROW_GROUP_SIZE 131072)\"\"\")
"""
MOST_PARTS = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=1_000, help="of each file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    definition = data.definition("landed", partition_by=(PartitionField("month", "ts"),))
    parts: list[int] = []
    with scratch() as directory:
        source = directory / "files"
        source.mkdir()
        rows = data.events(options.files * options.rows, start=data.START, days=181)
        for number in range(options.files):
            csv.write_csv(rows.slice(number * options.rows, options.rows), source / f"{number:06}.csv")

        def ours() -> float:
            home = directory / uuid.uuid4().hex
            with Store.open(embedded(home)) as store:
                store.create_table(definition)
            landed = home / "inbox" / definition.full_name
            shutil.copytree(source, landed)
            environment = {
                "FROSTLINE_HOME": str(home),
                "FROSTLINE_INBOX__PATH": str(home / "inbox"),
                "FROSTLINE_INBOX__STABLE_SECONDS": "0",  # what waiting costs is no work
                "FROSTLINE_INBOX__BATCH_BYTES": "1GiB",
            }
            command = [str(Path(sys.executable).with_name("frostline")), "--json", "inbox", "run", "--once"]
            result = run(command, environment=environment)
            done = json.loads(result.output)
            assert done["rows"] == options.files * options.rows
            parts.append(len(done["parts"]))
            shutil.rmtree(home)
            return result.seconds

        def duckdb() -> float:
            target = directory / uuid.uuid4().hex
            result = python(DUCKDB, str(source), str(target))
            shutil.rmtree(target)
            return result.seconds

        seconds, baseline = paired(ours, duckdb, rounds=options.rounds)
    report(
        [
            ratio_figure(
                f"inbox: {options.files:,} files of {options.rows:,} rows",
                seconds,
                baseline,
                at_most=1.5,
                baseline_name="DuckDB",
                detail=f"({max(parts)} parts of at most {MOST_PARTS})",
            )
        ]
    )


if __name__ == "__main__":
    main()
