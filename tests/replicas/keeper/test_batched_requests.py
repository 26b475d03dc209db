"""Many nodes are read in few requests, from servers that know such requests and from those that do not."""

from __future__ import annotations

import msgspec
import pytest

from oplog.errors import AccessDenied, Transient
from tests.replicas.keeper.line import KeeperLine
from tiering.config.settings import KeeperConfig
from zerocopy.keeper import batched
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import CreateNode, portions

COUNT = 1_230
"""Nodes: more than are asked for at once."""


@pytest.fixture
def paths(keeper: Keeper) -> list[str]:
    """Every third one is missing; the others hold their number, and have as many nodes below as its last digit says."""
    keeper.make_path("/many")
    made = [f"/many/{number}" for number in range(COUNT) if number % 3]
    words = [
        [CreateNode(path, path[6:].encode()), *(CreateNode(f"{path}/ä{below}") for below in range(int(path[-1])))]
        for path in made
    ]
    for portion in portions(words):
        keeper.multi(portion)
    return [f"/many/{number}" for number in range(COUNT)]


def check(keeper: Keeper, paths: list[str]) -> None:
    """Both questions are answered of each node, in the order of the nodes."""
    nodes, names = keeper.find_all(paths), keeper.children_of_all(paths)
    for number, (node, below) in enumerate(zip(nodes, names, strict=True)):
        assert (node is not None, below is not None) == (bool(number % 3), bool(number % 3))
        if node is not None:
            assert (node.data, node.children, node.version) == (str(number).encode(), number % 10, 0)
            assert below == [f"ä{one}" for one in range(number % 10)]


def test_a_hundred_nodes_are_one_request(keeper: Keeper, paths: list[str]) -> None:
    check(keeper, paths)
    before = keeper.requests
    assert sum(node is not None for node in keeper.find_all(paths)) == COUNT - COUNT // 3
    assert keeper.requests - before == 13
    assert keeper.find_all([]) == [] == keeper.children_of_all([])


@pytest.mark.in_turn
@pytest.mark.parametrize("unknown", [99, 4])
def test_a_server_without_batched_requests_is_asked_for_each(
    unknown: int, settings: KeeperConfig, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks the connection, or answers what is no answer."""
    monkeypatch.setattr(batched._MultiRead, "type", unknown)
    with Keeper(settings) as keeper:
        check(keeper, paths)
        before = keeper.requests
        check(keeper, paths)
        assert keeper.requests - before == 2 * COUNT


@pytest.mark.in_turn
@pytest.mark.parametrize("understood", [False, True])
def test_an_answer_that_was_lost_is_asked_for_again(
    understood: bool, line: KeeperLine, settings: KeeperConfig, paths: list[str]
) -> None:
    with Keeper(msgspec.structs.replace(settings, hosts=(line.host,))) as keeper:
        keeper.sync()
        if understood:
            check(keeper, paths)
        line.lose_answers()
        check(keeper, paths)
        assert line.lost == 1
        if understood:
            before = keeper.requests
            check(keeper, paths)
            assert keeper.requests - before == 26


def test_a_server_that_is_gone_is_told_as_ever(line: KeeperLine, settings: KeeperConfig, paths: list[str]) -> None:
    way = msgspec.structs.replace(settings, hosts=(line.host,), request_timeout_seconds=1)
    with Keeper(way) as keeper:
        check(keeper, paths[:5])
        line.cut()
        with pytest.raises(Transient):
            keeper.find_all(paths)


def test_one_node_that_may_not_be_read_is_told(settings: KeeperConfig, paths: list[str]) -> None:
    ours = msgspec.structs.replace(settings, user="frostline", password="correct-horse")
    with Keeper(ours) as keeper, Keeper(settings) as stranger:
        keeper.create("/many/own")
        for ask in (stranger.find_all, stranger.children_of_all):
            with pytest.raises(AccessDenied):
                ask([*paths[:5], "/many/own"])
