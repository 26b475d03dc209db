"""Several writers on one prefix: none loses a commit of another. Guards I2, I6, I7, I15, P38 to P40,
P44, P45."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from disks import effects
from disks.config import ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.lease import Lease
from disks.registry import open_disk
from disks.stores.base import StoreCapabilities
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import (
    AlreadyExists,
    Conflict,
    Damaged,
    LeaseExpired,
    Locked,
    OutcomeUnknown,
)
from oplog.kinds import Inserted, Merged, OtherKind
from oplog.revision import commit_key, parse_commit_key
from restore.check.check import check
from tests.unit.disks.object_disk.contents import content, put
from tests.unit.disks.object_disk.contents import store as store


def test_writers_on_two_machines_lose_nothing(store: MemoryStore, tmp_path: Path) -> None:
    """P40: eight threads on two caches; every acknowledged commit is there once, in a dense log."""
    disks = [ObjectDisk("s3", store, tmp_path / f"machine{number}", snapshot_every_commits=7) for number in range(2)]
    acknowledged: list[tuple[int | None, str]] = []
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for count in range(8):
                path = f"w{number}/{count}"
                acknowledged.append((put(disks[number % 2], {path: b"x"}), path))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(revision or 0 for revision, _ in acknowledged) == list(range(1, 65))
    fresh = ObjectDisk("s3", store, tmp_path / "fresh")
    assert {(fresh.stat(path).revision, path) for _, path in acknowledged} == set(acknowledged)
    for disk in disks:
        disk.refresh()
        assert content(disk) == content(fresh)


_WRITER = """
import sys
from pathlib import Path
from disks.object_disk.disk import ObjectDisk
from disks.stores.directory import DirectoryStore
from oplog.kinds import Inserted
bucket, state, name = sys.argv[1:]
disk = ObjectDisk("s3", DirectoryStore(Path(bucket)), Path(state), snapshot_every_commits=5)
for count in range(15):
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{name}/{count}/part.json", name.encode())
        transaction.create(f"{name}/{count}/x", name.encode())
        print(transaction.commit())
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("shared", [True, False], ids=["one machine", "two machines"])
def test_two_processes_on_one_prefix(tmp_path: Path, shared: bool) -> None:
    bucket = tmp_path / "bucket"
    arguments = [
        [sys.executable, "-c", _WRITER, str(bucket), str(tmp_path / ("state" if shared else f"state{name}")), name]
        for name in ("a", "b", "c")
    ]
    writers = [subprocess.Popen(argument, stdout=subprocess.PIPE, text=True) for argument in arguments]
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    revisions = [int(line) for output in outputs for line in output.split()]
    assert sorted(revisions) == list(range(1, 46))
    config = ObjectDiskConfig(url=f"file://{bucket}")
    disk = open_disk("s3", config, tmp_path / "fresh")
    assert len(list(disk.walk())) == 90
    for name in ("a", "b", "c"):
        assert len(disk.look_over(name, "part.json", {})) == 15


def test_a_change_is_checked_again_after_a_lost_race(store: MemoryStore, tmp_path: Path) -> None:
    one, two = ObjectDisk("s3", store, tmp_path / "a"), ObjectDisk("s3", store, tmp_path / "b")
    put(one, {"t/p1/x": b"", "t/p2/x": b""})
    two.refresh()
    with one.transaction(Merged()) as transaction:
        transaction.remove("t/p1")
        transaction.commit()
    with two.transaction(Merged()) as transaction, pytest.raises(Conflict):  # its cache still shows t/p1
        transaction.require(present=("t/p1",))
        transaction.create("t/p3/x", b"")
        transaction.commit()
    with one.transaction(OtherKind("late")) as transaction:
        transaction.create("late", b"")
        transaction.commit()
    with two.transaction(OtherKind("uses it")) as transaction:  # its cache does not show it yet
        transaction.rename("late", "used")
        transaction.commit()
    one.refresh()
    assert one.list() == ["t/", "used"]


