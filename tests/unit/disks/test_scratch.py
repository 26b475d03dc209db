"""Directories of tasks below $TMPDIR: what a killed one left goes with the next, and nobody else's is used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from disks.host.scratch import task_scratch

NAME = "frostline-task"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which is remembered
    return tmp_path


def ours(temporary: Path) -> Path:
    return temporary / f"{NAME}-{os.getuid()}"


def test_a_killed_task_s_scratch_goes_next_a_living_one_s_stays(temporary: Path) -> None:
    killed = """
import os, signal
from disks.host.scratch import task_scratch
own = task_scratch("frostline-task")
(own.path / "spilled").write_bytes(b"x" * 100)
print(own.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    living = task_scratch(NAME)
    done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True)
    left = Path(done.stdout.strip())
    assert (left / "spilled").stat().st_size == 100
    task_scratch(NAME).remove()
    assert not left.exists()
    assert living.path.is_dir()
    living.remove()
    assert list(ours(temporary).iterdir()) == []


def test_nobody_else_can_look_into_it(temporary: Path) -> None:
    before = os.umask(0)
    try:
        task_scratch(NAME)
    finally:
        os.umask(before)
    assert stat.S_IMODE(ours(temporary).stat().st_mode) == 0o700


def test_a_directory_that_others_can_write_to_is_not_used(temporary: Path) -> None:
    ours(temporary).mkdir()
    ours(temporary).chmod(0o777)
    scratch = task_scratch(NAME)
    assert scratch.path.parent != ours(temporary)
    assert stat.S_IMODE(scratch.path.parent.stat().st_mode) == 0o700
    assert list(ours(temporary).iterdir()) == []


def test_a_link_to_a_directory_elsewhere_is_not_used(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "precious").mkdir()  # a sweep would take it for a leftover
    ours(temporary).symlink_to(elsewhere)
    scratch = task_scratch(NAME)
    assert not scratch.path.is_relative_to(elsewhere)
    assert not scratch.path.resolve().is_relative_to(elsewhere)
    assert (elsewhere / "precious").is_dir()
