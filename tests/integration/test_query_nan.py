"""NaN is greater than every number, in every way to ask: statistics in Parquet files do not know of it."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest

from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.definitions import define_table


@pytest.mark.parametrize("disk", ["ssd", "s3"])
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_a_row_with_nan_is_found_where_its_neighbours_are_not(tmp_path: Path, kind: str, disk: str) -> None:
    with Store.open(embedded(tmp_path)) as store:
        columns = ["k:int64", f"f:{kind}"]
        options = {"settings": ["row_group_rows=4"], "order_by": "k", "policy": "hot_cold"}
        store.create_table(define_table("d.t", columns=columns, **options))  # type: ignore[arg-type]
        fractions = [math.nan, -5.0, -2.0, -3.0, 1.0, 2.0, None, 3.0, -9.0, -9.0, -9.0, -9.0]
        store.table("d.t").insert(pa.table({"k": range(12), "f": fractions}).to_batches())
        store.apply(store.plan_manual_move("d.t", partition="all", to_disk=disk))
        store.refresh()

        def found(condition: str) -> list[int]:
            rows = store.query(f"SELECT k FROM d.t WHERE {condition} ORDER BY k").read_all()
            return [int(key) for key in rows.column("k").to_pylist()]

        assert found("f > -1.5") == [0, 4, 5, 7]
        assert found("f >= 3") == [0, 7]
        assert found("f > 1000") == [0]
        assert found("f <= -9") == [8, 9, 10, 11]
        assert found("NOT (f < 3)") == [0, 7]
        assert found("isnan(f)") == [0]
        scanned = store.table("d.t").scan(columns=["k"], filter=[("f", ">", 1000.0)]).read_all()
        assert scanned.column("k").to_pylist() == [0]
