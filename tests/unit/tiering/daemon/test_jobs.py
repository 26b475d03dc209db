"""The jobs by a clock that the test sets: none is lost and none runs twice, whatever stops, sleeps or is set (P15)."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.host.locks import hold_lock
from oplog.errors import NotFound
from tiering.config.settings import JobConfig
from tiering.daemon.jobs.jobs import DaemonJobs
from tiering.daemon.jobs.kinds import JobKind, Told
from tiering.daemon.jobs.record import JOBS_FILE, JobRecord, Result, read
from tiering.daemon.jobs.runs import JobFiles, RunReport
from tiering.daemon.jobs.schedule import schedule_of

NOON = datetime(2026, 6, 10, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Killed(BaseException):
    """The daemon dies in a run."""


def kind(name: str, *shares: str) -> JobKind:
    return JobKind(name, lambda document: Told(""), lambda config, store: [["verb"]], shares=frozenset(shares))


class World:
    """A daemon with a clock and a timer of the test's, and jobs that do what the test says."""

    def __init__(self, state: Path, **jobs: JobConfig) -> None:
        self.state, self.now, self.given = state, NOON, jobs
        self.shares: dict[str, tuple[str, ...]] = {}
        self.due: dict[str, datetime] = {}
        self.ran: list[tuple[str, datetime]] = []
        self.results: list[Result | type[BaseException]] = []
        self.while_running: list[str] = []
        self.start()

    def start(self) -> None:
        """As a new daemon, which knows what is on record."""
        self.due.clear()
        self.stop = threading.Event()
        kinds = {name: kind(name, *self.shares.get(name, ())) for name in self.given}
        self.jobs = DaemonJobs(
            kinds, self.schedules(), self.state, run=self._run, timer=self, clock=lambda: self.now, stop=self.stop
        )
        self.jobs.begin()

    def schedules(self) -> dict[str, object]:
        return {name: schedule_of(given, None) for name, given in self.given.items()}  # type: ignore[return-value]

    def arrange(self, job: str, moment: datetime) -> None:
        self.due[job] = moment

    def forget(self, job: str) -> None:
        self.due.pop(job, None)

    def _run(self, kind: JobKind, run: str) -> RunReport:
        self.ran.append((kind.name, self.now))
        for name in self.while_running:
            self.jobs.fire(name)
        result = self.results.pop(0) if self.results else "done"
        if isinstance(result, type):
            raise result
        return RunReport(run=run, result=result, said=result)

    def wait(self, time: timedelta) -> list[str]:
        """Let time pass, job by job; what ran."""
        end, before = self.now + time, len(self.ran)
        while self.due:
            job, moment = min(self.due.items(), key=lambda item: item[1])
            if moment > end:
                break
            del self.due[job]
            self.now = max(self.now, moment)
            self.jobs.fire(job)
        self.now = end
        return [name for name, _ in self.ran[before:]]

    def sleep(self, time: timedelta) -> None:
        """The machine sleeps: time passes, and nobody is called."""
        self.now += time
        self.jobs.clock_was_set()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, gc=JobConfig(every_seconds=3600), backup=JobConfig(cron="0 3 * * *"))


def test_each_runs_at_its_times(world: World) -> None:
    assert world.wait(timedelta(hours=3)) == ["gc"] * 3
    assert world.wait(timedelta(days=1)).count("backup") == 1
    assert [at.hour for name, at in world.ran if name == "backup"] == [3]


def test_what_fell_due_in_a_sleep_runs_once(world: World) -> None:
    world.wait(HOUR)
    world.sleep(timedelta(days=3))
    assert sorted(world.wait(timedelta(0))) == ["backup", "gc"]
    assert world.wait(timedelta(minutes=59)) == []


def test_a_restart_neither_repeats_nor_loses_a_run(world: World) -> None:
    world.wait(timedelta(hours=15, minutes=5))
    assert [name for name, _ in world.ran].count("backup") == 1
    for _ in range(3):
        world.start()
        assert world.wait(timedelta(minutes=2)) == []
    world.now += timedelta(days=1)  # nobody was there at three
    world.start()
    assert sorted(world.wait(timedelta(minutes=2))) == ["backup", "gc"]
    world.start()
    assert world.wait(timedelta(minutes=2)) == []


