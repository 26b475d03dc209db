"""Fixtures of the crash tests: a fork server a worker, and a place in memory for each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests import keeping
from tests.crash import mutants
from tests.crash.enumeration import Tally
from tests.crash.harness import ForkServer
from tests.crash.site import Site, temporary_site
from tests.crash.summary import recorded

mutants.apply_from_environment()


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


@pytest.fixture(scope="session")
def keeping_server() -> Iterator[ForkServer]:
    """Whose children keep what is known of a few parts at once, as the test does that has `small_batches`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keeping.ENVIRONMENT, "1")
        running = ForkServer()
    with running:
        yield running


RecordTally = Callable[[Tally], None]


@pytest.fixture
def record_tally(record_property: Callable[[str, object], None]) -> RecordTally:
    """Puts what an enumeration did into the summary."""

    def record(tally: Tally) -> None:
        record_property(*recorded(tally))

    return record


@pytest.fixture(autouse=True)
def unsettled() -> Iterator[None]:
    """How many side effects an operation has depends on no clock."""
    with keeping.patched(keeping.UNSETTLED):
        yield


@pytest.fixture
def site() -> Iterator[Site]:
    with temporary_site() as place:
        yield place


@pytest.fixture
def small_batches() -> Iterator[None]:
    """What is known of parts is kept at once, also of a few; `invariants.check` then compares it with the disks."""
    with keeping.keeping(settled=False):
        yield
