"""The daemon's jobs at work: which may begin, what they wait for, what is next; pauses, and runs that are asked for.

Jobs that share nothing run side by side, two of one kind never. What falls due while its job runs, or while another one
has what it needs, is one run afterwards. Times are `Schedule`'s to reckon, from the record; a timer calls `fire`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from oplog.errors import NotFound
from tiering.daemon.jobs.record import JobRecord, JobRecords
from tiering.daemon.jobs.runs import JobFiles, RunReport
from tiering.policy.backoff import wait_after

if TYPE_CHECKING:
    from pathlib import Path

    from tiering.daemon.jobs.kinds import JobKind
    from tiering.daemon.jobs.schedule import Schedule

_FIRST_WAIT = timedelta(minutes=1)
"""What a start finds due waits so long, so that a daemon that restarts in a loop does not list a bucket each time."""
_HELD = timedelta(seconds=1)

Run = Callable[["JobKind", str], RunReport]
"""Runs a job to its end; the text tells this run from others."""

log = logging.getLogger("frostline.daemon")


class Timer(Protocol):
    """Calls `Jobs.fire` later, in a thread of its own."""

    def arrange(self, job: str, moment: datetime) -> None:
        """In place of what was arranged for the job before."""

    def forget(self, job: str) -> None:
        """Call nobody."""


class DaemonJobs:
    """The jobs of one daemon. Thread-safe."""

    def __init__(
        self,
        kinds: Mapping[str, JobKind],
        schedules: Mapping[str, Schedule],
        state_directory: Path,
        *,
        run: Run,
        timer: Timer,
        clock: Callable[[], datetime],
        stop: threading.Event,
    ) -> None:
        """`stop` lets nothing begin any more."""
        self._kinds, self._schedules, self._state = kinds, schedules, state_directory
        self._run, self._timer, self._clock, self._stop = run, timer, clock, stop
        self.records = JobRecords(state_directory)
        self._running: set[str] = set()
        self._waiting: dict[str, str] = {}
        """Job -> the running one that has what it needs."""
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Settle what an earlier daemon did not write down, and arrange every job's next run."""
        now = self._clock()
        for name, kind in self._kinds.items():
            record = self.records.of(name)
            if record.begun is not None and record.ended is None:
                self._settle(name)
            self._come_back(name, now)
            self._note_schedule(name, now)
            if kind.steps is None and self._schedules[name].every and not self._schedules[name].window:
                self.records.note(name, durably=False, wanted=not record.paused)  # a start makes a pass at once
            due = self._due(name, now)
            if due is None:
                self.records.note(name, durably=False, next=None)
            else:
                self._arrange(name, max(due, now + self._first_wait(name)))
        self.records.note(next(iter(self._kinds)))

    def fire(self, name: str) -> None:
        """The job is due: run it to its end in this thread, unless it must wait for another one."""
        if not self._may_begin(name):
            return
        begun = self._clock()
        kind = self._kinds[name]
        try:
            asked = self.records.of(name).wanted
            durably = kind.steps is not None
            self.records.note(name, durably=durably, begun=begun, ended=None, wanted=False, asked=asked)
            report = self._run(kind, begun.isoformat())
            self._note_end(name, report)
        finally:
            with self._lock:
                self._running.discard(name)
                free = [job for job, other in self._waiting.items() if other == name]
                for job in free:
                    del self._waiting[job]
            for job in [name, *free]:
                self.plan(job)

    def _may_begin(self, name: str) -> bool:
        with self._lock:
            record, now = self.records.of(name), self._clock()
            if self._stop.is_set() or name in self._running:
                return False
            due = self._due(name, now)
            if due is None or due > now:  # it ran, was paused or the window closed since this was arranged
                self.plan(name)
                return False
            needs = self._kinds[name].shares
            for other in sorted(self._running):
                if needs & self._kinds[other].shares:
                    self._waiting[name] = other
                    return False
            if self._kinds[name].steps is not None and JobFiles(self._state, name).is_held:
                self._arrange(name, now + _HELD)  # an earlier daemon's run is about to end
                return False
            if record.begun is not None and record.ended is None and self._settle(name) and not record.wanted:
                self.plan(name)
                return False
            self._running.add(name)
            return True

    def _settle(self, name: str) -> bool:
        """Of a run that nobody wrote the end of: as it says itself, or it was stopped. Whether it says so."""
        record = self.records.of(name)
        assert record.begun is not None
        if JobFiles(self._state, name).is_held:
            return False
        report = JobFiles(self._state, name).report(record.begun.isoformat())
        self._note_end(name, report or RunReport(run="", result="stopped", said="ended with the daemon"))
        return report is not None

    def _note_end(self, name: str, report: RunReport) -> None:
        record = self.records.of(name)
        failures = record.failures + 1 if report.result == "failed" else 0
        if report.result == "stopped":
            failures = record.failures
        is_owed = report.result == "stopped" and record.asked  # also by a job that is off or paused
        self.records.note(
            name,
            ended=self._clock(),
            wanted=record.wanted or is_owed,
            result=report.result,
            said=report.said,
            figures=report.figures if report.result in ("done", "found") else record.figures,
            runs=record.runs + 1,
            failures=failures,
        )

    # -- what is next --------------------------------------------------------------------------------------------------

    def plan(self, name: str) -> None:
        """Arrange the job's next run."""
        with self._lock:
            if name in self._running:
                return
            now = self._clock()
            self._come_back(name, now)
            due = self._due(name, now)
            if due is None:
                self.records.note(name, durably=False, next=None)
                self._timer.forget(name)
            else:
                self._arrange(name, due)

    def clock_was_set(self) -> None:
        """The wall clock jumped, or the machine slept: compute all times again."""
        for name in self._kinds:
            self.plan(name)

    def _come_back(self, name: str, now: datetime) -> None:
        """From times that are on record and lie in the future, for the clock was set back: count from now."""
        record = self.records.of(name)
        known = {"begun": record.begun, "ended": record.ended, "since": record.since}
        ahead: dict[str, Any] = {key: now for key, moment in known.items() if moment is not None and moment > now}
        if ahead:
            self.records.note(name, **ahead)

    def _due(self, name: str, now: datetime) -> datetime | None:
        record, schedule = self.records.of(name), self._schedules[name]
        if record.wanted:
            return now
        if record.paused or not schedule.is_on:
            return None
        if record.is_interrupted and self._kinds[name].steps is not None:
            return schedule.into_window(now)
        due = schedule.next_run(record.begun, record.since or now, now, first_wait=self._first_wait(name))
        if record.failures and record.ended is not None and self._kinds[name].steps is not None:
            again = min(record.ended, now) + wait_after(record.failures)
            return min(due, schedule.into_window(again))
        return schedule.delayed(due, random.random) if due > now else due

    def _first_wait(self, name: str) -> timedelta:
        every = self._schedules[name].every
        return timedelta(0) if self._kinds[name].steps is None else min(_FIRST_WAIT, every or _FIRST_WAIT)

    def _arrange(self, name: str, moment: datetime) -> None:
        self.records.note(name, durably=False, next=moment)
        if not self._stop.is_set():
            self._timer.arrange(name, moment)

    def _note_schedule(self, name: str, now: datetime) -> None:
        """What was due by a schedule that is no more is not due by another one; an interval is reckoned on."""
        record, schedule = self.records.of(name), self._schedules[name]
        goes_on = record.schedule == schedule.text or (
            schedule.every is not None and record.schedule not in ("", "off")
        )
        since = record.since if goes_on and record.since is not None else now
        self.records.note(name, durably=False, schedule=schedule.text, since=since)

    # -- what people ask for -------------------------------------------------------------------------------------------

    def trigger(self, name: str) -> None:
        """Run the job now, or once more after the run that is under way; also one that is off or paused. It is on
        record when this returns. Raises `NotFound`."""
        self._check(name)
        with self._lock:
            self.records.note(name, wanted=True)
            self.plan(name)

    def hasten(self, name: str) -> None:
        """Run the job now, where it would run by itself sooner or later: not one that is off or paused, or whose window
        is closed."""
        with self._lock:
            schedule, now = self._schedules[name], self._clock()
            is_open = schedule.window is None or schedule.into_window(now) <= now
            if schedule.is_on and is_open and not self.records.of(name).paused:
                self.records.note(name, durably=False, wanted=True)
                self.plan(name)

    def job_records(self) -> dict[str, JobRecord]:
        """What is known of each job's runs, and when it is due."""
        return {name: self.records.of(name) for name in self._kinds}

    def pause(self, names: list[str]) -> None:
        """Begin no more runs of these jobs, or of all, until `resume`; also not after a restart. What runs goes on."""
        self._set_paused(names, paused=True)

    def resume(self, names: list[str]) -> None:
        """The contrary: what was due meanwhile is one run now."""
        self._set_paused(names, paused=False)

    def _set_paused(self, names: list[str], *, paused: bool) -> None:
        for name in names:
            self._check(name)
        with self._lock:
            for name in names or list(self._kinds):
                self.records.note(name, paused=paused)
                self.plan(name)

    def _check(self, name: str) -> None:
        if name not in self._kinds:
            raise NotFound(f"No such job: {name}", hint=f"the jobs are: {', '.join(self._kinds)}")

    def change(self, schedules: Mapping[str, Schedule]) -> None:
        """Other times from now on. What runs goes on."""
        with self._lock:
            self._schedules = schedules
            for name in self._kinds:
                self._note_schedule(name, self._clock())
                self.plan(name)
        self.records.note(next(iter(self._kinds)))
