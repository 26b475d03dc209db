"""A mover whose session with Keeper ended while it uploaded: a part goes up once all the same (I9, P8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replicas.keeper.expiring import expire
from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.sharing import FIRST, clean, collected
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.move.file_copies import FileCopies
from zerocopy.replica.connections import connections

__all__ = ["machine"]


@pytest.mark.in_turn
@pytest.mark.parametrize("replaced", [True, False])
def test_a_mover_whose_session_ended_looks_before_it_commits(
    a: Machine,
    b: Machine,
    monkeypatch: pytest.MonkeyPatch,
    settings: KeeperConfig,
    bucket: str,
    s3_environment: Server,
    replaced: bool,
) -> None:
    """What another replica has brought up meanwhile is not brought up twice; what nobody did is claimed again."""
    a.insert(1, 2)
    a.insert(3)
    with a.serving():
        b.sync()
    original = FileCopies.stage

    def stage(self: FileCopies, items: Any, transaction: Any) -> None:
        monkeypatch.setattr(FileCopies, "stage", original)
        original(self, items, transaction)
        keeper = connections(self._context).keeper
        expire(keeper, settings)
        if replaced:
            assert b.move(FIRST)["moved"]

    monkeypatch.setattr(FileCopies, "stage", stage)
    with Store.open(a.configuration) as store:
        report = store.apply(store.plan_manual_move("d.t", partition="all", to_disk="s3"))
    late = [move.part for move in report.skipped]
    assert late == ([FIRST] if replaced else [])
    assert len(report.moved) == 2 - len(late)
    assert not report.failed
    if replaced:
        assert "session with Keeper ended" in report.skipped[0].reason
        with b.serving():
            assert a.move(FIRST)["moved"]
    with a.serving():
        assert len(b.json("move", "d.t", "--partition", "all", "--to-disk", "s3")["moved"]) == 2 - len(late)
    assert len(blobs_in(bucket, s3_environment)) == 2 + len(late)  # what was uploaded in vain waits for gc
    assert collected(a) == len(late)
    assert a.keys() == b.keys() == [1, 2, 3]
    clean(a, b)
