"""An error before or after every side effect: the process lives on, repeats the operation, succeeds (I1, I2, I14)."""

from __future__ import annotations

import pytest

from tests.crash import enumeration
from tests.crash.conftest import RecordTally
from tests.crash.harness import ForkServer, Mode
from tests.crash.scenarios import SCENARIOS
from tests.crash.site import Site

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("mode", ["raise_before", "raise_after"])
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if not scenario.fresh])
def test_error_at_every_effect(
    server: ForkServer, site: Site, name: str, mode: Mode, record_tally: RecordTally
) -> None:
    tally = enumeration.fail_everywhere(server, site, name, mode)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points >= 3, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])
