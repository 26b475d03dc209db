"""What is large is merged and moved beside the passes; what is small and due does not wait for it (P15)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from disks.workers.progress import Progress, Silent
from oplog.errors import Transient
from tests.command_line import Frostline
from tests.unit.tiering.daemon.running import Clock, disks_of, until
from tests.unit.tiering.daemon.work import SETTINGS, Work, insert, pin
from tests.unit.tiering.daemon.work import store as store
from tiering.catalog.context import wall_clock
from tiering.config.settings import embedded
from tiering.daemon import daemon
from tiering.daemon.lanes import Lanes
from tiering.daemon.status import read_status
from tiering.engine.maintenance import Sizes, TickReport
from tiering.engine.store import Store
from tiering.merge import merger
from tiering.move.file_copies import FileCopies
from tiering.policy.backoff import FIRST_WAIT

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def beside(store: Store, tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Where each part is, as another process sees it: the store itself is the daemon's while that runs."""
    other = Store.open(embedded(tmp_path))

    def look() -> dict[str, str]:
        other.refresh()
        return {part.facts.name: part.disk for part in other.parts("d.t")}

    return look


def test_a_small_move_does_not_wait_for_a_large_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    large, small = insert(store, 100_000), insert(store, 10)
    goes_on, original = threading.Event(), FileCopies.stage

    def stage(self: Any, items: Any, transaction: Any) -> None:
        if any(item.move.bytes > SETTINGS.large_bytes for item in items):
            goes_on.wait(100)
        original(self, items, transaction)

    monkeypatch.setattr(FileCopies, "stage", stage)
    pin(store, large)
    pin(store, small)
    where, frostline = beside(store, tmp_path), Frostline(capsys)
    with Work(store) as work:
        until(lambda: where()[small] == "s3")
        assert where()[large] == "ssd"
        until(lambda: read_status(work.state).lanes)
        (lane,) = frostline.json("daemon", "status")["lanes"]
        assert (lane["lane"], lane["doing"], lane["items"]) == ("large moves", "moving parts", 1)
        told = frostline("daemon", "status")
        assert "large moves" in told
        assert "0 of 1" in told
        later = insert_beside(tmp_path, 20)
        pin(store, later)
        until(lambda: where()[later] == "s3")
        assert where()[large] == "ssd", "and one that fell due meanwhile did not wait either"
        goes_on.set()
        until(lambda: where()[large] == "s3")
        until(lambda: read_status(work.state).moved == 3)
        until(lambda: not read_status(work.state).lanes)
    final = read_status(work.state)
    assert (final.moved, final.failures, final.trouble, final.lanes) == (3, 0, "", ())


def insert_beside(tmp_path: Path, rows: int) -> str:
    with Store.open(embedded(tmp_path)) as other:
        return insert(other, rows)


