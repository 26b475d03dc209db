"""Pieces of work in processes of this machine: their answers, their errors, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from disks.workers.process_runner import processes
from oplog.errors import FrostlineError, Retained
from tests.servers import REPOSITORY

UNTIL = datetime(2027, 1, 1, tzinfo=UTC)


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refuse(number: int) -> int:
    if number == 2:
        raise Retained(f"object {number} is kept", until=UNTIL, hint="wait")
    return number


def die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_every_answer_comes_once_from_another_process() -> None:
    answers: dict[int, tuple[int, int]] = {}
    processes(2).run(square, range(20), title="squares", on_done=answers.__setitem__)
    assert [answers[index][0] for index in range(20)] == [number * number for number in range(20)]
    assert os.getpid() not in {process for _, process in answers.values()}


def test_an_error_arrives_whole() -> None:
    with pytest.raises(Retained, match="object 2 is kept") as caught:
        processes(1).run(refuse, [1, 2, 3], title="refusals", on_done=lambda index, answer: None)
    assert (caught.value.until, caught.value.hint, caught.value.exit_code) == (UNTIL, "wait", 13)


def test_a_process_that_is_killed_is_an_error_with_a_next_step() -> None:
    with pytest.raises(FrostlineError, match=r"sizes: .* died") as caught:
        processes(2).run(die, [1, 2, 3], title="sizes", on_done=lambda index, answer: None)
    assert caught.value.hint == "run it again"


PROGRAM = """
import sys
from disks.workers.process_runner import processes
from tests.unit.disks.workers.lingering import linger
if __name__ == "__main__":
    processes(1).run(linger, [sys.argv[1]], title="sleep", on_done=lambda index, answer: None)
"""


def test_the_processes_end_with_the_one_that_gave_them_work(tmp_path: Path) -> None:
    program, note = tmp_path / "program.py", tmp_path / "pid"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, str(program), str(note)], env=environment) as parent:
        try:
            wait_until(lambda: note.exists() and bool(note.read_text()))
        finally:
            parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(int(note.read_text())))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
