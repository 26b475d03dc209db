"""What is known of each job's runs: `state/jobs.json`, replaced durably before a run begins and after it ended.

A run that is on record as begun and not as ended was interrupted: it is due again. Losing the file loses no work: jobs
are then as if they had never run.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from oplog.documents import Document
from tiering.daemon.state_file import StateFile

JOBS_FILE = "jobs.json"

Result = Literal["", "done", "found", "failed", "stopped"]

log = logging.getLogger("frostline.daemon")


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job."""

    begun: datetime | None = None
    """When its last run began."""
    ended: datetime | None = None
    """When that ended; None: it has not, or nobody lived to write it down."""
    result: Result = ""
    """Of the last run that ended. `found`: it did its work, and that is bad news. `stopped`: to go on with the next."""
    said: str = ""
    """What that run did, or what was wrong."""
    figures: dict[str, int] = {}
    """What the last run that was done counted."""
    runs: int = 0
    failures: int = 0
    """In a row."""
    wanted: bool = False
    """Somebody asked for a run, which has not begun."""
    asked: bool = False
    """Somebody had asked for the last run that began."""
    paused: bool = False
    next: datetime | None = None
    """When it is due, as the daemon last reckoned."""
    schedule: str = ""
    """For people."""
    since: datetime | None = None
    """When that came into force."""

    @property
    def is_interrupted(self) -> bool:
        """Whether its last run has to be made again."""
        return self.begun is not None and (self.ended is None or self.result == "stopped")


class _Document(msgspec.Struct, frozen=True):
    jobs: dict[str, JobRecord] = {}


_document = Document("record of the daemon's jobs", _Document)


def read(state_directory: Path) -> dict[str, JobRecord]:
    """What is on record, by job. Empty where there is none, or none that can be read."""
    try:
        return _document.decode((state_directory / JOBS_FILE).read_bytes()).jobs
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, pauses of jobs are forgotten: %s", state_directory / JOBS_FILE, error)
        return {}


class JobRecords:
    """The record, kept by the one daemon of a store. Thread-safe."""

    def __init__(self, state_directory: Path) -> None:
        self._file = StateFile(state_directory / JOBS_FILE, "the record of jobs")
        self._known = read(state_directory)
        self._lock = threading.Lock()

    def of(self, job: str) -> JobRecord:
        """What is known of it."""
        with self._lock:
            return self._known.get(job, JobRecord())

    def note(self, job: str, *, durably: bool = True, **changes: Any) -> JobRecord:
        """Change what is known, and write it down: with `durably=False` only with the next change that is. A state disk
        that is full is no reason to do nothing: it is said, and what is known is known until the daemon ends."""
        with self._lock:
            after = msgspec.structs.replace(self._known.get(job, JobRecord()), **changes)
            self._known[job] = after
            if durably:
                self._file.replace(_document.encode(_Document(self._known)))
            return after
