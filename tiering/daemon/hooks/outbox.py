"""Events on their way to the hooks: each once, kept over restarts, tried again, and never waited for.

`state/hooks.json` has the undelivered events, and the reported trouble that is not over. An event is written down
before it is sent, and struck out when its hook has it: after a crash in between it is sent again, with the
same id. Each hook has a thread of its own; events that a dead hook does not take are dropped after some tries.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from oplog.documents import Document
from oplog.errors import FrostlineError, Refused, in_a_line
from tiering.config.secrets import without_passwords
from tiering.config.settings import HookConfig, HookEvent
from tiering.daemon.hooks.delivery import deliver, end_commands
from tiering.daemon.state_file import StateFile

HOOKS_FILE = "hooks.json"
MOST_WAITING = 1000
"""Of one hook. What is more drops the oldest."""
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 300.0
_END_SECONDS = 1.0

Deliver = Callable[[HookConfig, bytes], None]

log = logging.getLogger("frostline.hooks")


class HookMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook reads."""

    id: str
    """The same for each try, and for each hook."""
    time: datetime
    event: HookEvent
    where: str
    """What it is about: `passes`, `job backup`, `disk s3`."""
    text: str
    host: str


class HookStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What became of what a hook was to be told, since the daemon began."""

    hook: str
    delivered: int = 0
    given_up: int = 0
    waiting: int = 0
    last_error: str = ""
    """Of the last try; empty when it was heard."""


class _Kept(msgspec.Struct, kw_only=True):
    """The file."""

    open: dict[str, HookEvent] = {}
    """Where there is reported trouble -> as what."""
    waiting: dict[str, list[HookMessage]] = {}


_document = Document("events that hooks wait for", _Kept)


class Outbox:
    """The hooks of one daemon. Thread-safe; nothing here raises or waits for a hook."""

    def __init__(
        self,
        state_directory: Path,
        hooks: Mapping[str, HookConfig],
        *,
        deliver: Deliver = deliver,
        wait: Callable[[threading.Event, float], object] = lambda changed, seconds: changed.wait(seconds),
    ) -> None:
        self._path, self._deliver, self._wait = state_directory / HOOKS_FILE, deliver, wait
        self._file = StateFile(self._path, "what hooks have to hear")
        self._hooks = dict(hooks)
        self._lock = threading.RLock()
        self._ends = False
        self._stopped = threading.Event()
        self._changed: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._status: dict[str, HookStatus] = {}
        self._kept = self._read()

    def begin(self) -> None:
        """Deliver from now on, first what an earlier daemon left."""
        with self._lock:
            for name in self._hooks:
                if name not in self._threads:
                    self._changed[name] = threading.Event()
                    self._status[name] = HookStatus(hook=name)
                    self._threads[name] = threading.Thread(
                        target=self._work, args=(name,), name=f"hook {name}", daemon=True
                    )
                    self._threads[name].start()

    def end(self) -> None:
        """Deliver no more, and end commands that take longer than a moment. What was not heard is the next daemon's."""
        self._ends = True
        self._stopped.set()
        for changed in self._changed.values():
            changed.set()
        for thread in self._threads.values():
            thread.join(_END_SECONDS)
        end_commands()

    def change(self, hooks: Mapping[str, HookConfig]) -> None:
        """Other hooks from now on. What waits for one that is gone is forgotten."""
        with self._lock:
            self._hooks = dict(hooks)
            self._kept.waiting = {name: waiting for name, waiting in self._kept.waiting.items() if name in hooks}
        self.begin()

    def status(self) -> tuple[HookStatus, ...]:
        """One a hook."""
        with self._lock:
            return tuple(
                msgspec.structs.replace(status, waiting=len(self._kept.waiting.get(name, ())))
                for name, status in self._status.items()
                if name in self._hooks
            )

    def tell(self, event: HookEvent, where: str, text: str, phase: Literal["begins", "ends", "once"]) -> None:
        """Something happened. Reported trouble that is not over is not reported again, also not after a restart; nor is
        the end of trouble that was never reported."""
        with self._lock:
            if phase != "once" and (where in self._kept.open) == (phase == "begins"):
                return
            if phase == "begins":
                self._kept.open[where] = event
            elif phase == "ends":
                del self._kept.open[where]
            told = HookMessage(
                id=uuid.uuid4().hex,
                time=datetime.now(UTC),
                event=event,
                where=where,
                text=without_passwords(text),
                host=socket.gethostname(),
            )
            wanted = [name for name, hook in self._hooks.items() if not hook.events or event in hook.events]
            for name in wanted:
                waiting = self._kept.waiting.setdefault(name, [])
                waiting.append(told)
                if len(waiting) > MOST_WAITING:
                    log.warning("hook %s: an event of %s is dropped: %d wait", name, waiting.pop(0).time, MOST_WAITING)
            self._write()
            for name in wanted:
                if name in self._changed:
                    self._changed[name].set()

    def _work(self, name: str) -> None:
        changed = self._changed[name]
        while not self._ends:
            changed.clear()
            self.deliver_waiting(name)
            self._wait(changed, _LONGEST_WAIT_SECONDS)

    def deliver_waiting(self, name: str) -> None:
        """Tell one hook all that waits for it, in order, in this thread."""
        attempts, stopped = 0, self._stopped
        while not self._ends:
            with self._lock:
                hook, waiting = self._hooks.get(name), self._kept.waiting.get(name)
                event = waiting[0] if waiting else None
            if hook is None or event is None:
                return
            problem = self._try(hook, event)
            if problem is not None and self._stopped.is_set():  # its command was ended: it is the next daemon's to tell
                return
            attempts += 1
            is_over = problem is None or isinstance(problem, Refused) or attempts >= hook.attempts
            self._note(name, event, problem, is_over=is_over)
            if is_over:
                attempts = 0
            else:
                self._wait(stopped, min(_FIRST_WAIT_SECONDS * 2 ** (attempts - 1), _LONGEST_WAIT_SECONDS / 2))

    def _try(self, hook: HookConfig, event: HookMessage) -> FrostlineError | None:
        try:
            self._deliver(hook, msgspec.json.encode(event))
        except FrostlineError as error:
            return error
        except Exception as error:
            log.exception("a hook failed")
            return FrostlineError(type(error).__name__)
        return None

    def _note(self, name: str, event: HookMessage, problem: FrostlineError | None, *, is_over: bool) -> None:
        text = "" if problem is None else without_passwords(in_a_line(problem))
        with self._lock:
            known = self._status.get(name, HookStatus(hook=name))
            counted = "" if not is_over else "delivered" if problem is None else "given_up"
            more = {counted: getattr(known, counted) + 1} if counted else {}
            self._status[name] = msgspec.structs.replace(known, last_error=text, **more)
            if is_over:
                waiting = self._kept.waiting.get(name, [])
                if event in waiting:
                    waiting.remove(event)
                self._write()
        if problem is not None:
            log.warning("hook %s: %s%s", name, text, ": the event is given up" if is_over else "; it is tried again")

    def _read(self) -> _Kept:
        try:
            return _document.decode(self._path.read_bytes())
        except FileNotFoundError:
            return _Kept()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be read, and events that were not delivered are lost: %s", self._path, error)
            return _Kept()

    def _write(self) -> None:
        self._file.replace(_document.encode(self._kept))  # with a full disk: told, and forgotten by a restart


def test_message(hook: HookConfig) -> bytes:
    """A message that says that it is a test, of the first kind that the hook hears of."""
    message = HookMessage(
        id=uuid.uuid4().hex,
        time=datetime.now(UTC),
        event=hook.events[0] if hook.events else "failure",
        where="hook test",
        text="this is a test: nothing happened",
        host=socket.gethostname(),
    )
    return msgspec.json.encode(message)
