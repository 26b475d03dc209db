"""The clock that the daemon's jobs hang on: APScheduler, which keeps nothing; what is to be kept is in the record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler


class SchedulerTimer:
    """Calls `fire` with a job's name at its moment, in a thread of its own; at once for a moment that is past."""

    def __init__(self, fire: Callable[[str], None], threads: int) -> None:
        self._fire = fire
        self._scheduler = _scheduler(threads)
        self._scheduler.start(paused=True)

    def arrange(self, job: str, moment: datetime) -> None:
        """In place of what was arranged for the job before."""
        self._scheduler.add_job(self._fire, "date", run_date=moment, args=[job], id=job, replace_existing=True)

    def forget(self, job: str) -> None:
        """Call nobody."""
        if self._scheduler.get_job(job) is not None:
            self._scheduler.remove_job(job)

    def begin(self) -> None:
        """Call from now on."""
        self._scheduler.resume()

    def end(self) -> None:
        """Call no more, and wait for the calls that have not returned."""
        self._scheduler.shutdown(wait=True)

    @property
    def is_running(self) -> bool:
        """Whether it still calls."""
        return bool(self._scheduler.running)


class NoTimer:
    """A timer that calls nobody."""

    def arrange(self, job: str, moment: datetime) -> None:
        """Nothing comes of it."""

    def forget(self, job: str) -> None:
        """Nothing is to forget."""


def _scheduler(threads: int) -> BackgroundScheduler:
    """What is late is done, and done once: its defaults would drop it. That a job runs once at a time is for `Jobs` to
    say: the next run is arranged by the call that is about to return, which counts as an instance."""
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)  # "run time was missed by" is no news here
    return BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(threads)},
        job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1000},
        timezone=UTC,
    )
