"""The daemon: one pass after the other, one daemon a store, a stop between steps and never within one.

It holds the store's daemon lock while it runs (a second one is `Locked`), writes `state/daemon.json` after each pass
for `daemon status`, and survives a failing pass: the failure is logged and shown, the next pass tries again. Passes and
garbage collections run one at a time in one scheduler thread; a pass that takes longer than its interval delays the
next one, and missed ones are made up for by a single pass.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from disks import effects
from disks.garbage.rules import GcRules
from oplog.errors import FrostlineError
from tiering.catalog import capacity
from tiering.config.settings import DaemonConfig
from tiering.daemon.cold_schedule import ColdSchedule
from tiering.daemon.inbox.worker import InboxWorker
from tiering.engine import replicated
from tiering.engine.maintenance import TickReport
from tiering.engine.store import Store
from tiering.journal.locks import daemon_lock, daemon_lock_path, lock_holder
from tiering.move import mover

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

STATUS_FILE = "daemon.json"
_FIRST_GC_SECONDS = 60.0
"""A gc waits this long after the start, so that a daemon that restarts in a loop does not list the bucket each time."""

_FIRST_COLD_MERGE_SECONDS = 60.0
_LOOK_SECONDS = 1.0

log = logging.getLogger("frostline.daemon")


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
    trouble: str = ""
    """What the last pass could not do, or could not do alone for want of a disk. Empty when all is well again."""


_decoder = msgspec.json.Decoder(DaemonStatus)


class Watch(Protocol):
    """Who is told of each pass, by the thread that makes them. What it raises is shown, and the daemon goes on."""

    def begin(self, status: DaemonStatus, working: Callable[[], bool]) -> None:
        """The daemon begins; `working` says whether it still makes passes."""

    def passed(self, status: DaemonStatus, problem: str) -> None:
        """A pass is done; `problem` is why it failed as a whole, or empty."""

    def end(self) -> None:
        """The daemon ends."""


def status(state_directory: Path) -> DaemonStatus:
    """Whether a daemon runs on this store, and what it did. Never raises for a missing or half-written record."""
    try:
        known = _decoder.decode((state_directory / STATUS_FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        known = DaemonStatus()
    holder = lock_holder(daemon_lock_path(state_directory))
    return msgspec.structs.replace(known, running=holder is not None, pid=holder)


def run(
    store: Store,
    settings: DaemonConfig,
    stop: threading.Event,
    *,
    once: bool = False,
    on_tick: Callable[[TickReport], None] | None = None,
    command: Sequence[str] = (sys.executable, "-m", "tiering.cli.main"),
    watch: Watch | None = None,
) -> DaemonStatus:
    """Work until `stop` is set, or for one pass. `command` runs frostline with this store's configuration.

    Raises `Locked` when another daemon works on this store.
    """
    with daemon_lock(store.context.config.state_directory):
        daemon = _Daemon(store, settings, stop, on_tick, command, watch)
        if once:
            daemon.tick()
        else:
            daemon.serve()
        return daemon.end()


class _Daemon:
    """One run: the jobs, and the record of what they did. Jobs never overlap, so the record needs no lock."""

    def __init__(
        self,
        store: Store,
        settings: DaemonConfig,
        stop: threading.Event,
        on_tick: Callable[[TickReport], None] | None,
        command: Sequence[str],
        watch: Watch | None,
    ) -> None:
        self.watch = watch
        self.store = store
        self.settings = settings
        self.stop = stop
        self.on_tick = on_tick
        self.unreachable: set[str] = set()
        self.cold = ColdSchedule(store, settings, command)
        inbox = store.context.config.inbox
        self.inbox = InboxWorker(self._open_again, inbox) if inbox.path is not None else None
        self.status = DaemonStatus(running=True, pid=os.getpid(), started=store.context.clock())
        self._write()

    def serve(self) -> None:
        """Run the jobs at their intervals until `stop` is set; what runs then ends at its next step."""
        self._give_parts()
        scheduler = _scheduler(self._failed)
        seconds = self.settings
        begin = datetime.now(UTC)
        first_gc = begin + timedelta(seconds=min(_FIRST_GC_SECONDS, seconds.gc_seconds))
        scheduler.add_job(self.tick, "interval", seconds=seconds.tick_seconds, next_run_time=begin)
        scheduler.add_job(self.collect, "interval", seconds=seconds.gc_seconds, next_run_time=first_gc)
        if seconds.cold_merge_seconds is not None:
            every = seconds.cold_merge_seconds
            first_merge = begin + timedelta(seconds=min(_FIRST_COLD_MERGE_SECONDS, every))
            scheduler.add_job(self.merge_cold, "interval", seconds=every, next_run_time=first_merge)
            scheduler.add_job(self.look_after_merges, "interval", seconds=_LOOK_SECONDS)
        if self.inbox is not None:
            scheduler.add_job(self.look_after_inbox, "interval", seconds=_LOOK_SECONDS)
            self.inbox.begin()
        scheduler.start(paused=True)
        try:
            if (watch := self.watch) is not None:
                self._watched(lambda: watch.begin(self.status, lambda: scheduler.running and not self.stop.is_set()))
            scheduler.resume()
            self.stop.wait()
        finally:
            self.stop.set()
            scheduler.shutdown(wait=True)
            self.cold.stop()
            if self.inbox is not None:
                self.inbox.end()
                self.look_after_inbox()
            if self.watch is not None:
                self.watch.end()

    def _give_parts(self) -> None:
        """Let other replicas fetch what is here; without that the daemon does all else."""
        try:
            if address := replicated.serve(self.store.context):
                log.info("parts of replicated tables are given at %s", address)
        except FrostlineError as error:
            log.error("%s", error.message)
            self._record(failures=self.status.failures + 1, last_error=error.message)

    def _watched(self, tell: Callable[[], None]) -> None:
        """Tell the watch; that it fails is shown, and hinders nothing."""
        try:
            tell()
        except (FrostlineError, OSError) as error:
            hint = f"; {error.hint}" if isinstance(error, FrostlineError) and error.hint else ""
            log.error("%s%s", error, hint)
            self._record(failures=self.status.failures + 1, last_error=str(error))

    def tick(self) -> None:
        """One pass: settle what other processes left, then merges, deletes and moves."""
        if self.stop.is_set():
            return
        problem = self._pass()
        if (watch := self.watch) is not None:
            self._watched(lambda: watch.passed(self.status, problem))

    def _pass(self) -> str:
        """Why the pass failed as a whole; empty when it did not."""
        journal = self.store.context.journal.file
        try:
            with journal.rescue():
                journal.make_room()  # taking in what others committed writes, too
                self.store.refresh(look=False)
                self._note_unreachable()
                for sentence in mover.recover(self.store.context):
                    log.info("%s", sentence)
                report = self.store.tick(stop=self.stop)
                capacity.note(self.store.context)
                self._note_unreachable()  # a pass that has something to do looks again
        except (FrostlineError, OSError) as error:
            log.error("pass failed: %s", error)
            problem = str(error)
            self._record(failures=self.status.failures + 1, last_error=problem, trouble=problem, **self._ticked())
            return problem
        failed = [f"{failure.part}: {failure.error}" for failure in report.moves.failed]
        problems = [*report.problems, *failed]
        for problem in problems:
            log.warning("%s", problem)
        self._record(
            moved=self.status.moved + len(report.moves.moved),
            merged=self.status.merged + len(report.merges),
            failures=self.status.failures + len(problems),
            last_error=problems[-1] if problems else self.status.last_error,
            trouble=problems[-1] if problems else self._away(),
            **self._ticked(),
        )
        if self.on_tick is not None:
            self.on_tick(report)
        return ""

    def collect(self) -> None:
        """One garbage collection of every object disk; a report unless the configuration says to delete."""
        if self.stop.is_set():
            return
        self.store.context.journal.trim()
        for disk in self.store.context.disks.values():
            if self.stop.is_set() or "gc" in self.store.context.journal.wishes.paused(None):
                break
            if not disk.capabilities.remote or disk.read_only or disk.unreachable:
                continue
            try:
                guard = timedelta(seconds=self.settings.gc_guard_seconds)
                report = self.store.gc(disk.name, GcRules(guard=guard, delete=self.settings.gc_delete))
                log.info("gc of %s: %s", disk.name, report)
            except (FrostlineError, OSError) as error:
                log.error("gc of %s failed: %s", disk.name, error)
                self._record(failures=self.status.failures + 1, last_error=f"gc of {disk.name}: {error}")
        self._record(last_gc=self.store.context.clock())

    def merge_cold(self) -> None:
        """Begin the cold merges that are due, in processes of their own."""
        if self.stop.is_set():
            return
        try:
            self.store.refresh()
            self.cold.begin()
        except (FrostlineError, OSError) as error:
            log.error("cold merges did not begin: %s", error)
            self._record(failures=self.status.failures + 1, last_error=f"cold merges: {error}")

    def look_after_merges(self) -> None:
        """Note the cold merges that have ended."""
        if self.stop.is_set() or (ended := self.cold.look()) is None:
            return
        log.info("cold merges of %s: %d groups merged", ended.table, ended.merged)
        changes: dict[str, Any] = {"merged": self.status.merged + ended.merged}
        if ended.problem:
            log.error("cold merges of %s: %s", ended.table, ended.problem)
            changes["failures"] = self.status.failures + 1
            changes["last_error"] = f"cold merges of {ended.table}: {ended.problem}"
        self._record(last_cold_merge=self.store.context.clock(), **changes)

    def look_after_inbox(self) -> None:
        """Note what the inbox brought in, and what it could not."""
        for done in self.inbox.ended() if self.inbox is not None else ():
            problems = [f"inbox: {file.table}/{file.file}: {file.error}" for file in done.failed]
            problems += [f"inbox: {item.table}/{item.file}: {item.what}" for item in done.problems if not item.file]
            self._record(
                last_inbox=self.store.context.clock(),
                ingested=self.status.ingested + len(done.files) - len(done.failed),
                failures=self.status.failures + len(problems),
                last_error=problems[-1] if problems else self.status.last_error,
            )

    def _open_again(self, stop: threading.Event) -> Store:
        """The store once more, for another thread."""
        context = self.store.context
        store = Store.open(context.config, actor=context.actor, workers=context.workers, clock=context.clock)
        store.context.stop = stop
        return store

    def _away(self) -> str:
        """Which disks the pass went without."""
        return f"not to be reached: {', '.join(sorted(self.unreachable))}" if self.unreachable else ""

    def _note_unreachable(self) -> None:
        """Say once that a disk went away, and once that it is back; the pass does what needs the others only."""
        now = set(self.store.unreachable())
        for name in sorted(now - self.unreachable):
            log.warning("%s; the other disks are worked on", self.store.disk(name).unreachable)
        for name in sorted(self.unreachable - now):
            log.info("disk %s can be reached again", name)
        self.unreachable = now

    def end(self) -> DaemonStatus:
        """Record that the daemon ended; returns what it did."""
        self._record(running=False, pid=None)
        return self.status

    def _ticked(self) -> dict[str, Any]:
        return {"last_tick": self.store.context.clock(), "ticks": self.status.ticks + 1}

    def _failed(self, error: BaseException) -> None:
        """A defect in a job: shown, and the daemon goes on."""
        self._record(failures=self.status.failures + 1, last_error=f"{type(error).__name__}: {error}")

    def _record(self, **changes: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        self._write()

    def _write(self) -> None:
        path = self.store.context.config.state_directory / STATUS_FILE
        try:
            effects.replace_file(path, msgspec.json.encode(self.status))
        except (FrostlineError, OSError) as error:  # a full state disk is no reason to stop moving data off it
            log.error("the status %s could not be written: %s", path, error)


def _scheduler(failed: Callable[[BaseException], None]) -> BackgroundScheduler:
    """One worker thread; late and missed runs become one run (the default would drop those more than a second late)."""
    from apscheduler.events import EVENT_JOB_ERROR
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)  # "skipped: still running" is no news here
    scheduler = BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(1)},
        job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        timezone=UTC,
    )
    scheduler.add_listener(lambda event: failed(event.exception), EVENT_JOB_ERROR)
    return scheduler
