"""A file that kills the process is put aside after three kills, and keeps no other out of its table (I24)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tiering.daemon.inbox.places import Place

_KILLED_AT = """
import os, signal, sys
from tiering.cli import main
from tiering.daemon.inbox import reading
from tests.crash import mutants
mutants.apply_from_environment()
read, killers = reading.read, sys.argv[1:]

def killed(path, *rest):
    if path.name in killers:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(path, *rest)

reading.read = killed
sys.exit(main.run(["inbox", "run", "--once"]))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    made.store.close()
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_INBOX__PATH", str(tmp_path / "inbox"))
    monkeypatch.setenv("FROSTLINE_INBOX__STABLE_SECONDS", "0")
    return made


def run(*killers: str) -> int:
    return subprocess.run([sys.executable, "-c", _KILLED_AT, *killers], check=False, capture_output=True).returncode


def until_it_ends(*killers: str) -> tuple[int, int]:
    """The exit code of the first run that is not killed, and how many were."""
    for kills in range(10):
        if (code := run(*killers)) != -signal.SIGKILL:
            return code, kills
    raise AssertionError("it is killed again and again")


@pytest.mark.in_turn
def test_a_file_that_kills_keeps_no_other_out(place: Place) -> None:
    place.land("a.csv", 1)
    place.land("poison.csv", 2)
    place.land("q.csv", 4)
    place.land("z.csv", 3)
    assert until_it_ends("poison.csv", "q.csv") == (3, 4)
    assert (place.files("done"), place.files("failed")) == (
        ["a.csv", "a.csv.report.json", "z.csv", "z.csv.report.json"],
        ["poison.csv", "poison.csv.report.json", "q.csv", "q.csv.report.json"],
    )
    report = json.loads((place.home / "failed" / "poison.csv.report.json").read_text())
    assert "3 processes in a row were killed" in report["error"]
    assert "inbox retry" in report["hint"]
    assert not (place.home / ".attempt.json").exists()


@pytest.mark.in_turn
def test_a_kill_or_two_by_others_fails_no_file(place: Place) -> None:
    place.land("a.csv", 1)
    place.land("b.csv", 2)
    assert [run("b.csv"), run("b.csv")] == [-signal.SIGKILL] * 2
    (place.home / ".attempt.json").write_bytes(b"not JSON")
    assert run() == 0
    assert place.files("failed") == []


@pytest.mark.in_turn
def test_a_batch_that_kills_is_given_up(place: Place) -> None:
    """Nobody can tell whether the rows of a batch are in, so no file of it goes in by itself."""
    place.land("a.csv", 1)
    script = _KILLED_AT.replace("reading.read = killed", "").replace(
        "read, killers",
        "from tiering.daemon.inbox import ingest\n"
        "ingest.TableIngest._put_in = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nread, killers",
    )
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert run() == 1
    report = json.loads((place.home / "failed" / "a.csv.report.json").read_text())
    assert "it is unknown" in report["error"]
