"""Merge the 64 sorted parts of one partition, against DuckDB reading the same files and sorting them into one; and what
memory a merge needs where most rows have one key, by how many rows there are."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import uuid
from pathlib import Path

import msgspec
import numpy
import pyarrow as pa

from benchmarks import data
from benchmarks.measure import Figure, bound_figure, paired, python, ratio_figure, report, run, scratch
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


GIANT_PARTS = 4
GIANT_SHARE = 0.6


def giant_key(directory: Path, rows: int) -> list[Figure]:
    """The peak memory of a merge of four times the rows against that of the rows, 60 % of which have one key."""
    figures = []
    for mode in ("ordinary", "replacing"):
        peaks = {times: _giant_key_peak_bytes(directory / f"{mode}-{times}", mode, rows * times) for times in (1, 2, 4)}
        shown = ", ".join(f"{times} x: {peak / 1e6:.0f} MB" for times, peak in peaks.items())
        figures.append(
            ratio_figure(
                f"memory of a merge of 4 x the rows of a giant key, {mode}",
                peaks[4] / 1e6,
                peaks[1] / 1e6,
                at_most=1.15,
                baseline_name=f"{rows:,} rows",
                unit="MB",
                detail=f"({shown})",
            )
        )
    return figures


def _giant_key_peak_bytes(home: Path, mode: str, rows: int) -> int:
    definition = data.definition("giant", insert_block_rows=rows // GIANT_PARTS)
    definition = msgspec.structs.replace(definition, order_by=("service",), merge_mode=mode)
    with Store.open(embedded(home)) as store:
        store.create_table(definition)
        for number in range(GIANT_PARTS):
            table = data.events(rows // GIANT_PARTS, start=data.START, days=30, seed=number)
            giant = numpy.random.default_rng(number).random(table.num_rows) < GIANT_SHARE
            services = pa.array(numpy.where(giant, "giant", table.column("service").to_numpy()))
            place = table.schema.get_field_index("service")
            store.table(definition.full_name).insert(table.set_column(place, "service", services).to_batches())
    command = [str(Path(sys.executable).with_name("frostline")), "merge", definition.full_name, "--final"]
    peak = run(command, environment={"FROSTLINE_HOME": str(home)}).peak_bytes
    shutil.rmtree(home)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--giant-rows", type=int, default=4_000_000)
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
        giant = giant_key(directory, options.giant_rows)
    detail = f"({options.rows:,} rows; DuckDB used {peaks['duckdb'] / 1e6:.0f} MB)"
    report(
        [
            ratio_figure(f"merge {PARTS} parts", seconds, baseline, at_most=0.8, baseline_name="DuckDB", detail=detail),
            bound_figure(f"memory of merging {PARTS} parts", peaks["ours"] / 1e6, at_most=700, unit="MB"),
            *giant,
        ]
    )


if __name__ == "__main__":
    main()
