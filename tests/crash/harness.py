"""Stop an operation at each of its side effects: by SIGKILL, by an error before or after it, by a power cut.

Every side effect of the product passes `disks.effects.op`; a `Failpoints` hook counts them and strikes at the n-th.
Operations run in children forked from a server process that has imported everything and run nothing
(`tests.crash.server`), so a killed one leaves what a killed process leaves: files, and no `finally` that tidied up.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from errno import EIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from disks import effects
from oplog.errors import OutcomeUnknown, Transient

REPOSITORY = Path(__file__).parents[2]
CHILD_SECONDS = 60

Mode = Literal["count", "kill", "raise_before", "raise_after", "power_cut"]

_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


class Injected(OSError):
    """An error that a test put in the place of a side effect, or after it."""


@dataclass(slots=True)
class Failpoints:
    """A hook for `disks.effects.set_hook`. Counts the side effects and strikes at the `at`-th (from 1).

    The product's store verbs wrap file verbs (`store.put` > `fs.write` …): a kill before the outer is one before the
    first inner, so `kill` and `power_cut` count the inner ones only; an error after the outer is a lost answer: counts.
    """

    mode: Mode = "count"
    at: int = 0
    without: str = ""
    """Count no effect whose name begins with this."""
    mount: str = ""
    """power_cut: the mounted file system that loses what was not synced."""
    names: list[str] = field(default_factory=list)
    struck: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _striking: set[int] = field(default_factory=set)

    def __call__(self, phase: Literal["before", "after"], name: str, arguments: tuple[object, ...]) -> None:
        if self._passes_over(name):
            return
        if phase == "after":
            self._after(name)
            return
        with self._lock:
            self.names.append(name)
            strikes = len(self.names) == self.at and not self.struck
            if strikes and self.mode == "raise_after":
                self._striking.add(threading.get_ident())
        if strikes:
            self.strike(name)

    def _passes_over(self, name: str) -> bool:
        if self.mode in ("kill", "power_cut"):
            return name.startswith("store.")
        return bool(self.without) and name.startswith(self.without)

    def strike(self, name: str) -> None:
        """What happens at the chosen effect."""
        if self.mode == "raise_before":
            self.struck = True
            raise _error_before(name)
        if self.mode == "power_cut":
            _shut_down(self.mount)
        if self.mode in ("kill", "power_cut"):
            os.kill(os.getpid(), signal.SIGKILL)

    def _after(self, name: str) -> None:
        if threading.get_ident() in self._striking and name == self.names[self.at - 1] and not self.struck:
            self.struck = True
            raise _error_after(name)


def _error_before(name: str) -> Exception:
    if name.startswith("store."):
        return Transient(f"injected before {name}")
    return Injected(EIO, f"injected before {name}")


def _error_after(name: str) -> Exception:
    if name.startswith("store."):
        return OutcomeUnknown(f"injected after {name}")
    return Injected(EIO, f"injected after {name}")


def _shut_down(mount: str) -> None:
    descriptor = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))


@contextlib.contextmanager
def hooked(hook: effects.Hook | None) -> Iterator[None]:
    """Install the hook for the block."""
    effects.set_hook(hook)
    try:
        yield
    finally:
        effects.set_hook(None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended. `value` is what its function returned, `error` what it raised (one line)."""

    kind: Literal["returned", "raised", "killed"]
    value: Any = None
    error: str = ""
    trace: str = ""


