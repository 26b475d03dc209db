"""A full scan and a 1 % range query over cold parts in S3, against Polars reading the same objects directly.

Timed twice in fresh processes: from the statement to the last row with all imports before the clock, and the whole
process. Ours includes looking for what other writers committed. Polars is the peer because DuckDB reads S3 only with an
extension that it downloads. `--delay-ms 20` does the same over a line on which each request takes so much longer.

Beside the times: the requests, and the bytes that were fetched against the bytes of the column chunks that are needed;
and `--point-parts N`: one key of N parts, given to Polars as the one file that has it.
"""

from __future__ import annotations

import argparse
import json
import uuid
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from benchmarks.measure import paired, python, ratio_figure, report, scratch
from tests.broken_line import line_to
from tests.servers import ceph, ministack

POLARS = """
import polars as pl, sys, json, os, time
urls, first, last = json.loads(sys.argv[1]), *sys.argv[2:]
options = {"aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
 "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"], "aws_region": "us-east-1", "aws_allow_http": "true"}
start = time.perf_counter()
frame = pl.scan_parquet(urls, storage_options=options)
if first:
    low, high = (pl.lit(bound).str.to_datetime(time_zone="UTC") for bound in (first, last))
    frame = frame.filter((pl.col("ts") >= low) & (pl.col("ts") < high))
rows = frame.select(pl.len(), pl.col("latency_ms").sum(), pl.col("size").max(), pl.col("trace").max()).collect()
print(time.perf_counter() - start, rows.row(0)[0])
"""

OURS = """
import sys, time
from pathlib import Path
from tiering.cli.frame import process
process.set_up()
from tiering.engine.store import Store
from tiering.query import query
with Store.open(Path(sys.argv[1])) as store:
    start = time.perf_counter()
    store.refresh()
    ((rows,),) = ([row[:1] for row in part] for part in store.query(sys.argv[2]).plain_rows())
    print(time.perf_counter() - start, rows[0])
"""

READ = """
import sys, json
from pathlib import Path
from tiering.engine.store import Store
from tiering.parquet.sections import stated_sections
from tiering.query.sql import cold_reads
needed = []
cold_read = cold_reads.cold_read
def noted(selected, file, leaves, groups, *more):
    chosen = [one for one in file.sections if one.column in leaves and (groups is None or one.group in groups)]
    needed.append(sum(one.stop - one.start for one in chosen))
    return cold_read(selected, file, leaves, groups, *more)
cold_reads.cold_read = noted
with Store.open(Path(sys.argv[1])) as store:
    result = store.query(sys.argv[2])
    rows = list(result.plain_rows())
    print(json.dumps({"requests": result.requests, "fetched": result.bytes_fetched, "needed": sum(needed)}))
"""

POLARS_POINT = """
import polars as pl, sys, os, time
url, key = sys.argv[1], int(sys.argv[2])
options = {"aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
 "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"], "aws_region": "us-east-1", "aws_allow_http": "true"}
start = time.perf_counter()
frame = pl.scan_parquet(url, storage_options=options).filter(pl.col("k") == key)
rows = frame.select(pl.len(), pl.col("v").sum(), pl.col("v").max().alias("most"), pl.col("w").max()).collect()
print(time.perf_counter() - start, rows.row(0)[0])
"""

SQL = "SELECT count(*), sum(latency_ms), max(size), max(trace) FROM {}"
RANGE = ("2026-02-10T00:00:00", "2026-02-10T21:36:00")
"""0.9 of 90 days: one percent of the rows."""
WHERE = f" WHERE ts >= '{RANGE[0]}' AND ts < '{RANGE[1]}'"
POINT_ROWS = 2_000
"""Of each part of the many."""


class Contender:
    """A script that prints the seconds of its query and the rows it found."""

    def __init__(self, script: list[str], environment: dict[str, str]) -> None:
        self.script = script
        self.environment = environment
        self.rows = ""
        self.whole: list[float] = []

    def __call__(self) -> float:
        result = python(*self.script, environment=self.environment)
        seconds, self.rows = result.output.split()
        self.whole.append(result.seconds)
        return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--server", choices=["ministack", "ceph"], default="ceph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--point-parts", type=int, default=0)
    options = parser.parse_args()
    with {"ministack": ministack, "ceph": ceph}[options.server]() as server, scratch() as directory:
        environment = server.environment()
        config = _config(directory, f"s3://{server.new_bucket()}/{uuid.uuid4().hex}/", environment["AWS_ENDPOINT_URL"])
        python(FILL, str(config), str(options.rows), str(options.point_parts), environment=environment)
        urls = json.loads(python(URLS, str(config), "bench.scanned", environment=environment).output)
        delay_seconds = options.delay_ms / 1000
        with line_to(server.endpoint_url, delay_seconds=delay_seconds) if delay_seconds else nullcontext() as line:
            name = f"{len(urls)} cold files ({options.server}" + (
                f", {options.delay_ms:g} ms a request)" if line else ")"
            )
            if line is not None:
                environment = {**environment, "AWS_ENDPOINT_URL": line.endpoint_url}
                _config(directory, _url_of(config), line.endpoint_url)
            for label, where, bounds in (("full scan", "", ("", "")), ("1 % range", WHERE, RANGE)):
                ours = Contender([OURS, str(config), SQL.format("bench.scanned") + where], environment)
                polars = Contender([POLARS, json.dumps(urls), *bounds], environment)
                most = 0.8 if line is not None else 1.1 if where else 1.0
                _compare(f"{label} over {name}", ours, polars, rounds=options.rounds, at_most=most)
                read = json.loads(
                    python(READ, str(config), SQL.format("bench.scanned") + where, environment=environment).output
                )
                figure = ratio_figure(
                    f"{label} over {name}, bytes", read["fetched"], read["needed"], at_most=1.1, baseline_name="needed",
                    unit="B", detail=f"({read['requests']} requests)",
                )  # fmt: skip
                report([figure])
            if options.point_parts:
                _point(config, environment, options, f"{options.point_parts} cold parts ({options.server})")


