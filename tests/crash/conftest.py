"""Fixtures of the crash tests: a fork server a worker, and a place in memory for each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.crash import mutants
from tests.crash.enumeration import Tally
from tests.crash.harness import ForkServer
from tests.crash.scenarios import Site, temporary_site

mutants.apply_from_environment()


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


RecordTally = Callable[[Tally], None]


@pytest.fixture
def record_tally(record_property: Callable[[str, object], None]) -> RecordTally:
    """Puts what an enumeration did into the summary."""

    def record(tally: Tally) -> None:
        record_property("effects", tally.effects)
        record_property("runs", tally.runs)

    return record


@pytest.fixture
def site() -> Iterator[Site]:
    with temporary_site() as place:
        yield place


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was enumerated: a run that proves nothing must be seen."""
    reports = [report for report in terminalreporter.stats.get("passed", []) if hasattr(report, "user_properties")]
    found = [(report, dict(report.user_properties)) for report in reports if "runs" in dict(report.user_properties)]
    if not found:
        return
    terminalreporter.section("crash points")
    for report, properties in found:
        test = report.nodeid.rpartition("::")[2]
        amount = f"{properties['effects']:5} effects {properties['runs']:5} runs"
        terminalreporter.line(f"{amount} {report.duration:6.1f} s  {test}")
    terminalreporter.line(f"{sum(properties['runs'] for _, properties in found):19} runs in all")