class ForkServer:
    """Runs functions in forked children, one after the other. Functions are named `module:function`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.server"], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> Outcome:
        """Call it in a child and wait. A child that hangs is killed and fails the test."""
        assert self._process.stdin
        assert self._process.stdout
        write_message(self._process.stdin.fileno(), (f"{function.__module__}:{function.__qualname__}", arguments))
        outcome = read_message(self._process.stdout.fileno())
        if outcome is None:
            raise RuntimeError("the fork server is gone")
        if isinstance(outcome, str):
            raise RuntimeError(outcome)
        return outcome

    def value(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in a child; its result. A child that does not return one fails the test."""
        outcome = self.run(function, *arguments)
        if outcome.kind != "returned":
            raise AssertionError(f"{function.__qualname__} {outcome.kind}: {outcome.error}\n{outcome.trace}")
        return outcome.value

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(CHILD_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(requests: int, answers: int) -> None:
    """The server's loop: fork for each request, answer with its outcome. Runs no request itself: it has no threads."""
    while (request := read_message(requests)) is not None:
        write_message(answers, _run_in_child(*request))


def _run_in_child(name: str, arguments: tuple[Any, ...]) -> Outcome | str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(writer, name, arguments)
    os.close(writer)
    if not select.select([reader], [], [], CHILD_SECONDS)[0]:
        os.kill(child, signal.SIGTERM)
    outcome = read_message(reader)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if outcome is not None:
        return outcome
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Outcome("killed")
    return f"{name} ended with status {status} (15: it hung for {CHILD_SECONDS} s)"


def _child(writer: int, name: str, arguments: tuple[Any, ...]) -> None:
    try:
        module, _, function = name.partition(":")
        outcome = Outcome("returned", getattr(importlib.import_module(module), function)(*arguments))
    except BaseException as error:
        outcome = Outcome("raised", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    try:
        write_message(writer, outcome)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def write_message(descriptor: int, message: object) -> None:
    """Pickle with its length in front."""
    data = pickle.dumps(message)
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_message(descriptor: int) -> Any:
    """The next message; None at the end."""
    header = _read(descriptor, 8)
    return pickle.loads(_read(descriptor, struct.unpack("<Q", header)[0])) if len(header) == 8 else None


def _read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGING = frozenset(
    f"os.{verb}" for verb in ("rename", "remove", "rmdir", "mkdir", "link", "symlink", "truncate", "chmod", "utime")
) | {"shutil.rmtree", "shutil.move", "shutil.copyfile"}


class Audit:
    """Notes every change below `root` that Python makes outside of an `op()`: a hole in the enumeration.

    Lock files are no data: their creation may lie outside. SQLite writes through C, which no audit event shows.
    """

    def __init__(self, root: Path, *, ignored: Callable[[str], bool] = lambda path: False) -> None:
        self.root = str(root)
        self.ignored = ignored
        self.holes: list[str] = []
        self.seen = 0
        self._inside = threading.local()
        self._original = effects.op
        self._audited = self._wrapped(effects.op)
        self._replace(self._original, self._audited)
        self._active = True
        sys.addaudithook(self._event)  # cannot be removed: `_active` ends it

    def close(self) -> None:
        """Stop listening."""
        self._active = False
        self._replace(self._audited, self._original)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`op` that knows whether a thread is inside of it, also when the effect fails."""

        @contextlib.contextmanager
        def op(name: str, *arguments: object) -> Iterator[None]:
            self._inside.depth = getattr(self._inside, "depth", 0) + 1
            try:
                with original(name, *arguments):
                    yield
            finally:
                self._inside.depth -= 1

        return op

    @staticmethod
    def _replace(old: object, new: object) -> None:
        for module in list(sys.modules.values()):
            if getattr(module, "op", None) is old:
                module.op = new  # type: ignore[attr-defined]

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str | bytes) or not (flags or 0) & _WRITING:
                return
        elif event in _CHANGING:
            path = arguments[0]
        else:
            return
        if isinstance(path, int):
            return
        text = os.fsdecode(path)
        if not text.startswith(self.root) or self.ignored(text):
            return
        self.seen += 1
        if not getattr(self._inside, "depth", 0):
            frame = next((f for f in reversed(traceback.extract_stack()[:-1]) if "/tests/" not in f.filename), None)
            self.holes.append(
                f"{event} {text.removeprefix(self.root)} at {frame.filename}:{frame.lineno}" if frame else event
            )
