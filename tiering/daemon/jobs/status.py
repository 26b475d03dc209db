"""What is known of the daemon's jobs, as rows."""

from __future__ import annotations

from collections.abc import Mapping

from disks.host.locks import lock_holder
from tiering.config.settings import Config
from tiering.daemon.jobs.kinds import kinds
from tiering.daemon.jobs.record import JobRecord, read
from tiering.daemon.jobs.row import JobRow
from tiering.daemon.lock import daemon_lock_path


def job_rows(config: Config) -> list[JobRow]:
    """One row a job. Without a daemon the schedule is that of the configuration, and nothing is next."""
    is_running = lock_holder(daemon_lock_path(config.state_directory)) is not None
    return rows_of(read(config.state_directory), config, is_running=is_running)


def rows_of(records: Mapping[str, JobRecord], config: Config | None, *, is_running: bool) -> list[JobRow]:
    """The same of these records. Without a configuration schedules are those on record."""
    return [
        _row(
            name,
            records.get(name, JobRecord()),
            "?" if config is None else kind.schedule(config).text,
            is_running=is_running,
        )
        for name, kind in kinds().items()
    ]


def _row(name: str, record: JobRecord, configured: str, *, is_running: bool) -> JobRow:
    schedule = record.schedule if is_running and record.schedule else configured
    runs_now = is_running and record.begun is not None and record.ended is None
    state = "running" if runs_now else "paused" if record.paused else "off" if schedule == "off" else "idle"
    return JobRow(
        job=name,
        state=state,
        schedule=schedule,
        last_run=record.begun,
        last_end=record.ended,
        result=record.result or None,
        said=record.said,
        figures=record.figures,
        runs=record.runs,
        failures_in_a_row=record.failures,
        wanted=record.wanted,
        next_run=record.next if is_running and not runs_now else None,
    )
