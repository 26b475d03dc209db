"""The summary of an enumeration at the end of a run: a run that proves nothing must be seen.

A hook of `tests/conftest.py`: the process that collects the workers' reports loads no other conftest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import turns

if TYPE_CHECKING:
    from tests.crash.enumeration import Tally

_PROPERTY = "crash points"


def recorded(tally: Tally) -> tuple[str, object]:
    """A tally as a property of a test's report, which workers send to the process that prints the summary."""
    return _PROPERTY, [tally.tried, tally.points, tally.runs]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many crash points of how many were tried, operation by operation."""
    reports = [*terminalreporter.stats.get("passed", []), *terminalreporter.stats.get("failed", [])]
    found = [
        (report.nodeid, report.duration, *tally)
        for report in reports
        if report.when == "call" and (tally := dict(report.user_properties).get(_PROPERTY))
    ]
    if not found:
        return
    terminalreporter.section(f"crash points ({turns.ENVIRONMENT}={turns.current()})")
    for name, seconds, tried, points, runs in sorted(found):
        terminalreporter.line(f"{tried:5} of {points:5}  {runs:5} runs {seconds:6.1f} s  {name}")
    tried, points, runs = (sum(amounts) for amounts in zip(*(entry[2:] for entry in found), strict=True))
    terminalreporter.line(f"{tried:5} of {points:5}  {runs:5} runs in all")