def _point(config: Path, environment: dict[str, str], options: argparse.Namespace, name: str) -> None:
    """One key of many parts, each of which has its own range of keys."""
    key = options.point_parts // 2 * POINT_ROWS + 7
    sql = f"SELECT count(*), sum(v), max(v), max(w) FROM bench.points WHERE k = {key}"
    urls = json.loads(python(URLS, str(config), "bench.points", environment=environment).output)
    ours = Contender([OURS, str(config), sql], environment)
    polars = Contender([POLARS_POINT, urls[options.point_parts // 2], str(key)], environment)
    _compare(f"one key of {name}", ours, polars, rounds=options.rounds, at_most=0.8 if options.delay_ms else 1.3)
    read = json.loads(python(READ, str(config), sql, environment=environment).output)
    print(f"one key of {name}: {read['requests']} requests; goal at most 3")


def _compare(name: str, ours: Contender, polars: Contender, *, rounds: int, at_most: float) -> None:
    seconds, baseline = paired(ours, polars, rounds=rounds)
    assert ours.rows == polars.rows, (ours.rows, polars.rows)
    detail = f"({ours.rows} rows)"
    whole = median(ours.whole), median(polars.whole)
    report(
        [
            ratio_figure(name, seconds, baseline, at_most=at_most, baseline_name="Polars", detail=detail),
            ratio_figure(f"{name}, whole process", *whole, at_most=at_most, baseline_name="Polars"),
        ]
    )


def _url_of(config: Path) -> str:
    url: str = json.loads(config.read_text())["disks"]["s3"]["url"]
    return url


def _config(directory: Path, url: str, endpoint: str) -> Path:
    path = directory / "frostline.yaml"
    disks = {"ssd": {"type": "local", "path": str(directory / "ssd")}, "s3": {"type": "object_disk", "url": url}}
    disks["s3"]["endpoint_url"] = endpoint
    volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
    document = {"state_path": str(directory / "state"), "disks": disks, "policies": {"hot_cold": {"volumes": volumes}}}
    path.write_text(json.dumps(document))
    return path


FILL = """
import sys
from pathlib import Path
from benchmarks import data
from tiering.engine.store import Store
from tiering.table.schema import PartitionField
rows = int(sys.argv[2])
definition = data.definition("scanned", partition_by=(PartitionField("month", "ts"),))
with Store.open(Path(sys.argv[1])) as store:
    store.create_table(definition)
    rows = data.events(rows, start=data.START, days=90)
    store.table(definition.full_name).insert(rows.to_batches(max_chunksize=100_000))
    for partition in sorted({part.name.partition for part in store.parts()}):
        store.apply(store.plan_manual_move(definition.full_name, partition=partition, to_disk="s3"))
    if parts := int(sys.argv[3]):
        import pyarrow as pa
        from tiering.table.definitions import define_table
        columns = ["k:int64", "v:int64", "w:string"]
        points = define_table("bench.points", columns=columns, order_by="k", policy="hot_cold")
        store.create_table(points)
        for start in range(0, parts * 2000, 2000):
            keys = range(start, start + 2000)
            rows = {"k": keys, "v": [key * 7919 % 10007 for key in keys], "w": [f"{key:x}" for key in keys]}
            store.table(points.full_name).insert(pa.table(rows).to_batches())
        store.apply(store.plan_manual_move(points.full_name, partition="all", to_disk="s3"))
"""

URLS = """
import sys, json
from pathlib import Path
from tiering.engine.store import Store
with Store.open(Path(sys.argv[1])) as store:
    parts = [part for part in store.parts() if part.definition.full_name == sys.argv[2]]
    parts.sort(key=lambda part: part.name.min_block)
    files = [(store.disk(part.disk), part.path(file.name)) for part in parts for file in part.part.files]
    print(json.dumps([disk.location(path).url for disk, path in files]))
"""


if __name__ == "__main__":
    main()
