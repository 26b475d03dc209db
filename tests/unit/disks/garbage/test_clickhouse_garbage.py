"""gc and fsck of a disk with ClickHouse's log: the table of this machine is the only proof, and doubt keeps everything
(I4, I5, I8, P25 to P28, P32).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from disks.clickhouse.disk import ClickHouseDisk, NoLocalMetadata
from disks.effects import set_hook
from disks.garbage.collect import GcReport, collect
from disks.garbage.rules import GcRules
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from oplog.clickhouse.names import FILE, file_key, parse_key
from oplog.kinds import Inserted, OtherKind
from oplog.replay import FileRow
from restore.check.check import CheckOptions, check
from tests.committed import put, remove

LATER = datetime.now(UTC) + timedelta(days=3)
PART = "store/abc/abc00000-0000-4000-8000-000000000001/some"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("clickhouse")


@pytest.fixture
def disk(store: MemoryStore, tmp_path: Path) -> ClickHouseDisk:
    return ClickHouseDisk("s3", store, tmp_path / "state", lease_settle_seconds=0.0)


def run(disk: ClickHouseDisk, monkeypatch: pytest.MonkeyPatch, **options: Any) -> GcReport:
    """A collection three days later, for the table's clock too."""
    monkeypatch.setattr("disks.clickhouse.disk.time.time", lambda: LATER.timestamp())
    report = collect(disk, GcRules(**{"delete": True, "max_delete_fraction": 1.0, **options}), now=LATER)
    monkeypatch.undo()
    return report


def files(store: MemoryStore) -> set[str]:
    names = ((item.key, parse_key(item.key)) for item in store.list())
    return {key for key, name in names if name is not None and name.kind == FILE}


def others(store: MemoryStore) -> set[str]:
    return {item.key for item in store.list() if not item.key.startswith("lease/")} - files(store)


def write(store: MemoryStore, key: str, modified: datetime, data: bytes = b"x") -> None:
    store._objects[key] = (data, ObjectInfo(key, len(data), modified))


