"""Real processes of the command line, forked from one that has imported everything: a start costs milliseconds.

The server process has one thread and runs no verb itself. A child is `frostline ARGUMENTS` from its first line to its
last, in a session of its own, and dies by SIGKILL: at its n-th side effect, or when the driver says so.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from tests.crash.harness import REPOSITORY, Failpoints, read_message, write_message

NEVER = 0


@dataclass(slots=True)
class Run:
    """One process. `status` is that of wait(2) once it has ended."""

    number: int
    arguments: tuple[str, ...]
    place: Path
    kill_at: int = NEVER
    status: int | None = None
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    def ended(self, status: int) -> None:
        self.status, self.seconds = status, time.monotonic() - self.began
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        return self._ended.wait(seconds)

    @property
    def killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def code(self) -> int:
        """The exit code; of a process that a signal ended minus the signal."""
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    @property
    def out(self) -> str:
        return (self.place / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.place / "err").read_text(errors="replace")

    @property
    def effects(self) -> int | None:
        """How many side effects it had, if it came to its end."""
        try:
            return int((self.place / "effects").read_text())
        except (FileNotFoundError, ValueError):  # killed before, or while it was written
            return None


class Processes:
    """Starts and kills them. Their output lies below `place`, a directory each."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self.place = place
        self._runs: list[Run] = []
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.processes"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
        )
        assert self._server.stdin
        assert self._server.stdout
        self._requests, self._answers = self._server.stdin.fileno(), self._server.stdout.fileno()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, arguments: Sequence[str], directory: Path, *, kill_at: int = NEVER) -> Run:
        """Run it in the directory; it dies before its `kill_at`-th side effect."""
        run = Run(len(self._runs), tuple(arguments), self.place / f"{len(self._runs):05}", kill_at)
        run.place.mkdir()
        (run.place / "arguments").write_text(" ".join(arguments) + f"\nkill at {kill_at}\n")
        self._runs.append(run)
        write_message(self._requests, ("start", run.number, run.arguments, str(directory), str(run.place), kill_at))
        return run

    def signal(self, run: Run, number: signal.Signals = signal.SIGKILL) -> None:
        """Nothing when it has ended."""
        write_message(self._requests, ("signal", run.number, number))

    def _listen(self) -> None:
        while (ended := read_message(self._answers)) is not None:
            number, status = ended
            self._runs[number].ended(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(30)


def serve() -> None:
    """Until stdin closes: fork, signal, say what ended. What still runs then is killed."""
    answers = os.dup(1)
    os.dup2(2, 1)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver, who gets it too, closes stdin
    children: dict[int, int] = {}
    while True:
        ready = select.select([0, reader], [], [])[0]
        if reader in ready:
            os.read(reader, 4096)
            _reap(children, answers)
        if 0 in ready:
            request = read_message(0)
            if request is None:
                break
            match request:
                case ("start", number, *rest):
                    if (child := os.fork()) == 0:
                        os.close(answers)
                        _run(*rest)
                    children[child] = number
                case ("signal", number, which):
                    for child in [child for child, own in children.items() if own == number]:
                        os.kill(child, which)
    for child in children:
        os.kill(child, signal.SIGKILL)


def _reap(children: dict[int, int], answers: int) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        write_message(answers, (children.pop(child), status))


def _run(arguments: Sequence[str], directory: str, place: str, kill_at: int) -> NoReturn:
    from disks import effects
    from tiering.cli.main import main

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.chdir(directory)
    for descriptor, name in ((0, "/dev/null"), (1, f"{place}/out"), (2, f"{place}/err")):
        opened = os.open(name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    faulthandler.enable(all_threads=True)  # who is ended by a signal of its own says where
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    points = Failpoints("kill", kill_at)
    effects.set_hook(points)
    code = 1
    try:
        main(arguments)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # What else an interpreter does at its end is to take itself apart: half of the time of a short verb, for nothing.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    Path(place, "effects").write_text(str(len(points.names)))
    os._exit(code)


def import_everything() -> None:
    """So that no child pays for it. Nothing here may start a thread."""
    import importlib
    import pkgutil

    import boto3  # noqa: F401
    import duckdb  # noqa: F401
    import pyarrow.csv
    import pyarrow.dataset  # noqa: F401

    import disks
    import oplog
    import restore
    import tiering
    import zerocopy
    from tests.crash import mutants, site

    mutants.apply_from_environment()
    site.import_everything()
    for package in (oplog, disks, restore, tiering, zerocopy):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    assert threading.active_count() == 1, "a process with threads cannot be forked"


if __name__ == "__main__":
    import_everything()
    gc.freeze()  # or each child would copy all that it looks at for garbage
    serve()
    os._exit(0)
