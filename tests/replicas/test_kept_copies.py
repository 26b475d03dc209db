"""A table that becomes a replicated one while machines have copies of its parts that moves kept. Guards I1 and I17."""

from __future__ import annotations

import shutil

import pytest

from tests.replicas.converting import plain
from tests.replicas.machines import Machine, Machines


def keep_cold(machine: Machine) -> None:
    machine("move", "d.t", "--partition", "all", "--to-disk", "s3", "--keep-source")


@pytest.mark.in_turn
def test_a_conversion_leaves_no_copy_of_a_shared_part(machine: Machines) -> None:
    """The replicas share it, and no merge of this one takes it from the others."""
    a = plain(machine("a"))
    keep_cold(a)
    a.insert(4)
    a("table", "alter", "d.t", "--replicated")
    assert (len(a.on_disk("ssd")), a.keys()) == (1, [1, 2, 3, 4])
    b = machine("b")
    b.join("--policy", "cold")
    a("merge", "d.t", "--final")
    b.sync(code=3)  # the part that is on the SSD of A
    shutil.rmtree(a.path)
    assert b.keys() == [1, 2, 3]


@pytest.mark.in_turn
def test_a_replica_merges_no_copy_of_a_shared_part(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that an earlier version converted has copies still."""
    a = plain(machine("a"))
    keep_cold(a)
    a.insert(4)
    with monkeypatch.context() as patch:
        patch.setattr("zerocopy.replica.shared.free_copies", lambda context, definition: [])
        a("table", "alter", "d.t", "--replicated")
    a("merge", "d.t", "--final")
    assert (len(a.on_disk("ssd")), a.keys()) == (3, [1, 2, 3, 4])
    b = machine("b")
    b.join("--policy", "cold")
    b.sync(code=3)
    shutil.rmtree(a.path)
    assert b.keys() == [1, 2, 3]


@pytest.mark.in_turn
@pytest.mark.parametrize("loses_journal", [False, True], ids=["journal", "no journal"])
def test_a_copy_of_a_plain_table_goes_with_its_part(machine: Machines, loses_journal: bool) -> None:
    """Another machine made it a replicated table, and dropped the part. This one is no replica."""
    a, b = machine("a"), machine("b")
    a("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "cold")
    b.insert(1)
    keep_cold(b)
    a("table", "alter", "d.t", "--replicated")
    assert b.keys() == a.keys() == [1]
    a("partition", "drop", "d.t", "all")
    if loses_journal:
        shutil.rmtree(b.path / "state")
    assert b.keys() == a.keys() == []
    assert b.on_disk("ssd") == set()
    b.join("--policy", "cold")


@pytest.mark.in_turn
def test_a_machine_joins_over_copies_of_shared_parts(machine: Machines) -> None:
    a, b = machine("a"), machine("b")
    a("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "cold")
    b.insert(1)
    keep_cold(b)
    a("table", "alter", "d.t", "--replicated")
    b.join("--policy", "cold")
    assert (b.on_disk("ssd"), b.keys()) == (set(), [1])
    a("partition", "drop", "d.t", "all")
    b.sync()
    assert b.keys() == []
