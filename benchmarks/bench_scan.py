"""A full scan and a 1 % range query over cold parts in S3, against Polars and DuckDB reading the same objects directly.

DuckDB reads S3 only with an extension that it downloads; where that is missing, Polars is the peer.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import paired, python, ratio_figure, report, run, scratch
from tests.servers import ceph, ministack

POLARS = """
import polars as pl, sys, json, os
urls, first, last = json.loads(sys.argv[1]), *sys.argv[2:]
options = {"aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
 "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"], "aws_region": "us-east-1", "aws_allow_http": "true"}
frame = pl.scan_parquet(urls, storage_options=options)
if first:
    low, high = (pl.lit(bound).str.to_datetime(time_zone="UTC") for bound in (first, last))
    frame = frame.filter((pl.col("ts") >= low) & (pl.col("ts") < high))
print(frame.select(pl.len(), pl.col("latency_ms").sum(), pl.col("size").max(), pl.col("trace").max()).collect())
"""

SQL = "SELECT count(*), sum(latency_ms), max(size), max(trace) FROM bench.scanned"
RANGE = ("2026-02-10T00:00:00", "2026-02-10T21:36:00")
"""0.9 of 90 days: one percent of the rows."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--server", choices=["ministack", "ceph"], default="ceph")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with {"ministack": ministack, "ceph": ceph}[options.server]() as server, scratch() as directory:
        environment = server.environment()
        config = _config(directory, f"s3://{server.new_bucket()}/{uuid.uuid4().hex}/", environment["AWS_ENDPOINT_URL"])
        command = [str(Path(sys.executable).with_name("frostline")), "-c", str(config), "--json"]
        python(FILL, str(config), str(options.rows), environment=environment)
        urls = json.loads(python(URLS, str(config), environment=environment).output)
        figures = []
        for label, where, bounds in (
            ("full scan", "", ("", "")),
            ("1 % range", f" WHERE ts >= '{RANGE[0]}' AND ts < '{RANGE[1]}'", RANGE),
        ):
            ours = _timed([*command, "query", SQL + where], environment)
            seconds, baseline = paired(
                ours,
                lambda bounds=bounds: python(POLARS, json.dumps(urls), *bounds, environment=environment).seconds,
                rounds=options.rounds,
            )
            name = f"{label} over {len(urls)} cold files ({options.server})"
            figures.append(ratio_figure(name, seconds, baseline, at_most=1.2, baseline_name="Polars"))
        report(figures)


def _timed(command: list[str], environment: dict[str, str]) -> Callable[[], float]:
    return lambda: run(command, environment=environment).seconds


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
from tiering.engine import Store
from tiering.schema import PartitionField
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
from tiering.engine import Store
with Store.open(Path(sys.argv[1])) as store:
    files = [(store.disk(part.disk), part.path(file.name)) for part in store.parts() for file in part.part.files]
    print(json.dumps([disk.location(path).url for disk, path in files]))
"""


if __name__ == "__main__":
    main()
