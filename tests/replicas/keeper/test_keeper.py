"""The wrapper round ZooKeeper, against a real one: multis that raise, outcomes that are known, deadlines, ACLs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import msgspec
import pytest

from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    LimitReached,
    NotFound,
    OutcomeUnknown,
    Transient,
    UsageError,
)
from tests.replicas.keeper.expiring import expire
from tests.replicas.keeper.line import KeeperLine
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper, Witness, longest_seconds
from zerocopy.keeper.operations import (
    MOST_BYTES,
    MOST_OPERATIONS,
    CheckNode,
    CreateNode,
    DeleteNode,
    Set,
    portions,
    size_bytes,
)


@contextmanager
def over(line: KeeperLine, settings: KeeperConfig) -> Iterator[Keeper]:
    """A session over the line, its root made."""
    way = msgspec.structs.replace(settings, hosts=(line.host,))
    with Keeper(way) as keeper:
        keeper.make_path("/")
        yield keeper


def test_a_multi_changes_all_or_nothing_and_says_why(keeper: Keeper) -> None:
    keeper.multi([CreateNode("/a", b"1"), CreateNode("/a/n-", numbered=True), Set("/a", b"2")])
    assert keeper.get("/a").data == b"2"
    with pytest.raises(AlreadyExists):
        keeper.multi([CreateNode("/b"), CreateNode("/a")])
    with pytest.raises(NotFound):
        keeper.multi([CreateNode("/b"), CreateNode("/nobody/c")])
    with pytest.raises(Conflict):
        keeper.multi([CreateNode("/b"), CheckNode("/a", 7)])
    with pytest.raises(Conflict):
        keeper.multi([CreateNode("/b"), DeleteNode("/a")])
    assert keeper.children("/") == ["a"]
    assert keeper.children("/a") == ["n-0000000000"]


def test_numbers_below_one_parent_have_no_gaps(keeper: Keeper) -> None:
    keeper.make_path("/numbers")
    first = keeper.create_numbered("/numbers/a-", ephemeral=True)
    keeper.delete(first)
    second = keeper.multi([CreateNode("/numbers/b-", numbered=True)])
    assert (first, second) == ("/numbers/a-0000000000", ["/numbers/b-0000000001"])


LOST: dict[str, Callable[[Keeper], object]] = {
    "create": lambda keeper: keeper.create("/made", b"mine"),
    "multi": lambda keeper: keeper.multi(
        [CreateNode("/made", b"mine"), CreateNode("/log/entry-", numbered=True)], witness=Witness("/made", b"mine")
    ),
    "numbered": lambda keeper: keeper.create_numbered("/log/mine-", b"x"),
    "set": lambda keeper: keeper.set("/log", b"new", 0),
    "delete": lambda keeper: keeper.delete("/old"),
    "path": lambda keeper: keeper.make_path("/a/b/c"),
    "read": lambda keeper: keeper.get("/log"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("answers", [1, 2, 3])
@pytest.mark.parametrize("what", sorted(LOST))
def test_what_was_answered_to_nobody_happens_once(
    what: str, answers: int, line: KeeperLine, keeper: Keeper, settings: KeeperConfig
) -> None:
    """The answer is lost, and so are those to the first repeats or to the connection's own greeting."""
    keeper.make_path("/log")
    keeper.create("/old")
    with over(line, settings) as broken:
        line.lose_answers(answers)
        LOST[what](broken)
        assert line.lost == answers
    keeper.sync()
    assert len(keeper.children("/log")) == (1 if what in ("multi", "numbered") else 0)
    assert keeper.exists("/made") == (what in ("create", "multi"))
    assert keeper.exists("/old") != (what == "delete")
    assert keeper.get("/log").version == (1 if what == "set" else 0)
    assert keeper.exists("/a/b/c") == (what == "path")


