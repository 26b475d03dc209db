"""One writer where the store has no conditional writes, whatever stands still and whatever clock is set:

| what was done | what used to happen | what is answered |
|---|---|---|
| a writer stands still past its term, just before its put | it overwrites another's entry | exit 11 |
| its clock is set back while it holds the lease | it writes on when the lease is another's | exit 11 |
| the clock of another is ahead | it takes a lease that is held | exit 11 |
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from disks.object_disk import lease as leases
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.lease import Lease
from disks.stores.base import ObjectStore
from disks.stores.memory import MemoryStore
from disks.stores.open import open_store
from oplog.entry import now
from oplog.errors import Locked
from oplog.kinds import Inserted
from oplog.revision import commit_key
from tests.crash.harness import hooked
from tests.servers import Server
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.table.definitions import define_table

LONGER_THAN_A_TERM = 600.0


class Clocks:
    """The clocks that a lease goes by, for all leases of this process; `ahead` and `asleep` in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        self.asleep = 0.0
        steady = leases._steady
        monkeypatch.setattr(leases, "_steady", lambda: steady() + self.asleep)
        monkeypatch.setattr(leases, "now", lambda: now() + timedelta(seconds=self.ahead + self.asleep))


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def run_out(store: ObjectStore) -> None:
    """The store dates nothing by our clocks: what has run out is taken away."""
    store.delete([item.key for item in store.list("lease/")])


def disk(store: ObjectStore, state: Path) -> ObjectDisk:
    return ObjectDisk("s3", store, state, lease_settle_seconds=0.01)


def write(one: ObjectDisk, name: str) -> None:
    with one.transaction(Inserted()) as transaction:
        transaction.create(f"{name}.json", b"{}")
        transaction.commit()


class TestStandingStill:
    """On the real S3 client, which asks first and puts then."""

    @pytest.fixture
    def store(self, ministack: Server, bucket: str) -> ObjectStore:
        return open_store(ObjectDiskConfig(url=f"s3://{bucket}/p/", conditional_put="no"))

    def test_before_the_put(self, store: ObjectStore, tmp_path: Path, clocks: Clocks) -> None:
        """Between the look for the entry and the put: another writer comes, commits and goes."""
        one, two = disk(store, tmp_path / "1"), disk(store, tmp_path / "2")
        write(one, "first")

        def stop(phase: str, name: str, arguments: tuple[object, ...]) -> None:
            if phase == "before" and name == "store.put" and arguments[0] == commit_key(2):
                with hooked(None):
                    clocks.asleep += LONGER_THAN_A_TERM
                    run_out(store)
                    write(two, "second")

        with hooked(stop), pytest.raises(Locked):
            write(one, "third")
        two.refresh()
        assert two.list() == ["first.json", "second.json"]
        clocks.asleep += LONGER_THAN_A_TERM
        run_out(store)
        write(one, "third")
        assert one.list() == ["first.json", "second.json", "third.json"]


class TestClocks:
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore("bucket")

    def lease(self, store: ObjectStore, path: Path) -> Lease:
        return Lease(store, path, settle_seconds=0.0)

    def test_one_that_is_set_back_lengthens_no_lease(self, store: MemoryStore, tmp_path: Path, clocks: Clocks) -> None:
        one, two = self.lease(store, tmp_path / "1"), self.lease(store, tmp_path / "2")
        one.hold()
        clocks.asleep += LONGER_THAN_A_TERM
        run_out(store)
        two.hold()
        clocks.ahead -= 2 * LONGER_THAN_A_TERM
        with pytest.raises(Locked):
            one.hold()

    def test_one_that_is_ahead_ends_no_lease_of_another(
        self, store: MemoryStore, tmp_path: Path, clocks: Clocks
    ) -> None:
        one, two = self.lease(store, tmp_path / "1"), self.lease(store, tmp_path / "2")
        one.hold()
        clocks.ahead += LONGER_THAN_A_TERM
        with pytest.raises(Locked):
            two.hold()
        clocks.ahead -= LONGER_THAN_A_TERM
        one.hold()

    def test_one_that_jumps_ahead_costs_no_lease_that_is_held(
        self, store: MemoryStore, tmp_path: Path, clocks: Clocks
    ) -> None:
        one = self.lease(store, tmp_path / "1")
        one.hold()
        held = sorted(item.key for item in store.list("lease/"))
        clocks.ahead += LONGER_THAN_A_TERM
        one.hold()
        assert sorted(item.key for item in store.list("lease/")) == held

    def test_after_a_boot_it_is_taken_anew(
        self, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = self.lease(store, tmp_path / "1")
        one.hold()
        monkeypatch.setattr(leases, "_boot", lambda: "another")
        with pytest.raises(Locked):
            one.check()
        one.hold()
        one.check()


def test_two_homes_that_insert_and_tick_lose_and_double_nothing(tmp_path: Path) -> None:
    """Each with an SSD of its own and one bucket between them: what a daemon on each does.
    Both do it at the same time."""
    bucket = {"FROSTLINE_DISKS__S3__URL": f"file://{tmp_path}/bucket/"}
    homes = [load(None, {"FROSTLINE_HOME": str(tmp_path / name), **bucket}) for name in ("home", "second")]
    with Store.open(homes[0]) as store:
        columns = ["ts:timestamp[us, UTC]", "n:int64"]
        rule = "1d on ts to volume cold"
        store.create_table(
            define_table("d.t", columns=columns, order_by="n", policy="hot_cold", partition_by="month(ts)", ttl=[rule])
        )

    def work(number: int) -> None:
        with Store.open(homes[number]) as store:
            for turn in range(4):
                first = 1000 * turn + 100 * number
                times = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 50, pa.timestamp("us", "UTC"))
                store.table("d.t").insert([pa.record_batch({"ts": times, "n": list(range(first, first + 50))})])
                store.tick(only="moves")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    for home in homes:
        with Store.open(home) as store:
            (row,) = store.query("select count(*) as c, count(distinct n) as d from d.t").read_all().to_pylist()
            assert (row["c"], row["d"]) == (400, 400)
