"""Two at work on one prefix, the second let in between any two requests of the first (I3 to I6, P27, P29, P40)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from oplog.kinds import OtherKind
from tests.crash import invariants
from tests.crash.enumeration import prepare
from tests.crash.harness import ForkServer
from tests.crash.interrupting import interrupt
from tests.crash.site import FEBRUARY, Site, collect, drop_january, insert, move


def _cold_move(site: Site) -> None:
    with site.open() as other:
        move(other, "cold", FEBRUARY)


def _cold_insert_and_drop(site: Site) -> None:
    with site.open() as other:
        insert(other, 7000)
        move(other, "cold")
        drop_january(other, site)


@pytest.mark.in_turn
@pytest.mark.parametrize("intrude", [_cold_move, _cold_insert_and_drop])
def test_gc_spares_what_is_committed_while_it_runs(
    server: ForkServer, site: Site, intrude: Callable[[Site], None]
) -> None:
    """I5: what another process uploads and commits between two requests of gc outlives it, even if by gc's clock
    everything is old."""
    server.value(prepare, "gc_beside_hot", site)
    at, interrupted = 0, True
    while interrupted:
        at += 1
        site.reset()
        with site.open(ahead=timedelta(days=2)) as store:
            disk = store.object_disk("s3")
            files = disk.file_table
            requests = interrupt(disk, at, lambda: intrude(site), lambda files=files: files._writer.in_transaction)
            collect(store, "s3")
            interrupted = requests.requests >= at
        with site.open() as store:
            found = invariants.check(store, site)
        assert not found, f"gc interrupted before its request {at}: {found}"
    assert at > 8, "gc was hardly interrupted"


def _disk(site: Site, name: str) -> ObjectDisk:
    disk = open_disk("s3", site.config().disks["s3"], site.root / "writers" / name)
    assert isinstance(disk, ObjectDisk)
    return disk


def _write(disk: ObjectDisk, path: str) -> None:
    with disk.transaction(OtherKind("test")) as transaction:
        transaction.create(path, path.encode() * 10)
        transaction.commit()


def _read_all(site: Site) -> dict[str, bytes]:
    """What a third machine sees."""
    disk = _disk(site, "reader")
    try:
        return {info.path: disk.read(info.path) for info in disk.walk()}
    finally:
        disk.close()


def test_two_writers_never_lose_a_commit(site: Site) -> None:
    """I6: the second writer commits between any two requests of the first; both commits are there."""
    at, interrupted = 0, True
    while interrupted:
        at += 1
        one, other = _disk(site, f"one-{at}"), _disk(site, f"other-{at}")
        requests = interrupt(one, at, lambda other=other, at=at: _write(other, f"other/{at}.bin"))  # type: ignore[misc]
        _write(one, f"one/{at}.bin")
        interrupted = requests.requests >= at
        one.close()
        other.close()
        found = _read_all(site)
        assert f"one/{at}.bin" in found
        assert (f"other/{at}.bin" in found) is interrupted
    assert at > 4, "the first writer was hardly interrupted"


def test_many_writers_at_once_all_make_progress(site: Site) -> None:
    """I6: four writers, eight commits each, one log."""

    def work(name: str) -> None:
        disk = _disk(site, name)
        try:
            for number in range(8):
                _write(disk, f"{name}/{number}.bin")
        finally:
            disk.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = _read_all(site)
    assert sorted(found) == [f"{name}/{number}.bin" for name in "abcd" for number in range(8)]
    assert all(found[path] == path.encode() * 10 for path in found)
