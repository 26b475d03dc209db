"""Merge the 64 sorted parts of one partition, against DuckDB reading the same files and sorting them into one."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import uuid
from pathlib import Path

from benchmarks import data
from benchmarks.measure import bound_figure, paired, python, ratio_figure, report, run, scratch
from tiering.config.settings import embedded
from tiering.engine.store import Store

PARTS = 64

DUCKDB = """
import duckdb, sys
source, target, memory = sys.argv[1:]
duckdb.sql(f"SET threads = 2; SET memory_limit = '{memory}'; SET preserve_insertion_order = false")
duckdb.sql(f\"\"\"COPY (SELECT * FROM read_parquet('{source}') ORDER BY service, ts)
TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 131072)\"\"\")
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    definition = data.definition("merged", insert_block_rows=options.rows // PARTS)
    peaks = {"ours": 0, "duckdb": 0}
    with scratch() as directory:
        with Store.open(embedded(directory / "base")) as store:
            store.create_table(definition)
            for number in range(PARTS):
                table = data.events(options.rows // PARTS, start=data.START, days=30, seed=number)
                store.table(definition.full_name).insert(table.to_batches())
            inputs = store.parts(definition.full_name)
            assert len(inputs) == PARTS
        source = str(directory / "base" / "ssd" / definition.directory / "*" / "*.parquet")

        def ours() -> float:
            home = directory / uuid.uuid4().hex
            shutil.copytree(directory / "base", home)
            command = [
                str(Path(sys.executable).with_name("frostline")),
                "--json",
                "merge",
                definition.full_name,
                "--final",
            ]
            result = run(command, environment={"FROSTLINE_HOME": str(home)})
            merges = json.loads(result.output)["merges"]
            assert [merge["rows_out"] for merge in merges] == [sum(part.part.rows for part in inputs)]
            peaks["ours"] = max(peaks["ours"], result.peak_bytes)
            shutil.rmtree(home)
            return result.seconds

        def duckdb() -> float:
            target = directory / f"{uuid.uuid4().hex}.parquet"
            result = python(DUCKDB, source, str(target), "1GB")
            peaks["duckdb"] = max(peaks["duckdb"], result.peak_bytes)
            target.unlink()
            return result.seconds

        seconds, baseline = paired(ours, duckdb, rounds=options.rounds)
    detail = f"({options.rows:,} rows; DuckDB used {peaks['duckdb'] / 1e6:.0f} MB)"
    report(
        [
            ratio_figure(f"merge {PARTS} parts", seconds, baseline, at_most=0.8, baseline_name="DuckDB", detail=detail),
            bound_figure(f"memory of merging {PARTS} parts", peaks["ours"] / 1e6, at_most=700, unit="MB"),
        ]
    )


if __name__ == "__main__":
    main()
