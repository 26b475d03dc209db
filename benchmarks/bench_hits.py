"""Queries of one wide table of page views, as analytics ask them, through `Store.query`; against DuckDB, and DataFusion
where it is installed, over one plain Parquet file of the same rows.

    python -m benchmarks.bench_hits [--rows 2000000] [--rounds 3]

After the questions that ClickBench (https://github.com/ClickHouse/ClickBench) asks: counts and sums of everything, the
most frequent of something, distinct ones, patterns in texts, one counter's month. The table and the statements are our
own. In every round all run in turn, and the least of the rounds counts; the goal is the better engine's total.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import numpy
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench_tpch import Seconds, same
from benchmarks.measure import ratio_figure, report, scratch
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.definitions import define_table

BEGIN = datetime(2026, 7, 1, tzinfo=UTC)
DAYS = 31
WORDS = (
    "",
    "",
    "",
    "",
    "",
    "tyres",
    "used boats",
    "weather",
    "train tickets",
    "recipes for leeks",
    "night sky",
    "loft",
)
SITES = ("https://shop.example", "https://news.example", "http://search.example", "https://maps.example", "")
ORDER = "counter,ts"
GOAL = 1.0

QUERIES = (
    "SELECT count(*) AS n FROM hits",
    "SELECT count(*) AS n FROM hits WHERE advert <> 0",
    "SELECT sum(advert) AS a, count(*) AS n, avg(width) AS w FROM hits",
    "SELECT avg(visitor) AS a FROM hits",
    "SELECT count(DISTINCT visitor) AS n FROM hits",
    "SELECT count(DISTINCT phrase) AS n FROM hits",
    "SELECT min(ts) AS a, max(ts) AS b FROM hits",
    "SELECT advert, count(*) AS n FROM hits WHERE advert <> 0 GROUP BY advert ORDER BY n DESC, advert",
    "SELECT region, count(DISTINCT visitor) AS n FROM hits GROUP BY region ORDER BY n DESC, region LIMIT 10",
    "SELECT region, sum(advert) AS a, count(*) AS n, avg(width) AS w, count(DISTINCT visitor) AS v FROM hits "
    "GROUP BY region ORDER BY n DESC, region LIMIT 10",
    "SELECT phrase, count(*) AS n FROM hits WHERE phrase <> '' GROUP BY phrase ORDER BY n DESC, phrase LIMIT 10",
    "SELECT phrase, count(DISTINCT visitor) AS n FROM hits WHERE phrase <> '' GROUP BY phrase ORDER BY n, phrase",
    "SELECT visitor, count(*) AS n FROM hits GROUP BY visitor ORDER BY n DESC, visitor LIMIT 10",
    "SELECT visitor, phrase, count(*) AS n FROM hits GROUP BY visitor, phrase "
    "ORDER BY n DESC, visitor, phrase LIMIT 10",
    "SELECT count(*) AS n FROM hits WHERE visitor = 4242",
    "SELECT count(*) AS n FROM hits WHERE url LIKE '%search%'",
    "SELECT phrase, min(url) AS u, count(*) AS n FROM hits WHERE url LIKE '%shop%' AND phrase <> '' "
    "GROUP BY phrase ORDER BY n DESC, phrase LIMIT 10",
    "SELECT url, visitor, ts FROM hits WHERE url LIKE '%/7/%' ORDER BY ts, visitor, url LIMIT 10",
    "SELECT phrase FROM hits WHERE phrase <> '' ORDER BY ts, visitor, phrase LIMIT 10",
    "SELECT counter, avg(length(url)) AS l, count(*) AS n FROM hits WHERE url <> '' GROUP BY counter "
    "HAVING count(*) > 1000 ORDER BY l DESC, counter LIMIT 25",
    "SELECT " + ", ".join(f"sum(width + {add}) AS w{add}" for add in range(30)) + " FROM hits",
    "SELECT url, count(*) AS n FROM hits GROUP BY url ORDER BY n DESC, url LIMIT 10",
    "SELECT url, count(*) AS n FROM hits WHERE counter = 62 AND ts >= '2026-07-01' AND ts < '2026-08-01' "
    "AND url <> '' GROUP BY url ORDER BY n DESC, url LIMIT 10",
    "SELECT referrer, count(*) AS n FROM hits WHERE counter = 62 AND ts >= '2026-07-10' AND ts < '2026-07-20' "
    "GROUP BY referrer ORDER BY n DESC, referrer LIMIT 10",
    "SELECT date_trunc('hour', ts) AS hour, count(*) AS n FROM hits WHERE counter = 62 AND ts >= '2026-07-14' "
    "AND ts < '2026-07-16' GROUP BY hour ORDER BY hour",
)

Engine = Callable[[str], pa.Table]


def page_views(rows: int) -> pa.Table:
    """The same rows each time, in the order of the table."""
    chance = numpy.random.default_rng(1)
    counter = numpy.minimum(chance.zipf(1.4, rows), 6000)
    seconds = chance.integers(0, DAYS * 86400, rows)
    at = numpy.lexsort((seconds, counter))
    visitor = numpy.minimum(chance.zipf(1.15, rows), 3_000_000)
    site, page = chance.integers(0, len(SITES), rows), numpy.minimum(chance.zipf(1.3, rows), 50_000)
    urls = [
        f"{SITES[one]}/{number % 97}/{number}" if SITES[one] else "" for one, number in zip(site, page, strict=True)
    ]
    began = int(BEGIN.timestamp()) * 1_000_000
    return pa.table(
        {
            "ts": pa.array(began + seconds[at] * 1_000_000, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "counter": pa.array(counter[at], pa.int32()),
            "visitor": pa.array(visitor[at], pa.int64()),
            "url": pa.array(urls, pa.string()),
            "referrer": pa.array([SITES[one] for one in chance.integers(0, len(SITES), rows)], pa.string()),
            "phrase": pa.array([WORDS[one] for one in chance.integers(0, len(WORDS), rows)], pa.string()),
            "region": pa.array(numpy.minimum(chance.zipf(1.5, rows), 900), pa.int32()),
            "advert": pa.array(numpy.where(chance.random(rows) < 0.03, chance.integers(1, 60, rows), 0), pa.int16()),
            "width": pa.array(chance.integers(320, 3840, rows), pa.int16()),
            "height": pa.array(chance.integers(240, 2160, rows), pa.int16()),
            "is_refresh": pa.array(chance.random(rows) < 0.1, pa.bool_()),
            "seconds": pa.array(chance.exponential(40, rows), pa.float32()),
            "title": pa.array([f"Page {number}" for number in page], pa.string()),
        }
    )


def engines(file: Path) -> dict[str, Engine]:
    """By name; each answers about the view `hits`."""
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.execute(f"CREATE VIEW hits AS FROM read_parquet('{file}')")
    found: dict[str, Engine] = {"DuckDB": lambda text: connection.sql(text).to_arrow_table()}
    if find_spec("datafusion") is not None:
        import datafusion

        context: Any = datafusion.SessionContext()
        context.register_parquet("hits", str(file))
        found["DataFusion"] = lambda text: context.sql(text).to_arrow_table()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with scratch() as place, Store.open(embedded(place / "home")) as store:
        views = page_views(options.rows)
        pq.write_table(views, place / "hits.parquet", compression="zstd", row_group_size=131_072)
        store.create_table(define_table("web.hits", like=views.schema, order_by=ORDER, policy="hot_cold"))
        store.table("web.hits").insert(views.to_batches(131_072))
        del views

        def ours(text: str) -> pa.Table:
            return store.query(text.replace("FROM hits", "FROM web.hits")).read_all()

        asked: dict[str, Engine] = {"ours": ours, **engines(place / "hits.parquet")}
        took = {name: [Seconds() for _ in QUERIES] for name in asked}
        for _ in range(options.rounds):
            for number, text in enumerate(QUERIES):
                answers = {name: took[name][number].take(partial(ask, text)) for name, ask in asked.items()}
                assert same(answers["ours"], answers["DuckDB"]), f"other rows: {text}"
    show(took, options.rows)


def show(took: dict[str, list[Seconds]], rows: int) -> None:
    """The totals, against the better of the others."""
    ours, *others = took
    for which in ("cpu", "wall"):
        totals = {name: sum(getattr(one, which) for one in seconds) for name, seconds in took.items()}
        better = min(others, key=totals.__getitem__)
        each = zip(took[ours], took[better], strict=True)
        ratios = (
            f"{number}: {getattr(one, which) / getattr(other, which):.2f}" for number, (one, other) in enumerate(each)
        )
        name = f"{len(QUERIES)} queries of {rows:,} page views, {which}"
        told = "; ".join(f"{other} {totals[other]:.2f}" for other in others)
        figure = ratio_figure(
            *(name, totals[ours], totals[better]),
            at_most=GOAL,
            baseline_name=f"{better}, one plain file",
            detail=f"({told}) {', '.join(ratios)}",
        )
        report([figure])


if __name__ == "__main__":
    main()
