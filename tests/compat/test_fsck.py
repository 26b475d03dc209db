"""fsck of what ClickHouse wrote: a server's disk that was adopted, and ClickHouse's parts on a disk of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disks.clickhouse.disk import ClickHouseDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from oplog.kinds import OtherKind
from restore.check.check import check
from restore.clickhouse.rebuild import import_tree
from restore.rebuild.request import RebuildRequest
from restore.transfer.transfer import restore_from
from tests.compat.buckets import TABLE, ClickHouse, captured, checksums_txt, in_memory
from tests.compat.captures import CLICKHOUSE

PART = "store/db7/db7fa105-d417-4a64-977b-94ff5177349e/202401_1_3_1"


@pytest.fixture
def store() -> MemoryStore:
    return in_memory(captured())


@pytest.fixture
def adopted(store: MemoryStore, tmp_path: Path) -> Iterator[ClickHouseDisk]:
    """The captured disk with the server's own metadata."""
    disk = ClickHouseDisk("s3", store, tmp_path / "state")
    import_tree(disk, CLICKHOUSE / "local", apply=True)
    yield disk
    disk.close()


def overwrite(store: MemoryStore, key: str, data: bytes) -> None:
    store._objects[key] = (data, ObjectInfo(key, len(data), store.head(key).modified, store.head(key).metadata))


class TestAdoptedDisk:
    def test_as_the_server_left_it(self, adopted: ClickHouseDisk) -> None:
        result = check({"s3": adopted})
        assert result.problems == []
        assert result.checked.parts == 11
        assert result.checked.files >= 237

    def test_a_missing_object_is_named_with_every_path(self, adopted: ClickHouseDisk, store: MemoryStore) -> None:
        """I3."""
        row = adopted.file_table.get(f"{PART}/k.bin")
        assert row is not None
        assert row.key is not None
        del store._objects[row.key]
        problems = check({"s3": adopted}).problems
        assert {problem.invariant for problem in problems} == {"I3"}
        assert {problem.object for problem in problems} == {row.key}
        assert f"{PART}/k.bin" in {problem.path for problem in problems}
        assert len(problems) == 3, "its part, the part mutated from it, and the frozen one"

    def test_an_object_of_another_size_is_named(self, adopted: ClickHouseDisk, store: MemoryStore) -> None:
        """I3."""
        row = adopted.file_table.get(f"{PART}/v.bin")
        assert row is not None
        assert row.key is not None
        overwrite(store, row.key, b"short")
        assert [(problem.invariant, problem.path) for problem in check({"s3": adopted}).problems] == [
            ("I3", f"{PART}/v.bin")
        ]

    def test_a_bucket_without_its_marker(self, adopted: ClickHouseDisk, store: MemoryStore) -> None:
        del store._objects[".SCHEMA_VERSION"]
        assert [problem.invariant for problem in check({"s3": adopted}).problems] == ["I15"]


class TestPartsOnADiskOfOurs:
    @pytest.fixture
    def ours(self, store: MemoryStore, tmp_path: Path) -> Iterator[ObjectDisk]:
        disk = ObjectDisk("s3", MemoryStore("ours"), tmp_path / "state")
        restore_from(disk, store, RebuildRequest(apply=True))
        yield disk
        disk.close()

    def test_whole_after_a_restore(self, ours: ObjectDisk) -> None:
        result = check({"s3": ours})
        assert result.problems == []
        assert result.checked.parts == 11

    @pytest.mark.parametrize("file", ["v.bin", "checksums.txt", "columns.txt"])
    def test_a_part_that_lacks_a_file(self, ours: ObjectDisk, file: str) -> None:
        """I1."""
        with ours.transaction(OtherKind("test")) as transaction:
            transaction.remove(f"{PART}/{file}")
            transaction.commit()
        assert [(problem.invariant, problem.path) for problem in check({"s3": ours}).problems] == [
            ("I1", f"{PART}/{file}")
        ]

    @pytest.mark.parametrize(
        ("data", "invariant", "file"),
        [(b"nonsense", "I15", "checksums.txt"), (checksums_txt({"v.bin": 1}), "I1", "v.bin")],
    )
    def test_checksums_that_do_not_fit(self, ours: ObjectDisk, data: bytes, invariant: str, file: str) -> None:
        with ours.transaction(OtherKind("test")) as transaction:
            transaction.remove(f"{PART}/checksums.txt")
            transaction.create(f"{PART}/checksums.txt", data)
            transaction.commit()
        assert [(problem.invariant, problem.path) for problem in check({"s3": ours}).problems] == [
            (invariant, f"{PART}/{file}")
        ]

    @pytest.mark.parametrize(
        ("lost", "data", "invariant"),
        [
            ("p.proj/k.bin", None, "I1"),
            ("p.proj/k.bin", b"other", "I1"),
            ("p.proj/checksums.txt", None, "I1"),
            ("p.proj/checksums.txt", b"nonsense", "I15"),
            (None, None, None),
        ],
    )
    def test_a_projection_is_compared_with_its_own_checksums(
        self, tmp_path: Path, lost: str | None, data: bytes | None, invariant: str | None
    ) -> None:
        """I1: a server drops a projection that lacks a file, and says so only in its log."""
        server = ClickHouse()
        server.part(f"{TABLE}/all_1_1_0/p.proj", "k.bin", checksums={"k.bin": 10, "empty.bin": 0})
        server.part(f"{TABLE}/all_1_1_0", "k.bin", checksums={"k.bin": 10, "p.proj": 20})
        disk = ObjectDisk("s3", MemoryStore("ours"), tmp_path / "state")
        restore_from(disk, server.store(), RebuildRequest(apply=True))
        if lost is not None:
            with disk.transaction(OtherKind("test")) as transaction:
                transaction.remove(f"{TABLE}/all_1_1_0/{lost}")
                if data is not None:
                    transaction.create(f"{TABLE}/all_1_1_0/{lost}", data)
                transaction.commit()
        expected = [(invariant, f"{TABLE}/all_1_1_0/{lost}")] if lost else []
        assert [(problem.invariant, problem.path) for problem in check({"s3": disk}).problems] == expected
        disk.close()