def test_dying_between_the_entry_and_the_cache_loses_nothing(store: MemoryStore, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {"a": b""})

    def die(when: str, name: str, args: tuple[object, ...]) -> None:
        if name == "sqlite.commit" and when == "before":
            raise Killed

    with pytest.raises(Killed), disk.transaction(Inserted()) as transaction:
        transaction.create("b", b"")
        effects.set_hook(die)
        try:
            transaction.commit()
        finally:
            effects.set_hook(None)
    again = ObjectDisk("s3", store, tmp_path / "a")
    assert again.list() == ["a", "b"]
    assert again.revision == 2


def test_an_unknown_outcome_is_taken_in_by_the_next_look(tmp_path: Path) -> None:
    class Unplugged(WrappedStore):
        unplugged = False

        def put_if_absent(self, key: str, payload: bytes, **more: object) -> None:
            if not self.unplugged or key not in {info.key for info in self.inner.list("operations/")}:
                self.inner.put_if_absent(key, payload, **more)  # type: ignore[arg-type]
            if self.unplugged:
                raise OutcomeUnknown("reset")

    store = Unplugged(MemoryStore())
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {"a": b""})
    store.unplugged = True
    with pytest.raises(OutcomeUnknown):
        put(disk, {"b": b""})
    store.unplugged = False
    disk.refresh()
    assert disk.list() == ["a", "b"]


class Unconditional(WrappedStore):
    """A store that overwrites: conditional writes are a look followed by a put."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=False, checks_sha256=True)


def test_without_conditional_writes_one_machine_writes(store: MemoryStore, tmp_path: Path) -> None:
    bucket = Unconditional(store)
    one = ObjectDisk("s3", bucket, tmp_path / "a", lease_settle_seconds=0.01)
    two = ObjectDisk("s3", bucket, tmp_path / "b", lease_settle_seconds=0.01)
    put(one, {"a": b""})
    assert one.capabilities.writers == "one"
    with pytest.raises(Locked) as caught:
        put(two, {"b": b""})
    assert caught.value.exit_code == 11
    put(one, {"c": b""})
    same_machine = ObjectDisk("s3", bucket, tmp_path / "a", lease_settle_seconds=0.01)
    put(same_machine, {"d": b""})
    two.refresh()
    assert two.list() == ["a", "c", "d"]


def test_a_lease_runs_out_is_renewed_and_can_be_released(store: MemoryStore, tmp_path: Path) -> None:
    """P60."""

    def lease(name: str, term_seconds: float) -> Lease:
        return Lease(store, tmp_path / name, term_seconds=term_seconds, grace_seconds=0.0, settle_seconds=0.0)

    short = lease("a", 0.05)
    short.hold()
    threading.Event().wait(0.1)
    other = lease("b", 60.0)
    other.hold()
    with pytest.raises(Locked):
        short.hold()
    other.hold()
    other.release()
    short.hold()


def test_a_lease_needs_no_delete(tmp_path: Path) -> None:
    """P56: under Object Lock claims pile up, and yet one that was let go or has run out keeps nobody waiting."""
    store = MemoryStore(keep_for=timedelta(days=30))

    def lease(name: str, term_seconds: float = 60.0) -> Lease:
        return Lease(store, tmp_path / name, term_seconds=term_seconds, grace_seconds=30.0, settle_seconds=0.0)

    one, two = lease("a"), lease("b")
    one.hold()
    with pytest.raises(Locked):
        two.hold()
    one.hold()
    one.release()
    two.hold()
    with pytest.raises(Locked):
        one.hold()
    two.release()
    short = lease("c", 0.05)
    for _ in range(3):
        short.hold()
        threading.Event().wait(0.1)
    short.release()
    one.hold()


def test_of_many_claims_one_wins(store: MemoryStore, tmp_path: Path) -> None:
    outcomes: list[str] = []

    def claim(number: int) -> None:
        try:
            Lease(store, tmp_path / f"{number}.json", settle_seconds=0.2).hold()
            outcomes.append("won")
        except Locked:
            outcomes.append("locked")

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["locked"] * 5 + ["won"]


class Overwriting(Unconditional):
    """Stops its machine between the look and the put that stand for a conditional write."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.between: Callable[[], object] | None = None

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        if key in {info.key for info in self.inner.list(key)}:
            raise AlreadyExists(key)
        if parse_commit_key(key) is not None and self.between is not None:
            others, self.between = self.between, None
            others()
        self.inner.put(key, payload, sha256=sha256, metadata=metadata)