def test_what_a_start_finds_due_waits_a_minute(world: World) -> None:
    world.wait(timedelta(hours=2))
    world.now += timedelta(days=1)
    world.start()
    assert world.wait(timedelta(seconds=59)) == []


def test_a_clock_set_back_by_a_year_keeps_nothing_waiting(world: World) -> None:
    world.now += timedelta(days=365)
    world.jobs.clock_was_set()
    world.wait(HOUR)
    world.now -= timedelta(days=365)
    world.jobs.clock_was_set()
    count = world.wait(timedelta(hours=24))
    assert (count.count("gc"), count.count("backup")) == (24, 1)


def test_a_run_that_the_daemon_did_not_outlive_is_made_again(world: World) -> None:
    world.results = [Killed]
    with pytest.raises(Killed):
        world.wait(HOUR)
    # What the crash left: a beginning without an end.
    record = read(world.state)["gc"]
    assert record.begun is not None
    assert record.ended is None
    world.start()
    assert read(world.state)["gc"].result == "stopped"
    assert world.wait(timedelta(minutes=2)) == ["gc"]


def test_a_run_that_ended_while_no_daemon_ran_is_not_repeated(world: World) -> None:
    world.results = [Killed]
    with pytest.raises(Killed):
        world.wait(HOUR)
    begun = read(world.state)["gc"].begun
    assert begun is not None
    JobFiles(world.state, "gc").write(RunReport(run=begun.isoformat(), result="done", said="all of it"))
    world.start()
    assert (read(world.state)["gc"].result, read(world.state)["gc"].said) == ("done", "all of it")
    assert world.wait(timedelta(minutes=2)) == []
    assert world.wait(HOUR) == ["gc"]


def test_an_earlier_daemon_s_run_still_at_work_holds_its_kind(world: World) -> None:
    """Runs of its kind wait."""
    world.results = [Killed]
    with pytest.raises(Killed):
        world.wait(HOUR)
    with hold_lock(JobFiles(world.state, "gc").lock, resource="gc", hint=""):
        world.start()
        for _ in range(100):
            world.wait(timedelta(seconds=1))
        assert len(world.ran) == 1
    assert world.wait(timedelta(seconds=2)) == ["gc"]


def test_a_run_due_while_another_has_its_needs_comes_after_it(tmp_path: Path) -> None:
    world = World(tmp_path, backup=JobConfig(every_seconds=600), drill=JobConfig(cron="@hourly"))
    world.shares = {"backup": ("repository",), "drill": ("repository",)}
    world.start()
    world.now += timedelta(hours=1)  # both are due
    world.while_running = ["drill"]
    world.due.clear()  # both were called
    world.jobs.fire("backup")
    world.while_running = []
    assert [name for name, _ in world.ran] == ["backup"]
    assert world.wait(timedelta(0)) == ["drill"]


def test_jobs_without_shared_needs_run_together_two_alike_never(world: World) -> None:
    """Two of a kind never run side by side."""
    world.now += timedelta(days=1)
    world.while_running = ["gc"]
    world.jobs.fire("backup")
    assert [name for name, _ in world.ran] == ["backup", "gc"], "gc ran within, and its own fire began no second one"


def test_what_is_asked_for_while_it_runs_is_one_run_more(world: World) -> None:
    original = world._run

    def run(kind: JobKind, run: str) -> RunReport:
        if len(world.ran) == 0:
            world.jobs.trigger("gc")
            world.jobs.trigger("gc")
        return original(kind, run)

    world.jobs._run = run
    assert world.wait(MINUTE) == ["gc", "gc"]
    assert world.wait(timedelta(minutes=30)) == []


def test_what_is_asked_for_outlives_the_daemon(world: World) -> None:
    world.jobs.trigger("backup")
    world.start()
    assert world.wait(timedelta(minutes=2)).count("backup") == 1
    world.start()
    assert "backup" not in world.wait(timedelta(minutes=2))


