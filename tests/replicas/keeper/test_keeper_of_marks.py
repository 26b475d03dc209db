"""Which Keeper the marks of a prefix are in is said in the bucket: nobody collects by other marks, or by none, and
nobody marks elsewhere (I4; P2, P3, P13). By the command line, with a real ZooKeeper and an S3 server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import yaml

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import NewSet
from disks.garbage.announcements import announce, withdraw
from disks.kinds import as_disk
from disks.object_disk.blobs import put_blob
from disks.object_disk.sharing import recorded_keeper
from disks.object_disk.sharing.recorded_keeper import MarksKeeper
from disks.stores.wrappers.named_log import whole_prefix
from tests.replicas.machines import Machine, Machines, blobs_in
from tests.replicas.zero_copy.sharing import FIRST
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.keeper.client import Keeper
from zerocopy.marks.marks import marks_of

__all__ = ["machine"]

COLLECT = (
    "gc",
    "s3",
    "--delete",
    "--guard-interval",
    "0s",
    "--allow-short-guard-interval",
    "--max-delete-fraction",
    "1",
)
RECORD = "cold/marks/0000000001.json"


@pytest.fixture
def shared_url(bucket: str) -> str:
    return f"s3://{bucket}/cold/"


@pytest.fixture
def cold(a: Machine, b: Machine) -> tuple[Machine, Machine]:
    """Both have the one part in the bucket, and were audited."""
    a.insert(1, 2)
    with a.serving():
        b.sync()
        a.move(FIRST)
        b.move(FIRST)
    for one in (a, b):
        one("replica", "audit")
    return a, b


@pytest.fixture
def held(cold: tuple[Machine, Machine], keeper: Keeper, bucket: str, s3_environment: Server) -> Callable[[], bool]:
    """Whether an object is still there that no log names: only a mark holds it."""
    with Store.open(cold[0].configuration) as store:
        disk = as_disk(store.disk("s3"), LoggedDisk)
        assert disk is not None
        digest = hashlib.sha256(b"test").hexdigest()
        key = put_blob(disk.store, "t/p/x", b"test", digest, revision=0)
        marks_of(keeper, disk).create([NewSet("1" * 32, (key,), "t/p")])
    return lambda: f"cold/{key}" in blobs_in(bucket, s3_environment)


def without_keeper(machine: Machines, name: str) -> Machine:
    """A machine with a log of its own in the bucket, that knows of no Keeper."""
    made = machine(name)
    document = yaml.safe_load(made.configuration.read_text())
    made.configuration.write_text(
        yaml.safe_dump({k: v for k, v in document.items() if k in ("state_path", "disks", "policies")})
    )
    made("table", "create", "own.t", "--column", "k:int64", "--order-by", "k", "--policy", "cold")
    made.insert(7, table="own.t")
    made.move("all_1_1_0", table="own.t")
    return made


def elsewhere(settings: KeeperConfig) -> KeeperConfig:
    """Another Keeper, as far as anybody can see."""
    return msgspec.structs.replace(settings, root=f"{settings.root}-other")


@pytest.mark.in_turn
def test_a_machine_without_keeper_does_not_collect_marked_blobs(
    cold: tuple[Machine, Machine], held: Callable[[], bool], machine: Machines
) -> None:
    c = without_keeper(machine, "c")
    c(*COLLECT, code=13)
    assert "this configuration has no `keeper:`" in c.error
    assert "replica audit" in c.error
    c("gc", "s3", code=4)
    c(*COLLECT, "--without-marks", code=13)
    assert "marks in a Keeper" in c.error
    assert held()
    for one in cold:
        one(*COLLECT)
        assert one.keys() == [1, 2]
    assert held()


@pytest.mark.in_turn
def test_marks_in_another_keeper_count_for_nobody(
    cold: tuple[Machine, Machine], held: Callable[[], bool], settings: KeeperConfig
) -> None:
    """Also when it was audited there; whoever says that marks are there from now on stops all others."""
    a, b = cold
    b("table", "create", "own.t", "--column", "k:int64", "--order-by", "k", "--policy", "cold")
    b.insert(7, table="own.t")
    b.write_configuration(elsewhere(settings))
    b(*COLLECT, code=13)
    assert b.move("all_1_1_0", table="own.t", code=13)["failed"]
    (found,) = b.json("replica", "audit", code=4)["audits"]
    assert "kept in another Keeper" in found["elsewhere"]
    assert not found["clean"]
    b(*COLLECT, code=13)
    assert held()
    assert a.json(*COLLECT)["refused"] is None

    said = b("replica", "audit", "--repair")
    (begins,) = re.findall(r"gc may collect here from (.* UTC) on", said)
    a(*COLLECT, code=13)
    assert "kept in another Keeper" in a.error
    assert "kept in another Keeper" in str(a.json("doctor"))
    b("gc", "s3", "--delete", code=13)
    assert f"guard interval, from {begins} on" in b.error
    assert b.move("all_1_1_0", table="own.t")["moved"]
    assert held()

    b.write_configuration(settings)  # and back
    a("replica", "audit", "--repair")
    b("replica", "audit")
    b(*COLLECT)
    assert held()
    assert a.keys() == b.keys() == [1, 2]


@pytest.mark.in_turn
def test_a_bucket_that_says_nothing(
    cold: tuple[Machine, Machine], held: Callable[[], bool], machine: Machines, bucket: str, s3_environment: Server
) -> None:
    """As an older version left it, or somebody who deleted what says so. An audit says it; a machine without Keeper
    that begins its log there does not."""
    a, b = cold
    s3_environment.client().delete_object(Bucket=bucket, Key=RECORD)
    c = without_keeper(machine, "c")
    c(*COLLECT, code=13)
    assert "hold its objects by marks" in c.error
    a(*COLLECT, code=13)
    assert "its marks are in this Keeper" in a.error
    assert held()
    a("replica", "audit", "--repair")
    a(*COLLECT)
    b(*COLLECT)
    c(*COLLECT, code=13)
    assert held()


def test_a_prefix_that_no_machine_marks_in(machine: Machines, bucket: str, s3_environment: Server) -> None:
    """The logs alone tell; what an older version left is said once."""
    c, d = without_keeper(machine, "c"), without_keeper(machine, "d")
    c(*COLLECT)
    s3_environment.client().delete_object(Bucket=bucket, Key=RECORD)
    d(*COLLECT, code=13)
    d("--dry-run", *COLLECT, "--without-marks", code=13)
    d(*COLLECT, code=13)
    d(*COLLECT, "--without-marks")
    c(*COLLECT)
    c("gc", "ssd", "--delete", "--without-marks", code=2)


@pytest.mark.in_turn
@pytest.mark.parametrize("record", [b"\x00", b'{"keeper": "x"}', b"{" * 100_000])
def test_a_record_that_cannot_be_read(
    cold: tuple[Machine, Machine],
    held: Callable[[], bool],
    machine: Machines,
    bucket: str,
    s3_environment: Server,
    record: bytes,
) -> None:
    c = without_keeper(machine, "c")
    s3_environment.client().put_object(Bucket=bucket, Key="cold/marks/0000000009.json", Body=record)
    for one in (*cold, c):
        one(*COLLECT, code=13)
        assert "marks/0000000009.json, which says where" in one.error
    assert held()


@pytest.mark.in_turn
def test_a_forged_word_that_nobody_marks_counts_for_nothing(
    cold: tuple[Machine, Machine], held: Callable[[], bool], machine: Machines, bucket: str, s3_environment: Server
) -> None:
    c = without_keeper(machine, "c")
    said = msgspec.json.encode(MarksKeeper(keeper="", where="", holder="x", time=datetime.now(UTC)))
    s3_environment.client().put_object(Bucket=bucket, Key="cold/marks/0000000009.json", Body=said)
    c(*COLLECT, code=13)
    cold[0](*COLLECT)
    assert held()


def test_a_collection_that_began_before_anybody_marked(
    machine: Machines, bucket: str, s3_environment: Server, keeper: Keeper
) -> None:
    """It looked when nobody did: what it is at is not taken over, and it finds out before its next batch."""
    without_keeper(machine, "c")
    a = machine("a")
    a.create("--policy", "cold")
    a.insert(1)
    with Store.open(a.configuration) as store:
        disk = as_disk(store.disk("s3"), LoggedDisk)
        assert disk is not None
        intent = announce(disk.store, ["r" + "0" * 64 + "-file-" + "a" * 32], datetime.now(UTC))
        failed = a.move(FIRST, code=5)["failed"]
        assert "a gc that began before" in str(failed)
        withdraw(disk.store, intent)
        assert a.move(FIRST)["moved"]
        assert auditing.objection(store.context, disk) is not None


def test_what_the_bucket_says_decides() -> None:
    """Every combination of what is configured and what is said."""
    at = datetime.now(UTC)

    def said(*keepers: str, age: timedelta = timedelta(days=9)) -> list[recorded_keeper.RecordedKeeper]:
        places = [MarksKeeper(keeper=one, where="zk", holder="h", time=at) for one in keepers]
        return [recorded_keeper.RecordedKeeper(number, place, at - age) for number, place in enumerate(places, 1)]

    def may(found: list[recorded_keeper.RecordedKeeper], keeper: str | None) -> bool:
        return recorded_keeper.objection(found, keeper, at=at, guard=timedelta(days=1)) is None

    assert not may(said(), None)
    assert may(said(""), None)
    assert not may(said("x"), None)
    assert not may(said("", "x"), None)
    assert not may(said("x", ""), None)
    assert not may(said(), "x")
    assert not may(said(""), "x")
    assert may(said("x"), "x")
    assert not may(said("x"), "")
    assert may(said("", "x", age=timedelta()), "x")
    assert not may(said("y", "x", age=timedelta()), "x")
    assert not may(said("y", "x", age=timedelta(days=-9)), "x")
    assert may(said("y", "x"), "x")
    assert not may(said("y", "x"), "y")
    assert may(said("x", ""), "x")


def test_the_store_of_a_log_is_not_where_it_is_said(machine: Machines) -> None:
    """It is of the prefix, and every log sees it."""
    c = without_keeper(machine, "c")
    with Store.open(c.configuration) as store:
        disk = as_disk(store.disk("s3"), LoggedDisk)
        assert disk is not None
        recorded = recorded_keeper.recorded_keepers
        assert recorded(whole_prefix(disk.store)) == recorded(disk.store)
