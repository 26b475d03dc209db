"""The daemon's own numbers, at the moment of the answer: its passes, jobs, lanes, hooks and requests. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tiering.daemon.jobs.row import JobRow
from tiering.facts.metrics.family import Family


class Lane(Protocol):
    """What is under way in a lane, as `daemon status` has it."""

    @property
    def lane(self) -> str: ...
    @property
    def since(self) -> datetime: ...
    @property
    def bytes(self) -> int | None: ...
    @property
    def bytes_done(self) -> int: ...


class Hook(Protocol):
    """What became of a hook's events."""

    @property
    def hook(self) -> str: ...
    @property
    def waiting(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def given_up(self) -> int: ...


class Calls(msgspec.Struct, frozen=True):
    """Calls of stores of one kind. Those that throttle and those that fail otherwise took their time, too."""

    calls: int = 0
    seconds: float = 0.0
    failed: int = 0
    throttled: int = 0


class Traffic(msgspec.Struct, frozen=True):
    """What this process sent to one disk's store."""

    disk: str
    requests: Mapping[str, int]
    """By verb."""
    sent: int
    received: int


class Process(msgspec.Struct, frozen=True):
    """The daemon, at the moment of the answer."""

    up: bool
    passes: int = 0
    moved: int = 0
    merged: int = 0
    failures: int = 0
    last_pass: datetime | None = None
    is_troubled: bool = False
    """The last pass could not do all, or the configuration as it lies there is not in force."""
    needs_restart: bool = False
    """For what a changed configuration says."""
    jobs: Sequence[JobRow] = ()
    lanes: Sequence[Lane] = ()
    hooks: Sequence[Hook] = ()
    held: Mapping[str, int] = msgspec.field(default_factory=dict)
    """How many due parts the pacing of policies holds back, by what holds them."""
    traffic: tuple[Traffic, ...] = ()
    concurrency: int | None = None
    """Requests that may run at once now: a throttling store halves it."""
    answered: Mapping[str, Calls] = msgspec.field(default_factory=dict)
    """What became of the calls of stores, by kind."""


def process_families(process: Process) -> list[Family]:
    """All of them, also those without a sample."""
    return [
        *_passes(process),
        *_jobs(process.jobs),
        *_orphans(process.jobs),
        *_lanes(process.lanes),
        *_hooks(process.hooks),
        *_requests(process),
    ]


def _passes(process: Process) -> list[Family]:
    up = Family("frostline_daemon_up", "gauge", "1 while a daemon runs on this store.")
    up.add(process.up)
    counters = [
        Family("frostline_daemon_passes_total", "counter", "Passes since the daemon started."),
        Family("frostline_daemon_moves_total", "counter", "Moves of those passes."),
        Family("frostline_daemon_merges_total", "counter", "Merges of those passes."),
        Family("frostline_daemon_failures_total", "counter", "What failed in them."),
    ]
    for family, value in zip(counters, (process.passes, process.moved, process.merged, process.failures), strict=True):
        family.add(value)
    last = Family("frostline_daemon_last_pass_timestamp_seconds", "gauge", "When the last pass ended.")
    if process.last_pass is not None:
        last.add(process.last_pass.timestamp())
    trouble = Family(
        "frostline_daemon_trouble", "gauge", "1 when a daemon has failures, or cannot read its configuration."
    )
    trouble.add(process.up and process.is_troubled)
    restart = Family("frostline_daemon_needs_restart", "gauge", "1 when changed keys wait for a restart.")
    restart.add(process.up and process.needs_restart)
    held = Family("frostline_held_parts", "gauge", "Due parts postponed by pacing, by reason.", ("reason",))
    for reason, count in sorted(process.held.items()):
        held.add(count, reason)
    return [up, *counters, last, trouble, restart, held]


def _jobs(jobs: Iterable[JobRow]) -> list[Family]:
    label = ("daemon_job",)  # `job` is Prometheus' own: it says of which scrape a number is
    last = Family("frostline_job_last_run_timestamp_seconds", "gauge", "When the job's last run began.", label)
    upcoming = Family("frostline_job_next_run_timestamp_seconds", "gauge", "When it runs next.", label)
    runs = Family("frostline_job_runs", "gauge", "Recorded runs of the job.", label)
    failures = Family("frostline_job_failures_in_a_row", "gauge", "Consecutive failed runs.", label)
    trouble = Family("frostline_job_trouble", "gauge", "1 when its last run failed or found problems.", label)
    running = Family("frostline_job_running", "gauge", "1 while it runs.", label)
    paused = Family("frostline_job_paused", "gauge", "1 while it is paused.", label)
    for job in jobs:
        for family, moment in ((last, job.last_run), (upcoming, job.next_run)):
            if moment is not None:
                family.add(moment.timestamp(), job.job)
        runs.add(job.runs, job.job)
        failures.add(job.failures_in_a_row, job.job)
        trouble.add(job.is_troubled, job.job)
        running.add(job.state == "running", job.job)
        paused.add(job.state == "paused", job.job)
    return [last, upcoming, runs, failures, trouble, running, paused]


def _orphans(jobs: Iterable[JobRow]) -> list[Family]:
    count = Family("frostline_orphaned_objects", "gauge", "Unreferenced objects after the last gc.")
    sizes = Family("frostline_orphaned_bytes", "gauge", "Bytes of them.")
    for job in jobs:
        if job.job == "gc" and job.figures:
            count.add(job.figures["orphaned"])
            sizes.add(job.figures["orphaned_bytes"])
    return [count, sizes]


def _lanes(lanes: Iterable[Lane]) -> list[Family]:
    label = ("lane",)
    since = Family("frostline_lane_since_timestamp_seconds", "gauge", "Start of the lane's current work.", label)
    total = Family("frostline_lane_bytes", "gauge", "Bytes of that work, if known.", label)
    done = Family("frostline_lane_done_bytes", "gauge", "Bytes done of that work.", label)
    for lane in lanes:
        since.add(lane.since.timestamp(), lane.lane)
        done.add(lane.bytes_done, lane.lane)
        if lane.bytes is not None:
            total.add(lane.bytes, lane.lane)
    return [since, total, done]


def _hooks(hooks: Iterable[Hook]) -> list[Family]:
    label = ("hook",)
    waiting = Family("frostline_hook_waiting_events", "gauge", "Events waiting for the hook.", label)
    heard = Family("frostline_hook_delivered_total", "counter", "Events delivered since the daemon started.", label)
    given_up = Family("frostline_hook_given_up_total", "counter", "Events given up.", label)
    for hook in hooks:
        waiting.add(hook.waiting, hook.hook)
        heard.add(hook.delivered, hook.hook)
        given_up.add(hook.given_up, hook.hook)
    return [waiting, heard, given_up]


def _requests(process: Process) -> list[Family]:
    requests = Family(
        "frostline_store_requests_total", "counter", "Requests of this daemon to a disk's store.", ("disk", "verb")
    )
    traffic = Family(
        "frostline_store_bytes_total", "counter", "Bytes this daemon sent and received.", ("disk", "direction")
    )
    for one in process.traffic:
        for verb, count in one.requests.items():
            requests.add(count, one.disk, verb)
        traffic.add(one.sent, one.disk, "sent")
        traffic.add(one.received, one.disk, "received")
    allowed = Family("frostline_store_concurrency", "gauge", "Limit of concurrent requests; throttling halves it.")
    if process.concurrency is not None:
        allowed.add(process.concurrency)
    calls = Family("frostline_store_calls_total", "counter", "Finished store calls, counting each attempt.", ("call",))
    seconds = Family("frostline_store_call_seconds_total", "counter", "How long they took.", ("call",))
    failed = Family("frostline_store_failed_calls_total", "counter", "Those that failed.", ("call",))
    throttled = Family(
        "frostline_store_throttled_calls_total", "counter", "Requests answered with a request to slow down.", ("call",)
    )
    for call, found in sorted(process.answered.items()):
        for family, value in ((calls, found.calls), (seconds, found.seconds)):
            family.add(value, call)
        failed.add(found.failed, call)
        throttled.add(found.throttled, call)
    return [requests, traffic, allowed, calls, seconds, failed, throttled]
