"""The facade: what programs see when something is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from oplog.errors import Damaged, Refused
from tiering.config.settings import PolicyConfig, VolumeConfig, embedded
from tiering.engine.store import Store
from tiering.table.definitions import define_table, set_policy

SQL = "SELECT k FROM d.t"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A table of two parts, one of them with a zero-byte `part.json`."""
    with Store.open(embedded(tmp_path)) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        for value in (1, 2):
            store.table("d.t").insert(pa.table({"k": [value]}).to_batches())
        broken = store.parts("d.t")[1]
        (tmp_path / "ssd" / broken.path("part.json")).write_bytes(b"")
        store.refresh()
        yield store


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.query(SQL).read_all(),
        lambda store: store.table("d.t").scan().read_all(),
        lambda store: store.table("d.t").dataset().to_table(),
    ],
    ids=["query", "scan", "dataset"],
)
def test_no_rows_are_left_out_in_silence(store: Store, read: Callable[[Store], pa.Table]) -> None:
    """I15: a part that cannot be read is an error that names it, not a shorter answer."""
    with pytest.raises(Damaged, match=r"all_2_2_0/part\.json is empty"):
        read(store)


def test_rows_of_broken_parts_can_be_left_out_on_demand(store: Store) -> None:
    assert store.query(SQL, skip_broken=True).read_all().column("k").to_pylist() == [1]


def test_a_policy_must_include_the_disks_that_hold_parts(tmp_path: Path) -> None:
    """The engine itself refuses, not only the command line: parts on a disk of no volume would never move again."""
    config = embedded(tmp_path)
    cold = PolicyConfig(volumes=(VolumeConfig(name="cold", disks=("s3",)),))
    config = msgspec.structs.replace(config, policies={**config.policies, "cold": cold})
    with Store.open(config) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        store.table("d.t").insert(pa.table({"k": [1]}).to_batches())
        old = store.definition("d.t")
        with pytest.raises(Refused, match=r"policy cold .* disk ssd"):
            store.alter_table(old, set_policy(old, "cold"))
        assert store.definition("d.t").policy == "hot_cold"
        store.apply(store.plan_manual_move("d.t", partition="all", to_disk="s3"))
        assert store.alter_table(old, set_policy(old, "cold")).policy == "cold"
