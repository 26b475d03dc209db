"""Machines that share one bucket."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from disks.config import ObjectDiskConfig
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store


def machine(tmp_path: Path, name: str) -> Config:
    """A machine of its own; the bucket is shared."""
    config = embedded(tmp_path / name)
    shared = ObjectDiskConfig(url=(tmp_path / "bucket").as_uri() + "/")
    return msgspec.structs.replace(config, disks={**config.disks, "s3": shared})


def insert(store: Store, *values: int) -> None:
    store.refresh()
    store.table("d.t").insert(pa.table({"k": list(values)}).to_batches())
    store.refresh()


def keys(store: Store) -> list[int]:
    store.refresh()
    return sorted(store.query("SELECT k FROM d.t").read_all().column("k").to_pylist())


def move_all(store: Store) -> None:
    store.refresh()
    report = store.apply(store.plan_manual_move("d.t", partition="all", to_disk="s3"))
    assert not report.failed
    store.refresh()
