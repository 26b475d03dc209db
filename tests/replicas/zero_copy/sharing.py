"""Machines that share the objects of a bucket by marks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.kinds import as_disk
from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.keeper.client import Keeper
from zerocopy.marks import census
from zerocopy.marks.nodes import ROOT, Holder, StoreNodes

FIRST = "all_0_0_0"


@pytest.fixture
def machine(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], shared_url: str, keeper: Keeper
) -> Machines:
    return lambda name: Machine(tmp_path, name, settings, capsys, shared_url, log=name)


def held(keeper: Keeper) -> dict[str, list[Holder]]:
    (store,) = keeper.children(ROOT)
    names = [one.name for one in census.sets(keeper, StoreNodes(store))]
    return {name: holders for name, holders in census.holders(keeper, StoreNodes(store), names) if holders}


def clean(*machines: Machine) -> None:
    """Marks are what the logs name, of every log."""
    (found,) = machines[0].json("replica", "audit", "--dry-run")["audits"]
    assert (found["differences"], found["marks"]) == ([], sum(found["logs"].values()))


def cold_on_a(a: Machine, machine: Any) -> Machine:
    """A part in the bucket of one replica, and another replica that has nothing."""
    a.insert(1, 2)
    a.move(FIRST)
    b: Machine = machine("b")
    b.join("--policy", "cold")
    return b


def fetched(a: Machine, b: Machine) -> str:
    """Why the part came whole; empty when its objects were taken over."""
    with a.serving():
        synced = b.sync()
    assert synced["fetched"] == [FIRST]
    assert b.keys() == [1, 2]
    remembered = b.json("replica", "queue", "d.t")["whole"]
    assert [(one["part"], one["reason"]) for one in remembered] == [
        (one["part"], one["reason"]) for one in synced["whole"]
    ]
    return "; ".join(one["reason"] for one in synced["whole"])


def collected(one: Machine) -> int:
    """How many objects a `gc --delete` in three days takes, after an audit."""
    one.json("replica", "audit")
    with Store.open(one.configuration) as store:
        disk = store.disk("s3")
        assert as_disk(disk, LoggedDisk) is not None
        marks = auditing.references(store.context, as_disk(disk, LoggedDisk))
        rules = GcRules(delete=True, max_delete_fraction=1.0)
        report = collect(disk, rules, now=datetime.now(UTC) + timedelta(days=3), references=marks)
        assert report.refused is None
        return report.deleted
