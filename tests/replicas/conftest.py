"""One ZooKeeper for all tests here, each below a root of its own, and a line to it that can be broken."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from oplog.errors import UsageError
from tests import servers
from tests.crash import mutants
from tests.replicas.keeper.line import KeeperLine
from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from zerocopy.keeper import packaged
from zerocopy.keeper.client import Keeper

mutants.apply_from_environment()


@pytest.fixture(scope="session")
def zookeeper(shared_directory: Path) -> Iterator[int]:
    """The port of a real ZooKeeper, one for all workers. Outside of CI a machine without Java skips; in CI it must be
    there."""
    try:
        packaged.find_java()
        packaged.find_jars()
    except UsageError as error:
        missing = f"{error.message}; run: bash configs/install/java.sh install ({error.hint})"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with servers.shared("zookeeper", shared_directory) as server:
        yield int(server.endpoint_url.rpartition(":")[2])


@pytest.fixture
def settings(zookeeper: int) -> KeeperConfig:
    """The way to the server, below a root that nobody else uses."""
    return KeeperConfig(
        hosts=(f"127.0.0.1:{zookeeper}",),
        root=f"/test-{uuid.uuid4().hex}",
        session_timeout_seconds=30,
        request_timeout_seconds=120,
    )


@pytest.fixture
def keeper(settings: KeeperConfig) -> Iterator[Keeper]:
    """A session, its root made."""
    with Keeper(settings) as opened:
        opened.make_path("/")
        yield opened


@pytest.fixture
def line(zookeeper: int) -> Iterator[KeeperLine]:
    """The network between us and the server."""
    with KeeperLine.to(zookeeper) as made:
        yield made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def shared_url(bucket: str) -> str:
    """Where all machines have their cold parts. A file whose machines share no bucket says: empty."""
    return f"s3://{bucket}/cold/"


@pytest.fixture
def policy(shared_url: str) -> str:
    return "cold" if shared_url else "local"


@pytest.fixture
def machine(tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], shared_url: str) -> Machines:
    """Machines by name."""
    return lambda name: Machine(tmp_path, name, settings, capsys, shared_url)


@pytest.fixture
def a(machine: Machines, policy: str) -> Machine:
    made = machine("a")
    made.create("--policy", policy)
    return made


@pytest.fixture
def b(machine: Machines, a: Machine, policy: str) -> Machine:
    made = machine("b")
    made.join("--policy", policy)
    return made
