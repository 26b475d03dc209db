"""Replicas whose cold parts lie in one bucket: one moves a part there, the others find it and free their SSDs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.replicas.machines import Machine
from tiering.config.settings import KeeperConfig

Machines = Callable[[str], Machine]
FIRST = "all_0_0_0"


@pytest.fixture
def machine(tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], bucket: str) -> Machines:
    return lambda name: Machine(tmp_path, name, settings, capsys, f"s3://{bucket}/cold/")


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made.create("--policy", "cold")
    return made


@pytest.fixture
def b(machine: Machines, a: Machine) -> Machine:
    made = machine("b")
    made.join("--policy", "cold")
    return made


def test_one_moves_and_all_have_it_once(a: Machine, b: Machine, machine: Machines) -> None:
    """Inserted on one, moved by another, counted on three: one copy in the bucket, none left on an SSD."""
    c = machine("c")
    c.join("--policy", "cold")
    a.insert(1, 2)
    with a.serving():
        b.sync()
    assert [one["part"] for one in b.move(FIRST)["moved"]] == [FIRST]
    assert b.on_disk("ssd") == set()
    assert a.on_disk("ssd") == {FIRST}
    assert a.sync()["freed"] == [FIRST]
    assert a.on_disk("ssd") == set()
    assert c.sync()["fetched"] == []
    for one in (a, b, c):
        assert one.keys() == [1, 2]
        assert one.disks() == {FIRST: "s3"}
        assert [found["parts"] for found in one.json("replica", "status", code=4)["replicas"]] == [1, 1, 1]
    assert a.insert(3)["parts"] == ["all_1_1_0"]
    with a.serving():
        c.sync()
    assert c.keys() == [1, 2, 3]
