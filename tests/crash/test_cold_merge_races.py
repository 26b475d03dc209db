"""A cold merge, and another machine or process that inserts, drops, moves, merges or changes the table between any two
of its requests: no row is lost, none comes back, and only the group that was touched fails (I1 to I3, I13, I14; P40).
What is kept of parts is what a fresh reading of the disks shows.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import pytest

from disks.config import LocalDiskConfig
from oplog.errors import Conflict, FrostlineError, Locked, NotFound
from tests import cold
from tests.crash import invariants
from tests.crash.enumeration import prepare
from tests.crash.harness import ForkServer
from tests.crash.interrupting import interrupt
from tests.crash.invariants import Rows
from tests.crash.scenarios import _alter_table, cold_merge
from tests.crash.site import FEBRUARY, JANUARY, TABLE, Site, drop_january, insert, move, rows
from tiering.catalog.freshness import Freshness
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.merge.cold import shard_merge
from tiering.merge.cold.job import ColdMergeReport
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.parquet import uploads

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("small_batches")]

STRIDE = 5
"""The other one gets its turn before every fifth request here, before each in the slow run."""
_TURN_SECONDS = 1.0

Work = Callable[[Store, Site], None]


def elsewhere(site: Site) -> Config:
    """Another machine with an SSD of its own and the same bucket."""
    here, home = site.config(), site.base / "elsewhere"
    ssd = LocalDiskConfig(path=str(home / "ssd"))
    return msgspec.structs.replace(here, state_path=str(home / "state"), disks={**here.disks, "ssd": ssd})


@dataclass
class Other:
    """The other one at work, once: how it ended, and which groups were committed before it."""

    site: Site
    config: Config
    work: Work
    error: FrostlineError | None = None
    unforeseen: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def __call__(self) -> None:
        """Begin. Where it waits for the merge, the merge goes on: that is the order they would have had."""
        self.thread = threading.Thread(target=self._run, name="other")
        self.thread.start()
        self.done.wait(_TURN_SECONDS)

    def _run(self) -> None:
        try:
            with Store.open(self.config, actor="other", workers=1) as store:
                self.work(store, self.site)
        except FrostlineError as error:
            self.error = error
        except BaseException as error:
            self.unforeseen = error
        finally:
            self.done.set()

    def join(self) -> None:
        if self.thread is not None:
            self.thread.join(60)
            assert not self.thread.is_alive(), "both wait for each other"
        if self.unforeseen is not None:
            raise self.unforeseen


def run(site: Site, at: int, config: Config, work: Work) -> tuple[Other, ColdMergeReport, bool]:
    """Merge both groups, with the other's work before request `at`; whether it came to that."""
    other = Other(site, config, work)
    with site.open() as store:
        plans = store.plan_merges(TABLE, MergeRequest(final=True, cold=ColdOptions()))
        requests = interrupt(store.object_disk("s3"), at, other)
        report = cold.cold_merge(store, plans, shard_bytes=1)
        other.join()
    return other, report, requests.requests >= at


def insert_more(store: Store, site: Site) -> None:
    insert(store, 9000)


def insert_and_move(store: Store, site: Site) -> None:
    insert(store, 9000)
    move(store, "cold")


def drop_table(store: Store, site: Site) -> None:
    store.drop_table(TABLE)


def move_january(store: Store, site: Site) -> None:
    move(store, "hot", JANUARY)


def merge_january(store: Store, site: Site) -> None:
    store.merge(TABLE, MergeRequest(partition=JANUARY, final=True))


def merge_cold_too(store: Store, site: Site) -> None:
    cold_merge(store, site)


WORKS: dict[str, Work] = {
    "insert": insert_more,
    "insert and move": insert_and_move,
    "drop": drop_january,
    "drop the table": drop_table,
    "move": move_january,
    "merge": merge_january,
    "second job": merge_cold_too,
    "alter": _alter_table,
}


def expected(name: str, other: Other, before: Rows) -> Rows | None:
    """What the table holds afterwards; None: it is gone."""
    if other.error is not None or other.thread is None:
        return before
    if name.startswith("insert"):
        more = [(row["key"], row["ts"], row["text"]) for row in rows(9000).to_pylist()]
        return tuple(sorted([*before, *more]))
    if name == "drop":
        return tuple(row for row in before if row[1].month != 1)  # type: ignore[attr-defined]
    return None if name == "drop the table" else before


def seen(config: Config) -> Rows | None:
    with Store.open(config) as store, suppress(NotFound):
        return invariants.rows_of(store, TABLE)
    return None


@pytest.fixture(autouse=True)
def one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests one after the other, so that the turn before a request is the same in every run."""
    for module in (uploads, shard_merge):
        monkeypatch.setattr(module, "TRANSFERS", 1)


def check_races(server: ForkServer, site: Site, name: str, *, there: bool, stride: int) -> None:
    server.value(prepare, "cold_merge", site)
    with site.open() as store:
        before = invariants.rows_of(store, TABLE)
    at, interrupted, failed = 1, True, 0  # the first turn comes before the first request
    while interrupted:
        site.reset()
        shutil.rmtree(site.base / "elsewhere", ignore_errors=True)
        config = elsewhere(site) if there else site.config()
        if there:  # it knows the bucket already: what it does is a few requests, not a rebuild
            Store.open(config).close()
        other, report, interrupted = run(site, at, config, WORKS[name])
        where = f"{name} before request {at}"
        assert other.error is None or isinstance(other.error, Locked | Conflict), (where, other.error)
        for failure in report.failures:
            assert isinstance(failure.error, Conflict | Locked | NotFound), (where, failure.error)
        touched = {failure.plan.partition for failure in report.failures}
        whole_table = name in ("drop the table", "second job")
        assert touched <= ({JANUARY, FEBRUARY} if whole_table else {JANUARY}), (where, touched)
        assert not name.startswith(("insert", "alter")) or not touched, where
        failed += bool(touched)
        wanted = expected(name, other, before)
        # What the other machine has on its SSD, only it can show.
        with site.open(freshness=Freshness.CHANGES) as store:  # a whole scan would mend the index first
            problems = invariants.check(store, site)
        found = seen(config)
        assert found == wanted, f"I13 {where}: {len(found or ())} rows instead of {len(wanted or ())}"
        assert not problems, (where, problems)
        at += stride
    assert at > 25, "the merge was hardly interrupted"
    if there and not name.startswith(("insert", "alter", "move")):  # what it has not adopted it moves to no SSD
        assert failed, "no group ever met the other's change"


@pytest.mark.parametrize("name", WORKS)
def test_another_machine_between_two_requests(server: ForkServer, site: Site, name: str) -> None:
    check_races(server, site, name, there=True, stride=STRIDE)


@pytest.mark.parametrize("name", WORKS)
def test_another_process_between_two_requests(server: ForkServer, site: Site, name: str) -> None:
    check_races(server, site, name, there=False, stride=2 * STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", WORKS)
def test_another_between_any_two_requests(server: ForkServer, site: Site, name: str, there: bool) -> None:
    check_races(server, site, name, there=there, stride=1)