@pytest.mark.in_turn
def test_a_move_does_not_wait_for_a_large_merge(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more in range(10):
        insert(store, 20_000 + more)
    goes_on, original, threads = threading.Event(), merger.merge, []

    def merge(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        goes_on.wait(100)
        return original(*arguments, **named)

    monkeypatch.setattr(merger, "merge", merge)
    where = beside(store, tmp_path)
    with Work(store) as work:
        until(lambda: threads)
        small = insert_beside(tmp_path, 10)
        pin(store, small)
        until(lambda: where()[small] == "s3")
        assert read_status(work.state).merged == 0
        goes_on.set()
        until(lambda: read_status(work.state).merged)
    assert threads[0] == "large merges"
    assert len(where()) < 11


def test_a_pass_of_a_person_does_all_sizes(store: Store) -> None:
    large, small = insert(store, 100_000), insert(store, 10)
    pin(store, large)
    pin(store, small)
    assert store.tick(sizes=Sizes(up_to=100_000)).left == {"moves"}
    assert sorted(disks_of(store)) == ["s3", "ssd"]
    daemon.run(store, SETTINGS, threading.Event(), once=True)
    assert disks_of(store) == ["s3", "s3"], "one pass leaves nothing to a lane that ends with it"


def test_the_lanes_keep_to_one_limit_and_promise_no_space_twice(store: Store) -> None:
    with store.beside(store.config, threading.Event(), Silent()) as other:
        assert other.context.limiter is store.context.limiter
        with store.context.reservations.reserve("ssd", 12345):
            assert other.context.reservations.reserved("ssd") == 12345


class Passes:
    """Stands for stores that a lane opens: it says how often, and with what they end."""

    def __init__(self) -> None:
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.goes_on = threading.Semaphore(0)
        self.ends: list[BaseException | None] = []

    def open(self, progress: Progress) -> Any:
        return self

    def __enter__(self) -> Passes:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def tick(self, *, only: str, stop: threading.Event, sizes: Sizes) -> TickReport:
        self.begun.put(f"{only} above {sizes.above}")
        self.goes_on.acquire(timeout=100)
        if self.ends and (error := self.ends.pop(0)) is not None:
            raise error
        return TickReport()


def test_what_falls_due_while_a_lane_works_is_one_more_pass() -> None:
    passes, stop = Passes(), threading.Event()
    lanes = Lanes(passes.open, stop, lambda: NOW)
    lanes.begin({"moves"}, 5)
    assert passes.begun.get(timeout=100) == "moves above 5"
    for above in (6, 7):
        lanes.begin({"moves"}, above)
    lanes.begin({"merges"}, 7)
    assert passes.begun.get(timeout=100) == "merges above 7", "the lanes do not wait for one another"
    for _ in range(3):
        passes.goes_on.release()
    assert passes.begun.get(timeout=100) == "moves above 7"
    stop.set()
    lanes.end()
    assert passes.begun.empty()
    assert len(lanes.ended()) == 3
    assert not lanes.ended()
    lanes.begin({"moves"}, 8)
    lanes.end()
    assert passes.begun.empty(), "nothing begins after a stop"


@pytest.mark.parametrize("error", [Transient("no route to host"), OSError(5, "Input/output error"), ValueError("x")])
def test_a_lane_that_fails_says_so_and_works_again(error: Exception) -> None:
    passes, stop = Passes(), threading.Event()
    passes.ends = [error, None]
    lanes = Lanes(passes.open, stop, lambda: NOW)
    reports: list[TickReport] = []
    for _ in range(2):
        lanes.begin({"moves"}, 5)
        passes.begun.get(timeout=100)
        passes.goes_on.release()
        before = len(reports)
        while len(reports) == before:
            reports += lanes.ended()
    assert [bool(report.problems) for report in reports] == [True, False]
    assert reports[0].problems[0].startswith("large moves: ")
    assert str(error) in reports[0].problems[0]
    stop.set()
    lanes.end()


def test_what_a_lane_could_not_do_is_trouble_until_it_is_done(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is tried again after a minute, which passes only when the test says so."""
    store.context.clock = clock = Clock()
    clock.now = wall_clock() + FIRST_WAIT / 2
    large = insert(store, 100_000)
    pin(store, large)

    tries: list[Any] = []
    really = FileCopies.stage

    def stage(self: Any, items: Any, transaction: Any) -> Any:
        tries.append(items)
        if len(tries) == 1:
            raise Transient("no route to host")
        return really(self, items, transaction)

    monkeypatch.setattr(FileCopies, "stage", stage)
    seen: list[str] = []

    class Asking:
        def begin(self, status: Any, working: Any) -> None: ...

        def passed(self, status: Any, problem: str) -> None:
            seen.append(status.trouble)

        def end(self) -> None: ...

    where = beside(store, tmp_path)
    with Work(store, watch=Asking()) as work:
        until(lambda: any("no route to host" in one for one in seen))
        passes = len(seen)
        until(lambda: len(seen) > passes + 2)
        assert (len(tries), where()) == (1, {large: "ssd"})
        clock.now = wall_clock() + FIRST_WAIT
        until(lambda: where() == {large: "s3"})
        until(lambda: seen[-1] == "")
    assert len(tries) == 2
    assert read_status(work.state).failures == 1


def test_a_progress_is_told_to_whoever_looks_and_passed_on() -> None:
    told: list[str] = []

    class Inner(Silent):
        def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> Any:
            told.append(title)
            return super().task(title)

        def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
            told.append(f"{items} {size_bytes}")

        def note(self, text: str) -> None:
            told.append(text)

    lanes = Lanes(Passes().open, threading.Event(), lambda: NOW)
    progress = lanes.progress("passes", Inner())
    assert lanes.status() == ()
    with progress.task("moving parts", items=2, size_bytes=10) as task:
        task.advance(items=1, size_bytes=4)
        task.note("d.t a")
        (lane,) = lanes.status()
        assert (lane.lane, lane.doing, lane.since, lane.note) == ("passes", "moving parts", NOW, "d.t a")
        assert (lane.items, lane.items_done, lane.bytes, lane.bytes_done) == (2, 1, 10, 4)
    assert lanes.status() == ()
    assert told == ["moving parts", "1 4", "d.t a"]
