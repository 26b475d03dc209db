"""Nodes of a table that a hostile hand wrote: nothing is lost, each verb says which node it is, and none breaks.

When the node is what it was again, the replica goes on where it was.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from oplog.errors import FrostlineError
from tests.replicas.machines import Machine, Machines
from zerocopy.keeper.client import Keeper

pytestmark = pytest.mark.in_turn

TABLE = "/tables/01/d.t"
OWN = f"{TABLE}/replicas/b"
OTHER = f"{TABLE}/replicas/a"
HUGE = b"x" * 1_000_000
"""A server takes no node of more."""

DAMAGES: dict[str, bytes | None] = {
    "garbage": b"\xff\x00{[",
    "empty": b"",
    "json": b'{"version": [1, 2], "type": "get", "part": 7}',
    "negative": b"-7",
    "huge": HUGE,
    "deleted": None,
}
NODES = [
    f"{TABLE}/metadata",
    f"{TABLE}/log",
    f"{TABLE}/log/log-0000000001",
    f"{TABLE}/log/log-0000000003",
    f"{TABLE}/blocks/?",
    f"{TABLE}/block_numbers",
    f"{TABLE}/block_numbers/all",
    f"{TABLE}/outputs/?",
    OWN,
    *(f"{OWN}/{name}" for name in (
        "host", "is_active", "log_pointer", "is_lost", "metadata_version", "min_unprocessed_insert_time",
        "queue/queue-0000000001", "parts/all_0_0_0")),
    *(f"{OTHER}/{name}" for name in ("host", "log_pointer", "is_lost", "parts/all_0_1_1")),
]  # fmt: skip
STRANGERS = [f"{TABLE}/log/strange", f"{TABLE}/blocks/strange", f"{TABLE}/block_numbers/all/strange",
             f"{TABLE}/outputs/strange", f"{TABLE}/replicas/strange", f"{OWN}/queue/strange", f"{OWN}/parts/strange",
             f"{OTHER}/parts/strange", f"{OTHER}/queue/strange"]  # fmt: skip
"""Nodes that nobody of ours made."""


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def both(machine: Machines) -> tuple[Machine, Machine]:
    """One has a part in its queue that nobody gives now, and two entries that it has not taken over."""
    a, b = machine("a"), machine("b")
    a.create()
    b.join()
    a.insert(1)
    with a.serving():
        b.sync()
    a.insert(2)
    b.sync(code=1)
    a("merge", "d.t", "--final")
    a.insert(3)
    return a, b


def check_verbs(one: Machine) -> list[str]:
    """Each verb ends, with its work done or with what keeps it from that; a query always can. What they said."""
    said = []
    for words in (["replica", "sync", "d.t"], ["replica", "status", "d.t"], ["replica", "queue", "d.t"], ["status"]):
        one.run(*words)
        assert "Traceback" not in one.error
        assert "unexpected" not in one.error, (words, one.error)
        said.append(one.error)
    assert one.keys()[:1] == [1]
    return said


def write(keeper: Keeper, path: str, data: bytes | None) -> None:
    """As by another client, which knows no limits of ours."""
    if data is None:
        keeper.delete_tree(path)
    else:
        keeper.make_path(path)
        keeper._client.set(keeper._full(path), data)


def found(keeper: Keeper, path: str) -> str:
    """The path; of one whose name is not known before, the first below its parent."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/{keeper.children(parent)[0]}" if name == "?" else path


@pytest.mark.parametrize("path", NODES)
def test_a_node_with_any_content_stops_nobody_and_loses_nothing(
    both: tuple[Machine, Machine], keeper: Keeper, path: str
) -> None:
    """While a replica runs and while one starts; what is put right again is gone on with."""
    a, b = both
    path = found(keeper, path)
    with b.serving() as store:
        before = keeper.find(path)
        for data in DAMAGES.values():
            write(keeper, path, data)
            with suppress(FrostlineError):
                store.tick()
            check_verbs(b)
            now = keeper.find(path)
            if before is not None and not before.owner and (now is None or now.data == data):
                write(keeper, path, before.data)
    assert a.keys() == [1, 2, 3]


@pytest.mark.parametrize("path", STRANGERS)
def test_a_node_that_nobody_of_ours_made_stops_nobody(both: tuple[Machine, Machine], keeper: Keeper, path: str) -> None:
    a, b = both
    write(keeper, path, b"\xff")
    check_verbs(b)
    keeper.delete_tree(path)
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == [1, 2, 3]


@pytest.mark.parametrize("data", [b"one", b"-7", b"99999999", HUGE])
def test_a_pointer_into_nowhere_is_named_and_goes_on_when_fixed(
    both: tuple[Machine, Machine], keeper: Keeper, data: bytes
) -> None:
    """One past the end would have the replica take in nothing any more, and say nothing."""
    a, b = both
    path = f"{OWN}/log_pointer"
    before = keeper.get(path).data
    write(keeper, path, data)
    with a.serving():
        b("replica", "sync", "d.t", code=1)
        assert f"the node {path} in Keeper is invalid" in b.error
        assert b.keys() == [1]
        write(keeper, path, before)
        b.sync()
    assert a.keys() == b.keys() == [1, 2, 3]


def test_a_pointer_that_was_set_back_ends(both: tuple[Machine, Machine], keeper: Keeper) -> None:
    """What it points to is in the queue already: taking it over again would never come to an end."""
    a, b = both
    path = f"{OWN}/log_pointer"
    before = keeper.get(path).data
    write(keeper, path, b"1")
    b("replica", "sync", "d.t", code=1)
    assert "is in the queue already" in b.error
    write(keeper, path, before)
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == [1, 2, 3]


def test_an_entry_gone_from_the_middle_of_the_log_is_missed(both: tuple[Machine, Machine], keeper: Keeper) -> None:
    """Numbers have no gaps: what it brought is not skipped without a word."""
    a, b = both
    a.insert(4)
    keeper.delete(f"{TABLE}/log/log-0000000003")
    with a.serving():
        code, _ = b.run("replica", "sync", "d.t")
    assert code
    assert "fell behind what the log keeps" in b.error
    assert a.keys() == [1, 2, 3, 4]


def test_a_merge_said_to_leave_nothing_takes_nothing_away(both: tuple[Machine, Machine], keeper: Keeper) -> None:
    """Of what somebody has there are rows."""
    _, b = both
    path = f"{TABLE}/outputs/all_0_1_1"
    write(keeper, path, b"")
    b.run("replica", "sync", "d.t")
    assert f"the node {path} in Keeper is invalid" in b.error
    assert b.keys() == [1]
