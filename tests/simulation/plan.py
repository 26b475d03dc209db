"""What happens in a world, decided by its seed before anything runs; so that it can be run again with less of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.simulation.bucket import KINDS, Fault

MACHINES = 3


@dataclass(frozen=True, slots=True)
class Step:
    """A verb of a machine; `number` chooses its object among those that there are then."""

    verb: str
    number: int

    def __str__(self) -> str:
        return f"{self.verb}({self.number})"


@dataclass(frozen=True, slots=True)
class Turn:
    """The machine goes on for so many requests (0: to the end of its verb), then time passes for all."""

    machine: int
    requests: int
    seconds: int

    def __str__(self) -> str:
        much = f" for {self.requests}" if self.requests else ""
        return f"{'abc'[self.machine]}{much}" + (f", {self.seconds} s later" if self.seconds else "")


@dataclass(frozen=True, slots=True)
class Death:
    machine: int
    effect: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole world."""

    world: str
    steps: tuple[tuple[Step, ...], ...]
    """The verbs of each machine, in order."""
    turns: tuple[Turn, ...]
    """After the last one each machine comes to the end of its verbs, one after the other."""
    faults: tuple[Fault, ...] = ()
    deaths: tuple[Death, ...] = ()
    ahead: tuple[int, ...] = (0,) * MACHINES
    """By how many seconds the clock of each is wrong."""
    conditional: bool = True
    """Whether the bucket has conditional writes."""

    def __str__(self) -> str:
        lines = [f"world {self.world}" + ("" if self.conditional else ", without conditional writes")]
        for number, steps in enumerate(self.steps):
            ahead = f", its clock {self.ahead[number]} s ahead" if self.ahead[number] else ""
            if steps:
                lines.append(f"machine {'abc'[number]}{ahead}: {' '.join(map(str, steps))}")
        lines.append("turns: " + "; ".join(map(str, self.turns)))
        lines += [f"{fault}" for fault in self.faults]
        lines += [f"machine {'abc'[death.machine]} dies at its effect {death.effect}" for death in self.deaths]
        return "\n  ".join(lines)

    @property
    def size(self) -> int:
        """How much happens; shrinking makes it less."""
        stops = sum(1 + (turn.requests > 0) + (turn.seconds > 0) for turn in self.turns)
        return 3 * sum(map(len, self.steps)) + stops + len(self.faults) + len(self.deaths) + sum(map(bool, self.ahead))


@dataclass(frozen=True, slots=True)
class _Theme:
    """What a world is mostly about. All verbs may happen in any; what meets what, a theme makes likelier."""

    verbs: dict[str, int]
    steps: int = 7
    """The most of one machine."""
    stops: float = 0.4
    """How often a machine stands still within a verb."""
    requests: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10, 15, 25)
    """After how many."""
    waits: float = 0.3
    """How often time passes."""
    faults: float = 0.4
    wrong_clocks: float = 0.06
    begin: tuple[str, ...] = ()
    """What the first machine does before all else."""
    sleeps: float = 0.0
    """How often the others go on while the first machine stands where it is."""


_LOG = (
    _Theme({"put": 10, "remove": 2, "gc": 5, "restore": 3, "snapshot": 1, "look": 1, "pin": 1, "reopen": 1}),
    _Theme({"put": 8, "gc": 6, "remove": 1, "reopen": 1}, stops=0.5, requests=(1, 2, 2, 3, 4), waits=0.5, faults=0.2),
    _Theme({"put": 9, "gc": 2}, steps=12, stops=0.3, requests=(1, 2), faults=0.0, wrong_clocks=0.0, sleeps=0.9),
    _Theme({"put": 4, "remove": 4, "restore": 8, "gc": 2}, faults=0.2),
    _Theme({"put": 4, "pin": 4, "gc": 5, "restore": 2}, wrong_clocks=0.3, faults=0.1),
)
_LEASE = (_Theme({"put": 10, "remove": 2, "look": 1}, steps=4, stops=0.5, waits=0.5, faults=0.0),)
_TABLES = (
    _Theme(
        {"insert": 8, "cold": 6, "hot": 4, "merge": 4, "merge_cold": 3, "drop": 2, "create": 2, "gc": 2, "alter": 2}
        | {"look": 1, "reopen": 1},
        steps=6,
    ),
    _Theme({"insert": 6, "cold": 6, "hot": 6, "merge": 3, "merge_cold": 5}, steps=6, stops=0.2, waits=0.1, faults=0.2),
    _Theme({"insert": 6, "create": 4, "drop": 4, "cold": 2, "alter": 2, "look": 1, "reopen": 1}, stops=0.3, faults=0.1),
    _Theme(
        {"hot": 5, "merge_cold": 5, "cold": 1, "insert": 1},
        begin=("insert", "insert", "cold"),
        stops=0.0,
        waits=0.0,
        faults=0.0,
    ),
    _Theme(
        {"insert": 6, "create": 3, "drop": 1, "look": 1}, steps=4, stops=0.0, waits=0.0, faults=0.0, wrong_clocks=0.0
    ),
)


