"""A signal ends what the main thread does, but for the moments in which that would leave a lock held for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytest

from tiering.cli.frame.signals import Handler, keeps_lock, raising


class _SignalledLock:
    """A lock during whose taking a signal arrives, as it does between two instructions of who takes it."""

    def __init__(self, arrive: Callable[[FrameType], None]) -> None:
        self._lock = threading.Lock()
        self._arrive = arrive

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._arrive(sys._getframe(1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)


def test_work_is_handed_over_before_the_signal_ends_it() -> None:
    delayed: list[Handler] = []
    handle = raising(KeyboardInterrupt, delayed.append)
    with ThreadPoolExecutor(1) as pool:
        pool._shutdown_lock = _SignalledLock(lambda frame: handle(signal.SIGINT, frame))  # type: ignore[assignment]
        first = pool.submit(lambda: 1)
        assert first.result() == 1
        assert delayed
        assert pool.submit(lambda: 2).result() == 2, "the lock was left held"
    with pytest.raises(KeyboardInterrupt):
        handle(signal.SIGINT, sys._getframe())


def test_starting_a_thread_counts_with_all_that_it_calls() -> None:
    seen: list[bool] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "wait":
            seen.append(keeps_lock(frame))

    sys.setprofile(look)
    try:
        threading.Thread(target=int).start()
    finally:
        sys.setprofile(None)
    assert seen
    assert all(seen)


def test_a_wait_is_ended_at_once() -> None:
    waiting: list[bool] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is threading.Condition.wait.__code__:
            waiting.append(keeps_lock(frame))

    sys.setprofile(look)
    try:
        threading.Event().wait(0)
    finally:
        sys.setprofile(None)
    assert waiting == [False]


def test_our_own_code_is_ended_at_once() -> None:
    assert not keeps_lock(sys._getframe())
    assert not keeps_lock(None)
    with pytest.raises(KeyboardInterrupt):
        raising(KeyboardInterrupt, lambda handle: pytest.fail("delayed"))(signal.SIGINT, sys._getframe())


def test_what_does_not_leave_is_ended_all_the_same() -> None:
    delayed: list[Handler] = []
    handle = raising(KeyboardInterrupt, delayed.append)
    seen: list[type[BaseException]] = []

    def arrive(frame: FrameType) -> None:
        try:
            for _ in range(1000):
                handle(signal.SIGINT, frame)
        except KeyboardInterrupt as error:
            seen.append(type(error))

    with ThreadPoolExecutor(1) as pool:
        pool._shutdown_lock = _SignalledLock(arrive)  # type: ignore[assignment]
        pool.submit(int)
    assert seen[:1] == [KeyboardInterrupt]
    assert len(delayed) < 1000


def test_a_delayed_signal_comes_again_by_itself() -> None:
    handle = raising(KeyboardInterrupt)
    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(1) as pool:
            once = [True]

            def arrive(frame: FrameType) -> None:
                if once:
                    once.clear()
                    handle(signal.SIGINT, frame)

            pool._shutdown_lock = _SignalledLock(arrive)  # type: ignore[assignment]
            pool.submit(int)
            while True:
                threading.Event().wait(0.01)
    finally:
        signal.signal(signal.SIGALRM, before)


REPOSITORY = Path(__file__).parents[4]
_ANSWERS_ITSELF = {
    "tiering/cli/commands/daemon.py",
    "tui/serving/server.py",
    "tui/terminal.py",
    "disks/workers/process_runner.py",  # its parent ends it
}
"""Who takes signals from the handlers of every verb, and so has to end in time by other means."""
_HANGS = """
import ctypes, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from typer.core import TyperCommand
from tiering.cli import main

library = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(256)
library.pthread_mutex_lock(mutex)

def native():
    "A call that no signal ends, as the work of an engine is: a lock that is its own, for the second time."
    library.pthread_mutex_lock(mutex)

def native_in_a_pool():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(native).result()

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def signalled_when_it_waits(main_thread):
    while sys._current_frames()[main_thread].f_code.co_name not in ("native", "wait"):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

def lost_in_a_finalizer():
    "What the handler raises is raised in `__del__`: Python prints it, and goes on."
    Finalized()
    while True:
        threading.Event().wait(0.1)
"""
_ONE = """
def verb(**given):
    wait = globals()[sys.argv[1]]
    if wait is not lost_in_a_finalizer:
        threading.Thread(target=signalled_when_it_waits, args=(threading.get_ident(),), daemon=True).start()
    wait()

main.build = lambda: verb
main.main([])
"""
_CLEANS_UP = """
from disks.host.clean_up import clean_up_owed
from tiering.cli.frame import signals

main_thread, sleep, looked = threading.get_ident(), signals.time.sleep, threading.Semaphore(0)
signals._MOST_SECONDS, signals._LOOK_SECONDS = 0.1, 0.01

