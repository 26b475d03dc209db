"""Transactions whose steps get in each other's way, killed at every effect, before and after it, readers or none.

Guards I2 (all or nothing), I7 (a rebuild gives what the disk shows), I8 (links), I14 (recovery leaves nothing and has
nothing to do twice).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from disks.base import Disk, Transaction
from disks.clickhouse.disk import ClickHouseDisk
from disks.local.disk import LocalDisk
from disks.memory import MemoryDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.directory import DirectoryStore
from oplog.kinds import OtherKind
from restore.clickhouse.rebuild import rebuild
from tests.crash.conftest import RecordTally
from tests.crash.disk_effects import START, Effects, attempt, content, fill, release_locks
from tests.crash.disk_effects import place as place
from tests.crash.enumeration import Tally


def _replace(t: Transaction) -> None:
    t.remove("a")
    t.create("a/x", b"new")


def _swap(t: Transaction) -> None:
    t.rename("a", "tmp")
    t.rename("b", "a")
    t.rename("tmp", "b")


def _there_and_back(t: Transaction) -> None:
    t.rename("a/x", "b/z")
    t.rename("b/z", "a/x")
    t.rename("a", "e")
    t.create("a/x", b"new")


def _through_a_former_name(t: Transaction) -> None:
    """At the end the file has a name that it had on the way: finding it there does not say which step comes next."""
    t.rename("c/d/x", "c/x")
    t.rename("c/x", "c/d/x")
    t.rename("c", "q")
    t.rename("q/d", "c")
    t.remove("b")


def _twin(t: Transaction) -> None:
    t.link("a/x", "tmp")
    t.remove("a/x")
    t.rename("tmp", "a/x")


def _file_becomes_directory(t: Transaction) -> None:
    t.rename("a/x", "f")
    t.create("a/x/deep", b"deep")
    t.remove("c")
    t.create("c", b"a file now")


def _merge(t: Transaction) -> None:
    t.create("m/x", b"merged")
    t.create("m/y", b"merged")
    t.remove("a")
    t.remove("b")


def _removed_within_renamed(t: Transaction) -> None:
    t.remove("a/x")
    t.rename("a", "b2")
    t.rename("b/x", "b2/x")
    t.create("a/y", b"again")


def _moved_into_new_directory(t: Transaction) -> None:
    t.rename("a/x", "n/one")
    t.create("n/two", b"two")
    t.rename("b", "n/b")
    t.rename("n", "o/p")


TRANSACTIONS = [
    _replace,
    _swap,
    _there_and_back,
    _through_a_former_name,
    _twin,
    _file_becomes_directory,
    _merge,
    _removed_within_renamed,
    _moved_into_new_directory,
]


def expected(change: Callable[[Transaction], None]) -> dict[str, bytes]:
    disk = MemoryDisk()
    fill(disk)
    with disk.transaction(OtherKind("change")) as transaction:
        change(transaction)
        transaction.commit()
    return disk.files


def open_local(root: Path) -> LocalDisk:
    return LocalDisk("hot", root / "hot")


def open_object(root: Path) -> ObjectDisk:
    return ObjectDisk("s3", DirectoryStore(root / "bucket"), root / "state", snapshot_every_commits=2)


def open_clickhouse(root: Path) -> ClickHouseDisk:
    return ClickHouseDisk("s3", bucket_of(root), root / "state", lease_settle_seconds=0.0)


def bucket_of(root: Path) -> DirectoryStore:
    """Always of the same name: a table of another bucket is refused, and here buckets are copied."""
    store = DirectoryStore(root / "bucket")
    store.name = "bucket"
    return store


def rebuilt(root: Path) -> Disk:
    """The disk of a machine that has the bucket only."""
    disk = ClickHouseDisk("s3", bucket_of(root), root / "elsewhere", lease_settle_seconds=0.0)
    rebuild(disk, apply=True)
    return disk


@pytest.mark.crash
@pytest.mark.parametrize(
    ("opened", "change", "reading"),
    [
        *((open_local, change, reading) for change in TRANSACTIONS for reading in (False, True)),
        *((open_object, change, False) for change in (_swap, _merge)),
        *((open_clickhouse, change, False) for change in (_swap, _merge, _twin, _moved_into_new_directory)),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "reader" if value else "alone",
)
def test_killed_at_every_effect(
    opened: Callable[[Path], Disk],
    change: Callable[[Transaction], None],
    reading: bool,
    place: Path,
    record_tally: RecordTally,
) -> None:
    template = place / "template"
    fill(opened(template))
    after = expected(change)
    whole = Effects()
    shutil.copytree(template, place / "whole")
    disk = opened(place / "whole")
    assert attempt(disk, change, whole, reading)
    assert content(disk) == after
    disk.close()
    outcomes: set[str] = set()
    tally = Tally(effects=whole.count)
    due = tally.due(f"{opened.__name__} {change.__name__} {reading}", range(1, whole.count + 1))
    for stop in sorted({1, *due, whole.count}):  # the first and the last always: they show both outcomes
        for when in ("before", "after"):
            tally.runs += 1
            root = place / f"{stop}-{when}"
            shutil.copytree(template, root)
            disk = opened(root)
            acknowledged = attempt(disk, change, Effects(stop, when), reading)  # type: ignore[arg-type]
            disk.close()
            release_locks(root)
            again = opened(root)
            again.recover()
            assert again.recover() == []
            found = content(again)
            assert found in (START, after), (stop, when)
            assert found == after or not acknowledged
            assert list((root / "hot/.frostline").glob("*/*")) == []
            again.close()
            if opened is open_clickhouse:
                assert content(rebuilt(root)) == found, (stop, when)
            outcomes.add("after" if found == after else "before")
            shutil.rmtree(root)
    record_tally(tally)
    assert outcomes == {"before", "after"} or after == START
