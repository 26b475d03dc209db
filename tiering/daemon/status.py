"""What the daemon keeps of itself for `daemon status`: `state/daemon.json`, replaced after every change."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from disks.host.locks import lock_holder
from oplog.documents import Document
from oplog.entry import now
from tiering.daemon.hooks.outbox import HookStatus
from tiering.daemon.lock import daemon_lock_path
from tiering.daemon.state_file import StateFile

if TYPE_CHECKING:
    from tiering.daemon.inbox.inbox import Round

STATUS_FILE = "daemon.json"

log = logging.getLogger("frostline.daemon")


Changes = dict[str, Any]
"""Fields of `DaemonStatus` and what they become: `msgspec.structs.replace` takes them by name."""


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What is under way in one lane. Totals are None where they are not known."""

    lane: str
    doing: str
    since: datetime
    items: int | None = None
    items_done: int = 0
    bytes: int | None = None
    bytes_done: int = 0
    note: str = ""
    """What of it came last."""


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What `daemon status` shows. Numbers are those of the last run when none is running."""

    running: bool = False
    pid: int | None = None
    started: datetime | None = None
    last_tick: datetime | None = None
    last_gc: datetime | None = None
    last_cold_merge: datetime | None = None
    last_inbox: datetime | None = None
    ticks: int = 0
    moved: int = 0
    merged: int = 0
    ingested: int = 0
    """Files of the inbox."""
    failures: int = 0
    last_error: str = ""
    last_error_at: datetime | None = None
    trouble: str = ""
    """What the last pass could not do, or could not do alone for want of a disk. Empty when all is well again."""
    inbox_trouble: str = ""
    """What keeps files of the inbox from going in. Empty when nothing does."""
    unserved: str = ""
    """Why metrics and health are not served. It is tried again with each pass."""
    untraced: str = ""
    """Why spans of what it does are lost."""
    unkept: str = ""
    """Why what the daemon knows is not written down below `state_path`. Only it itself can say so."""
    config_read: datetime | None = None
    """When a changed configuration came into force."""
    config_problem: str = ""
    """Why the configuration as it lies there is not in force: the one before is."""
    config_kept: tuple[str, ...] = ()
    """The keys of which it says something that a running daemon cannot take: they wait for a restart."""
    lanes: tuple[LaneStatus, ...] = ()
    """What runs side by side, as of a second ago. Jobs in processes of their own are not among them."""
    hooks: tuple[HookStatus, ...] = ()
    budgets: tuple[str, ...] = ()
    """Budgets that hold moves back, as of the last pass. They resume by themselves: it is no trouble."""
    held: dict[str, int] = {}
    """How many due parts the pacing of policies held back in the last pass, by what held them."""

    @property
    def problem(self) -> str:
        """What is wrong now, if anything."""
        inbox = self.inbox_trouble and f"inbox: {self.inbox_trouble}"
        return self.trouble or inbox or self.config_problem or self.unserved or self.untraced or self.unkept


class Watch(Protocol):
    """Is called after each pass, by the thread that makes them. What it raises is shown, and the daemon goes on."""

    def begin(self, status: DaemonStatus, working: Callable[[], bool]) -> None:
        """The daemon begins; `working` says whether it still makes passes."""

    def passed(self, status: DaemonStatus, problem: str) -> None:
        """A pass is done; `problem` is why it failed as a whole, or empty."""

    def end(self) -> None:
        """The daemon ends."""


_document = Document("status of the daemon", DaemonStatus)
_LEAST_BYTES = 64 * 1024
"""With less than this free, a status cannot be written."""


def with_rounds(status: DaemonStatus, rounds: Iterable[Round], trouble: str, now: datetime) -> Changes:
    """What changes by what the inbox did, and by its trouble; nothing where neither is new."""
    changes: Changes = {} if trouble == status.inbox_trouble else {"inbox_trouble": trouble}
    for done in rounds:
        problems = [f"inbox: {file.table}/{file.file}: {file.error}" for file in done.failed]
        problems += [f"inbox: {problem.table}: {problem.what}" for problem in done.problems if not problem.file]
        changes["last_inbox"] = now
        changes["ingested"] = changes.get("ingested", status.ingested) + len(done.files) - len(done.failed)
        changes["failures"] = changes.get("failures", status.failures) + len(problems)
        if problems:
            changes["last_error"] = problems[-1]
    return changes


def read_status(state_directory: Path) -> DaemonStatus:
    """Whether a daemon runs on this store, and what it did. Never raises for a missing or half-written record."""
    try:
        known = _document.decode((state_directory / STATUS_FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        known = DaemonStatus()
    holder = lock_holder(daemon_lock_path(state_directory))
    lanes = known.lanes if holder is not None else ()
    if holder is not None and not known.trouble and (full := _full(state_directory)):
        known = msgspec.structs.replace(known, trouble=full)
    return msgspec.structs.replace(known, running=holder is not None, pid=holder, lanes=lanes)


def _full(state_directory: Path) -> str:
    """Why what is on record of a daemon may be of some time ago; empty when it is not."""
    try:
        room = os.statvfs(state_directory)
    except OSError as error:
        return f"{state_directory} cannot be looked at: {error.strerror}"
    is_full = room.f_bavail * room.f_frsize < _LEAST_BYTES
    return f"the disk of {state_directory} is full: this is what was known before" if is_full else ""


class StatusRecord:
    """The status of the daemon that runs. Thread-safe."""

    def __init__(self, state_directory: Path, begins_with: DaemonStatus) -> None:
        self._file = StateFile(state_directory / STATUS_FILE, "the daemon's status")
        self.lock = threading.RLock()
        """Held by who reckons the next status from this one."""
        self.now = begins_with
        self._write()

    def change(self, **changes: Any) -> None:
        """Change it, and write it down."""
        with self.lock:
            failed = changes.get("failures", 0) > self.now.failures
            if (error := changes.get("last_error")) and (failed or error != self.now.last_error):
                changes["last_error_at"] = now()
            self.now = msgspec.structs.replace(self.now, **changes)
            self._write()

    def _write(self) -> None:
        known = msgspec.structs.replace(self.now, unkept="")  # as it is if this is ever read
        self._file.replace(_document.encode(known))
        self.now = msgspec.structs.replace(known, unkept=self._file.problem)
