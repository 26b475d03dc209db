"""Die at every side effect of every operation, recover, and find I1 to I8 and I14 intact (P14, P15, P45)."""

from __future__ import annotations

import pytest

from tests.crash import enumeration
from tests.crash.conftest import RecordTally
from tests.crash.harness import ForkServer
from tests.crash.scenarios import SCENARIOS
from tests.crash.site import Site

pytestmark = pytest.mark.crash

STRIDE = 9
"""Recovery is interrupted after every ninth point of the operation here, after every one in the slow run."""


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_effect(keeping_server: ForkServer, site: Site, name: str, record_tally: RecordTally) -> None:
    """And what is kept of parts is what a fresh reading of the disks shows, also for who looked before the kill."""
    tally = enumeration.kill_everywhere(keeping_server, site, name)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points == tally.effects + 1 > 5, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.parametrize("name", ["move", "merge"])
def test_killed_again_while_recovering(server: ForkServer, site: Site, name: str, record_tally: RecordTally) -> None:
    tally = enumeration.kill_twice(server, site, name, stride=STRIDE)
    record_tally(tally)
    assert tally.runs > 2 * tally.tried or tally.tried < 3, "no recovery was ever interrupted"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["move", "merge", "drop_table", "restore_revision"])
def test_killed_again_while_recovering_from_every_effect(
    server: ForkServer, site: Site, name: str, record_tally: RecordTally
) -> None:
    tally = enumeration.kill_twice(server, site, name)
    record_tally(tally)
    assert not tally.violations, "\n".join(tally.violations[:20])
