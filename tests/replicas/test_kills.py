"""Two replicas, killed at every side effect of an insert, a fetch, a merge, a drop and a move to the bucket that both
have: files here and there, changes in Keeper.

After the next start a block is in or not, on both (I2); what was acknowledged is there once, and the parts that Keeper
knows of a replica are those that it has, byte for byte (I9, I10, I11); nothing is left over.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests import turns
from tests.crash import mutants
from tests.crash.harness import ForkServer
from tests.replicas import killing
from tests.replicas.killing import OPERATIONS, Pair, near_changes
from tiering.config.settings import KeeperConfig


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def pairs(tmp_path: Path, settings: KeeperConfig) -> Iterator[Pair]:
    """Places and roots of Keeper that nobody used."""

    def made() -> Iterator[Pair]:
        while True:
            name = uuid.uuid4().hex
            way = msgspec.structs.replace(settings, root=f"/kills-{name}", session_timeout_seconds=2)
            yield Pair(tmp_path / name, way)

    return made()


def near_claims(names: list[str]) -> list[int]:
    """Right after the claim, and right before it is given back."""
    changes = [at for at, name in enumerate(names, start=1) if name == "keeper.change"]
    return [changes[0] + 1, changes[-1]]


def effects(operation: str, children: ForkServer, pair: Pair) -> list[str]:
    """What the operation does, in order, as a kill counts it: the verbs of a store wrap those of files."""
    names = children.value(killing.act, operation, pair, "count", 0)
    return [name for name in names if not name.startswith("store.")]


def kill(operation: str, children: ForkServer, pairs: Iterator[Pair], choose: Callable[[list[str]], list[int]]) -> None:
    """Kill the operation at the chosen effects whose turn it is, and look after each."""
    pair = next(pairs)
    names = effects(operation, children, pair)
    assert children.value(killing.examine, operation, pair) == []
    assert "keeper.change" in names
    wrong: list[str] = []
    for at in turns.due(f"replica {operation}", choose(names)):
        pair = next(pairs)
        assert children.run(killing.act, operation, pair, "kill", at).kind == "killed"
        found = children.value(killing.examine, operation, pair)
        wrong += [f"killed before effect {at}, {names[at - 1]}: {line}" for line in found]
        if wrong and mutants.active():
            break
    assert not wrong, "\n".join(wrong)


@pytest.mark.crash
def test_a_mover_that_died_is_replaced(children: ForkServer, pairs: Iterator[Pair]) -> None:
    """By the other replica, when the session is over, whether the dead one's commit took place or not."""
    pair = next(pairs)
    names = effects("move", children, pair)
    for at in turns.due("mover replaced", near_claims(names)):
        pair = next(pairs)
        assert children.run(killing.act, "move", pair, "kill", at).kind == "killed"
        assert children.value(killing.replace, pair) == [], f"killed before effect {at}, {names[at - 1]}"


@pytest.mark.crash
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_killed_at_every_change(operation: str, children: ForkServer, pairs: Iterator[Pair]) -> None:
    """Before and after each change in Keeper; what a transaction of a disk does by itself, other tests stop."""
    kill(operation, children, pairs, near_changes)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_killed_at_every_effect(operation: str, children: ForkServer, pairs: Iterator[Pair]) -> None:
    kill(operation, children, pairs, lambda names: list(range(1, len(names) + 1)))
