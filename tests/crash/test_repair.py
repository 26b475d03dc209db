"""fsck --repair: die at every side effect; no byte is lost, and the next repair ends where an undisturbed one ends (I2,
I4, I15).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from disks.base import Disk
from disks.registry import open_disk
from restore.check.check import CheckOptions, CheckResult, check
from tests.crash import invariants
from tests.crash.conftest import RecordTally
from tests.crash.enumeration import Tally
from tests.crash.harness import Failpoints, ForkServer, Mode, hooked
from tests.crash.site import JANUARY, OTHER, TABLE, Site, events, mixed

pytestmark = pytest.mark.crash


@contextmanager
def disks(site: Site) -> Iterator[dict[str, Disk]]:
    config = site.config()
    opened = {name: open_disk(name, config.disks[name], config.state_directory) for name in ("ssd", "s3")}
    with closing(opened["ssd"]), closing(opened["s3"]):
        yield opened


def fsck(site: Site, *, repair: bool) -> CheckResult:
    with disks(site) as opened:
        return check(opened, CheckOptions(repair=repair), policies={"hot_cold": ["ssd", "s3"]})


# In children


def prepare(site: Site) -> None:
    """A hot part without its `part.json`, a cold one without its object, a table that one disk forgot, a cache that is
    not what the log says, and the staging of a dead process."""
    site.root.mkdir(parents=True)
    with site.open() as store:
        mixed(store, site)
        parts = store.parts(TABLE)
        cold = store.object_disk("s3")
        key = next(cold.stat(stored.path(stored.part.files[0].name)).key for stored in parts if stored.disk == "s3")
        hot = next(stored for stored in parts if stored.name.partition != JANUARY)
        with cold.file_table.write() as view:
            view.remove(events(2, name=OTHER).path)
    (site.bucket / str(key)).unlink()
    (site.root / "ssd" / hot.path("part.json")).unlink()
    (site.root / "ssd" / events(2, name=OTHER).path).unlink()
    (site.root / "ssd" / ".frostline" / "staging" / "dead").mkdir()
    site.save()


def act(site: Site, mode: Mode, at: int) -> list[str]:
    hook = Failpoints(mode, at)
    with hooked(hook):
        result = fsck(site, repair=True)
    assert not result.problems, result.problems
    return hook.names


# Driving


def contents(site: Site) -> set[str]:
    """The digests of everything that users' data lies in: parts on the SSD, objects in the bucket."""
    return {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for root in (site.root / "ssd" / "store", site.bucket)
        for path in Path(root).rglob("*")
        if path.is_file()
    }


def examine(site: Site) -> tuple[list[str], str]:
    """Repair once more; what is wrong then, and the state of the store."""
    wrong: list[str] = []
    result = fsck(site, repair=True)
    wrong += [f"I15 a second repair leaves {problem}" for problem in result.problems]
    again = fsck(site, repair=True)
    wrong += [f"I14 a third repair did {sentence}" for sentence in again.repaired]
    with site.open() as store:
        wrong += [line for line in invariants.check(store, site) if "/detached/missing_" not in line]
        seen = f"{invariants.observe(store)} at {sorted(invariants.placement(store).items())}"
    return wrong, f"{seen}; set aside: {sorted(again.set_aside)}"


def test_killed_at_every_effect_of_a_repair(server: ForkServer, site: Site, record_tally: RecordTally) -> None:
    server.value(prepare, site)
    assert {problem.invariant for problem in fsck(site, repair=False).problems} >= {"I2", "I3", "I7", "I14"}
    site.reset()
    before = contents(site)
    effects = [name for name in server.value(act, site, "count", 0) if not name.startswith("store.")]
    wrong, wanted = examine(site)
    assert not wrong
    assert "missing_" in wanted
    assert "incomplete_" in wanted
    tally = Tally(effects=len(effects))
    for at in tally.due("repair", range(1, len(effects) + 2)):
        site.reset()
        outcome = server.run(act, site, "kill", at)
        lost = before - contents(site)
        wrong = [f"I4 the repair lost {len(lost)} files"] if lost else []
        if outcome.kind == "raised":
            wrong.append(f"raised {outcome.error}\n{outcome.trace}")
        found, state = examine(site)
        wrong += found
        if state != wanted:
            wrong.append(f"I2 after a repeat: {state}; expected: {wanted}")
        if before - contents(site):
            wrong.append("I4 the repeated repair lost files")
        tally.add(f"fsck --repair killed at {at} ({(*effects, 'after the last')[at - 1]})", wrong)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points > 10, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])
