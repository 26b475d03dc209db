"""Shared fixtures: real S3 servers, each started once a run for all workers, and a fresh bucket a test."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage

import pytest

from tests import servers, turns
from tests.built_verbs import build_once
from tests.crash import summary
from tests.servers import Server

_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 2 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Temporary files lie in memory where there is enough of it, and TMPDIR names no other place: half of the time of
    many tests is syncing, and what that means only power cuts show. `disk_path` is for those that ask about disks.

    Properties that say nothing of how many examples they want take the share of this turn; none has a deadline, which a
    busy machine would miss.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control began us in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and disk_usage(_MEMORY).free >= _ENOUGH_BYTES:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # it is looked up anew
    from hypothesis import settings

    most = turns.examples(settings.default.max_examples)
    settings.register_profile("turn", settings.default, deadline=None, max_examples=most)
    settings.load_profile("turn")


@pytest.hookimpl(trylast=True)  # after Hypothesis, which marks its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes may take an hour. Random examples get the five minutes that Hypothesis may take to make a
    failure small, and crash points the time of a busy machine: each has a limit of its own. A test whose time is over
    ends its process, and then nobody learns what had failed."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
        elif item.get_closest_marker("hypothesis") or item.get_closest_marker("crash"):
            item.add_marker(pytest.mark.timeout(900))
    rest: set[str] = set()
    for one_in, group in _in_turn(items).items():
        rest |= turns.left_out(group, one_in=one_in)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in rest])
    items[:] = [item for item in items if item.nodeid not in rest]


def pytest_collection_finish(session: pytest.Session) -> None:
    build_once()


def _in_turn(items: list[pytest.Item]) -> dict[int | None, list[str]]:
    """The tests marked `in_turn`, by the number of consecutive pushes in which each runs at least once: what the marker
    says, else as many as there are turns."""
    found: dict[int | None, list[str]] = {}
    for item in items:
        if (marker := item.get_closest_marker("in_turn")) is not None:
            found.setdefault(marker.kwargs.get("one_in"), []).append(item.nodeid)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What failed at first and passed when it was run again is told whole: the test, or what it tests, is at fault."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed, and was run again: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
    summary.pytest_terminal_summary(terminalreporter)


def pytest_report_header(config: pytest.Config) -> str:
    """With what a failure is repeated."""
    return f"crash points and examples: {turns.ENVIRONMENT}={turns.current()}"


@pytest.fixture(autouse=True)
def _no_account_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may reach a real AWS account or an instance role by accident."""
    for name in list(os.environ):
        if name.startswith("AWS_") and name != "AWS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory a run, the same for all workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def ministack(shared_directory: Path) -> Iterator[Server]:
    """The fast S3 server."""
    with servers.shared("ministack", shared_directory) as server:
        yield server


@pytest.fixture(scope="session")
def moto(shared_directory: Path) -> Iterator[Server]:
    """Another S3 server in memory."""
    pytest.importorskip("moto", reason="moto is not installed: pip install --require-hashes -r requirements/dev.txt")
    with servers.shared("moto", shared_directory) as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(shared_directory: Path) -> Iterator[Server]:
    """SeaweedFS, with signatures checked."""
    with servers.shared("seaweedfs", shared_directory) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(shared_directory: Path) -> Iterator[Server]:
    """The S3 server without conditional writes."""
    with servers.shared("rclone", shared_directory) as server:
        yield server


@pytest.fixture(scope="session")
def ceph(shared_directory: Path) -> Iterator[Server]:
    """Ceph RadosGW. Outside of CI a machine without it skips; in CI it must be there."""
    if missing := servers.ceph_missing():
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with servers.shared("ceph", shared_directory) as server:
        yield server


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on a disk, where `tmp_path` may lie in memory."""
    with tempfile.TemporaryDirectory(prefix="frostline-tests-", dir="/var/tmp") as name:
        yield Path(name)


@pytest.fixture
def s3_environment(ministack: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The fast S3 server as the environment's endpoint and credentials."""
    for name, value in ministack.environment().items():
        monkeypatch.setenv(name, value)
    return ministack


@pytest.fixture
def bucket(s3_environment: Server) -> str:
    """A fresh bucket on the fast server, which the environment points to."""
    return s3_environment.new_bucket()
