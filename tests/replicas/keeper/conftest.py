"""Machines that share no bucket: what they ask of Keeper is what matters here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig


@pytest.fixture
def machine(tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]) -> Machines:
    return lambda name: Machine(tmp_path, name, settings, capsys)


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made.create("--policy", "local")
    return made


@pytest.fixture
def b(machine: Machines, a: Machine) -> Machine:
    made = machine("b")
    made.join("--policy", "local")
    return made
