"""gc against history: die at every deletion; every retained revision can still be restored (I4, I5, I7, I8, P31)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.crash import enumeration, invariants
from tests.crash.conftest import RecordTally
from tests.crash.enumeration import Tally
from tests.crash.harness import ForkServer
from tests.crash.site import Site

pytestmark = pytest.mark.crash


def revisions(site: Site) -> dict[int, set[str]]:
    """The paths of every revision."""
    with site.open() as store:
        disk = store.object_disk("s3")
        found = {}
        for revision in range(1, disk.revision + 1):
            table = disk.table_at(revision)
            found[revision] = {row.path for row in table.rows()}
            table.close()
        return found


@pytest.mark.parametrize("retention", [timedelta(hours=24), timedelta(days=30)], ids=["expired", "retained"])
def test_gc_keeps_what_can_be_restored(
    server: ForkServer, site: Site, retention: timedelta, record_tally: RecordTally
) -> None:
    site = replace(site, retention=retention)
    server.value(enumeration.prepare, "gc_history", site)
    history = revisions(site)
    kept = history if retention.days > 2 else {max(history): history[max(history)]}
    effects = [name for name in server.value(enumeration.act, "gc_history", site, "count", 0) if name[:3] == "fs."]
    tally = Tally(effects=len(effects))
    for at in tally.due(f"gc, retention {retention}", range(1, len(effects) + 2)):
        site.reset()
        server.run(enumeration.act, "gc_history", site, "kill", at)
        tally.add(f"gc killed at {at}", _found(site, kept))
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points > 5
    assert not tally.violations, "\n".join(tally.violations[:20])


def _found(site: Site, kept: dict[int, set[str]]) -> list[str]:
    with site.open(ahead=timedelta(days=2)) as store:
        disk = store.object_disk("s3")
        violations = [*invariants.past_is_restorable(disk, kept), *invariants.check(store, site)]
        if disk.read("linked/two.bin") != b"shared " * 100:
            violations.append("I8 the second name of a file lost its bytes")
        violations += invariants.old_orphans_go(store, retained=kept)
        violations += invariants.past_is_restorable(disk, kept)
    return violations
