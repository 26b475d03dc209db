"""Enumerate the side effects of an operation: stop at each, recover, check, repeat the operation, collect garbage.

The functions of the first half run in children of the fork server, `examine` alone in the test: it is not to be killed.
Those of the second half drive them.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from backup import storage
from backup.format import names
from tests import turns
from tests.crash import invariants, mutants
from tests.crash.as_read import index_is_as_read, watching
from tests.crash.harness import Failpoints, ForkServer, Mode, Outcome, hooked
from tests.crash.invariants import Seen
from tests.crash.powercut import Effect, Recorder, cuts, read_tree, write_tree
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.site import Site
from tests.keeping import is_keeping
from tiering.catalog.freshness import Freshness
from tiering.engine.store import Store

LOCAL = "fs."
_Point = TypeVar("_Point")

# In children


def prepare(name: str, site: Site) -> Seen:
    """Make the store the scenario begins with and save it; what is visible in it."""
    scenario = SCENARIOS[name]
    site.root.mkdir(parents=True, exist_ok=True)
    if scenario.name == "first_open":
        site.save()
        return Seen({})
    with site.open() as store:
        scenario.prepare(store, site)
    site.save()
    with site.open() as store:
        seen = invariants.observe(store)
    site.reset()
    return seen


def act(name: str, site: Site, mode: Mode, at: int) -> list[str]:
    """The operation with the hook on; its effects. Opening the store is part of it only where the scenario says so."""
    scenario = SCENARIOS[name]
    hook = Failpoints(mode, at)
    _act(scenario, site, hook)
    return hook.names


def _act(scenario: Scenario, site: Site, hook: Any) -> None:
    if scenario.fresh:
        with hooked(hook):
            scenario.act(None, site)  # type: ignore[arg-type]
        return
    with site.open() as store, repeatably(hook):
        scenario.act(store, site)


@contextmanager
def repeatably(hook: Failpoints) -> Iterator[None]:
    """The hook on, and as many effects at every run: a backup's lists lie in directories that are named after their
    digests, nonces and all, and two threads may make one directory."""
    with pytest.MonkeyPatch.context() as patch, hooked(hook):
        patch.setattr(names, "fresh_nonce", lambda: "0" * 16)
        patch.setattr(storage, "READERS", 1)
        yield


def act_then_cut(name: str, site: Site, at: int, mount: str) -> None:
    """Cut the power before the `at`-th effect, or after the operation was acknowledged."""
    hook = Failpoints("power_cut", at, mount=mount)
    scenario = SCENARIOS[name]
    with site.open() as store, repeatably(hook):
        scenario.act(store, site)
        hook.strike("acknowledged")


def record(name: str, site: Site) -> list[Effect]:
    """The trace of the operation, for the power-cut model."""
    recorder = Recorder(site.root, site.root / "state" / "journal.db")
    scenario = SCENARIOS[name]
    if scenario.fresh:
        with recorder.recording():
            scenario.act(None, site)  # type: ignore[arg-type]
    else:
        with site.open() as store, recorder.recording():
            scenario.act(store, site)
    return recorder.trace


def recover(site: Site, mode: Mode, at: int) -> list[str]:
    """Open the store, which recovers it, with the hook on; its effects."""
    hook = Failpoints(mode, at)
    with hooked(hook):
        site.open().close()
    return hook.names


@dataclass(frozen=True, slots=True)
class Examined:
    """The store after recovery, after the operation was repeated and after gc."""

    recovered: list[str]
    seen: Seen
    placement: dict[str, str]
    again: Seen
    violations: list[str]


def examine(name: str, site: Site, *watching: Store) -> Examined:
    """Recover, look, check; repeat the operation, check; collect garbage, check. Those who are `watching` see the same
    as who opens it now. Where looks are kept, recovery goes by them: a look anew would mend them before they count."""
    scenario = SCENARIOS[name]
    freshness = Freshness.CHANGES if is_keeping() else Freshness.EVERY_FILE
    with site.open(freshness=freshness) as store:
        recovered, seen, placed = store.recovered, invariants.observe(store), invariants.placement(store)
        violations = invariants.check(store, site, *watching)
    with invariants.opened_again(site, violations) as store:
        scenario.act(store, site)
        store.refresh(freshness)
        again = invariants.observe(store)
        violations += [f"after a repeat: {line}" for line in invariants.check(store, site, *watching)]
        violations += invariants.young_objects_survive(store)
    with site.open(ahead=timedelta(days=2)) as store:
        violations += invariants.old_orphans_go(store)
        if invariants.observe(store) != again:
            violations.append("I4 gc changed what is visible")
    return Examined(recovered, seen, placed, again, violations)


def fail_and_repeat(name: str, site: Site, mode: Mode, at: int) -> list[str]:
    """An error instead of, or after, one side effect; then, in the same process, look, repeat the operation and look.

    What an error in the tidying itself left, and what the next commit sweeps, is no leftover yet.
    """
    scenario = SCENARIOS[name]
    hook = Failpoints(mode, at, without=LOCAL if mode == "raise_after" else "")
    with site.open() as store:
        before = invariants.observe(store)
        with suppress(Exception), repeatably(hook):  # what the product makes of the error is not judged here
            scenario.act(store, site)
        store.refresh()
        seen = invariants.observe(store)
        violations = [*invariants.no_overlap(store), *invariants.no_dangling_reference(store)]
        scenario.act(store, site)
        store.refresh()
        after = invariants.observe(store)
    if not hook.struck:
        violations.append("the error never happened")
    elif mode == "raise_before" and hook.names[at - 1] not in ("fs.unlink", "fs.rmdir"):
        violations += invariants.no_leftovers(site, ignoring=("trash", "hidden"))
    if seen not in (before, after):
        violations.append(f"I2 after the error: {seen}; before: {before}; after a repeat: {after}")
    return violations


def reopen(site: Site) -> tuple[Seen, list[str]]:
    """Recover and look, no more."""
    with site.open() as store:
        return invariants.observe(store), invariants.check(store, site)


# Driving


@dataclass(frozen=True, slots=True)
class Reference:
    """The operation undisturbed: what is visible before and after it, and the names of its side effects."""

    before: Seen
    after: Seen
    placement: dict[str, str]
    effects: list[str]
    countable: int
    """How many of them a kill counts."""


@dataclass(slots=True)
class Tally:
    """What an enumeration did and found."""

    effects: int = 0
    points: int = 0
    """Where the operation can be stopped: those of all turns."""
    tried: int = 0
    """Those whose turn it is."""
    runs: int = 0
    violations: list[str] = field(default_factory=list)

    def due(self, operation: str, points: Sequence[_Point]) -> list[_Point]:
        """Those of the points whose turn it is; both are counted."""
        chosen = turns.due(operation, points)
        self.points += len(points)
        self.tried += len(chosen)
        return chosen

    def add(self, where: str, violations: Iterable[str]) -> None:
        self.runs += 1
        self.violations += [f"{where}: {violation}" for violation in violations]
        if mutants.active():  # one is proof enough
            assert not self.violations, self.violations[0]

    def judge(self, where: str, site: Site, name: str, known: Reference, *, acknowledged: bool) -> None:
        """Recover and examine the store as it lies there."""
        self.add(where, _judge(site, name, known, Outcome("returned" if acknowledged else "killed")))


def reference(server: ForkServer, site: Site, name: str) -> Reference:
    """Prepare the scenario and run it once undisturbed."""
    before = server.value(prepare, name, site)
    effects = server.value(act, name, site, "count", 0)
    examined = examine(name, site)
    assert not examined.violations, examined.violations
    assert not examined.recovered, f"an undisturbed {name} left work for recovery: {examined.recovered}"
    assert examined.again == examined.seen, "the operation cannot be repeated"
    if SCENARIOS[name].keeps_rows:
        assert examined.seen == before, f"I13 {name} changed what is visible: {before} -> {examined.seen}"
    leaf = [effect for effect in effects if not effect.startswith("store.")]
    return Reference(before, examined.seen, examined.placement, effects, len(leaf))


def kill_everywhere(server: ForkServer, site: Site, name: str) -> Tally:
    """SIGKILL before each side effect, and after the last."""
    known = reference(server, site, name)
    tally = Tally(effects=known.countable)
    for at in tally.due(f"kill {name}", range(1, known.countable + 2)):
        site.reset()
        with _watching(name, site, at) as watchers:
            outcome = server.run(act, name, site, "kill", at)
            where = f"{name} killed at {at} ({_label(known, at)})"
            found = [*_unreached(known, at, outcome)]
            if at % 2:  # else recovery comes first
                found += [f"at once: {line}" for watcher in watchers for line in index_is_as_read(watcher, watcher)]
            tally.add(where, [*found, *_judge(site, name, known, outcome, *watchers)])
    return tally


@contextmanager
def _watching(name: str, site: Site, at: int) -> Iterator[tuple[Store, ...]]:
    """Where looks are kept, somebody who has seen the store before the operation began, and has read its parts at
    every other two points. Nobody where all that a process has open goes away, or comes only then."""
    if SCENARIOS[name].fresh or not is_keeping():
        yield ()
        return
    with watching(site, has_read=at % 4 < 2) as watcher:
        yield (watcher,)


def kill_twice(server: ForkServer, site: Site, name: str, *, stride: int = 1) -> Tally:
    """SIGKILL in the operation, at every `stride`-th point, then SIGKILL before each side effect of the recovery.

    Of both kills a turn takes its share: a pair comes round in the turns of its two halves.
    """
    known = reference(server, site, name)
    tally = Tally(effects=known.countable)
    for at in tally.due(f"kill {name} twice", range(1, known.countable + 1, stride)):
        for again in _until_complete(f"kill {name} twice at {at}"):
            site.reset()
            first = server.run(act, name, site, "kill", at)
            if first.kind != "killed":
                tally.add(f"{name} killed at {at}", _unreached(known, at, first))
                break
            second = server.run(recover, site, "kill", again)
            label = f"{name} killed at {at} ({_label(known, at)}), its recovery at {again}"
            tally.add(label, _judge(site, name, known, first))
            if second.kind != "killed":
                break
    return tally


def _unreached(known: Reference, at: int, outcome: Outcome) -> Iterator[str]:
    """An effect that this run did not come to is not proved."""
    if at <= known.countable and outcome.kind != "killed":
        yield f"the kill never happened: {outcome.kind} {outcome.error}"


def _until_complete(operation: str) -> Iterator[int]:
    yield from turns.due(operation, range(1, 500))


def _judge(site: Site, name: str, known: Reference, outcome: Outcome, *watching: Store) -> Iterator[str]:
    if outcome.kind == "raised":
        yield f"raised {outcome.error}\n{outcome.trace}"
        return
    try:
        found = examine(name, site, *watching)
    except Exception:
        yield f"I2 recovery failed\n{traceback.format_exc()}"
        return
    yield from found.violations
    if found.seen not in (known.before, known.after):
        yield f"I2 neither before nor after: {found.seen}; before: {known.before}; after: {known.after}"
    if outcome.kind == "returned" and (found.seen != known.after or found.placement != known.placement):
        yield f"I1 acknowledged, yet {found.seen} at {found.placement}"
    if found.again != known.after:
        yield f"I2 repeated after the crash: {found.again}; expected: {known.after}"


def fail_everywhere(server: ForkServer, site: Site, name: str, mode: Mode) -> Tally:
    """An error before (`raise_before`) or after (`raise_after`: a lost answer) each effect; the process lives on.

    An answer is lost only on the way from a store or a database: a local file's effect is over when it returns.
    """
    known = reference(server, site, name)
    tally = Tally(effects=len(known.effects))
    effects = [effect for effect in known.effects if mode == "raise_before" or not effect.startswith(LOCAL)]
    for at, effect in tally.due(f"{mode} {name}", list(enumerate(effects, 1))):
        site.reset()
        where = f"{name} {mode} at {at} ({effect})"
        outcome = server.run(fail_and_repeat, name, site, mode, at)
        if outcome.kind != "returned":
            tally.add(where, [f"I2 the repeat failed: {outcome.error}\n{outcome.trace}"])
            continue
        seen, violations = reopen(site)
        tally.add(where, [*outcome.value, *violations])
        if seen != known.after:
            tally.violations.append(f"{where}: I2 after the repeat: {seen}; expected: {known.after}")
    return tally


def kill_and_examine(
    server: ForkServer,
    site: Site,
    name: str,
    strike: Callable[[Site, Mode, int], Sequence[str]],
    examine: Callable[[Site], list[str]],
) -> Tally:
    """A kill before each effect of what strikes, and what another process then finds wrong."""
    tally = Tally(effects=len(server.value(strike, site, "count", 0)))
    for at in tally.due(name, range(1, tally.effects + 1)):
        site.reset()
        server.run(strike, site, "kill", at)
        tally.add(f"{name} {at}", server.value(examine, site))
    return tally


def cut_power_everywhere(server: ForkServer, site: Site, name: str, *, limit: int) -> Tally:
    """Every state that the model says a power cut may leave; a fixed sample of `limit` of them when there are more."""
    known = reference(server, site, name)
    site.reset()
    if not SCENARIOS[name].fresh:
        site.open().close()  # what opening changes is not part of the trace
    before = read_tree(site.root)
    trace = server.value(record, name, site)
    states = list(cuts(before, trace))
    chosen = states if len(states) <= limit else random.Random(1).sample(states, limit)
    chosen += [state for state in states if state.last and state not in chosen][: limit // 4]
    tally = Tally(effects=len(trace))
    for state in tally.due(f"power cut {name}", chosen):
        write_tree(state.tree, site)
        tally.judge(f"{name}, power cut {state.what}", site, name, known, acknowledged=state.last)
    return tally


def _label(known: Reference, at: int) -> str:
    leaf = [effect for effect in known.effects if not effect.startswith("store.")]
    return leaf[at - 1] if at <= len(leaf) else "after the last"
