"""Die at every side effect of the daemon's jobs, and begin again: what is due or was asked for runs, what ran does not,
what is paused rests (P15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from disks import effects
from tests.crash import enumeration
from tests.crash.conftest import RecordTally
from tests.crash.harness import Failpoints, ForkServer, Mode, hooked
from tests.crash.site import Site
from tiering.config.settings import JobConfig
from tiering.daemon.jobs.jobs import DaemonJobs
from tiering.daemon.jobs.kinds import JobKind, Told
from tiering.daemon.jobs.runs import JobFiles, RunReport
from tiering.daemon.jobs.schedule import schedule_of

pytestmark = pytest.mark.crash

NOON = datetime(2026, 6, 10, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
AFTER = NOON + HOUR + 20 * MINUTE
"""When the next daemon begins."""
REPOSITORY = frozenset({"repository"})
GIVEN = {
    "gc": JobConfig(every_seconds=3600),
    "backup": JobConfig(every_seconds=3600),
    "drill": JobConfig(every_seconds=3600),
    "fsck": JobConfig(),
    "prune": JobConfig(every_seconds=1200),
}
SHARES = {"backup": REPOSITORY, "drill": REPOSITORY}


@dataclass
class World:
    """A daemon by a clock of the test's. Its diary outlives it: what it did, and what it was asked for."""

    site: Site
    now: datetime
    asks: bool
    due: dict[str, datetime] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.site.root / "state"

    def begin(self) -> None:
        kinds = {
            name: JobKind(
                name, lambda document: Told(""), lambda config, store: [], shares=SHARES.get(name, frozenset())
            )
            for name in GIVEN
        }
        schedules = {name: schedule_of(given, None) for name, given in GIVEN.items()}
        self.jobs = DaemonJobs(
            kinds, schedules, self.state, run=self._run, timer=self, clock=lambda: self.now, stop=Event()
        )
        self.jobs.begin()

    def arrange(self, job: str, moment: datetime) -> None:
        self.due[job] = moment

    def forget(self, job: str) -> None:
        self.due.pop(job, None)

    def wait(self, end: datetime) -> None:
        while self.due:
            job, moment = min(self.due.items(), key=lambda item: item[1])
            if moment > end:
                break
            del self.due[job]
            self.now = max(self.now, moment)
            self.jobs.fire(job)
        self.now = end

    def _run(self, kind: JobKind, run: str) -> RunReport:
        self.note(f"begin {kind.name} {run}")
        if self.asks and kind.name == "gc":
            self.asks = False
            self.ask("gc")  # while it runs
        if kind.name == "backup":
            self.jobs.fire("drill")  # which needs what the backup has
        report = RunReport(run=run, result="done", said="all of it")
        JobFiles(self.state, kind.name).write(report)
        return report

    def ask(self, job: str) -> None:
        self.note(f"asking {job}")
        self.jobs.trigger(job)
        self.note(f"asked {job}")

    def note(self, line: str) -> None:
        with effects.op("test.note", line), (self.site.root / "diary").open("a") as file:
            file.write(f"{line}\n")


def act(site: Site, mode: Mode, at: int) -> list[str]:
    """A little more than an hour of a daemon, with the hook on."""
    hook = Failpoints(mode, at)
    world = World(site, NOON, asks=True)
    with hooked(hook):
        world.begin()
        world.wait(NOON + 25 * MINUTE)
        world.jobs.pause(["prune"])
        world.note("paused prune")
        world.wait(NOON + 40 * MINUTE)
        world.ask("fsck")  # which is off
        world.wait(NOON + HOUR + 10 * MINUTE)
    return hook.names


def examine(site: Site) -> list[str]:
    """What the next daemon does in its first minutes, against what was left for it."""
    diary = site.root / "diary"
    before = diary.read_text().splitlines() if diary.exists() else []
    owed = {job: _owed(site, before, job) for job in ("gc", "backup", "drill", "fsck")}
    world = World(site, AFTER, asks=False)
    world.begin()
    world.wait(AFTER + 5 * MINUTE)
    lines = diary.read_text().splitlines()[len(before) :]
    begun = [line.split()[1] for line in lines if line.startswith("begin ")]
    found = [
        f"{job} ran {begun.count(job)} times, and {sorted(counts)} were due"
        for job, counts in owed.items()
        if begun.count(job) not in counts
    ]
    if "paused prune" in before:
        first = before[: before.index("paused prune")]
        if "asked gc" in first and not any("begin gc" in line for line in first[first.index("asked gc") :]):
            found.append("gc was asked for while it ran, and did not run once more")
        if "prune" in begun:
            found.append("prune is paused, and ran")
    return found


def _owed(site: Site, diary: list[str], job: str) -> set[int]:
    """How often the job is to run after what the diary says: once, or not at all; either when the answer to a request
    for it was lost."""
    report = site.root / "state" / "jobs" / f"{job}.json"
    last, at = None, -1
    for index, line in enumerate(diary):
        if line.startswith(f"begin {job} "):
            run = line.split()[2]
            is_told = JobFiles(site.root / "state", job).report(run) is not None
            if is_told or any(later.startswith(f"begin {job} ") for later in diary[index + 1 :]):
                last, at = datetime.fromisoformat(run), index
    assert last is None or report.exists()
    is_due = GIVEN[job].every_seconds is not None and (last is None or last < AFTER - HOUR)
    if is_due or f"asked {job}" in diary[at + 1 :]:
        return {1}
    return {0, 1} if f"asking {job}" in diary[at + 1 :] else {0}


def test_killed_at_every_effect(server: ForkServer, site: Site, record_tally: RecordTally) -> None:
    (site.root / "state").mkdir(parents=True)
    site.save()
    tally = enumeration.kill_and_examine(server, site, "jobs", act, examine)
    record_tally(tally)
    assert tally.effects > 80, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])
