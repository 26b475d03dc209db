"""Random work on tables, and then `query --revision`, a rebuild and a way back give the rows that were recorded.

Guards I1, I7, I13 and P37, P38, P42.
"""

from __future__ import annotations

import random
import shutil
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from disks.object_disk.disk import ObjectDisk
from oplog.errors import Refused
from restore.history.undo import undo
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.keeping import keeping
from tests.servers import Server
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table

pytestmark = pytest.mark.in_turn

Rows = list[tuple[int, int]]
TABLES = ("d.t", "d.u")


@pytest.fixture(params=["directory", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    found = embedded(tmp_path)
    if request.param == "directory":
        return found
    server: Server = request.getfixturevalue("s3_environment")
    cold = msgspec.structs.replace(found.disks["s3"], url=f"s3://{server.new_bucket()}/store/")
    return msgspec.structs.replace(found, disks={**found.disks, "s3": cold})


def rows(store: Store, table: str, revision: int | None = None) -> Rows:
    found = store.query(f"SELECT k, p FROM {table}", revision=revision).read_all()
    return sorted(zip(found.column("k").to_pylist(), found.column("p").to_pylist(), strict=True))


def cold(store: Store) -> ObjectDisk:
    return store.object_disk("s3")


def step(store: Store, dice: random.Random, number: int, undoable: list[int]) -> None:
    """One piece of work, after which everything lies in the bucket: what that holds is then all there is."""
    table = dice.choice(TABLES)
    match dice.randrange(7):
        case 0 if undoable:
            try:
                undo(store.context, cold(store), undoable.pop(dice.randrange(len(undoable))))
            except Refused:
                pass  # later work depends on it
        case 1:
            store.merge(table, MergeRequest(final=True))
        case 2:
            cold(store).write_snapshot()
        case 3:
            revision = dice.randrange(2, cold(store).revision + 1)
            scope = [store.definition(table).directory] if dice.randrange(2) else None
            restore(cold(store), RebuildRequest(revision=revision, paths=scope or (), apply=True))
            store.refresh()
        case _:
            batch = pa.table({"k": range(number * 10, number * 10 + 3), "p": [dice.randrange(2) for _ in range(3)]})
            store.table(table).insert(batch.to_batches())
    for name in TABLES:
        moves = [
            move
            for part in store.parts(name)
            if part.disk != "s3"
            for move in store.plan_manual_move(name, part=str(part.name), to_disk="s3")
        ]
        if moves:
            assert not store.apply(moves).failed
            undoable.append(cold(store).revision)


@pytest.mark.parametrize("seed", range(2))
def test_every_revision_gives_the_rows_it_had(config: Config, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    recorded: dict[int, dict[str, Rows]] = {}
    with ExitStack() as stack:
        if seed:  # what the past has in common with what is kept is not read again
            stack.enter_context(keeping())
        store = stack.enter_context(Store.open(config))
        for name in TABLES:
            columns = ["k:int64", "p:int64"]
            table = define_table(name, columns=columns, order_by="k", partition_by="p", policy="hot_cold")
            store.create_table(table)
        undoable: list[int] = []
        for number in range(14):
            step(store, dice, number, undoable)
            recorded[cold(store).revision] = {name: rows(store, name) for name in TABLES}
        assert len(recorded) > 8
        assert any(len(entry["d.t"]) > 0 for entry in recorded.values())
        check(store, recorded)
    shutil.rmtree(config.state_directory / "disks" / "s3")
    with Store.open(config) as store:
        check(store, recorded)
        for revision in dice.sample(sorted(recorded), 3):
            restore(cold(store), RebuildRequest(revision=revision, apply=True))
            store.refresh()
            assert {name: rows(store, name) for name in TABLES} == recorded[revision]


def check(store: Store, recorded: dict[int, dict[str, Rows]]) -> None:
    for revision, wanted in recorded.items():
        assert {name: rows(store, name, revision) for name in TABLES} == wanted, revision
