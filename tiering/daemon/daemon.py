"""The daemon: one pass after the other, and its other jobs beside them; one daemon a store, a stop between steps.

It holds the store's daemon lock while it runs (a second one is `Locked`), writes `state/daemon.json` after each pass
for `daemon status`, and survives a failing pass: the failure is logged and shown, the next pass tries again. The passes
are one job among others (`tiering.daemon.jobs`): they are made here, the others in processes of their own, so that
neither a listing nor a merge of hours keeps what is due from moving.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oplog.errors import FrostlineError, Locked, PartlyDone, in_a_line
from tiering.catalog.context import wall_clock
from tiering.catalog.freshness import Freshness
from tiering.config.reading import load
from tiering.config.settings import DaemonConfig
from tiering.config.units import counted
from tiering.daemon.control import Answer, ControlServer, Verbs, verbs_of
from tiering.daemon.hooks.outbox import Outbox
from tiering.daemon.jobs import runs
from tiering.daemon.jobs.jobs import DaemonJobs
from tiering.daemon.jobs.kinds import JobKind, kinds
from tiering.daemon.jobs.runs import RunOrder, RunReport
from tiering.daemon.jobs.timer import NoTimer, SchedulerTimer
from tiering.daemon.lanes import Lanes
from tiering.daemon.lock import daemon_lock
from tiering.daemon.log_lines import LogStream, fields
from tiering.daemon.reload import FileWatch, Taken, take_over
from tiering.daemon.status import Changes, DaemonStatus, StatusRecord, Watch, with_rounds
from tiering.daemon.supervisor import Supervisor
from tiering.daemon.telemetry.spans import Spans
from tiering.daemon.trouble import Trouble
from tiering.engine import capacity, replication
from tiering.engine.maintenance import ALL_SIZES, Sizes, TickReport
from tiering.engine.store import Store
from tiering.iceberg.follow import publish_due
from tiering.move import mover

if TYPE_CHECKING:
    from tiering.daemon.inbox.worker import InboxWorker


_LOOK_SECONDS = 1.0
_JUMP_SECONDS = 5.0
"""Between two looks the two clocks part by so much only where one was set, or the machine slept."""
_TRIM_SECONDS = 3600.0
_BESIDE = "large merges and moves"
_TOLD_APART = {"gc": "last_gc", "cold_merges": "last_cold_merge"}
"""The jobs whose last run has a field in the status."""

log = logging.getLogger("frostline.daemon")

_GIVE_BACK_SECONDS = 60.0


def run(
    store: Store,
    settings: DaemonConfig,
    stop: threading.Event,
    *,
    once: bool = False,
    on_tick: Callable[[TickReport], None] | None = None,
    config_file: str | None = None,
    options: Sequence[str] = (),
    watch: Watch | None = None,
    reload: threading.Event | None = None,
    lines: LogStream | None = None,
    begun: Callable[[], None] = lambda: None,
) -> DaemonStatus:
    """Work until `stop` is set, or for one pass. Processes of jobs find the store's configuration by `config_file`, as
    the command line does, and take these global `options`. It is read again when that file is another one, and when
    `reload` is set. `lines`: its log, which processes of jobs write to as well. `begun` is called when it has the
    store for itself.

    Raises `Locked` when another daemon works on this store.
    """
    store.context.stop = stop
    with daemon_lock(store.context.config.state_directory):
        daemon = _Daemon(store, settings, stop, on_tick, watch, config_file=config_file, options=options, lines=lines)
        daemon.reload_wanted = reload or daemon.reload_wanted
        begun()
        if once:
            daemon.tick()
        else:
            daemon.serve()
        return daemon.end()


def run_job(
    store: Store,
    job: str,
    stop: threading.Event,
    *,
    config_file: str | None = None,
    options: Sequence[str] = (),
    lines: LogStream | None = None,
) -> RunReport:
    """Run one job now, whatever its schedule, and put that on record. Raises `Locked` while a daemon runs, or an
    earlier daemon's run of the job does; `NotFound`."""
    config = store.context.config
    with daemon_lock(config.state_directory):
        daemon = _Daemon(store, config.daemon, stop, config_file=config_file, options=options, lines=lines)
        jobs = daemon.jobs(NoTimer())
        jobs.trigger(job)
        jobs.fire(job)
        daemon.end()
    if daemon.last_report is None:
        raise Locked(
            f"the job {job} is being run by a process that an earlier daemon began", hint="try again when it has ended"
        )
    return daemon.last_report


