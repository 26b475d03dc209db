"""The status of the daemon that runs, as it says it itself: what it has written down may be of some time ago, such as
on a state disk that is full."""

from __future__ import annotations

from pathlib import Path

import msgspec

from oplog.errors import FrostlineError
from tiering.daemon.control import ask
from tiering.daemon.jobs import record
from tiering.daemon.jobs.record import JobRecord
from tiering.daemon.status import DaemonStatus, read_status

_SECONDS = 5.0


def live_status(
    state_directory: Path, *, answer_seconds: float = _SECONDS
) -> tuple[DaemonStatus, dict[str, JobRecord]]:
    """The status, and what is known of each job. By what is written down where no daemon runs or none answers in time:
    it begins or ends, stands still, or is of another version."""
    known = read_status(state_directory)
    if known.running:
        try:
            said = ask(state_directory, "status", [], begin_seconds=0, answer_seconds=answer_seconds)
            jobs = msgspec.convert(said["jobs"], dict[str, JobRecord])
            now = msgspec.convert(said["daemon"], DaemonStatus)
        except (FrostlineError, KeyError, msgspec.ValidationError):
            pass
        else:
            return msgspec.structs.replace(now, trouble=now.trouble or known.trouble), jobs
    return known, record.read(state_directory)
