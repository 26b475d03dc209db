"""`daemon run | status | pause | resume | trigger | reload`."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import FrostlineError, NotFound, PartlyDone, UsageError, in_a_line
from tiering.cli.commands.metrics import metrics_server
from tiering.cli.frame.exit_codes import INTERRUPTED, NOT_RUNNING, TERMINATED, Finished
from tiering.cli.frame.options import BelieveClock, GlobalOptions
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.signals import ends_within, raising
from tiering.cli.frame.verb import new_app, verb
from tiering.cli.reports.moves import fail_as_the_pass_did
from tiering.config.units import format_size, format_time
from tiering.daemon.log_lines import LogStream

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tiering.daemon.status import DaemonStatus, LaneStatus


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Run and control the background daemon.")
    app.add_typer(group, name="daemon")
    verb(group, changes=True, instead_of_dry_run="'frostline plan' shows what the next pass would move")(run)
    verb(group)(status)
    verb(group, changes=True)(pause)
    verb(group, changes=True)(resume)
    verb(group, changes=True)(trigger)
    verb(group, changes=True)(reload)


_MOST_STOP_SECONDS = 8.0
"""Its jobs need most of that to end, or be ended."""
_MOST_SECONDS = _MOST_STOP_SECONDS + 2.0
"""Where the main thread does not even hear of the signal, within a call of an engine."""

Jobs = Annotated[list[str] | None, typer.Argument(metavar="JOB", help="default: all jobs")]


def run(
    session: Session,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="with --once: run this job")] = None,
    once: Annotated[bool, typer.Option("--once", help="run one pass or JOB, then exit")] = False,
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", help="text or json; default: daemon.log_format", metavar="FORMAT"),
    ] = None,
    believe_clock: BelieveClock = False,
) -> None:
    """Run merges, TTL deletes, moves, snapshots and the jobs of `daemon.jobs` on schedule.

    SIGTERM and Ctrl-C stop safely. SIGHUP reloads the configuration.
    """
    import msgspec

    from tiering.daemon import daemon
    from tiering.facts.moves import PassDocument, pass_document

    if job is not None and not once:
        raise UsageError("a daemon runs all of its jobs", hint=f"'frostline daemon run --once {job}' runs this one")
    lines = _log_lines(session, log_format, once)
    session.begin()  # its state is where others look for a daemon
    store = session.store()
    if believe_clock:
        store.believe_clock()
    stop = threading.Event()
    received = stop_on_signals(stop)
    ended, reload = threading.Event(), threading.Event()
    threading.Thread(target=_end_in_time, args=(stop, received, ended), name="end in time", daemon=True).start()
    if not once:
        signal.signal(signal.SIGHUP, lambda number, frame: reload.set())
    config_file = None if session.loaded.file is None else str(session.loaded.file.absolute())
    if job not in (None, "policy"):
        _run_job(session, str(job), stop, config_file, lines)
        return

    def begun() -> None:
        if not once:
            every = f"a pass every {session.loaded.config.daemon.tick_seconds:g} s"
            session.output.note(f"daemon: {every}; stop it with Ctrl-C or SIGTERM")

    passed: list[PassDocument] = []

    def report(tick: Any) -> None:
        document = pass_document(tick, [])
        passed.append(document)
        counts = f"{len(document.moved)} moved, {len(document.merges)} merged, {len(document.failed)} failed"
        if document.moved or document.merges or document.failed or once:
            session.output.note(f"daemon: {counts}")
        for problem in document.problems if once else ():
            session.output.note(f"not done: {problem}")

    watch = metrics_server(session, store)
    final = daemon.run(
        store,
        session.loaded.config.daemon,
        stop,
        once=once,
        on_tick=report,
        config_file=config_file,
        options=_passed_on(session.options),
        watch=watch,
        reload=reload,
        lines=lines,
        begun=begun,
    )
    ended.set()
    if session.options.json:
        session.output.document(msgspec.to_builtins(final))
    if received:
        session.output.note("daemon: stopped between two steps")
        if received[0] == signal.SIGINT:
            raise Finished(INTERRUPTED)  # SIGTERM is how a service is stopped: that is a success
    elif once and passed:
        fail_as_the_pass_did(passed[-1], store.context.faults)


def _log_lines(session: Session, given: str | None, once: bool) -> LogStream:
    """What the daemon says, as lines of its log. A single pass in text says it as other verbs do."""
    if given not in (None, "text", "json"):
        raise UsageError(f"--log-format {given}: no such format", hint="there are text and json")
    lines = LogStream("json" if given == "json" else "text", is_fixed=given is not None)
    if given is not None:
        lines.begin()  # what is wrong with the configuration is a line, too
    form = session.loaded.config.daemon.log_format
    lines.configured(form)
    if given is None and (form == "json" or not once):
        lines.begin()
    return lines


def _passed_on(options: GlobalOptions) -> list[str]:
    """The limits that the daemon was given, as options of its jobs' command lines."""
    given = (("--bwlimit", options.bwlimit), ("--tpslimit", options.tpslimit), ("-j", options.workers))
    return [text for name, value in given if value is not None for text in (name, str(value))]


