"""TPC-H through `Store.query`, against DuckDB over the very same part files, in one process.

    python -m benchmarks.bench_tpch DIR [--queries 1-22] [--rounds 3] [--cold [--server ceph]]

DIR has the tables as Parquet files, which `tpchgen-cli parquet -s 1 --output-dir DIR` makes, and the text of each query
by its number in `queries.json`, such as `SELECT query_nr, query FROM tpch_queries()` of DuckDB gives. The tables go in
by `insert`, as everybody's do. Answers are compared, moments and decimals included. In every round both run in turn,
and in every other round the other one first; the least of the rounds counts, of wall and of processor time: on a
machine with other work only the latter says something. `--cold` has `lineitem` and `orders` in a bucket in a directory,
or of an S3 server, with a read cache: the first figure is one with an empty cache, the second one with a full one, both
against DuckDB over the files in that bucket's place; and how many requests the second one made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import bound_figure, ratio_figure, report, scratch
from restore.rebuild.rebuild import requests_so_far
from tests import servers
from tiering.engine.store import Store
from tiering.table.definitions import define_table

ORDERS = {
    "customer": "c_custkey",
    "lineitem": "l_shipdate,l_orderkey,l_linenumber",
    "nation": "n_nationkey",
    "orders": "o_orderdate,o_orderkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey,ps_suppkey",
    "region": "r_regionkey",
    "supplier": "s_suppkey",
}
_TABLE = re.compile(rf"(\bfrom\s+|\bjoin\s+|,\s*)({'|'.join(ORDERS)})\b", re.IGNORECASE)
COLD = ("lineitem", "orders")
LOCAL_GOALS, COLD_GOAL, WARM_GOAL = (1.1, 1.5), 2.5, 1.1


@dataclass
class Seconds:
    """The least of all rounds."""

    wall: float = float("inf")
    cpu: float = float("inf")

    def take(self, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        answer = work()
        self.wall = min(self.wall, time.perf_counter() - wall)
        self.cpu = min(self.cpu, time.process_time() - cpu)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--queries", default="1-22")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--server", choices=("ceph", "ministack"))
    options = parser.parse_args()
    if options.server and not options.cold:
        parser.error("--server is where --cold has the tables")
    texts = json.loads((options.directory / "queries.json").read_text())
    first, _, last = options.queries.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    chosen = {number: _TABLE.sub(r"\1tpch.\2", texts[str(number)].rstrip().rstrip(";")) for number in numbers}
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        server = stack.enter_context(getattr(servers, options.server)()) if options.server else None
        store = stack.enter_context(filled(place, options.directory, cold=options.cold, server=server))
        engine = over_the_parts(store, place)
        if options.cold:
            where = f" on {options.server}" if options.server else ""
            measure(store, engine, chosen, options.rounds, f"cold{where}", [COLD_GOAL], dropped=True)
            for text in chosen.values():  # before each of them the cache was dropped
                store.query(text).read_all()
            before = requests(store)
            measure(store, engine, chosen, options.rounds, f"warm{where}", [WARM_GOAL])
            made = {verb: count - before.get(verb, 0) for verb, count in requests(store).items()}
            detail = f"({made['LIST']} LIST, for what others committed)"
            name = f"reads of objects in the warm rounds{where}"
            report([bound_figure(name, made["GET"] + made["HEAD"], at_most=0, unit="requests", detail=detail)])
        else:
            measure(store, engine, chosen, options.rounds, "local", LOCAL_GOALS)


@contextmanager
def filled(place: Path, directory: Path, *, cold: bool, server: servers.Server | None = None) -> Iterator[Store]:
    """A store that holds the tables."""
    config = place / "frostline.yaml"
    bucket = {"type": "object_disk", "url": f"{(place / 'bucket').as_uri()}/"}
    if server is not None:
        os.environ.update(server.environment())
        bucket["url"], bucket["endpoint_url"] = f"s3://{server.new_bucket()}/tpch/", server.endpoint_url
    document: dict[str, Any] = {
        "state_path": str(place / "state"),
        "disks": {"ssd": {"type": "local", "path": str(place / "ssd")}, "s3": bucket},
        "policies": {"p": {"volumes": [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]}},
        "read_cache": {"max_bytes": "4GiB"} if cold else {},
    }
    config.write_text(json.dumps(document))
    with Store.open(config) as store:
        for name, order_by in ORDERS.items():
            source = pq.ParquetFile(directory / f"{name}.parquet")
            store.create_table(define_table(f"tpch.{name}", like=source.schema_arrow, order_by=order_by, policy="p"))
            store.table(f"tpch.{name}").insert(source.iter_batches(131_072))
            if cold and name in COLD:
                moves = store.plan_manual_move(f"tpch.{name}", partition="all", to_disk="s3")
                assert not store.apply(moves).failed
        yield store


def over_the_parts(store: Store, place: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with a view of each table's files, which are local; those in the bucket are copied beside it."""
    engine = duckdb.connect()
    engine.execute("SET enable_progress_bar = false")
    engine.execute("CREATE SCHEMA tpch")
    for name in ORDERS:
        paths = []
        for stored in store.parts(f"tpch.{name}"):
            for file in stored.part.files:
                path = place / "ssd" / stored.path(file.name)
                if not path.exists():
                    path = place / "copies" / name / f"{stored.name}-{file.name}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(store.disk(stored.disk).reader(stored.path(file.name))(None))
                paths.append(f"'{path}'")
        engine.execute(f"CREATE VIEW tpch.{name} AS FROM read_parquet([{', '.join(paths)}])")
    return engine


