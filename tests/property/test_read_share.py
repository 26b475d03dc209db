"""What a task of Spark reads after pruning by partitions, statistics and sparse index: the rows it should (I15).

Random tables whose leading key has nulls, not-a-numbers, long texts and few or many values, in small row groups, and
random filters on all columns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from spark_tiering.arrow_types import carried_schema
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.reader import Projection, read_share
from spark_tiering.reading.scan_planning import plan_scan
from tests.spark.stores import table
from tiering.engine.store import Store
from tiering.table.columns.types import arrow_schema
from tiering.table.schema import PartitionField, TableDefinition

pytestmark = pytest.mark.in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
LONG = "x" * 70
KINDS = {"s": "string", "f": "float64", "i": "int32", "t": "timestamp[us, UTC]", "m": "timestamp[ms]"}


def value(random_: random.Random, column: str) -> Any:
    if random_.random() < 0.1:
        return None
    match column:
        case "s":
            return random_.choice(["", "a", "ab", "b", LONG, LONG + "a", LONG + "b", "z"])
        case "f":
            return random_.choice([float("nan"), float("-inf"), -1.5, 0.0, 2.0, 1e300])
        case "i":
            return random_.randrange(-5, 30)
        case "t":
            return START + timedelta(hours=random_.randrange(60))
        case _:
            return (START + timedelta(hours=random_.randrange(60))).replace(tzinfo=None)


def literal(random_: random.Random, column: str) -> str:
    while (found := value(random_, column)) is None or found != found or found in (float("-inf"),):
        continue
    match column:
        case "s":
            return "'" + str(found) + "'"
        case "t":
            return f"'{found.isoformat()}'"
        case "m":
            return f"'{found.isoformat()}'"
        case _:
            return repr(found)


def condition(random_: random.Random) -> str:
    pieces = []
    for _ in range(random_.randrange(1, 4)):
        column = random_.choice(list(KINDS))
        kind = random_.randrange(6)
        if kind == 0:
            pieces.append(f"{column} is {random_.choice(['', 'not '])}null")
        elif kind == 1:
            values = ", ".join(literal(random_, column) for _ in range(random_.randrange(1, 5)))
            pieces.append(f"{column} {random_.choice(['', 'not '])}in ({values})")
        elif kind == 2 and column == "s":
            pieces.append(f"s {random_.choice(['', 'not '])}like '{random_.choice(['a', 'x', LONG])}%'")
        else:
            operator = random_.choice(["=", "<>", "<", "<=", ">", ">="])
            pieces.append(f"{column} {operator} {literal(random_, column)}")
    joined = f" {random_.choice(['and', 'or'])} ".join(f"({piece})" for piece in pieces)
    return f"not ({joined})" if random_.random() < 0.2 else joined


@pytest.fixture(scope="module", params=["s", "f", "i", "t"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """A table sorted by the column first, of a few parts of many row groups."""
    random_ = random.Random(request.param)
    home = tmp_path_factory.mktemp("shares")
    file = home / "frostline.yaml"
    file.write_text(
        f"state_path: {home}/state\ndisks: {{s3: {{type: object_disk, url: 'file://{home}/bucket/'}}}}\n"
        "policies: {tiers: {volumes: [{name: cold, disks: [s3]}]}}\n"
    )
    columns = {"n": "int64", **KINDS}
    definition = table("db.t", columns, [request.param, "n"], PartitionField("day", "t"), row_group_rows=7)
    with Store.open(file) as opened:
        opened.create_table(definition)
        for part in range(3):
            rows = {name: [value(random_, name) for _ in range(60)] for name in KINDS}
            schema = pa.schema([field.remove_metadata() for field in arrow_schema(definition)])
            numbers = list(range(part * 60, part * 60 + 60))
            opened.table("db.t").insert(pa.table({"n": numbers, **rows}, schema).to_batches())
        yield opened, file


@pytest.mark.parametrize("seed", range(2))
def test_the_rows_of_all_shares_are_those_of_the_query(store: tuple[Store, Path], seed: int) -> None:
    opened, file = store
    random_ = random.Random(seed)
    definition = opened.definition("db.t")
    # All rows in memory: nothing is pruned there.
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    engine.register("given", opened.query("SELECT * FROM db.t").read_all())
    engine.execute("CREATE TABLE whole AS FROM given")
    pruned = 0
    for _ in range(20):
        wanted = condition(random_)
        expected = [row[0] for row in engine.execute(f"SELECT n FROM whole WHERE {wanted}").fetchall()]
        options = ReadOptions("db.t", file, filter=wanted, partition_bytes=random_.choice([1, 1 << 20]))
        found, groups = _read(definition, options)
        assert sorted(found) == sorted(expected), wanted
        pruned += groups < 30
    assert pruned  # else nothing was tried


def _read(definition: TableDefinition, options: ReadOptions) -> tuple[list[int], int]:
    scan = plan_scan(options)
    wanted = Projection(definition, ("n",), carried_schema([definition.column("n")]), scan.predicate)
    rows: list[int] = []
    groups = 0
    for share in scan.shares:
        groups += sum(len(piece.row_groups or ()) for piece in share)
        for batch in read_share(share, wanted, scan.until):
            rows += batch.column("n").to_pylist()
    return rows, groups