class _Daemon:
    """One run: the jobs, and the record of what they did. Passes never overlap; jobs run beside them."""

    def __init__(
        self,
        store: Store,
        settings: DaemonConfig,
        stop: threading.Event,
        on_tick: Callable[[TickReport], None] | None = None,
        watch: Watch | None = None,
        *,
        config_file: str | None = None,
        options: Sequence[str] = (),
        lines: LogStream | None = None,
    ) -> None:
        self.lines = lines
        self.store = store
        self.config = msgspec.structs.replace(store.context.config, daemon=settings)
        self.stop = stop
        self.on_tick = on_tick
        self.memory = MemoryKeeping()
        self.hooks = Outbox(store.context.config.state_directory, self.config.hooks)
        self.trouble = Trouble(self.hooks.tell)
        self.kinds: Mapping[str, JobKind] = kinds()
        self.schedules = {name: kind.schedule(self.config) for name, kind in self.kinds.items()}
        self.last_report: RunReport | None = None
        self._config_file, self._options = config_file, tuple(options)
        self._trimmed = -_TRIM_SECONDS
        self.reload_wanted = threading.Event()
        self._reloading = threading.Lock()
        self._supervisor = Supervisor()
        self.spans = Spans(self.config.tracing, self.trouble, lambda **changes: self._record(**changes))
        self.lanes = Lanes(
            lambda progress: store.beside(self.config, stop, progress),
            stop,
            store.context.clock,
            lambda lane, doing: self.spans.span(lane, doing=doing),
        )
        store.context.progress = self.lanes.progress("passes", store.context.progress)
        self._serves = False
        self._beside: list[str] = []
        """What could not be done beside the passes since the last one."""
        self.inbox = self._inbox() if self.config.inbox.path is not None else None
        begins = DaemonStatus(running=True, pid=os.getpid(), started=store.context.clock())
        self._known = StatusRecord(self.config.state_directory, begins)
        self._record = self._known.change
        self.watched = None if watch is None else GuardedWatch(watch, self.trouble, self._record)

    def _inbox(self) -> InboxWorker:
        from tiering.daemon.inbox.worker import InboxWorker  # with Arrow, which a daemon at rest does without

        shown = self.lanes.progress("inbox")
        return InboxWorker(lambda ends: self.store.beside(self.config, ends, shown), self.config.inbox)

    @property
    def status(self) -> DaemonStatus:
        """As `daemon status` shows it."""
        return self._known.now

    def serve(self) -> None:
        """Run the jobs at their times until `stop` is set; what runs then ends at its next step."""
        self._serves = True
        self.hooks.begin()
        self.spans.begin()
        timer = SchedulerTimer(lambda job: jobs.fire(job), threads=len(self.kinds) + 1)
        jobs = self.jobs(timer)
        self._give_parts(jobs)
        jobs.begin()
        control = ControlServer(self.config.state_directory, self._verbs(jobs))
        self._tried(control.begin)
        if self.inbox is not None:
            self.inbox.begin()
        try:
            if self.watched is not None:
                self.watched.begin(self.status, lambda: timer.is_running and not self.stop.is_set())
            timer.begin()
            self._supervisor.ready()
            self._look_until_stopped(jobs)
        finally:
            self.stop.set()
            self._supervisor.stopping()
            control.end()
            timer.end()
            self.lanes.end()
            self.look_after_lanes()
            if self.inbox is not None:
                self.inbox.end()
                self.look_after_inbox()
            self.hooks.end()
            self.spans.end()
            if self.watched is not None:
                self.watched.end()

    def jobs(self, timer: SchedulerTimer | NoTimer) -> DaemonJobs:
        """Its jobs, on a timer."""
        state = self.config.state_directory
        return DaemonJobs(
            self.kinds, self.schedules, state, run=self._run, timer=timer, clock=wall_clock, stop=self.stop
        )

    def _verbs(self, jobs: DaemonJobs) -> Verbs:
        verbs = verbs_of(jobs, lambda: self.reload(jobs), lambda: take_over(self.config, load(self._config_file)))

        def look(names: list[str]) -> Answer:
            self._hasten_passes(jobs)
            return {}

        return {**verbs, "look": look, "status": lambda names: {"daemon": self.status, "jobs": jobs.job_records()}}

    def reload(self, jobs: DaemonJobs) -> Taken:
        """Read the configuration again. Raises what is wrong with it; the one before then stays in force."""
        with self._reloading:
            self._supervisor.reloading()
            try:
                taken = take_over(self.config, load(self._config_file))
            except FrostlineError as error:
                problem = in_a_line(error)
                self.trouble.met("the configuration", [f"it is not read again: {problem}"])
                self._record(config_problem=problem)
                raise
            finally:
                self._supervisor.ready()
            self.config = taken.config
            self.schedules = {name: kind.schedule(self.config) for name, kind in self.kinds.items()}
            jobs.change(self.schedules)
            self.hooks.change(self.config.hooks)
            if self.lines is not None:
                self.lines.configured(self.config.daemon.log_format)
            self.trouble.met("the configuration", [])
            self._record(config_problem="", config_kept=taken.kept, config_read=self.store.context.clock())
            log.info("the configuration was read again, changed: %s", ", ".join(taken.changed) or "nothing")
            if taken.kept:
                log.warning("a restart is needed for %s", ", ".join(taken.kept))
            return taken

    def _look_until_stopped(self, jobs: DaemonJobs) -> None:
        apart = time.time() - time.monotonic()
        file = FileWatch(None if self._config_file is None else Path(self._config_file))
        while not self.stop.wait(_LOOK_SECONDS):
            self.look_after_inbox()
            self.look_after_lanes()
            self.memory.look()
            self.spans.look()
            if self.reload_wanted.is_set() | file.is_changed():
                self.reload_wanted.clear()
                with contextlib.suppress(FrostlineError):  # it has been said
                    self.reload(jobs)
            did = self.status
            done = f"{counted(did.ticks, 'pass', 'passes')}, {counted(did.moved, 'move')}"
            self._supervisor.alive(did.problem or done)
            before, apart = apart, time.time() - time.monotonic()
            if abs(apart - before) > _JUMP_SECONDS:
                log.warning("the clock went %+.0f s, or the machine slept: computing job times again", apart - before)
                jobs.clock_was_set()

    def _run(self, kind: JobKind, run: str) -> RunReport:
        """Run a job to its end. Never raises: a defect is shown, and the daemon goes on."""
        try:
            with self.spans.span(f"job {kind.name}", run=run) as span:
                report = self._passed(run) if kind.steps is None else self._child(kind, run)
                span.note(result=report.result, said=report.said)
        except Exception as error:
            log.exception("job %s failed", kind.name, extra=fields(job=kind.name))
            problem = f"{type(error).__name__}: {error}"
            self._record(failures=self.status.failures + 1, last_error=problem)
            report = RunReport(run=run, result="failed", said=problem, code=1)
        self.last_report = report
        return report

    def _passed(self, run: str) -> RunReport:
        problem = self.tick()
        self.spans.journal(self.store.context.journal)
        if self.stop.is_set() and not problem:
            return RunReport(run=run, result="stopped")
        if not problem and (trouble := self.status.trouble):  # the pass did what it could
            return RunReport(run=run, result="found", said=trouble, code=PartlyDone.exit_code)
        return RunReport(run=run, result="failed" if problem else "done", said=problem, code=1 if problem else 0)

    def _child(self, kind: JobKind, run: str) -> RunReport:
        log.info("job %s begins", kind.name, extra=fields(job=kind.name))
        state = str(self.config.state_directory)
        form = None if self.lines is None else self.lines.form
        order = RunOrder(
            job=kind.name, state=state, run=run, config=self._config_file, options=self._options, log_format=form
        )
        report = runs.run(order, self.stop)
        with self._known.lock:
            changes: Changes = {"merged": self.status.merged + report.merged}
            is_bad = report.result in ("failed", "found")
            if report.result != "stopped":
                event = kind.found_event if report.result == "found" else "failure"
                self.trouble.met(f"job {kind.name}", [report.said] if is_bad else [], event)
            if report.result == "done" and kind.done_event is not None:
                self.hooks.tell(kind.done_event, f"job {kind.name}", report.said, "once")
            if is_bad:
                changes["failures"] = self.status.failures + 1
                changes["last_error"] = f"{kind.name}: {report.said}"
            else:
                told = fields(job=kind.name, result=report.result)
                log.info("job %s %s: %s", kind.name, report.result, report.said, extra=told)
            if kind.name in _TOLD_APART and report.result != "stopped":
                changes[_TOLD_APART[kind.name]] = self.store.context.clock()
            self._record(**changes)
        return report

    def _hasten_passes(self, jobs: DaemonJobs) -> None:
        for name, kind in self.kinds.items():
            if kind.steps is None:
                jobs.hasten(name)

    def _give_parts(self, jobs: DaemonJobs) -> None:
        """Let other replicas fetch what is here, and make a pass when one of them is gone; without that the daemon does
        all else."""

        try:
            shown = self.lanes.progress("replicas")
            if address := replication.serve(
                self.store.context,
                lambda: self.store.beside(self.config, self.stop, shown),
                partial(self._hasten_passes, jobs),
            ):
                log.info("parts of replicated tables are given at %s", address)
        except FrostlineError as error:
            log.error("%s", error.message)
            self._record(failures=self.status.failures + 1, last_error=error.message)

    def _tried(self, begin: Callable[[], None]) -> None:
        """Begin what the daemon can do without; that it fails is shown."""
        try:
            begin()
        except (FrostlineError, OSError) as error:
            log.error("%s", in_a_line(error))
            self._record(failures=self.status.failures + 1, last_error=str(error))

    def tick(self) -> str:
        """One pass: settle what other processes left, then merges, deletes and moves. Why it failed as a whole; empty
        when it did not."""
        if self.stop.is_set():
            return ""
        problem = self._pass()
        if self.watched is not None:
            self.watched.passed(self.status, problem, serves=self._serves)
        return problem

    def _pass(self) -> str:
        journal = self.store.context.journal.file
        self.store.context.take(self.config)
        try:
            with journal.rescue():
                journal.make_room()  # taking in what others committed writes, too
                self.store.refresh(Freshness.LAST_ANSWER)
                self._note_unreachable()
                for sentence in mover.recover(self.store.context):
                    log.info("%s", sentence)
                large, is_quiet = self.config.daemon.large_bytes, not self.lanes.status()
                sizes = Sizes(up_to=large) if self._serves else ALL_SIZES
                report = self.store.tick(stop=self.stop, merges=not self.schedules["merges"].is_on, sizes=sizes)
                report.problems += publish_due(self.store)
                self.lanes.begin(report.left, large)
                for policy in self.config.policies:
                    spent = report.budgets.get(policy)
                    self.trouble.met(f"budget of policy {policy}", [spent] if spent else [], "budget_spent")
                self._trim()
                capacity.note(self.store.context)
                for disk, problems in capacity.low(self.store.context, self.config.daemon.low_space_ratio):
                    self.trouble.met(f"space of disk {disk}", problems, "low_space")
                self._note_unreachable()  # a pass that has something to do looks again
        except (FrostlineError, OSError) as error:
            problem = str(error)
            self.trouble.met("passes", [problem])
            self._record(failures=self.status.failures + 1, last_error=problem, trouble=problem, **self._ticked())
            return problem
        beside, self._beside = self._beside, []
        paced = {"budgets": tuple(sorted(report.budgets.values())), "held": dict(report.held)}
        problems = [*beside, *self._note("passes", report, **paced, **self._ticked())]
        if is_quiet and not (report.left or report.failing):
            self.trouble.met(_BESIDE, [])
        lasting = "; ".join(filter(None, (self.trouble.away, *report.failing[-1:])))
        self._record(trouble=problems[-1] if problems else lasting)
        return ""

    def look_after_lanes(self) -> None:
        """Note what goes on in the lanes, and what was done beside the passes; the next pass has its trouble."""
        for report in self.lanes.ended():
            self._beside += self._note(_BESIDE, report)
        if (lanes := self.lanes.status()) != self.status.lanes:
            self._record(lanes=lanes)
        if (hooks := self.hooks.status()) != self.status.hooks:
            self._record(hooks=hooks)

    def _note(self, where: str, report: TickReport, **changes: Any) -> list[str]:
        """Add what was done to the status; returns what could not be."""
        if report.merges or report.moves.moved or report.moves.failed:
            self.memory.worked()
        failed = [f"{failure.table} {failure.part}: {failure.error}" for failure in report.moves.failed]
        problems = [*report.problems, *failed]
        if where != _BESIDE:
            self.trouble.met(where, [*dict.fromkeys((*report.failing, *problems))])
        elif problems or not report.failing:  # which may be of what is not large
            self.trouble.met(where, problems, is_all=False)
        with self._known.lock:
            self._record(
                moved=self.status.moved + len(report.moves.moved),
                merged=self.status.merged + len(report.merges),
                failures=self.status.failures + len(problems),
                last_error=problems[-1] if problems else self.status.last_error,
                **changes,
            )
        if self.on_tick is not None:
            self.on_tick(report)
        return problems

    def _trim(self) -> None:
        """Have the journal forget what is old, now and then."""
        if time.monotonic() - self._trimmed >= _TRIM_SECONDS:
            self._trimmed = time.monotonic()
            self.store.context.journal.trim()

    def look_after_inbox(self) -> None:
        """Note what the inbox brought in, and what it could not."""
        if self.inbox is not None:
            self.trouble.met("the inbox", trouble := self.inbox.trouble)
            last = "".join(trouble[-1:])
            if changes := with_rounds(self.status, self.inbox.ended(), last, self.store.context.clock()):
                self._record(**changes)
                self.memory.worked()

    def _note_unreachable(self) -> None:
        """The pass does what needs the other disks only."""
        disks = self.store.context.disks
        self.trouble.disks({name: disks[name].unreachable for name in self.store.unreachable()}, disks.keys())

    def end(self) -> DaemonStatus:
        """Record that the daemon ended; returns what it did."""
        self._record(running=False, pid=None)
        return self.status

    def _ticked(self) -> Changes:
        return {"last_tick": self.store.context.clock(), "ticks": self.status.ticks + 1}


