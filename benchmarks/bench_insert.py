"""Insert 10 M rows, against DuckDB writing the same rows as sorted, partitioned, zstd Parquet."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import uuid
from pathlib import Path

from benchmarks import data
from benchmarks.measure import paired, python, ratio_figure, report, run, scratch
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.schema import PartitionField

DUCKDB = """
import duckdb, sys
source, target = sys.argv[1:]
duckdb.sql(f"SET threads = 2; SET preserve_insertion_order = true")
rows = f"SELECT *, strftime(ts AT TIME ZONE 'UTC', '%Y%m') AS month FROM '{source}'"
duckdb.sql(f\"\"\"COPY ({rows} ORDER BY month, service, ts)
TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (month), ROW_GROUP_SIZE 131072)\"\"\")
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    definition = data.definition("inserted", partition_by=(PartitionField("month", "ts"),))
    peaks = {"ours": 0, "duckdb": 0}
    sizes = {}
    with scratch() as directory:
        source = data.write(data.events(options.rows, start=data.START, days=181), directory / "events.parquet")

        def ours() -> float:
            home = directory / uuid.uuid4().hex
            with Store.open(embedded(home)) as store:
                store.create_table(definition)
            command = [str(Path(sys.executable).with_name("frostline")), "--json", "insert", definition.full_name]
            result = run([*command, str(source)], environment={"FROSTLINE_HOME": str(home)})
            assert json.loads(result.output)["rows"] == options.rows
            peaks["ours"] = max(peaks["ours"], result.peak_bytes)
            sizes["ours"] = _size(home)
            shutil.rmtree(home)
            return result.seconds

        def duckdb() -> float:
            target = directory / uuid.uuid4().hex
            result = python(DUCKDB, str(source), str(target))
            peaks["duckdb"] = max(peaks["duckdb"], result.peak_bytes)
            sizes["duckdb"] = _size(target)
            shutil.rmtree(target)
            return result.seconds

        seconds, baseline = paired(ours, duckdb, rounds=options.rounds)
    report(
        [
            ratio_figure(
                f"insert {options.rows:,} rows",
                seconds,
                baseline,
                at_most=1.3,
                baseline_name="DuckDB",
                detail=f"(memory {peaks['ours'] / 1e6:.0f} MB, DuckDB {peaks['duckdb'] / 1e6:.0f} MB; "
                f"size {sizes['ours'] / 1e6:.0f} MB, DuckDB {sizes['duckdb'] / 1e6:.0f} MB)",
            )
        ]
    )


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*.parquet"))


if __name__ == "__main__":
    main()