def measure(
    store: Store,
    engine: duckdb.DuckDBPyConnection,
    queries: dict[int, str],
    rounds: int,
    label: str,
    goals: Any,
    *,
    dropped: bool = False,
) -> None:
    ours, theirs = ({number: Seconds() for number in queries} for _ in range(2))
    for turn in range(rounds):
        for number, text in queries.items():
            if dropped:
                drop_cache(store)
            asked: list[tuple[Seconds, Callable[[], pa.Table]]] = [
                (ours[number], lambda: store.query(text).read_all()),  # noqa: B023
                (theirs[number], lambda: engine.sql(text).to_arrow_table()),  # noqa: B023
            ]
            # Who comes second finds the memory that the first one had cleared, of one allocator: half of a large join.
            answers = {}
            for side in (1, 0) if turn % 2 else (0, 1):
                seconds, work = asked[side]
                answers[side] = seconds.take(work)
            assert same(answers[0], answers[1]), f"query {number} has other rows"
    for which in ("cpu", "wall"):
        sums = [sum(getattr(one, which) for one in side.values()) for side in (ours, theirs)]
        ratios = {number: getattr(ours[number], which) / getattr(theirs[number], which) for number in queries}
        worst = max(ratios, key=ratios.__getitem__)
        baseline = "DuckDB on the same files"
        figures = [
            ratio_figure(
                f"TPC-H {label}, {len(queries)} queries, {which}",
                *sums,
                at_most=goals[0],
                baseline_name=baseline,
                detail=", ".join(f"{number}: {ratio:.2f}" for number, ratio in ratios.items()),
            )
        ]
        if len(goals) > 1:
            pair = [getattr(side[worst], which) for side in (ours, theirs)]
            name = f"TPC-H {label}, worst query ({worst}), {which}"
            figures.append(ratio_figure(name, *pair, at_most=goals[1], baseline_name=baseline))
        report(figures)


def requests(store: Store) -> dict[str, int]:
    """What was asked of the bucket so far, by verb."""
    return requests_so_far(store.object_disks()[0].store)


def drop_cache(store: Store) -> None:
    from tiering.query.checked_parts import read_cache

    cache = read_cache(store.context.config)
    if cache is not None:
        cache.drop()
        cache.close()


def same(answer: pa.Table, expected: pa.Table) -> bool:
    """The same rows in the same order; floats to twelve digits."""
    return [*map(plain, answer.to_pylist())] == [*map(plain, expected.to_pylist())]


def plain(row: dict[str, Any]) -> list[Any]:
    return [float(f"{value:.12g}") if isinstance(value, float) else value for value in row.values()]


if __name__ == "__main__":
    main()
