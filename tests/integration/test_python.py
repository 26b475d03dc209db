"""Programs read one table, whose parts lie on an SSD and on a real S3 server, by the public module: as Arrow, Polars,
pandas and DuckDB see it. All agree, and what a filter excludes is not asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

import frostline
from disks.object_disk.disk import ObjectDisk
from disks.stores.wrappers.metered import MeteredStore
from tests.servers import Server

ROWS = pa.table(
    {
        "day": pa.array([1] * 500 + [2] * 500, pa.int64()),
        "who": ["ann", "bob", None, "eve", "ann"] * 200,
        "value": pa.array(range(1000), pa.int64()),
    }
)


@pytest.fixture(scope="module")
def store(ministack: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[frostline.Store]:
    home = tmp_path_factory.mktemp("python")
    bucket = {
        "type": "object_disk",
        "url": f"s3://{ministack.new_bucket()}/store/",
        "endpoint_url": ministack.endpoint_url,
        "region": "us-east-1",
        "access_key_id": ministack.access_key_id,
        "secret_access_key": ministack.secret_access_key,
    }
    volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
    configuration = {
        "state_path": str(home / "state"),
        "disks": {"ssd": {"type": "local", "path": str(home / "ssd")}, "s3": bucket},
        "policies": {"hot_cold": {"volumes": volumes}},
    }
    file = home / "frostline.yaml"
    file.write_text(yaml.safe_dump(configuration))
    file.chmod(0o600)
    with frostline.open(str(file), actor="a program") as opened:
        columns = ["day:int64", "who:string", "value:int64"]
        opened.create_table(
            frostline.define_table("d.t", columns=columns, order_by="value", partition_by="day", policy="hot_cold")
        )
        assert opened.table("d.t").insert(ROWS.to_batches()).rows == 1000
        moved = opened.apply(opened.plan_manual_move("d.t", partition="2", to_volume="cold"))
        assert not moved.failed
        yield opened


@pytest.fixture
def table(store: frostline.Store) -> frostline.Table:
    return store.table("d.t")


def requests(store: frostline.Store) -> dict[str, int]:
    disk = store.disk("s3")
    assert isinstance(disk, ObjectDisk)
    assert isinstance(disk.store, MeteredStore)
    return dict(disk.store.counts())


def same(found: pa.Table, expected: pa.Table) -> bool:
    return found.select(ROWS.column_names).cast(ROWS.schema).sort_by("value").equals(expected)


def test_all_see_the_same_rows(table: frostline.Table) -> None:
    assert same(table.to_polars().collect().to_arrow(), ROWS)
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert same(pa.Table.from_pandas(frame), ROWS)
    connection = duckdb.connect()
    relation = table.to_duckdb(connection)
    assert same(relation.arrow().read_all(), ROWS)
    relation.create_view("t")
    assert connection.execute("SELECT who, sum(value) FROM t GROUP BY who ORDER BY who").fetchall() == [
        (group["who"], group["value_sum"])
        for group in ROWS.group_by("who").aggregate([("value", "sum")]).sort_by("who").to_pylist()
    ]


def test_polars_is_lazy_and_asks_only_for_what_can_match(store: frostline.Store, table: frostline.Table) -> None:
    before = requests(store)
    lazy = table.to_polars()
    assert isinstance(lazy, polars.LazyFrame)
    hot = lazy.filter(polars.col("day") == 1).select("value").collect()
    assert hot["value"].sum() == sum(range(500))
    assert requests(store) == before, "nothing of the bucket can match"


def test_pandas_takes_the_columns_and_filters_of_a_scan(table: frostline.Table) -> None:
    chosen = [("day", "=", 2), ("who", "=", "eve")]
    frame = table.to_pandas(columns=["value"], filter=chosen)
    expected = ROWS.filter((pc.field("day") == 2) & (pc.field("who") == "eve"))
    assert list(frame.columns) == ["value"]
    assert sorted(frame["value"]) == expected["value"].to_pylist()
    with pytest.raises(frostline.NotFound, match="nope"):
        table.to_pandas(columns=["nope"])


@pytest.mark.parametrize("name", ["polars", "pandas"])
def test_a_library_that_is_not_installed_is_named(
    name: str, table: frostline.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None if wanted == name else found(wanted))
    with pytest.raises(frostline.UsageError, match=f"{name} is not installed") as caught:
        getattr(table, f"to_{name}")()
    assert f"pip install {name}" in caught.value.hint


def test_who_opened_it_is_in_the_log(store: frostline.Store) -> None:
    (newest,) = store.object_disk("s3").entries(limit=1)
    assert newest.commit.actor == "a program"


def test_a_configuration_that_is_not_there_is_an_error_of_usage(tmp_path: Path) -> None:
    with pytest.raises(frostline.UsageError, match="nowhere"):
        frostline.open(tmp_path / "nowhere.yaml")