def test_a_change_without_a_witness_has_an_unknown_outcome(
    line: KeeperLine, keeper: Keeper, settings: KeeperConfig
) -> None:
    """The error says so."""
    with over(line, settings) as broken:
        line.lose_answers()
        with pytest.raises(OutcomeUnknown):
            broken.multi([CreateNode("/entry-", numbered=True)])
    assert len(keeper.children("/")) == 1


def test_somebody_elses_node_is_no_witness(line: KeeperLine, keeper: Keeper, settings: KeeperConfig) -> None:
    keeper.create("/made", b"another's")
    with over(line, settings) as broken:
        line.lose_answers()
        with pytest.raises(AlreadyExists):
            broken.create("/made", b"mine")


def impatient(line: KeeperLine, settings: KeeperConfig, **more: str) -> Keeper:
    """A session over the line whose calls wait for a second; it has been answered once, however long that took."""
    way = msgspec.structs.replace(settings, hosts=(line.host,), request_timeout_seconds=1, **more)
    keeper = Keeper(way)
    until_answered(keeper)
    return keeper


def until_answered(keeper: Keeper) -> None:
    while True:
        try:
            keeper.exists("/")
        except Transient:
            continue
        return


@pytest.mark.in_turn
def test_a_call_ends_though_nobody_answers(line: KeeperLine, keeper: Keeper, settings: KeeperConfig) -> None:
    """kazoo itself waits without limit while its session is suspended."""
    with impatient(line, settings) as broken:
        line.mute()
        with pytest.raises(OutcomeUnknown) as sent:
            broken.multi([CreateNode("/b")])
        assert "not known" in sent.value.message
        line.cut()
        with pytest.raises(Transient) as unsent:
            while True:
                broken.get("/")
        assert "keeper check" in unsent.value.hint
        line.mend()
        until_answered(broken)


def test_who_asks_after_others_waited_in_vain_waits_a_second(
    line: KeeperLine, keeper: Keeper, settings: KeeperConfig
) -> None:
    """P15: a pass waited ten seconds for each call of each replicated table, and all other tables with it."""
    assert [longest_seconds(10, silent) for silent in (0, 9.9, 10, 1000)] == [10, 10, 1, 1]
    assert longest_seconds(0.5, 1000) == 0.5
    line.cut()
    hours = {"session_timeout_seconds": 10_000, "request_timeout_seconds": 10_000}
    with Keeper(msgspec.structs.replace(settings, hosts=(line.host,), **hours)) as late:
        late._silent_since = time.monotonic() - 10_001
        with pytest.raises(Transient, match="given up after 1 s"):
            late.get("/")
        line.mend()
        until_answered(late)
        assert late.silent_seconds == 0


@pytest.mark.in_turn
@pytest.mark.parametrize("trouble", ["mute", "silence", "cut"])
@pytest.mark.parametrize("was_connected", [True, False])
def test_who_is_told_to_stop_waits_for_nobody(
    trouble: str, was_connected: bool, line: KeeperLine, keeper: Keeper, settings: KeeperConfig
) -> None:
    """The word comes while a call waits, and the session ends though nobody hears of it: both would take hours."""
    hours: dict[str, Any] = {"session_timeout_seconds": 10_000, "request_timeout_seconds": 10_000}
    looks = count()
    is_in_trouble = False
    if not was_connected:
        getattr(line, trouble)()
    with Keeper(
        msgspec.structs.replace(settings, hosts=(line.host,), **hours), lambda: is_in_trouble and next(looks) > 2
    ) as told:
        if was_connected:
            assert told.exists("/")
            getattr(line, trouble)()
        is_in_trouble = True
        with pytest.raises(Transient, match="began to stop"):
            told.get("/")
        with pytest.raises((Transient, OutcomeUnknown), match="began to stop"):
            told.create("/made")
    assert next(looks) > 3


def test_who_is_told_to_stop_still_has_its_answers(keeper: Keeper, settings: KeeperConfig) -> None:
    with Keeper(settings, lambda: True) as told:
        told.create("/made", b"at the end", ephemeral=True)
        assert keeper.get("/made").data == b"at the end"
    keeper.sync()
    assert not keeper.exists("/made")


