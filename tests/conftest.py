"""Shared fixtures: real S3 servers, started once a session (Ceph once for all workers), and a fresh bucket a test."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests import servers
from tests.servers import Server


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
def ministack() -> Iterator[Server]:
    """The fast S3 server."""
    with servers.ministack() as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[Server]:
    """The S3 server without conditional writes."""
    with servers.rclone() as server:
        yield server


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ceph RadosGW. Outside of CI a machine without it skips; in CI it must be there."""
    if missing := servers.ceph_missing():
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with _shared(place, "ceph", servers.ceph) as server:
        yield server


@contextlib.contextmanager
def _shared(place: Path, kind: str, start: Callable[[], contextlib.AbstractContextManager[Server]]) -> Iterator[Server]:
    """One server for all workers: the first starts it, and stops it when no other holds the users' lock any more."""
    note = place / f"{kind}.json"
    owner = False
    with contextlib.ExitStack() as stack, (place / f"{kind}.users").open("w") as users:
        with (place / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if note.exists():
                server = Server(**json.loads(note.read_text()))
            else:
                server = stack.enter_context(start())
                owner = True
                note.write_text(json.dumps(asdict(server)))
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield server
        finally:
            if owner:  # wait for the other workers before the stack stops the server
                fcntl.flock(users, fcntl.LOCK_EX)
                note.unlink()


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
