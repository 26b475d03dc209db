"""A full scan and a 1 % range query over cold parts in S3, against Polars reading the same objects directly.

Timed twice in fresh processes: from the statement to the last row with all imports before the clock, and the whole
process. Ours includes looking for what other writers committed. Polars is the peer because DuckDB reads S3 only with an
extension that it downloads.
"""

from __future__ import annotations

import argparse
import json
import uuid
from pathlib import Path
from statistics import median

from benchmarks.measure import paired, python, ratio_figure, report, scratch
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

SQL = "SELECT count(*), sum(latency_ms), max(size), max(trace) FROM bench.scanned"
RANGE = ("2026-02-10T00:00:00", "2026-02-10T21:36:00")
"""0.9 of 90 days: one percent of the rows."""


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
    options = parser.parse_args()
    with {"ministack": ministack, "ceph": ceph}[options.server]() as server, scratch() as directory:
        environment = server.environment()
        config = _config(directory, f"s3://{server.new_bucket()}/{uuid.uuid4().hex}/", environment["AWS_ENDPOINT_URL"])
        python(FILL, str(config), str(options.rows), environment=environment)
        urls = json.loads(python(URLS, str(config), environment=environment).output)
        shapes = (("full scan", "", ("", "")), ("1 % range", f" WHERE ts >= '{RANGE[0]}' AND ts < '{RANGE[1]}'", RANGE))
        for label, where, bounds in shapes:
            ours = Contender([OURS, str(config), SQL + where], environment)
            polars = Contender([POLARS, json.dumps(urls), *bounds], environment)
            seconds, baseline = paired(ours, polars, rounds=options.rounds)
            assert ours.rows == polars.rows, (ours.rows, polars.rows)
            name = f"{label} over {len(urls)} cold files ({options.server})"
            most = 1.1 if where else 1.0
            whole = ratio_figure(
                f"{name}, whole process", median(ours.whole), median(polars.whole), at_most=most, baseline_name="Polars"
            )
            detail = f"({ours.rows} rows)"
            report([ratio_figure(name, seconds, baseline, at_most=most, baseline_name="Polars", detail=detail), whole])


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
"""

URLS = """
import sys, json
from pathlib import Path
from tiering.engine.store import Store
with Store.open(Path(sys.argv[1])) as store:
    files = [(store.disk(part.disk), part.path(file.name)) for part in store.parts() for file in part.part.files]
    print(json.dumps([disk.location(path).url for disk, path in files]))
"""


if __name__ == "__main__":
    main()
