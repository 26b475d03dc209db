"""Insert nested JSON lines, packed with gzip, against DuckDB writing the same rows as sorted, zstd Parquet.

python -m benchmarks.bench_insert_json [--rows 1000000] [--rounds 3]     3,300,000 rows are 1 GB of text
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import sys
import uuid
from pathlib import Path

from benchmarks.measure import paired, python, ratio_figure, report, run, scratch

DUCKDB = """
import duckdb, sys
source, target = sys.argv[1:]
duckdb.sql("SET threads = 2; SET preserve_insertion_order = true")
duckdb.sql(f"COPY (SELECT * FROM read_json('{source}') ORDER BY service, ts) "
    f"TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 131072)")
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with scratch() as directory:
        source = directory / "requests.jsonl.gz"
        text_bytes = _write(source, options.rows)

        def ours() -> float:
            home = directory / uuid.uuid4().hex
            environment = {"FROSTLINE_HOME": str(home)}
            frostline = str(Path(sys.executable).with_name("frostline"))
            create = ["table", "create", "logs.requests", "--like", str(source), "--order-by", "service,ts"]
            run([frostline, *create, "--partition-by", "month(ts)"], environment=environment)
            result = run([frostline, "--json", "insert", "logs.requests", str(source)], environment=environment)
            assert json.loads(result.output)["rows"] == options.rows
            shutil.rmtree(home)
            return result.seconds

        def duckdb() -> float:
            target = directory / f"{uuid.uuid4().hex}.parquet"
            result = python(DUCKDB, str(source), str(target))
            target.unlink()
            return result.seconds

        seconds, baseline = paired(ours, duckdb, rounds=options.rounds)
    report(
        [
            ratio_figure(
                f"insert {text_bytes / 1e9:.1f} GB of nested JSON lines with gzip",
                seconds,
                baseline,
                baseline_name="DuckDB",
                at_most=1.2,
                detail=f"{options.rows:,} rows",
            )
        ]
    )


def _write(path: Path, rows: int) -> int:
    """A day of requests as a web server logs them; returns the bytes of text."""
    chance, written = random.Random(20), 0
    with gzip.open(path, "wb", 6) as stream:
        for number in range(rows):
            second = number * 86_400 // rows
            at = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{chance.randrange(10**6):06d}"
            record = {
                "ts": f"2026-03-01T{at}Z",
                "level": chance.choice(("info", "warn", "error")),
                "service": chance.choice(("api", "web", "db", "cache")),
                "message": f"user {chance.randrange(10**6)} waited {chance.randrange(1000)} ms",
                "request": {
                    "id": f"{chance.getrandbits(64):016x}",
                    "path": f"/v1/items/{chance.randrange(10_000)}",
                    "status": chance.choice((200, 200, 200, 404, 500)),
                    "client": {"ip": f"10.0.{chance.randrange(256)}.{chance.randrange(256)}", "agent": "Mozilla/5.0"},
                },
                "tags": ["a", f"b{chance.randrange(9)}"],
                "duration_ms": chance.random() * 100,
            }
            written += stream.write(json.dumps(record).encode() + b"\n")
    return written


if __name__ == "__main__":
    main()