def _run_job(session: Session, job: str, stop: threading.Event, config_file: str | None, lines: LogStream) -> None:
    from tiering.daemon import daemon

    report = daemon.run_job(
        session.store(),
        job,
        stop,
        config_file=config_file,
        options=_passed_on(session.options),
        lines=lines,
    )
    if session.options.json:
        document = {"job": job, "result": report.result, "said": report.said, "merged": report.merged}
        session.output.document(document)
    session.output.line(f"{job} {report.result}{': ' + report.said if report.said else ''}")
    if report.result == "stopped":
        raise Finished(TERMINATED)
    if report.result != "done":
        raise Finished(report.code if report.code > 0 else 1)


def pause(session: Session, job: Jobs = None) -> None:
    """Stop starting jobs until `daemon resume`, also across restarts."""
    _ask(session, "pause", job or [])


def resume(session: Session, job: Jobs = None) -> None:
    """Resume paused jobs; overdue runs happen once, now."""
    _ask(session, "resume", job or [])


def trigger(session: Session, job: Annotated[str, typer.Argument(metavar="JOB", help="job name")]) -> None:
    """Run a job now, even one that is off or paused; a running job runs once more."""
    _ask(session, "trigger", [job])


def reload(session: Session) -> None:
    """Reload the daemon's configuration. Exit 3: some changes need a restart."""
    from tiering.daemon.control import ask

    document = ask(_where(session)[0], "compare" if session.dry_run else "reload", [])
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    changed, kept = document["changed"], document["kept"]
    session.output.line(f"{'Dry run: ' if session.dry_run else ''}changed: {', '.join(changed) or 'nothing'}")
    if kept:
        session.output.line(f"needs a restart: {', '.join(kept)}")
        raise Finished(PartlyDone.exit_code)


def _ask(session: Session, command: str, jobs: list[str]) -> None:
    from tiering.config.jobs import JOB_NAMES
    from tiering.daemon.control import ask

    for job in jobs:
        if job not in JOB_NAMES:
            raise NotFound(f"No such job: {job}", hint=f"the jobs are: {', '.join(JOB_NAMES)}")
    document = {"jobs": jobs or list(JOB_NAMES)} if session.dry_run else ask(_where(session)[0], command, jobs)
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    done = {"pause": "paused", "resume": "resumed", "trigger": "to run now"}[command]
    session.output.line(f"{'Dry run: ' if session.dry_run else ''}{done}: {', '.join(document['jobs'])}")


