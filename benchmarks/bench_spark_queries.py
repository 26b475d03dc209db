"""Queries of TPC-H with `spark_tiering.sql`, against Spark's own reader on the source files, in one session.

    python -m benchmarks.bench_spark_queries DIR [--queries 1,3,…] [--native auto never] [--workers N]

DIR has the tables as Parquet files, and the text of each query by its number in `queries.json`. DuckDB makes both:
`call dbgen(sf = 0.1)`, `copy lineitem to 'DIR/lineitem.parquet'` and so on, and `from tpch_queries()`. The store is a
directory bucket, the session one of `local[2]`, or of a standalone cluster whose workers see the same directories.
Answers are compared; in every round both run in turn.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import spark_tiering
from benchmarks import spark_data
from benchmarks.bench_spark_reader import master_of, start
from benchmarks.measure import paired, ratio_figure, report, scratch, timed
from tiering.engine.store import Store
from tiering.table.columns.type_texts import type_text
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_tiering.queries.native import Native

ORDERS = {
    "customer": ("c_custkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
    "nation": ("n_nationkey",),
    "orders": ("o_orderkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "region": ("r_regionkey",),
    "supplier": ("s_suppkey",),
}
TEN = "1,3,4,5,6,10,12,14,18,19"
GOALS: dict[str, float] = {"auto": 1.1, "never": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--queries", default=TEN)
    parser.add_argument("--native", nargs="+", choices=("auto", "never"), default=["auto", "never"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="of a standalone cluster, instead of local[2]")
    options = parser.parse_args()
    with ExitStack() as stack:
        config = spark_data.configuration(stack.enter_context(scratch()))
        fill(config, options.directory)
        session = start(recommended=True, master=stack.enter_context(master_of(options.workers)))
        stack.callback(session.stop)
        texts = json.loads((options.directory / "queries.json").read_text())
        chosen = {int(number): texts[number].rstrip().rstrip(";") for number in options.queries.split(",")}
        measure(session, config, options.directory, chosen, options.native, options.rounds)


def fill(config: Path, directory: Path) -> None:
    """Each table, sorted by its key, in one part."""
    with Store.open(config) as store:
        for number, (name, order_by) in enumerate(ORDERS.items()):
            rows = pq.read_table(directory / f"{name}.parquet")
            columns = tuple(
                Column(place, field.name, type_text(field.type), nullable=False)
                for place, field in enumerate(rows.schema, 1)
            )
            definition = TableDefinition(
                uuid=f"5f0e8b1c-0000-4000-8000-0000000020{number:02d}",
                database="tpch",
                name=name,
                columns=columns,
                order_by=order_by,
                policy="cold",
                last_column_id=len(columns),
            )
            store.create_table(definition)
            store.table(definition.full_name).insert(rows.to_batches())


def measure(
    session: SparkSession, config: Path, directory: Path, queries: dict[int, str], ways: list[Native], rounds: int
) -> None:
    for name in ORDERS:
        session.read.parquet(str(directory / f"{name}.parquet")).createOrReplaceTempView(name)
    totals: dict[Native, list[float]] = {way: [0.0, 0.0] for way in ways}
    for number, text in queries.items():
        named = re.sub(rf"\b({'|'.join(ORDERS)})\b", r"tpch.\1", text)
        for way in ways:
            given: dict[str, Any] = {"config": config, "native": way, "local_disks": "shared"}
            ours = collected(lambda: spark_tiering.sql(session, named, **given))  # noqa: B023
            theirs = collected(lambda: session.sql(text))  # noqa: B023
            assert ours() == theirs(), f"query {number} has other rows"
            seconds, baseline = paired(lambda: timed(ours), lambda: timed(theirs), rounds=rounds)  # noqa: B023
            totals[way] = [totals[way][0] + seconds, totals[way][1] + baseline]
            _report(f"TPC-H {number}, native={way}", seconds, baseline, way)
    for way, (seconds, baseline) in totals.items():
        _report(f"TPC-H, {len(queries)} queries, native={way}", seconds, baseline, way)


def collected(frame: Callable[[], Any]) -> Callable[[], list[Any]]:
    return lambda: sorted(map(_plain, frame().collect()))


def _plain(row: Any) -> str:
    return repr([round(value, 6) if isinstance(value, float) else value for value in row])


def _report(name: str, seconds: float, baseline: float, way: Native) -> None:
    report([ratio_figure(name, seconds, baseline, at_most=GOALS[way], baseline_name="Spark's Parquet reader")])


if __name__ == "__main__":
    main()
