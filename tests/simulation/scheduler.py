"""Machines that take turns: one runs at a time, and stands still at a request to the bucket until its next turn.

Only what passes through the bucket is seen by others, so a machine needs to be stopped nowhere else. It may die at each
of its side effects, as by SIGKILL: from then on nothing of it has an effect, whatever it has to tidy up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from disks import effects
from oplog.errors import FrostlineError
from tests.simulation.simulated import clock

STUCK_SECONDS = 30.0
MOST_REQUESTS = 3000


class Killed(BaseException):
    """The machine is dead; nobody catches this."""


class Stuck(Exception):
    """A machine does not come to an end."""


@dataclass(slots=True)
class Work:
    """What a machine does now, in a thread of its own."""

    do: Callable[[], object]
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None
    ended: bool = False
    answer: object = None
    error: BaseException | None = None


@dataclass(slots=True)
class Machine:
    """One of them. `ahead_seconds`: how far its clock is ahead of the store's."""

    number: int
    ahead_seconds: float = 0.0
    dies_at: frozenset[int] = frozenset()
    """The side effects, counted from 1, at which it dies."""
    requests: int = 0
    effects: int = 0
    deaths: int = 0
    killed: bool = False
    left: int = 0
    """Requests until it stands still; fewer than none: it does not."""
    work: Work | None = None


class Scheduler:
    """Whose turn it is. Its own thread decides; those of the machines wait."""

    def __init__(self) -> None:
        self.running: Machine | None = None

    def turn(self, machine: Machine, requests: int, do: Callable[[], object] | None = None) -> Work | None:
        """Let the machine go on with its work, or begin `do`, until it sent so many requests (0: to the end). The work
        when it has ended."""
        if machine.work is None:
            if do is None:
                return None
            machine.work = self._begun(machine, do)
        work = machine.work
        machine.left = requests or -1
        self._resume(machine, work)
        if not work.ended:
            return None
        assert work.thread is not None
        work.thread.join()
        machine.work = None
        return work

    def end(self, machines: list[Machine]) -> None:
        """Whoever still stands somewhere dies there."""
        for machine in machines:
            if machine.work is not None:
                machine.killed = True
                self._resume(machine, machine.work)
                machine.work = None

    def _resume(self, machine: Machine, work: Work) -> None:
        self.running = machine
        clock.ahead = machine.ahead_seconds
        work.go.release()
        if not work.back.acquire(timeout=STUCK_SECONDS):
            raise Stuck(f"machine {machine.number} waits for something that never comes")
        self.running = None
        clock.ahead = 0.0

    def _begun(self, machine: Machine, do: Callable[[], object]) -> Work:
        work = Work(do)

        def run() -> None:
            work.go.acquire()
            try:
                work.answer = do()
            except BaseException as error:
                work.error = error
            work.ended = True
            work.back.release()

        work.thread = threading.Thread(target=run, name=f"machine-{machine.number}", daemon=True)
        work.thread.start()
        return work

    def mine(self) -> Machine | None:
        """The machine whose thread this is."""
        machine = self.running
        if machine is None or machine.work is None or machine.work.thread is not threading.current_thread():
            return None
        return machine

    def request(self) -> Machine | None:
        """The machine sends a request: it may stand still right before."""
        machine = self.mine()
        if machine is None:
            return None
        if machine.killed:
            raise Killed
        machine.requests += 1
        if machine.requests > MOST_REQUESTS:
            raise Stuck(f"machine {machine.number} sent {machine.requests} requests")
        if machine.left == 0:
            assert machine.work is not None
            machine.work.back.release()
            machine.work.go.acquire()
            if machine.killed:
                raise Killed
        machine.left -= 1
        return machine

    def effect(self, phase: Literal["before", "after"], name: str, arguments: tuple[Any, ...]) -> None:
        """The hook of `disks.effects`."""
        machine = self.mine()
        if machine is None:
            return
        if phase == "before":
            machine.effects += 1
            if machine.effects in machine.dies_at and not machine.killed:
                machine.killed = True
                machine.deaths += 1
        if machine.killed:
            raise Killed

    def install(self) -> None:
        effects.set_hook(self.effect)


def answered(work: Work) -> Literal["done", "refused", "unknown", "killed"]:
    """How the work ended, as its caller sees it. An error that is not ours is raised."""
    from oplog.errors import OutcomeUnknown, Transient

    error = work.error
    if error is None:
        return "done"
    if isinstance(error, Killed):
        return "killed"
    if not isinstance(error, FrostlineError):
        raise error
    return "unknown" if isinstance(error, OutcomeUnknown | Transient) else "refused"