def status(session: Session) -> None:
    """Show whether a daemon runs on this store, its last pass and its jobs.

    Exit 3: the last pass, the inbox, a job or the configuration has a problem. Exit 1: no daemon runs.
    """
    import msgspec

    from tiering.daemon.jobs.row import in_trouble
    from tiering.daemon.jobs.status import rows_of
    from tiering.daemon.live import live_status

    directory, problem = _where(session)
    known, records = live_status(directory)
    if problem:  # of the file as it is now: the daemon may not have read it yet
        known = msgspec.structs.replace(known, config_problem=problem)
    jobs = rows_of(records, None if problem else session.loaded.config, is_running=known.running)
    if session.options.json:
        session.output.document({**msgspec.to_builtins(known), "jobs": jobs})
        _judge(known, in_trouble(jobs))
        return
    line = session.output.line
    line(f"running    {f'yes, process {known.pid}' if known.running else 'no'}")
    line(f"started    {_time(known.started)}")
    line(f"last tick  {_time(known.last_tick)}")
    line(
        f"did        {counted(known.ticks, 'pass', 'passes')}, {counted(known.moved, 'move')},"
        f" {counted(known.merged, 'merge')}, {counted(known.failures, 'failure')}"
        + (f", {counted(known.ingested, 'file')} of the inbox" if known.ingested else "")
    )
    if known.last_error:
        when = f"{_time(known.last_error_at)}  " if known.last_error_at is not None else ""
        line(f"last error {when}{known.last_error}")
    if known.running and known.trouble:
        line(f"trouble    {known.trouble}")
    if known.running and known.unserved:
        line(f"metrics    not served: {known.unserved}")
    if known.running and known.untraced:
        line(f"traces     lost: {known.untraced}")
    if known.running and known.unkept:
        line(f"unkept     {known.unkept}")
    if known.running and known.inbox_trouble:
        line(f"inbox      waits: {known.inbox_trouble}")
    if known.running and known.config_problem:
        line(f"config     not in force: {known.config_problem}")
    if known.running and known.config_kept:
        line(f"restart    needed for {', '.join(known.config_kept)}")
    for sentence in known.budgets if known.running else ():
        line(f"budget     {sentence}")
    for hook in known.hooks:
        if hook.waiting or hook.given_up or hook.last_error:
            counts = f"{hook.delivered} delivered, {hook.waiting} waiting, {hook.given_up} given up"
            line(f"hook       {hook.hook}: {counts}{f', the last try: {hook.last_error}' if hook.last_error else ''}")
    if known.lanes:
        lanes = [[lane.lane, lane.doing, _time(lane.since), _how_far(lane), lane.note] for lane in known.lanes]
        session.output.table(("lane", "doing", "since", "done", "last"), lanes)
    rows = [
        [
            one.job,
            one.state,
            one.schedule,
            _time(one.last_run),
            one.result or "-",
            _time(one.next_run),
        ]
        for one in jobs
    ]
    session.output.table(("job", "state", "schedule", "last run", "result", "next run"), rows)
    for sentence in in_trouble(jobs):
        line(sentence)
    _judge(known, in_trouble(jobs))


def _where(session: Session) -> "tuple[Path, str]":
    """The state directory of the daemon that is asked, and what is wrong with the configuration as it lies there now:
    a daemon works on by the one before. Raises what is wrong where no daemon can be found all the same."""
    from disks.host.locks import lock_holder
    from tiering.config.reading import state_directory_of
    from tiering.daemon.lock import daemon_lock_path

    try:
        return session.loaded.config.state_directory, ""
    except FrostlineError as error:
        directory = state_directory_of(session.options.config, os.environ)
        if directory is None or lock_holder(daemon_lock_path(directory)) is None:
            raise
        return directory, in_a_line(error)


def _time(moment: "datetime | None") -> str:
    return format_time(moment) if moment is not None else "-"


def _how_far(lane: "LaneStatus") -> str:
    items = f"{lane.items_done} of {lane.items}" if lane.items is not None else str(lane.items_done)
    total = f" of {format_size(lane.bytes)}" if lane.bytes is not None else ""
    return f"{items}, {format_size(lane.bytes_done)}{total}"


def _judge(status: "DaemonStatus", problems: list[str]) -> None:
    """The exit code that a supervisor goes by."""
    if not status.running:
        raise Finished(NOT_RUNNING)
    if status.problem or problems:
        raise Finished(PartlyDone.exit_code)


def _end_in_time(stop: threading.Event, received: list[int], ended: threading.Event) -> None:
    """End the process where a step is too long to wait for, such as a large file on a slow link: as a kill would, which
    every effect is made for; a hook's command ends with it, and the next daemon sends its event. Only for a
    signal."""
    stop.wait()
    if ended.wait(_MOST_STOP_SECONDS) or not received:
        return
    from tiering.daemon.hooks.delivery import end_commands_for_good

    end_commands_for_good()
    print("daemon: stopped within a step; the next start continues it", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED if received[0] == signal.SIGINT else TERMINATED)


def stop_on_signals(stop: threading.Event) -> list[int]:
    """SIGTERM and SIGINT set the event; the list tells which came. A second Ctrl-C interrupts at once."""
    received: list[int] = []
    interrupt = raising(KeyboardInterrupt)

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop.set()
        signal.signal(signal.SIGINT, interrupt)

    for handler in (handle, interrupt):  # the first Ctrl-C may be looked at when the handler of the second one is there
        ends_within(handler, _MOST_SECONDS)
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return received
