"""Turns of those who commit to one log without pause: decided by who wrote its newest entries, by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from disks.object_disk.turns import Turns
from oplog.entry import Commit
from oplog.kinds import Inserted

COMMIT_SECONDS = 0.010
LOOK_SECONDS = 0.001


class Log:
    """Entries, and the time that all who look at them share. What others do meanwhile is what `others` says."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.now = 100.0
        self.slept: list[float] = []
        self.others: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.others()

    def writer(self) -> Turns:
        return Turns(clock=lambda: self.now, sleep=self.sleep)

    def commit(self, who: Turns, *, seconds: float = COMMIT_SECONDS) -> None:
        self.now += seconds
        who.took(seconds)
        self.add(who.sign())
        who.note(self.commits[-40:])

    def add(self, writer: str) -> None:
        revision = len(self.commits) + 1
        time = datetime.now(UTC)
        self.commits.append(Commit(revision=revision, previous="", writer=writer, time=time, kind=Inserted()))

    def look(self, who: Turns) -> None:
        self.now += LOOK_SECONDS
        who.note(self.commits[-40:])


@pytest.fixture
def log() -> Log:
    return Log()


def wrote(log: Log, *writers: Turns) -> list[int]:
    """Which of them wrote each entry."""
    return [[one.name for one in writers].index(commit.writer[:16]) for commit in log.commits]


def test_who_is_alone_never_waits(log: Log) -> None:
    a = log.writer()
    for _ in range(100):
        a.wait(lambda: pytest.fail("nobody else is there"))
        log.commit(a)
    assert not log.slept


def test_who_comes_new_does_not_wait_for_those_who_are_there(log: Log) -> None:
    a, b = log.writer(), log.writer()
    for _ in range(5):
        log.commit(a)
    b.note(log.commits)
    b.wait(lambda: pytest.fail("it is not known yet"))


def test_three_go_one_after_the_other(log: Log) -> None:
    """Each commits as soon as its turn has come, and sees then what the others did."""
    writers = [log.writer() for _ in range(3)]
    for one in writers:
        log.commit(one)
    for _ in range(30):
        for one in writers:
            one.note(log.commits)
        (following,) = [one for one in writers if not one.ahead]
        log.commit(following)
    assert wrote(log, *writers) == [0, 1, 2] * 11


def test_who_has_just_committed_waits_for_the_other(log: Log) -> None:
    a, b = log.writer(), log.writer()
    log.commit(b)
    log.commit(a)
    b.note(log.commits)
    log.others = lambda: log.commit(b) if len(log.slept) == 3 else None
    a.wait(lambda: log.look(a))
    assert len(log.slept) == 3
    assert wrote(log, a, b) == [1, 0, 1]


def test_who_waits_goes_on_when_nobody_comes(log: Log) -> None:
    a, b = log.writer(), log.writer()
    log.commit(b)
    log.commit(a)
    a.wait(lambda: log.look(a))
    assert sum(log.slept) <= 2 * COMMIT_SECONDS


def test_of_two_who_wait_for_one_that_is_gone_one_goes_first(log: Log) -> None:
    a, b, gone = log.writer(), log.writer(), log.writer()
    for one in (gone, a, b):
        log.commit(one)
    a.note(log.commits)
    began = log.now
    a.wait(lambda: log.look(a))
    first = log.now
    log.now = began
    b.wait(lambda: log.look(b))
    assert first < log.now


def test_waiting_in_vain_takes_an_eighth_of_the_time_at_most(log: Log) -> None:
    """The other one commits now and then, and never when it is waited for."""
    a, b = log.writer(), log.writer()
    began = log.now
    log.now += 1  # what may be waited before it is known how long a commit takes
    for number in range(300):
        if number % 7 == 0:
            log.commit(b)
            a.note(log.commits[-40:])
        a.wait(lambda: log.look(a))
        log.commit(a)
    assert sum(log.slept) <= (log.now - began) / 8


def test_who_lost_its_turn_is_waited_for_again(log: Log) -> None:
    """It is slow once; the other one has committed several times since and waits for it nevertheless."""
    a, b = log.writer(), log.writer()
    log.commit(b)
    for _ in range(8):
        log.commit(a)
    assert a.ahead == 1
    b.note(log.commits)
    assert b.ahead == 0


def test_nobody_waits_for_entries_that_do_not_say_who_wrote_them(log: Log) -> None:
    a = log.writer()
    for number in range(5):
        log.add(f"{number:032x}")
        a.note(log.commits)
        log.commit(a)
    assert a.ahead == 0


def test_after_entries_that_were_not_seen_all_begins_anew(log: Log) -> None:
    a, b = log.writer(), log.writer()
    log.commit(b)
    log.commit(a)
    assert a.ahead == 1
    for number in range(40):
        log.add(f"{number:032x}")
    a.note(log.commits[-1:])
    assert a.ahead == 0


def test_a_nonce_is_new_each_time(log: Log) -> None:
    a = log.writer()
    assert a.sign() != a.sign()
    assert len({a.sign().partition("-")[0], a.name}) == 1


def test_who_waits_by_a_clock_that_stands_still_goes_on(log: Log) -> None:
    looks: list[int] = []
    a, b = Turns(clock=lambda: 100.0, sleep=lambda seconds: None), log.writer()
    log.commit(b)
    log.commit(a)
    a.wait(lambda: looks.append(1))
    assert 0 < len(looks) <= 50