def planned(seed: int) -> Plan:
    """The world of a seed: of ten, seven are logs, one has no conditional writes, two are tables."""
    chance = random.Random(f"simulation {seed}")
    kind = seed % 10
    if kind < 7:
        return _with(chance, "log", chance.choice(_LOG))
    if kind < 8:
        return replace(_with(chance, "log", chance.choice(_LEASE)), conditional=False)
    return _with(chance, "tables", chance.choice(_TABLES))


def _with(chance: random.Random, world: str, theme: _Theme) -> Plan:
    verbs, weights = list(theme.verbs), list(theme.verbs.values())
    steps = tuple(
        tuple(
            Step(verb, chance.randrange(1000))
            for verb in (
                *(theme.begin if number == 0 else ()),
                *(chance.choices(verbs, weights)[0] for _ in range(chance.randint(1, theme.steps))),
            )
        )
        for number in range(MACHINES)
    )
    turns = tuple(_turn(chance, theme) for _ in range(chance.randint(3, 24)))
    some_faults, some_deaths = chance.random() < theme.faults, chance.random() < 0.3
    return Plan(
        world,
        steps,
        turns,
        faults=tuple(
            Fault(chance.randrange(MACHINES), chance.randint(1, 60), chance.choice(KINDS), chance.choice((1, 1, 2, 9)))
            for _ in range(chance.randint(1, 3) if some_faults else 0)
        ),
        deaths=tuple(
            Death(chance.randrange(MACHINES), chance.randint(1, 150))
            for _ in range(chance.randint(1, 2) if some_deaths else 0)
        ),
        ahead=tuple(
            chance.choice((-7200, 7200, 86400)) if chance.random() < theme.wrong_clocks else 0 for _ in range(MACHINES)
        ),
    )


def _turn(chance: random.Random, theme: _Theme) -> Turn:
    requests = chance.choice(theme.requests) if chance.random() < theme.stops else 0
    seconds = chance.choice((5, 60, 400, 4000, 20_000)) if chance.random() < theme.waits else 0
    others_only = theme.sleeps and chance.random() < theme.sleeps
    return Turn(chance.randrange(1 if others_only else 0, MACHINES), requests, seconds)


def shrunk(plan: Plan, fails: Callable[[Plan], bool], most: int = 400) -> Plan:
    """A smaller plan that fails as well: nothing more can be left out of it, or it was tried often enough."""
    tried = 0
    again = True
    while again:
        again = False
        for smaller in _smaller(plan):
            tried += 1
            if tried > most:
                return plan
            if smaller.size < plan.size and fails(smaller):
                plan, again = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for number, steps in enumerate(plan.steps):
        if steps:
            yield _steps_of(plan, number, ())
    yield replace(plan, faults=(), deaths=(), ahead=(0,) * MACHINES)
    yield replace(plan, deaths=())
    half = len(plan.turns) // 2
    yield replace(plan, turns=plan.turns[:half])
    yield replace(plan, turns=plan.turns[half:])
    for number, steps in enumerate(plan.steps):
        for at in range(len(steps)):
            yield _steps_of(plan, number, (*steps[:at], *steps[at + 1 :]))
    for at in range(len(plan.turns)):
        yield replace(plan, turns=(*plan.turns[:at], *plan.turns[at + 1 :]))
    for at in range(len(plan.faults)):
        yield replace(plan, faults=(*plan.faults[:at], *plan.faults[at + 1 :]))
    for at, wrong in enumerate(plan.ahead):
        if wrong:
            yield replace(plan, ahead=(*plan.ahead[:at], 0, *plan.ahead[at + 1 :]))
    for at, turn in enumerate(plan.turns):
        if turn.seconds:
            yield replace(plan, turns=(*plan.turns[:at], replace(turn, seconds=0), *plan.turns[at + 1 :]))
        if turn.requests:
            yield replace(plan, turns=(*plan.turns[:at], replace(turn, requests=0), *plan.turns[at + 1 :]))


def _steps_of(plan: Plan, machine: int, steps: tuple[Step, ...]) -> Plan:
    return replace(plan, steps=(*plan.steps[:machine], steps, *plan.steps[machine + 1 :]))
