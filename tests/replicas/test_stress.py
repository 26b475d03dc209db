"""Three replicas under kills, stops and broken lines, for a few rounds: `make soak-replicas` does so for an hour."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.crash.harness import REPOSITORY


@pytest.mark.in_turn
@pytest.mark.usefixtures("zookeeper")
def test_every_replica_has_what_was_acknowledged_once() -> None:
    command = [sys.executable, "-m", "tests.soak.replicas", "--seed", "17", "--rounds", "3"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 rounds" in ended.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("zookeeper")
def test_replicas_with_a_log_each_lose_nothing_in_outages() -> None:
    """P11, P13 (I1 to I11). Keeper goes, and machines go."""
    command = [sys.executable, "-m", "tests.soak.replicas", "--own-logs", "--seed", "18", "--rounds", "3"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "wipes of Keeper 1, machines that left 2" in ended.stdout
