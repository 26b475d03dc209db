"""`make bench`: every figure in turn, each in a process of its own, and the table of all of them at the end."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

BENCHMARKS = {
    "bench_help": False,
    "bench_catalog": False,
    "bench_steady": False,
    "bench_open": False,
    "bench_rebuild": False,
    "bench_http": True,
    "bench_log": False,
    "bench_check": False,
    "bench_gc": False,
    "bench_gc_logs": True,
    "bench_clickhouse": True,
    "bench_insert": True,
    "bench_insert_json": True,
    "bench_inbox": True,
    "bench_daemon": False,
    "bench_pass": False,
    "bench_landing": False,
    "bench_publish": False,
    "bench_merge": True,
    "bench_scan": True,
    "bench_hits": True,
    "bench_move": True,
    "bench_backup": True,
    "bench_writers": True,
    "bench_replicas": False,
    "bench_zero_copy": False,
    "bench_marks": True,
    "bench_dashboard": True,
    "bench_spark_checks": False,
    "bench_spark_ingest": True,
    "bench_spark_merge": True,
    "bench_spark_reader": True,
    "bench_spark_streams": True,
}
"""In their order; whether each runs everyone in turn several times. The others repeat by themselves what is short."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="run these alone")
    parser.add_argument("--rounds", type=int, help="of each: fewer take less time and say less")
    options = parser.parse_args()
    figures: list[dict[str, object]] = []
    broken: list[str] = []
    for name in options.only or BENCHMARKS:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if options.rounds and BENCHMARKS[name]:
            command += ["--rounds", str(options.rounds)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        figures += [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        if process.returncode:
            broken.append(name)
    print_table(figures)
    for name in broken:
        print(f"{name} did not run to its end", file=sys.stderr)
    return 1 if broken else 0


def print_table(figures: list[dict[str, object]]) -> None:
    """Name, figure, ratio to what was measured beside it, goal, and whether it was met."""
    rows = [("figure", "value", "ratio", "goal", "")]
    for figure in figures:
        ratio = f"{figure['ratio']} x {figure['baseline_name']}" if figure["ratio"] is not None else ""
        met = "met" if figure["met"] else "missed"
        rows.append((str(figure["name"]), f"{figure['value']:.3g} {figure['unit']}", ratio, str(figure["goal"]), met))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    print("\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
