"""The facade: what programs see when something is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from oplog.errors import Damaged
from tiering.definitions import define_table
from tiering.engine import Store
from tiering.settings import embedded

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
