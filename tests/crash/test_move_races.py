"""A move, and another process that merges, drops, inserts or queries at any of its steps (I1, I2, I14; P14, P15).

The move holds no read lease: claims, the digest of every file and the target's precondition stand in for it. Here the
other process, a second store on the same disks with a journal of its own, gets its turn before each effect of the move.
Where it has to wait for a lock that the move holds, the move goes on: that is the order it would have had. Both go by
what is kept of parts, which afterwards is what a fresh reading of the disks shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from disks import effects
from oplog.errors import Conflict, FrostlineError, Locked
from tests.crash import invariants
from tests.crash.enumeration import prepare
from tests.crash.harness import ForkServer
from tests.crash.invariants import Rows
from tests.crash.site import JANUARY, TABLE, Site, drop_january, insert, rows
from tiering.catalog.freshness import Freshness
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.move.mover import MoveReport

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("small_batches")]

STRIDE = 8
"""The other process gets its turn at every eighth effect here, at each in the slow run."""
_TURN_SECONDS = 0.25
"""How long the move stands still: longer than the other process needs, unless it waits for the move."""


@dataclass
class Other:
    """The other process: one operation, and how it ended."""

    site: Site
    work: Callable[[Store, Site], None]
    error: FrostlineError | None = None
    unforeseen: BaseException | None = None
    thread: threading.Thread | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name="other")
        self.thread.start()
        self.done.wait(_TURN_SECONDS)

    def _run(self) -> None:
        try:
            with self.site.open() as store:
                self.work(store, self.site)
        except FrostlineError as error:
            self.error = error
        except BaseException as error:
            self.unforeseen = error
        finally:
            self.done.set()


@contextmanager
def turn_before(at: int, other: Other) -> Iterator[list[str]]:
    """Let the other one in before the `at`-th effect of this thread; gives the names of the effects so far."""
    names: list[str] = []
    mover = threading.current_thread()

    def hook(when: str, name: str, arguments: tuple[object, ...]) -> None:
        if when == "before" and threading.current_thread() is mover:
            names.append(name)
            if len(names) == at:
                other.start()

    effects.set_hook(hook)
    try:
        yield names
    finally:
        effects.set_hook(None)


def run(site: Site, at: int, work: Callable[[Store, Site], None]) -> tuple[Other, MoveReport, int]:
    """Move January to the bucket, with the other's work before effect `at`; the effects there were."""
    other = Other(site, work)
    with site.open() as store:
        moves = store.plan_manual_move(TABLE, partition=JANUARY, to_volume="cold")
        with turn_before(at, other) as names:
            report = store.apply(moves)
    if other.thread is not None:
        other.thread.join(90)
        assert not other.thread.is_alive(), f"both wait for each other at effect {at}"
    if other.unforeseen is not None:
        raise other.unforeseen
    return other, report, len(names)


def merge_january(store: Store, site: Site) -> None:
    store.merge(TABLE, MergeRequest(partition=JANUARY, final=True))


def drop_table(store: Store, site: Site) -> None:
    store.drop_table(TABLE)


def insert_more(store: Store, site: Site) -> None:
    insert(store, 9000)


def query_all(store: Store, site: Site) -> None:
    found = store.query(f"SELECT key FROM {TABLE}").read_all().column("key").to_pylist()
    assert len(found) == len(set(found)) == ROWS, f"{len(found)} rows, {len(set(found))} of them different"


ROWS = 0


def expected(work: Callable[[Store, Site], None], other: Other, before: Rows) -> set[Rows | None]:
    """What the table may hold afterwards; None: it is gone."""
    more = {(row["key"], row["ts"], row["text"]) for row in rows(9000).to_pylist()}
    january = [row for row in before if row[1].month != 1]  # type: ignore[attr-defined]
    after: dict[Callable[[Store, Site], None], Rows | None] = {
        drop_january: tuple(january),
        drop_table: None,
        insert_more: tuple(sorted([*before, *more])),
    }
    if other.error is not None:
        assert isinstance(other.error, Locked | Conflict), other.error
        return {before}
    return {after.get(work, before)}


WORKS = [merge_january, drop_january, drop_table, insert_more, query_all]


def check_races(server: ForkServer, site: Site, work: Callable[[Store, Site], None], stride: int) -> None:
    global ROWS
    server.value(prepare, "move", site)
    with site.open() as store:
        before = invariants.rows_of(store, TABLE)
    ROWS = len(before)
    at, most, refused, did = 1, 1, 0, 0
    problems: list[str] = []
    while at <= most:
        site.reset()
        other, report, effects_seen = run(site, at, work)
        most = max(most, effects_seen)
        refused += other.error is not None
        did += other.error is None and other.thread is not None
        with site.open(freshness=Freshness.CHANGES) as store:  # a whole scan would mend the index first
            found = [*invariants.check(store, site)]
            names = [table.full_name for table in store.definitions()]
            now = invariants.rows_of(store, TABLE) if TABLE in names else None
        if now not in expected(work, other, before):
            found.append(f"I1 {len(now) if now is not None else 'no'} rows afterwards; the other: {other.error}")
        found += [f"the move failed: {failed.error}" for failed in report.failed if work in (insert_more, query_all)]
        problems += [f"{work.__name__} before effect {at}: {problem}" for problem in found]
        at += stride
    assert not problems, "\n".join(problems[:20])
    assert most > 20, "the move was hardly interrupted"
    assert did, "the other process never got anything done"
    if work in (insert_more, query_all):
        assert not refused, "a move keeps nobody from inserting or reading"


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_another_process_at_some_steps_of_a_move(
    server: ForkServer, site: Site, work: Callable[[Store, Site], None]
) -> None:
    check_races(server, site, work, STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_another_process_at_every_step_of_a_move(
    server: ForkServer, site: Site, work: Callable[[Store, Site], None]
) -> None:
    check_races(server, site, work, 1)
