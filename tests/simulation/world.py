"""A world of machines that carries out a plan, and says what of it must never have happened."""

from __future__ import annotations

import random
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from oplog.errors import Damaged, FrostlineError
from tests.simulation import simulated
from tests.simulation.bucket import SimulatedBucket
from tests.simulation.plan import Plan, Step
from tests.simulation.scheduler import Machine, Scheduler, Work, answered
from tests.simulation.truth import Truth, Violation


class World(ABC):
    """Machines, their bucket and their verbs. A subclass says what a verb does, and what must hold at the end."""

    def __init__(self, plan: Plan, seed: str, home: Path) -> None:
        simulated.begin(seed)
        self.plan, self.home = plan, home
        self.scheduler = Scheduler()
        self.bucket = SimulatedBucket(f"simulated/{seed}", self.scheduler, plan.faults, conditional=plan.conditional)
        self.truth = Truth(self.bucket)
        self.happened: Counter[str] = Counter()
        deaths = [frozenset(one.effect for one in plan.deaths if one.machine == number) for number in range(3)]
        self.machines = [
            Machine(number, ahead_seconds=plan.ahead[number], dies_at=dies) for number, dies in enumerate(deaths)
        ]
        self._next = [0] * len(self.machines)
        self._doing: dict[int, tuple[str, Step]] = {}
        self.undisturbed = True
        """The verb that ended last ran at once, in a world without deaths, faults and wrong clocks, where nobody else
        stands within a verb."""

    def run(self) -> None:
        """Carry the plan out and judge. Raises `Violation`, or whatever the product should not have raised."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.scheduler.install()
        try:
            self.begin()
            for turn in self.plan.turns:
                self._turn(self.machines[turn.machine], turn.requests)
                simulated.clock.passed += turn.seconds
            for machine in self.machines:
                while machine.work is not None or self._next[machine.number] < len(self.plan.steps[machine.number]):
                    self._turn(machine, 0)
            self.bucket.heal()
            for machine in self.machines:
                machine.ahead_seconds = 0.0
            self.judge()
        finally:
            self.scheduler.end(self.machines)
            self.close()
            shutil.rmtree(self.home, ignore_errors=True)

    def _turn(self, machine: Machine, requests: int) -> None:
        number = machine.number
        do: Callable[[], object] | None = None
        if machine.work is None:
            if self._next[number] >= len(self.plan.steps[number]):
                return
            step = self.plan.steps[number][self._next[number]]
            mark = f"do-{'abc'[number]}-{self._next[number]}"
            self._next[number] += 1
            self._doing[number] = mark, step
            chosen = random.Random(step.number)
            calm = not (self.plan.faults or self.plan.deaths or any(self.plan.ahead))
            self.undisturbed = calm and all(one.work is None for one in self.machines)
            do = lambda: self.do(machine, step.verb, mark, chosen)  # noqa: E731 - a machine's next verb
        else:
            self.undisturbed = False
        ended = self.scheduler.turn(machine, requests, do)
        if ended is not None:
            mark, step = self._doing.pop(number)
            self._ended(machine, mark, step, ended)

    def _ended(self, machine: Machine, mark: str, step: Step, work: Work) -> None:
        how = answered(work)
        self.happened[f"{step.verb} {how}"] += 1
        if isinstance(work.error, Damaged) and not self.truth.overwritten:
            raise Violation(f"I15: {step.verb} of {'abc'[machine.number]} met damage: {work.error}") from work.error
        if how == "killed":
            machine.killed = False
            self.lose(machine)
        self.ended(machine, step.verb, mark, how, work.answer, work.error)

    def quietly(self, do: Callable[[], object]) -> object:
        """Do it outside of all turns, as the judge; what is refused then is a violation."""
        try:
            return do()
        except FrostlineError as error:
            raise Violation(f"{type(error).__name__} when all is well again: {error}") from error

    @abstractmethod
    def begin(self) -> None:
        """What there is before the first turn."""

    @abstractmethod
    def do(self, machine: Machine, verb: str, mark: str, chance: random.Random) -> object:
        """One verb, on the machine's thread."""

    @abstractmethod
    def ended(
        self, machine: Machine, verb: str, mark: str, how: str, answer: object, error: BaseException | None
    ) -> None:
        """A verb came to an end."""

    @abstractmethod
    def lose(self, machine: Machine) -> None:
        """Its process is dead: files stay, nothing else."""

    @abstractmethod
    def judge(self) -> None:
        """Raise `Violation` unless all is as it must be, now that nothing fails any more."""

    @abstractmethod
    def close(self) -> None:
        """Release what is open."""
