"""One run of a job in a process of its own, which ends when the daemon does, however that ends.

The process holds `state/jobs/NAME.lock` while it works, so that a run that outlives its daemon by a moment keeps the
next daemon's from beginning; and it writes itself how it ended, so that what is done is not done again by a daemon that
did not live to hear of it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from disks import effects
from disks.host.locks import lock_holder
from oplog.documents import Document
from tiering.daemon.jobs.record import Result
from tiering.daemon.log_lines import LogFormat
from tiering.plugins import JOB_PROGRAM

_LOOK_SECONDS = 0.1
_STOP_SECONDS = 6.0
"""From SIGTERM to SIGKILL. What is killed is mended by the next command, or goes on with the next run."""

log = logging.getLogger("frostline.daemon")


class RunOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order that the process gets."""

    job: str
    state: str
    """The state directory of the daemon's store: the process works on no other."""
    run: str
    """Tells this run from every other of the job."""
    config: str | None = None
    options: tuple[str, ...] = ()
    """Global options of the command line."""
    log_format: LogFormat | None = None
    """Of what it says on standard error; None: as it comes."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    run: str
    result: Result
    said: str = ""
    merged: int = 0
    code: int = 0
    figures: dict[str, int] = {}
    """What all of it counted."""


_report = Document("report of a run", RunReport)


class JobFiles(msgspec.Struct, frozen=True):
    """A job's files below the state directory."""

    state: Path
    job: str

    @property
    def lock(self) -> Path:
        """Held by the process of a run."""
        return self.state / "jobs" / f"{self.job}.lock"

    @property
    def is_held(self) -> bool:
        """Whether a run is at work, of this process or another."""
        return lock_holder(self.lock) is not None

    def report(self, run: str) -> RunReport | None:
        """How that run ended; None where it did not live to say so."""
        try:
            found = _report.decode((self.state / "jobs" / f"{self.job}.json").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        return found if found.run == run else None

    def write(self, report: RunReport) -> None:
        """Say how a run ended, durably, in place of the one before."""
        effects.make_directory(self.lock.parent)
        effects.replace_file(self.state / "jobs" / f"{self.job}.json", _report.encode(report))


def run(
    order: RunOrder, stop: threading.Event, *, program: Sequence[str] = (sys.executable, "-m", JOB_PROGRAM)
) -> RunReport:
    """Start the process and wait for its end; `stop` ends it."""
    place = JobFiles(Path(order.state), order.job)
    command = [*program, msgspec.json.encode(order).decode()]
    try:
        # It reads its standard input, which nobody writes to, to learn that this process is gone.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError as error:
        return RunReport(run=order.run, result="failed", said=f"no process could be started: {error}", code=1)
    try:
        while process.poll() is None:
            if stop.wait(_LOOK_SECONDS):
                _end(process)
    finally:
        if process.poll() is None:
            _end(process)
        assert process.stdin is not None
        process.stdin.close()
    found = place.report(order.run)
    if found is not None:
        return found
    if stop.is_set():
        return RunReport(run=order.run, result="stopped", said="stopped with the daemon", code=process.returncode)
    how = f"by signal {-process.returncode}" if process.returncode < 0 else f"with exit code {process.returncode}"
    said = f"its process ended {how} and left no report in {place.lock.parent}: its log says why, or a full disk"
    return RunReport(run=order.run, result="failed", said=said, code=process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
