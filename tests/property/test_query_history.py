"""Random work on a table, and then `query --revision`, undo and a rebuild give the rows that were recorded.

Guards I1, I7, I13 and P37, P38, P42.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from disks.object_disk import ObjectDisk
from oplog.errors import Refused
from restore.rebuild import restore
from restore.undo import undo
from tests.servers import Server
from tiering.definitions import define_table
from tiering.engine import Store
from tiering.settings import Config, embedded
from tiering.settings import load as load_config

SQL = "SELECT k, p FROM d.t ORDER BY k"
Rows = list[tuple[int, int]]


def rows(store: Store, revision: int | None = None, table: str = "t") -> Rows:
    found = store.query(SQL.replace("d.t", f"d.{table}"), revision=revision).read_all()
    return sorted(zip(found.column("k").to_pylist(), found.column("p").to_pylist(), strict=True))


def insert(store: Store, dice: random.Random, start: int, table: str = "t") -> None:
    batch = pa.table({"k": range(start, start + 3), "p": [dice.randrange(3) for _ in range(3)]})
    store.table(f"d.{table}").insert(batch.to_batches())
    to_bucket(store)


def to_bucket(store: Store) -> None:
    """Everything is cold: what the bucket holds is then the whole table."""
    for name in ("d.t", "d.u"):
        moves = store.plan_manual_move(name, disk="s3")
        store.apply(moves.moves if hasattr(moves, "moves") else moves)


def cold(store: Store) -> ObjectDisk:
    return store.object_disk("s3")
