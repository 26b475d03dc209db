"""The test servers themselves: a command runs against one, and nothing is left behind, also after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.servers import REPOSITORY, ServerFailed

CHECK = "import os, boto3; boto3.client('s3').head_bucket(Bucket=os.environ['FROSTLINE_BUCKET']); raise SystemExit(7)"


def is_running(pid: int) -> bool:
    """Alive and not a zombie that waits for its parent."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def ended(pid: int) -> bool:
    """Whether it ends within ten seconds."""
    for _ in range(200):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["ministack", "rclone", pytest.param("ceph", marks=pytest.mark.ceph)])
def test_command_gets_a_bucket_and_its_exit_code_comes_back(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "ceph":
        request.getfixturevalue("ceph")  # skips where Ceph is missing
    command = [sys.executable, "-m", "tests.servers", kind, "--", sys.executable, "-c", CHECK]
    ended = subprocess.run(command, cwd=REPOSITORY, check=False, timeout=120)
    assert ended.returncode == 7


@pytest.mark.in_turn
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_server_ends_with_its_runner(ending: signal.Signals, tmp_path: Path) -> None:
    note = tmp_path / "endpoint"
    wait = f"import time, pathlib; pathlib.Path({str(note)!r}).write_text('running'); time.sleep(60)"
    command = [sys.executable, "-m", "tests.servers", "ministack", "--", sys.executable, "-c", wait]
    runner = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    children: list[str] = []
    try:
        for _ in range(400):
            if note.exists() and note.read_text():
                break
            time.sleep(0.05)
        children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        assert len(children) == 2, "the server and the command"
        os.kill(runner.pid, ending)
        runner.wait(30)
        assert ended(int(children[0]))
    finally:
        for pid in [str(runner.pid), *children]:
            if is_running(int(pid)):
                os.kill(int(pid), signal.SIGKILL)


HOLD = """
import sys
from pathlib import Path
from tests import servers
with servers.shared("ministack", Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def user(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the shared server, and the server's process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_all_share_one_server_that_outlives_who_had_it_started(tmp_path: Path) -> None:
    with user(tmp_path) as (first, started), user(tmp_path) as (_, shared):
        assert shared == started
        first.kill()
        first.wait()
        with user(tmp_path) as (_, later):
            assert later == started
        assert is_running(started)
    assert ended(started)
    with user(tmp_path) as (_, anew):
        assert anew != started
        assert is_running(anew)
    assert ended(anew)


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ServerFailed, match="invalid choice"), servers.shared("no such kind", tmp_path):
            pass