def test_what_the_table_names_stays_and_operations_are_untouched(
    disk: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I8: a file below shadow/ keeps its object when the table's own name for it goes."""
    live = put(disk, f"{PART}/live.bin")
    frozen = put(disk, f"{PART}/frozen.bin", b"bytes")
    gone = put(disk, f"{PART}/gone.bin", b"12345")
    with disk.transaction(OtherKind("freeze")) as transaction:
        transaction.link(f"{PART}/frozen.bin", "shadow/1/frozen.bin")
        transaction.commit()
    remove(disk, f"{PART}/frozen.bin")
    remove(disk, f"{PART}/gone.bin")
    before = others(store)
    young = collect(disk, GcRules(delete=True, max_delete_fraction=1.0))
    assert (young.referenced, young.orphaned, young.deleted) == (3, 0, 0), "removed within the retention"
    report = run(disk, monkeypatch)
    assert (report.referenced, report.orphaned, report.deleted, report.deleted_bytes) == (2, 1, 1, 5)
    assert report.refused is None
    assert files(store) == {live, frozen}
    assert gone not in files(store)
    assert others(store) == before
    assert disk.read("shadow/1/frozen.bin") == b"bytes"
    assert run(disk, monkeypatch).orphaned == 0


def test_foreign_and_bare_names_survive(
    disk: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P26: names from before there were numbers prove nothing of whose they are."""
    put(disk, f"{PART}/live.bin")
    strange = {"abc/" + "d" * 29, "e" * 32, "notes.txt", "r01-file-x"}
    for key in strange:
        write(store, key, datetime.now(UTC))
    report = run(disk, monkeypatch)
    assert set(report.foreign) == strange
    assert strange <= {item.key for item in store.list()}


def test_an_abandoned_upload_is_pending_and_then_goes(
    disk: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P27."""
    put(disk, f"{PART}/live.bin")
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{PART}/never.bin", b"abandoned")
    assert collect(disk, GcRules(delete=True, max_delete_fraction=1.0)).pending == 1
    assert run(disk, monkeypatch).deleted == 1
    assert len(files(store)) == 1


def test_numbers_that_this_machine_never_gave_stop_everything(
    disk: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: another writer's files are in no table here."""
    put(disk, f"{PART}/live.bin")
    write(store, file_key(10**6, "a" * 32), datetime.now(UTC))
    report = run(disk, monkeypatch)
    assert report.refused is not None
    assert "another writer" in report.refused
    assert len(files(store)) == 2


def test_an_adopted_table_proves_nothing_until_retention_ends(
    disk: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: what had been removed before is not known; a server that restarted counts from 1 again."""
    put(disk, f"{PART}/live.bin")
    write(store, file_key(50, "b" * 32), datetime.now(UTC) - timedelta(days=9))
    rows = list(disk.file_table.rows())
    disk.replace_rows(rows, 100)
    soon = datetime.now(UTC) + timedelta(hours=30)
    report = collect(disk, GcRules(delete=True, max_delete_fraction=1.0), now=soon)
    assert report.refused is not None
    assert "taken over" in report.refused
    assert (report.orphaned, report.deleted) == (1, 0)
    again = file_key(2, "c" * 32)
    write(store, again, datetime.now(UTC) + timedelta(hours=1))
    report = run(disk, monkeypatch)
    assert report.refused is not None
    assert again in report.refused
    store.delete([again])
    assert run(disk, monkeypatch).deleted == 1
    disk.replace_rows(rows, 100, unknown="12 objects have no path")
    report = run(disk, monkeypatch)
    assert report.refused is not None
    assert "12 objects" in report.refused


def test_a_listing_without_a_live_object_stops_everything(
    disk: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P25, P29."""
    live = put(disk, f"{PART}/live.bin")
    put(disk, f"{PART}/gone.bin")
    remove(disk, f"{PART}/gone.bin")
    whole = store.list
    monkeypatch.setattr(
        store,
        "list",
        lambda prefix="", start_after="": (item for item in whole(prefix, start_after=start_after) if item.key != live),
    )
    report = collect(disk, GcRules(delete=True, max_delete_fraction=1.0), now=LATER)
    monkeypatch.undo()
    assert report.refused is not None
    assert live in report.refused
    assert len(files(store)) == 2


class Died(BaseException):
    """The process ends here."""


def test_dying_at_every_effect_loses_nothing_and_a_rerun_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P31, I4: with a quarantine, so that lists are written and taken away as well."""
    for step in range(1, 100):
        store = MemoryStore(f"clickhouse-{step}")
        disk = ClickHouseDisk("s3", store, tmp_path / str(step), lease_settle_seconds=0.0)
        live = put(disk, f"{PART}/live.bin", b"bytes")
        for number in range(2):
            put(disk, f"{PART}/gone-{number}.bin")
            remove(disk, f"{PART}/gone-{number}.bin")
        if step % 2:
            run(disk, monkeypatch, quarantine=timedelta(hours=1))
        count = 0

        def die(when: str, name: str, arguments: tuple[object, ...], step: int = step) -> None:
            nonlocal count
            count += when == "before" and name.startswith("store.")
            if count >= step // 2 + 1:
                raise Died

        set_hook(die)
        try:
            run(disk, monkeypatch)
        except Died:
            pass
        finally:
            set_hook(None)
        disk.close()
        again = ClickHouseDisk("s3", store, tmp_path / str(step), lease_settle_seconds=0.0)
        assert again.read(f"{PART}/live.bin") == b"bytes"
        report = run(again, monkeypatch)
        assert report.refused is None
        assert files(store) == {live}
        assert not list(store.list("gc/"))
        if count < step // 2 + 1:
            assert step >= 4, "nothing was ever interrupted"
            return
    raise AssertionError("it never ends")


# A disk without `send_metadata`, taken over with the server's metadata: no name in its bucket has a number


def bare(letter: str) -> str:
    return f"abc/{letter * 29}"


@pytest.fixture
def adopted(disk: ClickHouseDisk, store: MemoryStore) -> ClickHouseDisk:
    """Three files, an object that no file names, and nothing else: not even the marker of a log."""
    long_ago = datetime.now(UTC) - timedelta(days=9)
    for letter in "abcx":
        write(store, bare(letter), long_ago)
    rows = [FileRow(f"{PART}/{letter}.bin", 1, "", bare(letter), None, None, 0) for letter in "abc"]
    disk.replace_rows(rows, 0)
    return disk


def test_files_without_numbers_are_in_use_and_not_foreign(
    adopted: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P26: 26.9 writes such names by default. What the table never named stays, whoever it is of."""
    report = run(adopted, monkeypatch)
    assert (report.referenced, report.orphaned, report.foreign) == (3, 0, [bare("x")])
    assert report.refused is None
    assert check({"s3": adopted}).problems == []


def test_a_removed_file_without_a_number_goes_after_retention(
    adopted: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the table has named it, so it is of this disk."""
    remove(adopted, f"{PART}/a.bin")
    assert run(adopted, monkeypatch).deleted == 1
    assert {bare("b"), bare("c"), bare("x")} == {item.key for item in store.list("abc/")}


def test_a_listing_without_a_live_file_of_such_a_name_stops_all(
    adopted: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P25."""
    store.delete([bare("b")])
    report = run(adopted, monkeypatch)
    assert report.refused is not None
    assert bare("b") in report.refused


def test_a_server_that_writes_such_names_again_stops_everything(
    adopted: ClickHouseDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5."""
    write(store, bare("y"), datetime.now(UTC) + timedelta(hours=1))
    report = run(adopted, monkeypatch)
    assert report.refused is not None
    assert bare("y") in report.refused


# fsck


def test_fsck_finds_lost_objects_and_objects_of_another_size(disk: ClickHouseDisk, store: MemoryStore) -> None:
    """I3, I8."""
    key = put(disk, f"{PART}/one.bin")
    other = put(disk, f"{PART}/two.bin", b"12345")
    with disk.transaction(OtherKind("freeze")) as transaction:
        transaction.link(f"{PART}/one.bin", "shadow/1/one.bin")
        transaction.commit()
    result = check({"s3": disk}, CheckOptions(read_data=True))
    assert result.ok
    store.delete([key])
    write(store, other, datetime.now(UTC), b"1234")
    found = {(problem.invariant, problem.path, problem.object) for problem in check({"s3": disk}).problems}
    assert found == {
        ("I3", f"{PART}/one.bin", key),
        ("I3", "shadow/1/one.bin", key),
        ("I3", f"{PART}/two.bin", other),
    }


def test_fsck_compares_the_digests_that_the_table_has(disk: ClickHouseDisk, store: MemoryStore) -> None:
    """I1."""
    key = put(disk, f"{PART}/one.bin", b"12345")
    _, info = store._objects[key]
    store._objects[key] = (b"54321", info)
    (problem,) = check({"s3": disk}, CheckOptions(read_data=True)).problems
    assert (problem.invariant, problem.object) == ("I1", key)


def test_fsck_reads_what_it_has_no_digest_of(disk: ClickHouseDisk, store: MemoryStore) -> None:
    """I1: a rebuild knows sizes only; an object that gives fewer bytes than its listing says is found by reading."""
    key = put(disk, f"{PART}/one.bin", b"12345")
    rows = [structs.replace(row, sha256="") for row in disk.file_table.rows()]
    disk.replace_rows(rows, 100)
    result = check({"s3": disk}, CheckOptions(read_data=True))
    assert (result.ok, result.checked.bytes_read) == (True, 5)
    _, info = store._objects[key]
    store._objects[key] = (b"123", info)
    assert check({"s3": disk}).ok
    (problem,) = check({"s3": disk}, CheckOptions(read_data=True)).problems
    assert (problem.invariant, problem.path, problem.object) == ("I1", f"{PART}/one.bin", key)


def test_fsck_says_why_a_disk_without_metadata_cannot_be_checked(
    disk: ClickHouseDisk, store: MemoryStore, tmp_path: Path
) -> None:
    """I15: an error and no finding, for nothing was checked."""
    put(disk, f"{PART}/one.bin")
    bare = ClickHouseDisk("s3", store, tmp_path / "other", lease_settle_seconds=0.0)
    with pytest.raises(NoLocalMetadata):
        check({"s3": bare})