def test_an_interrupted_request_is_repeated_with_its_job_off(tmp_path: Path) -> None:
    world = World(tmp_path, fsck=JobConfig())
    world.results = [Killed]
    world.jobs.trigger("fsck")
    with pytest.raises(Killed):
        world.wait(MINUTE)
    world.start()
    assert world.wait(timedelta(minutes=2)) == ["fsck"]
    world.start()
    assert world.wait(timedelta(minutes=2)) == []


def test_what_is_paused_rests_over_restarts_and_was_due_once(world: World) -> None:
    world.jobs.pause(["gc"])
    assert world.wait(timedelta(hours=5)) == []
    world.start()
    assert world.wait(timedelta(hours=5)) == []
    world.jobs.trigger("gc")
    assert world.wait(timedelta(0)) == ["gc"], "by hand it runs all the same"
    world.wait(timedelta(hours=2))
    world.jobs.resume([])
    assert world.wait(timedelta(minutes=1)) == ["gc"]


def test_a_failure_is_tried_again_sooner_and_ever_later(world: World) -> None:
    world.results = ["failed"] * 4
    world.wait(timedelta(minutes=30))
    begun = [at for name, at in world.ran if name == "gc"]
    assert [round((b - a) / MINUTE) for a, b in itertools.pairwise(begun)] == [1, 2, 4, 8]
    assert read(world.state)["gc"].failures == 0


def test_what_was_found_wrong_is_not_looked_for_again_at_once(world: World) -> None:
    world.results = ["found"]
    assert world.wait(timedelta(minutes=50)) == ["gc"]
    assert world.jobs.records.of("gc").result == "found"


def test_other_times_are_in_force_at_once_without_past_runs(world: World) -> None:
    world.wait(timedelta(hours=2))
    world.given = {"gc": JobConfig(cron="0 11 * * *"), "backup": JobConfig()}
    world.jobs.change(world.schedules())  # type: ignore[arg-type]
    assert world.wait(timedelta(hours=20)) == []
    assert world.wait(timedelta(hours=2)) == ["gc"]


def test_a_job_that_is_fired_outside_of_its_window_waits_for_it(tmp_path: Path) -> None:
    world = World(tmp_path, gc=JobConfig(every_seconds=3600, window="22:00-06:00"))
    world.wait(timedelta(minutes=1))
    assert world.ran == []
    world.jobs.fire("gc")
    assert world.ran == []
    assert world.wait(timedelta(hours=10)) == ["gc"]


def test_nothing_begins_once_it_stops(world: World) -> None:
    world.stop.set()
    world.now += timedelta(days=1)
    world.jobs.fire("gc")
    assert world.ran == []


def test_an_unknown_job_is_named_with_those_that_there_are(world: World) -> None:
    for act in (world.jobs.trigger, lambda name: world.jobs.pause([name]), lambda name: world.jobs.resume([name])):
        with pytest.raises(NotFound, match="No such job: gcc") as caught:
            act("gcc")
        assert "gc, backup" in caught.value.hint


@pytest.mark.parametrize("bytes_", [b"", b"{", b"[]", b'{"jobs": {"gc": 7}}'])
def test_a_record_that_cannot_be_read_is_as_if_nothing_had_run(world: World, bytes_: bytes) -> None:
    world.wait(timedelta(hours=2))
    (world.state / JOBS_FILE).write_bytes(bytes_)
    assert read(world.state) == {}
    world.start()
    assert world.wait(timedelta(minutes=2)) == ["gc"]
    assert isinstance(read(world.state)["gc"], JobRecord)


def test_a_hastened_job_runs_now_unless_it_would_not_run_at_all(tmp_path: Path) -> None:
    """What is off or paused, or out of its window, stays so: nobody asked for it."""
    night = JobConfig(every_seconds=3600, window="01:00-02:00")
    world = World(tmp_path, gc=JobConfig(every_seconds=3600), off=JobConfig(), night=night)
    world.wait(10 * MINUTE)
    world.ran.clear()
    for name in world.given:
        world.jobs.hasten(name)
    assert world.wait(MINUTE) == ["gc"]
    world.jobs.pause(["gc"])
    world.jobs.hasten("gc")
    assert world.wait(2 * HOUR) == []
    world.jobs.resume(["gc"])
    assert world.wait(timedelta(0)) == ["gc"], "what was due meanwhile, once"
