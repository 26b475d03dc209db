"""Die at every side effect of every operation, recover, and find I1 to I8 and I14 intact (P14, P15, P45)."""

from __future__ import annotations

import pytest

from tests import keeping
from tests.crash import enumeration
from tests.crash.conftest import RecordTally
from tests.crash.harness import ForkServer
from tests.crash.scenarios import SCENARIOS, Site

pytestmark = pytest.mark.crash

STRIDE = 9
"""Recovery is interrupted after every ninth point of the operation here, after every one in the slow run."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_effect(server: ForkServer, site: Site, name: str, record_tally: RecordTally) -> None:
    tally = enumeration.kill_everywhere(server, site, name)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points == tally.effects + 1 > 5, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["insert", "move", "move_back", "merge", "drop_parts", "alter_table", "undo_drop"])
def test_what_is_kept_of_parts_is_right_after_a_kill_at_every_effect(
    site: Site, name: str, record_tally: RecordTally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where looks at a table of a few parts are kept: they show what a fresh reading of every disk does."""
    monkeypatch.setenv(keeping.ENVIRONMENT, "1")
    with keeping.keeping(settled=False), ForkServer() as server:
        tally = enumeration.kill_everywhere(server, site, name)
    record_tally(tally)
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.parametrize("name", ["move", "merge"])
def test_killed_again_while_recovering(server: ForkServer, site: Site, name: str, record_tally: RecordTally) -> None:
    tally = enumeration.kill_twice(server, site, name, stride=STRIDE)
    record_tally(tally)
    assert tally.runs > 2 * tally.tried, "no recovery was ever interrupted"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["move", "merge", "drop_table", "restore_revision"])
def test_killed_again_while_recovering_from_every_effect(
    server: ForkServer, site: Site, name: str, record_tally: RecordTally
) -> None:
    tally = enumeration.kill_twice(server, site, name)
    record_tally(tally)
    assert not tally.violations, "\n".join(tally.violations[:20])
