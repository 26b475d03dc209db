"""`daemon run | status`."""

import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import PartlyDone
from tiering.cli.commands.metrics import metrics_server
from tiering.cli.frame.exit_codes import INTERRUPTED, NOT_RUNNING, Finished
from tiering.cli.frame.options import BelieveClock
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.cli.reports.moves import fail_as_the_pass_did, tick_document

if TYPE_CHECKING:
    from tiering.daemon.daemon import DaemonStatus


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Run the policy on its own.")
    app.add_typer(group, name="daemon")
    verb(group, changes=True)(run)
    verb(group)(status)


def run(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="one pass, then end")] = False,
    believe_clock: BelieveClock = False,
) -> None:
    """Tick again and again: merges, TTL, moves, snapshots. SIGTERM and Ctrl-C stop between two steps."""
    import msgspec

    from oplog.errors import UsageError
    from tiering.daemon import daemon

    if session.dry_run:
        raise UsageError("a daemon has no dry run", hint="'frostline plan' shows what the next pass would move")
    session.begin()  # its state is where others look for a daemon
    store = session.store()
    if believe_clock:
        store.believe_clock()
    stop = threading.Event()
    received = stop_on_signals(stop)
    if not once:
        session.output.note(
            f"daemon: a pass every {session.loaded.config.daemon.tick_seconds:g} s; stop it with Ctrl-C or SIGTERM"
        )

    passed: dict[str, Any] = {}

    def report(tick: Any) -> None:
        document = tick_document(tick)
        passed.update(document)
        counts = f"{len(document['moved'])} moved, {len(document['merges'])} merged, {len(document['failed'])} failed"
        if document["moved"] or document["merges"] or document["failed"] or once:
            session.output.note(f"daemon: {counts}")
        for problem in document["problems"] if once else ():
            session.output.note(f"not done: {problem}")

    command = [sys.executable, "-m", "tiering.cli.main"]
    if session.options.config is not None:
        command += ["--config", session.options.config]
    watch = metrics_server(session, store)
    final = daemon.run(
        store, session.loaded.config.daemon, stop, once=once, on_tick=report, command=command, watch=watch
    )
    if session.options.json:
        session.output.document(msgspec.to_builtins(final))
    if received:
        session.output.note("daemon: stopped between two steps")
        if received[0] == signal.SIGINT:
            raise Finished(INTERRUPTED)  # SIGTERM is how a service is told to end: it did as it was told
    elif once and passed:
        fail_as_the_pass_did(passed, store.context.faults)


def status(session: Session) -> None:
    """Say whether a daemon runs on this store and what it did. Exit 0: it runs and all is well; 3: its last pass met
    trouble; 1: none runs."""
    import msgspec

    from tiering.config.units import format_time
    from tiering.daemon.daemon import status as daemon_status

    known = daemon_status(session.loaded.config.state_directory)
    if session.options.json:
        session.output.document(msgspec.to_builtins(known))
        _judge(known)
        return
    line = session.output.line
    line(f"running    {f'yes, process {known.pid}' if known.running else 'no'}")
    line(f"started    {format_time(known.started) if known.started else '-'}")
    line(f"last tick  {format_time(known.last_tick) if known.last_tick else '-'}")
    line(
        f"did        {counted(known.ticks, 'pass', 'passes')}, {counted(known.moved, 'move')},"
        f" {counted(known.merged, 'merge')}, {counted(known.failures, 'failure')}"
        + (f", {counted(known.ingested, 'file')} of the inbox" if known.ingested else "")
    )
    if known.last_error:
        line(f"error      {known.last_error}")
    if known.running and known.trouble:
        line(f"trouble    {known.trouble}")
    _judge(known)


def _judge(known: "DaemonStatus") -> None:
    """The exit code that a supervisor goes by."""
    if not known.running:
        raise Finished(NOT_RUNNING)
    if known.trouble:
        raise Finished(PartlyDone.exit_code)


def stop_on_signals(stop: threading.Event) -> list[int]:
    """SIGTERM and SIGINT set the event; the list tells which came. A second Ctrl-C interrupts at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return received
