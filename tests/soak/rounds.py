"""The rounds: something happens to a store while it is used, then what it answers is compared with the model."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import faults
from tests.soak.faults import Fault, Faults
from tests.soak.processes import NEVER, Processes, Run
from tests.soak.world import Act, World

ROUNDS_A_STORE = 60
LONGEST_SECONDS = 90.0
_REACH = {
    "insert": 75,
    "merge": 120,
    "move": 70,
    "table alter": 79,
    "table create": 90,
    "tick": 100,
    "undo": 20,
    "query": 20,
}
"""Side effects of verbs, where a store does not know better yet."""
_FIRST_REACH = 40
_FIRST_SECONDS = 0.3
_TEMPORARY = frozenset({0, 1, 3, 4, 5, 10, 11, 13})
"""How a verb may end while something goes wrong: not by a mistake of the user (2) or a refusal of the store (12)."""


class Found(Exception):
    """What should not be. One sentence."""


@dataclass(slots=True)
class Tally:
    """What happened so far. A fault that did not strike and a kill that came too late are not in it."""

    kills: int = 0
    outages: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    stores: int = 0
    rows: int = 0
    checks: int = 0
    states_lost: int = 0
    mended: int = 0
    collected: int = 0
    verbs: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    reach: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Soaked:
    """One store with all that happens to it. Its choices depend on the seed and on what it answered."""

    world: World
    processes: Processes
    faults: Faults
    tally: Tally
    say: list[str] = field(default_factory=list)
    """What this round did."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long a verb took the last time."""
    reach: dict[str, int] = field(default_factory=dict)
    """How many side effects a verb had at the most: beyond it no kill strikes."""

    @property
    def chance(self) -> random.Random:
        return self.world.chance

    def begin(self) -> None:
        for name in self.world.tables:
            self.calm(self.world.create(name))
        for name in self.world.tables:
            self.calm(self.world.insert(name))
        self.check(fsck=True)

    def round(self, number: int) -> None:
        """One of them; raises `Found`."""
        self.say.clear()
        kinds = {
            self.killing: 62,
            self.together: 12,
            self.only_faults: 8,
            self.outage: 6,
            self.losing: 4,
            self.undoing: 4,
        }
        self.chance.choices(list(kinds), list(kinds.values()))[0]()
        self.tally.rounds += 1
        self.alone()
        self.check(fsck=number % 5 == 0)
        if number % 5 == 0:
            self.checkpoint()

    # Rounds

    def killing(self) -> None:
        """One to four verbs die, the later ones in what the recovery of the former does; faults besides."""
        planned = faults.some(self.chance) if self.chance.random() < 0.5 else []
        with self.faulty(planned):
            for _ in range(self.chance.choice((1, 2, 3, 3, 4))):
                act = self.world.act()
                run = self.start(act, kill=True)
                self.finish(act, run, calm=False)
        if act.arguments[0] == "insert" and run.code and self.chance.random() < 0.6:
            self.faults.wait_until_idle()
            self.finish(act, self.start(act, kill=False), calm=self.world.names_are_certain)
            self.say.append("again")

    def together(self) -> None:
        """Two or three at once, of which any may die."""
        acts = [act for act in (self.world.act() for _ in range(self.chance.choice((2, 3)))) if not act.alone]
        started = [(act, self.start(act, kill=self.chance.random() < 0.7)) for act in acts]
        for act, run in started:
            self.finish(act, run, calm=False, compare=False)

    def only_faults(self) -> None:
        act = self.world.act()
        with self.faulty(faults.some(self.chance)):
            self.finish(act, self.start(act, kill=False), calm=False)

    def losing(self) -> None:
        """The local state goes, often right after a kill."""
        if self.chance.random() < 0.7:
            self.killing()
        what = self.chance.choice(("state/disks/s3", "state/disks", "state"))
        self.say.append(f"lose {what}")
        self.world.lose(what)
        self.tally.states_lost += 1

    def undoing(self) -> None:
        """A commit to soak.cold is taken back, killed or not."""
        table = self.world.tables["soak.cold"]
        self.look()
        if not table.certain or table.rows is None:
            return
        before = table.rows
        if self.chance.random() < 0.3:
            act = self.world.drop()
            while act.arguments[2] != "soak.cold":
                act = self.world.drop()
        else:
            act = self.world.insert("soak.cold")
        self.calm(act)
        undo = self.world.undo(self.newest()["revision"], before)
        self.finish(undo, self.start(undo, kill=self.chance.random() < 0.8), calm=False)

    def outage(self) -> None:
        """A disk is away while verbs run, and comes back."""
        away = self.chance.choice(("ssd", "hdd", "ssd", "s3", "s3"))
        self.say.append(f"{away} away")
        acts = [act for act in (self.world.act() for _ in range(self.chance.choice((1, 2)))) if not act.alone]
        noticed = False
        with self.gone(away):
            for act in [self.world.query(), *acts]:
                run = self.start(act, kill=not act.asks and self.chance.random() < 0.3)
                self.finish(act, run, calm=False)
                noticed |= not run.killed and (run.code != 0 or '"unreachable"' in run.out or away in run.err)
            noticed &= away != "s3" or self.faults.refused > 0
        self.tally.outages[away] += noticed

    # Steps

    @contextmanager
    def gone(self, disk: str) -> Iterator[None]:
        if disk == "s3":
            self.faults.outage(away=True)
            try:
                yield
            finally:
                self.faults.outage(away=False)
            return
        place = self.world.place / disk
        there = place.exists()
        if there:
            place.rename(place.with_suffix(".away"))
        mounted = self.chance.random() < 0.5
        if mounted and there:
            place.mkdir()
        yield
        if there and place.exists():
            if below := [path for path in place.rglob("*") if path.is_file()]:
                raise Found(f"written below the mount point of {disk}: {below[:5]}")
            for path in sorted(place.rglob("*"), reverse=True):
                path.rmdir()
            place.rmdir()
        if there:
            place.with_suffix(".away").rename(place)

    @contextmanager
    def faulty(self, planned: list[Fault]) -> Iterator[None]:
        self.say += [str(fault) for fault in planned]
        self.faults.plan(planned, random.Random(self.chance.random()))
        try:
            yield
        finally:
            self.faults.plan([])

    def start(self, act: Act, *, kill: bool) -> Run:
        """Sometimes it dies at a side effect, sometimes at a moment."""
        self.tally.verbs[act.verb] += 1
        at, after = NEVER, None
        share = self.chance.random()
        if kill and (self.chance.random() < 0.3 or act.arguments[0] == "daemon"):
            after = share * (2.0 if act.arguments[0] == "daemon" else 1.2 * self.seconds.get(act.verb, _FIRST_SECONDS))
        elif kill:
            at = 1 + int(share * self.reach.get(act.verb, _REACH.get(act.verb, _FIRST_REACH)))
        elif act.arguments[0] == "daemon":
            after = 1.0
        words = act.arguments[:1] if act.asks else act.arguments[:4]
        self.say.append(" ".join(words) + (f" kill at {at}" if at else f" kill after {after:.2f} s" if after else ""))
        run = self.processes.start(act.arguments, self.world.place, kill_at=at)
        if after is not None and not run.wait(after):
            self.processes.signal(run, signal.SIGKILL if kill else signal.SIGTERM)
        return run

    def finish(self, act: Act, run: Run, *, calm: bool, compare: bool = True) -> None:
        """Wait for its end and tell the model. An answer is compared, whatever went wrong meanwhile."""
        if not run.wait(LONGEST_SECONDS):
            self.processes.signal(run, signal.SIGUSR1)
            time.sleep(1)
            self.processes.signal(run)
            run.wait(10)
            raise Found(f"{act.verb} hangs: {run.place}")
        self.tally.kills += run.killed
        self.tally.killed[act.verb] += run.killed
        self.tally.endings[f"{act.verb}: {'killed' if run.killed else run.code}"] += 1
        if run.effects:
            self.tally.reach[act.verb] = max(run.effects, self.tally.reach[act.verb])
            self.reach[act.verb] = max(run.effects, self.reach.get(act.verb, 0))
        if run.killed:
            act.in_doubt()
            return
        self.seconds[act.verb] = run.seconds
        self.say.append(f"-> {run.code}")
        wanted = act.codes if calm else act.codes | _TEMPORARY
        if not calm and ".SCHEMA_VERSION says" in run.err:  # one byte, which nothing but itself can confirm
            wanted |= {2}
        if "unexpected" in run.err or "Traceback" in run.err or run.code not in wanted:
            raise Found(f"{' '.join(run.arguments)} ended with {run.code}: {run.err.strip()[-800:]} ({run.place})")
        if run.code == 0:
            act.done()
        else:
            act.in_doubt()
        if act.verb == "gc --delete" and run.code == 0:
            self.tally.collected += json.loads(run.out)["deleted"]
        if act.asks and run.code == 0 and compare:
            self.compared(act, run)

    def calm(self, act: Act) -> Run:
        """With nothing going wrong."""
        run = self.start(act, kill=False)
        self.finish(act, run, calm=True)
        del self.say[-2:]
        return run

    def newest(self) -> dict[str, int]:
        entries = json.loads(self.calm(Act(("log", "s3", "--limit", "1", "--json"))).out)["entries"]
        found: dict[str, int] = entries[0]
        return found

    def checkpoint(self) -> None:
        table = self.world.tables["soak.cold"]
        if table.certain and table.rows is not None:
            self.world.checkpoints = [*self.world.checkpoints[-3:], (self.newest()["revision"], table.rows)]

    def alone(self) -> None:
        """What a killed process had started ends by itself."""
        deadline = time.monotonic() + 10
        while left := left_behind(self.world.place):
            if time.monotonic() > deadline:
                raise Found(f"killed processes left others behind: {left}")
            time.sleep(0.05)

    # The comparison

    def look(self) -> None:
        self.faults.wait_until_idle()
        if not self.world.names_are_certain:
            self.wrong(self.world.look_at_names(self.calm(Act(("table", "list", "--json"))).out))
        self.calm(self.world.query())

    def compared(self, act: Act, run: Run) -> None:
        self.wrong(self.world.look(run.out, act.asks))
        self.tally.checks += 1
        self.tally.rows += json.loads(run.out)["row_count"]

    def check(self, *, fsck: bool) -> None:
        """The answers are those of the model; after that recovery fsck finds nothing."""
        self.look()
        if not fsck:
            return
        act = Act(("fsck", "--json"), codes=frozenset({0, 4}))
        run = self.calm(act)
        if run.code:
            self.tally.mended += 1
            self.calm(Act(("status",)))
            run = self.calm(act)
        if run.code:
            raise Found(f"fsck: {json.loads(run.out)['problems'][:5]} ({run.place})")

    def wrong(self, problems: list[str]) -> None:
        if problems:
            raise Found("; ".join(problems))


def left_behind(place: Path) -> list[str]:
    """Processes of killed ones that still run: their working directory lies in the store's."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if os.readlink(process / "cwd") == str(place):
                    found.append(f"{process.name} {(process / 'cmdline').read_text().replace(chr(0), ' ')}")
            except OSError:
                continue
    return found