@pytest.mark.parametrize("gone", [False, True], ids=["the successor holds it", "the successor has let it go"])
def test_a_writer_that_outslept_its_lease_acknowledges_nothing(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """P41: it wrote over the successor's entry; the successor finds out before it builds on that, and so does fsck."""
    ahead = timedelta(0)

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + ahead

    monkeypatch.setattr("disks.object_disk.lease.now", lambda: Later.now(UTC))
    monkeypatch.setattr("disks.stores.memory.datetime", Later)
    stopping = Overwriting(store)
    one = ObjectDisk("s3", stopping, tmp_path / "a", lease_settle_seconds=0.01)
    two = ObjectDisk("s3", Overwriting(store), tmp_path / "b", lease_settle_seconds=0.01)
    put(one, {"a": b""})

    def successor() -> None:
        nonlocal ahead
        ahead = timedelta(minutes=10)
        assert put(two, {"two": b""}) == 2
        if gone:
            two._lease.release()

    stopping.between = successor
    with pytest.raises(LeaseExpired, match="its lease ended"):
        put(one, {"one": b""})
    if not gone:
        with pytest.raises(Locked):
            put(one, {"again": b""})
    with pytest.raises(Damaged, match="wrote over it"):
        put(two, {"three": b""})
    bystander = ObjectDisk("s3", Overwriting(store), tmp_path / "c", lease_settle_seconds=0.01)
    [problem] = check({"s3": bystander}).problems
    assert (problem.invariant, commit_key(2) in problem.what) == ("I6", True)
    ahead = timedelta(days=5)
    put(bystander, {"of-the-bystander": b""})  # it sweeps old claims
    assert [found.object for found in check({"s3": bystander}).problems] == [problem.object]
    store.delete([problem.object or ""])
    assert not check({"s3": bystander}).problems


def test_a_lost_race_costs_the_refused_put_and_one_get(store: MemoryStore, tmp_path: Path) -> None:
    metered = MeteredStore(store)
    one = ObjectDisk("s3", metered, tmp_path / "a")
    two = ObjectDisk("s3", store, tmp_path / "b")
    put(two, {"first": b""})
    put(one, {"own": b""})
    two.refresh()
    for number in range(3):
        put(two, {f"of-two/{number}": b""})
    before = metered.counts()
    put(one, {"late.json": b"{}"})
    spent = {verb: count - before[verb] for verb, count in metered.counts().items() if count != before[verb]}
    assert spent == {"PUT": 4, "GET": 3, "LIST": 1}
    two.refresh()
    assert sorted(one.list()) == sorted(two.list())
    assert one.revision == two.revision == 6


class Faster(WrappedStore):
    """Somebody else commits right before each of this machine's entries, so many times."""

    def __init__(self, inner: MemoryStore, others: Callable[[], object], times: int) -> None:
        super().__init__(inner)
        self.others, self.left = others, times
        self.reads: list[str] = []

    def get(self, key: str, byte_range: object = None) -> bytes:
        self.reads.append(key)
        return self.inner.get(key)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        if parse_commit_key(key) is not None and self.left:
            self.left -= 1
            self.others()
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)


@pytest.mark.in_turn
def test_who_is_second_repeatedly_goes_on_reading_entries_once(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P40: it waits for nothing in between, for then it would be behind again."""
    other = ObjectDisk("s3", store, tmp_path / "b", snapshot_every_commits=0)
    put(other, {"first": b""})
    slept: list[float] = []
    monkeypatch.setattr("disks.object_disk.disk.time.sleep", slept.append)
    faster = Faster(store, lambda: put(other, {f"b/{other.revision}": b""}), 150)
    disk = ObjectDisk("s3", faster, tmp_path / "a", snapshot_every_commits=0)
    assert disk.list() == ["first"]
    faster.reads.clear()
    assert put(disk, {"late": b""}) == 152
    assert slept == []
    assert [key for key in faster.reads if parse_commit_key(key)] == [
        commit_key(revision) for revision in range(2, 152)
    ]
    monkeypatch.setattr("disks.object_disk.disk._COMMIT_SECONDS", 0.0)
    faster.left = 150
    with pytest.raises(Conflict, match="100 other writers came first"):
        put(disk, {"later": b""})
