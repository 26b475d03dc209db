"""A store of two directories and a bucket, driven from the command line, and what somebody does to its disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Frostline
from tests.crash import mutants

mutants.apply_from_environment()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the store; no configuration of the machine is in reach."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "home"


@pytest.fixture
def frostline(home: Path, capsys: pytest.CaptureFixture[str]) -> Frostline:
    return Frostline(capsys)