def test_a_session_that_expired_is_another_one(
    keeper: Keeper, settings: KeeperConfig, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.create("/here", ephemeral=True)
    before = keeper.session
    expire(keeper, settings)
    while keeper.session in (0, before):
        keeper.find("/here")
    assert keeper.find("/here") is None
    keeper.create("/here", ephemeral=True)
    assert keeper.get("/here").owner == keeper.session
    keeper.close()
    ((logger, message),) = warnings(caplog)
    assert logger == "zerocopy.keeper.client"
    assert f"a session with {settings.hosts[0]} is over" in message


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.name, one.getMessage()) for one in caplog.records if one.levelno >= logging.WARNING]


def test_what_the_library_says_reaches_nobody_who_did_not_ask(
    line: KeeperLine, settings: KeeperConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """What it means is in the error of whoever called."""
    caplog.set_level(logging.DEBUG, logger="zerocopy")
    with impatient(line, settings) as keeper:
        keeper.exists("/")
        line.cut()
        with pytest.raises(Transient):
            while True:
                keeper.get("/")
    assert warnings(caplog) == []
    assert "DEBUG    zerocopy.keeper.client.said" in caplog.text
    assert not [one for one in caplog.records if one.name.startswith("kazoo")]


def test_nodes_belong_to_the_user_and_their_parents_too(settings: KeeperConfig) -> None:
    """Who may delete a node is said by its parent."""
    ours = msgspec.structs.replace(settings, user="frostline", password="correct-horse")
    with Keeper(ours) as keeper, Keeper(settings) as stranger:
        keeper.make_path("/table/parts")
        keeper.multi([CreateNode("/table/parts/p")])
        for forbidden in (
            lambda: stranger.get("/table/parts/p"),
            lambda: stranger.delete("/table/parts/p"),
            lambda: stranger.create("/table/x"),
            lambda: stranger.children("/"),
        ):
            with pytest.raises(AccessDenied):
                forbidden()
        assert keeper.exists("/table/parts/p")


def test_no_log_and_no_message_tells_the_password(
    line: KeeperLine, settings: KeeperConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("kazoo", "kazoo.client", "kazoo.protocol.connection"):
        logging.getLogger(name).setLevel(logging.WARNING)  # as the command line has it
    with impatient(line, settings, user="frostline", password="correct-horse") as keeper:
        line.cut()
        with pytest.raises(Transient) as error:
            while True:
                keeper.get("/")
    assert "correct-horse" not in f"{caplog.text} {error.value} {error.value.hint}"


def test_requests_are_counted_before_they_are_sent(keeper: Keeper) -> None:
    """A server answers one that is too large by breaking the connection, as if the network were down."""
    keeper.make_path("/many")
    most = [CreateNode(f"/many/{number}", b"x" * 300) for number in range(MOST_OPERATIONS)]
    keeper.multi(most)
    with pytest.raises(LimitReached):
        keeper.multi([*most, CheckNode("/many")])
    with pytest.raises(LimitReached):
        keeper.multi([CreateNode("/large", b"x" * MOST_BYTES)])
    assert len(keeper.children("/many")) == MOST_OPERATIONS


def test_portions_are_within_the_limits_and_tear_no_group() -> None:
    groups = [[CreateNode(f"/{number}/{one}", b"x" * 2000) for one in range(1 + number % 3)] for number in range(400)]
    found = list(portions(groups))
    assert [one for portion in found for one in portion] == [one for group in groups for one in group]
    assert all(sum(map(size_bytes, portion)) <= MOST_BYTES and len(portion) <= MOST_OPERATIONS for portion in found)
    ends = {group[-1].path for group in groups}
    assert all(portion[-1].path in ends for portion in found)


def test_without_servers_there_is_no_keeper() -> None:
    with pytest.raises(UsageError) as error:
        Keeper(KeeperConfig())
    assert "hosts" in error.value.hint
