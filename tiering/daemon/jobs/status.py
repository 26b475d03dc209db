"""What `daemon status` shows of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiering.config.settings import Config
from tiering.daemon.jobs.kinds import kinds
from tiering.daemon.jobs.record import JobRecord, read
from tiering.journal.locks import daemon_lock_path, lock_holder


def job_documents(config: Config) -> list[dict[str, Any]]:
    """One document a job. Without a daemon the schedule is that of the configuration, and nothing is next."""
    is_running = lock_holder(daemon_lock_path(config.state_directory)) is not None
    return documents_of(read(config.state_directory), config, is_running=is_running)


def documents_of(records: Mapping[str, JobRecord], config: Config | None, *, is_running: bool) -> list[dict[str, Any]]:
    """The same of these records. Without a configuration schedules are those on record."""
    return [
        _document(
            name,
            records.get(name, JobRecord()),
            "?" if config is None else kind.schedule(config).text,
            is_running=is_running,
        )
        for name, kind in kinds().items()
    ]


def _document(name: str, record: JobRecord, configured: str, *, is_running: bool) -> dict[str, Any]:
    schedule = record.schedule if is_running and record.schedule else configured
    runs_now = is_running and record.begun is not None and record.ended is None
    state = "running" if runs_now else "paused" if record.paused else "off" if schedule == "off" else "idle"
    return {
        "job": name,
        "state": state,
        "schedule": schedule,
        "last_run": record.begun,
        "last_end": record.ended,
        "result": record.result or None,
        "said": record.said,
        "figures": record.figures,
        "runs": record.runs,
        "failures_in_a_row": record.failures,
        "wanted": record.wanted,
        "next_run": record.next if is_running and not runs_now else None,
    }


def in_trouble(documents: list[dict[str, Any]]) -> list[str]:
    """A sentence for each job whose last run failed, or found something wrong. Of passes the
    daemon's own status tells."""
    return [
        f"{one['job']}: {one['said']}"
        for one in documents
        if one["job"] != "policy" and one["result"] in ("failed", "found")
    ]
