"""A job of the daemon, in a process of its own: `python -m tiering.cli.child ORDER` (`tiering.daemon.jobs.runs`)."""

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from disks.host.locks import hold_lock
from oplog.errors import FrostlineError, Locked, Refused
from tiering.cli import main as command_line
from tiering.cli.frame.exit_codes import INTERRUPTED, TERMINATED
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.session import Session
from tiering.config.escaping import visible
from tiering.daemon.jobs.kinds import kinds
from tiering.daemon.jobs.runs import JobFiles, RunOrder, RunReport
from tiering.daemon.log_lines import LogStream

if TYPE_CHECKING:
    from tiering.daemon.jobs.kinds import JobKind
    from tiering.daemon.jobs.record import Result

_END_SECONDS = 5.0
_orders = msgspec.json.Decoder(RunOrder)


def main() -> None:
    """Run the job, write down how it ended, and exit with the code of what failed first."""
    order = _orders.decode(sys.argv[1])
    if order.log_format is not None:
        LogStream(order.log_format, job=order.job).begin()
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    place = JobFiles(Path(order.state), order.job)
    code = Locked.exit_code
    try:
        with hold_lock(
            place.lock,
            resource=f"the job {order.job}",
            hint="it is running already: 'frostline daemon status' shows it",
        ):
            report = _run(order)
            code = report.code
            if report.result != "stopped":
                place.write(report)
    except FrostlineError as error:
        print(f"frostline: job {order.job}: {visible(error.message)}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)  # threads of an engine may still compute for nobody


def _end_with_the_daemon() -> None:
    """Standard input ends when the daemon does."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    os._exit(TERMINATED)


def _run(order: RunOrder) -> RunReport:
    kind = kinds()[order.job]
    try:
        steps = _steps(kind, order)
    except FrostlineError as error:
        return RunReport(run=order.run, result="failed", said=error.message, code=error.exit_code)
    results: list[Result] = []
    said: list[str] = []
    merged = code = 0
    figures: Counter[str] = Counter()
    for step in steps:
        document, problem, ended = _step([*order.options, *step])
        if ended in (TERMINATED, INTERRUPTED):
            return RunReport(run=order.run, result="stopped", code=ended)
        told = kind.tell(document) if document else None
        merged += told.merged if told else 0
        figures.update(told.figures if told else {})
        well = ended in kind.fine or ended in kind.bad_codes
        results.append("done" if ended in kind.fine else "found" if ended in kind.bad_codes else "failed")
        said.append(told.text if told and well else problem or f"exit code {ended}")
        code = code or (0 if ended in kind.fine else ended)
    worst: Result = "failed" if "failed" in results else "found" if "found" in results else "done"
    telling = [text for text, result in zip(said, results, strict=True) if result == worst]
    text = "; ".join(telling) or "nothing to do"
    return RunReport(run=order.run, result=worst, said=text, merged=merged, code=code, figures=dict(figures))


def _steps(kind: "JobKind", order: RunOrder) -> list[list[str]]:
    """The command lines to run. Raises `Refused` where the configuration is that of another store."""
    assert kind.steps is not None
    quiet = GlobalOptions(config=order.config, quiet=True)  # the daemon has said which disks are away
    with Session(quiet) as session:
        config = session.loaded.config
        if str(config.state_directory) != order.state:
            raise Refused(
                f"the daemon works on {order.state}, and the configuration says {config.state_directory}",
                hint="restart the daemon",
            )
        steps = kind.steps(config, session.store())
        own = config.daemon.jobs[kind.name].options if kind.name in config.daemon.jobs else ()
    given = [] if order.config is None else ["--config", order.config]
    return [[*given, "--json", "--yes", "--quiet", "--no-progress", *step, *own] for step in steps]


def _step(arguments: Sequence[str]) -> tuple[Mapping[str, object], str, int]:
    """The document that a command line printed, what it said was wrong, its exit code."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = command_line.run(arguments)
    try:
        document = json.loads(out.getvalue() or "{}")
    except ValueError:
        document = {}
    return document, _problem(said.getvalue(), document) if code else "", code


def _problem(text: str, document: Mapping[str, object]) -> str:
    """What the document says could not be done; else the message of the documented error; the last line where there is
    none."""
    if isinstance(problems := document.get("problems"), list) and all(isinstance(one, str) for one in problems):
        with contextlib.suppress(IndexError):
            return str(problems[0]) + (f"; and {len(problems) - 1} more" if len(problems) > 1 else "")
    lines = text.strip().splitlines()
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = json.loads(line)["error"]
            return f"{error['message']}; {error['hint']}" if error.get("hint") else str(error["message"])
    return lines[-1] if lines else ""


if __name__ == "__main__":
    main()
