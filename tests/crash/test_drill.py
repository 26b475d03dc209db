"""A drill of a backup that dies: the store is as before, the scratch store goes, the next drill passes. Guards I14."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import turns
from tests.crash import backing_up, enumeration
from tests.crash.harness import Failpoints, ForkServer, Mode
from tests.crash.invariants import Seen, observe
from tests.crash.site import Site, mixed

pytestmark = pytest.mark.crash

STRIDE = 20
"""Of the effects inside the scratch store, one after the other the same thing: it is there, or partly."""


def prepare(site: Site) -> Seen:
    site.root.mkdir(parents=True)
    with site.open() as store:
        mixed(store, site)
        backing_up.init(site)
        backing_up.back_up(store, site)
        before = observe(store)
    site.save()
    site.reset()
    return before


def drill(site: Site, mode: Mode, at: int) -> list[str]:
    hook = Failpoints(mode, at)
    with backing_up.opened(site) as repository, enumeration.repeatably(hook):
        done = repository.drill("one")
    assert done.ok, done.problems
    return hook.names


def left(site: Site) -> list[Path]:
    return list((site.root / "state" / "backup").glob("*/drills/*"))


def drilled(site: Site) -> bool:
    with backing_up.opened(site) as repository:
        (made,) = repository.backups()
    return made.drilled is not None


def test_killed_at_its_effects(server: ForkServer, site: Site) -> None:
    before = server.value(prepare, site)
    counted = server.value(drill, site, "count", 0)
    effects = [effect for effect in counted if not effect.startswith("store.")]  # where a kill strikes
    last = len(effects)
    assert effects[-1].startswith("fs."), effects[-20:]
    points = sorted({*range(1, last, STRIDE), *range(1, 5), *range(last - 9, last + 1)})
    due = turns.due("kill backup drill", points)
    swept = 0
    for at in due:
        site.reset()
        assert server.run(drill, site, "kill", at).kind == "killed", effects[at - 1]
        abandoned, proved = left(site), drilled(site)
        stores = [path.name for path in abandoned if path.is_dir()]
        with site.open() as store:
            assert observe(store) == before
            told = [name for name in stores if any(name in sentence for sentence in store.recovered)]
        assert told == stores, "what is taken away is told"
        swept += len(stores)
        assert not left(site), f"killed at {at} ({effects[at - 1]})"
        assert not (proved and abandoned), "a result is kept of what is over"
    assert swept or len(due) < len(points), "no kill left a scratch store"
    site.reset()
    assert server.run(drill, site, "kill", last // 2).kind == "killed"
    server.value(drill, site, "count", 0)
    assert not left(site)
    assert drilled(site)