class GuardedWatch:
    """Tells it of the daemon. One that cannot begin, for its port is in use, is tried again with each pass."""

    def __init__(self, watch: Watch, trouble: Trouble, record: Callable[..., Any]) -> None:
        """`record` changes the daemon's status."""
        self._watch, self._trouble, self._record = watch, trouble, record
        self._working: Callable[[], bool] = lambda: True
        self._has_begun = False

    def begin(self, status: DaemonStatus, working: Callable[[], bool]) -> None:
        """The daemon begins; `working` says whether it still makes passes."""
        self._working = working
        self._try(status, lambda: self._begin(status))

    def passed(self, status: DaemonStatus, problem: str, *, serves: bool) -> None:
        """A pass is done; `problem` is why it failed as a whole, or empty. `serves`: of a daemon that goes on."""

        def tell() -> None:
            if serves and not self._has_begun:
                self._begin(status)
            self._watch.passed(status, problem)

        self._try(status, tell)

    def end(self) -> None:
        """The daemon ends."""
        self._watch.end()

    def _begin(self, status: DaemonStatus) -> None:
        self._watch.begin(status, self._working)
        self._has_begun = True

    def _try(self, status: DaemonStatus, tell: Callable[[], None]) -> None:
        problem = ""
        try:
            tell()
        except (FrostlineError, OSError) as error:
            problem = in_a_line(error)
        self._trouble.met("the metrics", [problem] if problem else [])
        if problem != status.unserved:
            failures = status.failures + 1 if problem else status.failures
            self._record(unserved=problem, failures=failures, last_error=problem or status.last_error)


def give_back() -> None:
    """Collect what nobody can reach, and return what is free. Takes about a tenth of a second."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        log.debug("this system's allocator is not asked to return what is free")


class MemoryKeeping:
    """Gives back what work left in memory, at most once a minute: a process that lives for months must not grow with
    what it did. Arrow's buffers that only a circle of objects holds wait for a full collection, which Python makes the
    later the more it knows; and the allocator keeps what was freed. For one thread."""

    def __init__(self, give: Callable[[], None] = give_back, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds, and never goes back."""
        self._give, self._clock = give, clock
        self._worked = False
        self._given = clock()

    def worked(self) -> None:
        """Something was done that may have left something."""
        self._worked = True

    def look(self) -> None:
        """Give back where something was done, and the last time is a minute ago. A daemon at rest does nothing."""
        now = self._clock()
        if self._worked and now - self._given >= _GIVE_BACK_SECONDS:
            self._worked, self._given = False, now
            self._give()
