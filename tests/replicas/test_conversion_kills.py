"""A conversion, either way, killed at every side effect: after the next start all rows are there, once; run again it
ends, numbers go on above all that were given (I3), and what Keeper knows is what is here (I9, I11)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests import turns
from tests.crash import mutants
from tests.crash.harness import ForkServer
from tests.replicas import converting
from tests.replicas.killing import Pair, near_changes
from tiering.config.settings import KeeperConfig


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


def kill(
    operation: str, children: ForkServer, root: Path, way: KeeperConfig, choose: Callable[[list[str]], list[int]]
) -> None:
    """Kill the conversion at the chosen effects whose turn it is, and look after each."""

    def pair() -> Pair:
        name = uuid.uuid4().hex
        return Pair(root / name, msgspec.structs.replace(way, root=f"/kills-{name}", session_timeout_seconds=2))

    whole = pair()
    effects = children.value(converting.act, operation, whole, "count", 0)
    names = [name for name in effects if not name.startswith("store.")]  # those wrap what a kill counts
    assert children.value(converting.examine, operation, whole) == []
    wrong: list[str] = []
    for at in turns.due(f"conversion {operation}", choose(names)):
        one = pair()
        assert children.run(converting.act, operation, one, "kill", at).kind == "killed"
        found = children.value(converting.examine, operation, one)
        wrong += [f"killed before effect {at}, {names[at - 1]}: {line}" for line in found]
        if wrong and mutants.active():
            break
    assert not wrong, "\n".join(wrong)


@pytest.mark.crash
@pytest.mark.parametrize("operation", sorted(converting.CONVERSIONS))
def test_killed_at_every_change_in_keeper(
    operation: str, children: ForkServer, tmp_path: Path, settings: KeeperConfig
) -> None:
    kill(operation, children, tmp_path, settings, near_changes)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("operation", sorted(converting.CONVERSIONS))
def test_killed_at_every_effect(operation: str, children: ForkServer, tmp_path: Path, settings: KeeperConfig) -> None:
    kill(operation, children, tmp_path, settings, lambda names: list(range(1, len(names) + 1)))