def look(seconds):
    looked.release()
    sleep(seconds)

signals.time.sleep = look

def verb(**given):
    with clean_up_owed():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                threading.Event().wait(0.1)
        finally:
            if sys.argv[1] == "for ever":
                signals._MOST_CLEAN_UP_SECONDS = 0.5
                native()
            for _ in range(20):  # twice as many looks as there are without the mark
                looked.acquire()
            print("cleaned up", flush=True)

main.build = lambda: verb
main.main([])
"""
_ALL = """
def leaves(command, path):
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from leaves(command.get_command(None, name), (*path, name))
    else:
        yield path

from typer.main import get_command
verbs = list(leaves(get_command(main.build()), ()))
TyperCommand.parse_args = lambda self, context, given: []
begun, begin = os.pipe()

def hang(self, context):
    os.write(begin, b"+")
    native()

TyperCommand.invoke = hang
running = {}
for verb in verbs:
    if not (process := os.fork()):
        signal.alarm(90)  # none is left behind where the test fails
        main.main(verb)
    running[process] = verb
for _ in running:
    os.read(begun, 1)
for process in running:
    os.kill(process, signal.SIGTERM)
ended = {verb: os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process, verb in running.items()}
print(len(ended), {" ".join(verb): code for verb, code in ended.items() if code != 143})
"""


@pytest.mark.in_turn
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("wait", ["native", "native_in_a_pool", "lost_in_a_finalizer"])
def test_a_wait_without_end_ends_with_the_signal(wait: str, number: signal.Signals, code: int) -> None:
    """None of these waits ends by itself: a process that ends was ended."""
    program = (_HANGS + _ONE).replace("SIGTERM", number.name)
    command = [sys.executable, "-c", program, wait]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert "the next command continues the work" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_daemon_that_does_not_hear_of_its_signal_ends(number: signal.Signals) -> None:
    """Its main thread is within native code without an end, so the handler that would stop it never runs."""
    program = _HANGS + (
        "from tiering.cli.commands import daemon\n"
        "daemon._MOST_SECONDS = 0.5\n"
        "def verb(**given):\n"
        "    daemon.stop_on_signals(threading.Event())\n"
        "    threading.Thread(target=signalled_when_it_waits, args=(threading.get_ident(),), daemon=True).start()\n"
        "    native()\n"
        "main.build = lambda: verb\n"
        "main.main([])\n"
    )
    command = [sys.executable, "-c", program.replace("SIGTERM", number.name)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + number, done.stderr


def test_the_first_ctrl_c_leaves_a_daemon_its_time() -> None:
    """When it is looked at, the handler of the second one may be there."""
    from tiering.cli.commands import daemon
    from tiering.cli.frame import signals

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        daemon.stop_on_signals(threading.Event())
        for _ in range(2):
            handler: Any = signal.getsignal(signal.SIGINT)
            assert signals._ends_within[handler] > daemon._MOST_STOP_SECONDS
            if handler.__qualname__.startswith("stop_on_signals"):
                handler(signal.SIGINT, None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_clean_up_that_is_owed_has_more_time() -> None:
    command = [sys.executable, "-c", _HANGS + _CLEANS_UP, "a while"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (143, "cleaned up\n"), done.stderr


def test_a_clean_up_without_an_end_ends_all_the_same() -> None:
    command = [sys.executable, "-c", _HANGS + _CLEANS_UP, "for ever"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (143, ""), done.stderr


@pytest.mark.in_turn
def test_each_verb_ends_within_a_native_call() -> None:
    """Every verb there is hangs in native code, each in a process of its own, and gets SIGTERM."""
    done = subprocess.run(
        [sys.executable, "-c", _HANGS + _ALL], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    count, _, others = done.stdout.strip().partition(" ")
    assert int(count or 0) > 60, done.stderr[-2000:]
    assert others == "{}"


def test_who_answers_signals_itself_is_known() -> None:
    sources = {
        str(path.relative_to(REPOSITORY)): path.read_text()
        for package in ("oplog", "disks", "tiering", "restore", "backup", "zerocopy", "spark_tiering", "tui")
        for path in (REPOSITORY / package).rglob("*.py")
    }
    taking = {name for name, text in sources.items() if "signal.signal(" in text or "add_signal_handler(" in text}
    assert taking - {"tiering/cli/main.py", "tiering/cli/frame/signals.py"} == _ANSWERS_ITSELF


def test_no_signal_of_its_own_ends_a_process_that_embeds() -> None:
    """Beside its handlers a verb takes nothing: `run` is for programs that go on after it."""
    from tiering.cli import main as cli

    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    assert cli.run(["--version"]) == 0
    after = signal.set_wakeup_fd(before)
    assert after == before
