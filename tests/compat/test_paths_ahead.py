"""Paths are read while the listing still comes in: each once, and an error ends everything at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from disks.stores.base import ByteRange, ObjectInfo
from disks.stores.memory import MemoryStore
from disks.workers.parallel import Askers
from oplog.errors import Transient
from restore.clickhouse.bucket import read_bucket
from tests.compat.buckets import TABLE, ClickHouse


class Watched(MemoryStore):
    """Counts HEADs, notes whether some came before the listing ended, and fails when told to."""

    def __init__(self, made: ClickHouse) -> None:
        super().__init__("clickhouse")
        for item in made.objects.values():
            info = ObjectInfo(item.key, len(item.data), item.modified, item.metadata)
            self._objects[item.key] = (item.data, info)
        self.heads: Counter[str] = Counter()
        self.gets: Counter[str] = Counter()
        self.before_the_end = 0
        self.failing: str | None = None
        self.lock = threading.Lock()
        self.asked = threading.Event()

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        yield from super().list(prefix, start_after=start_after)
        self.asked.wait(5)
        self.before_the_end = sum(self.heads.values())

    def head(self, key: str) -> ObjectInfo:
        with self.lock:
            self.heads[key] += 1
        self.asked.set()
        if key == self.failing:
            raise Transient(f"{key}: no answer")
        return super().head(key)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with self.lock:
            self.gets[key] += 1
        return super().get(key, byte_range)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """One request, counted as the HEAD that it stands for."""
        info = self.head(key)
        return super().get(key), info


def bucket() -> tuple[ClickHouse, list[str]]:
    made = ClickHouse()
    keys = [made.file(f"{TABLE}/all_1_1_0/{number}.bin") for number in range(300)]
    return made, [*keys, made.rename(f"{TABLE}/all_1_1_0/", f"{TABLE}/all_1_1_1/")]


def test_each_path_is_asked_for_once_and_early() -> None:
    made, keys = bucket()
    store = Watched(made)
    tree = read_bucket(store, askers=Askers(workers=4))
    assert store.heads == Counter(keys)
    assert store.before_the_end > 0
    assert set(tree.files) == {f"{TABLE}/all_1_1_1/{number}.bin" for number in range(300)}


def test_an_earlier_revision_asks_for_nothing_above_it() -> None:
    made, keys = bucket()
    store = Watched(made)
    store.asked.set()
    read_bucket(store, revision=10, askers=Askers(workers=4))
    assert store.heads == Counter(keys[:10])


def test_an_error_ends_the_reading() -> None:
    made, keys = bucket()
    store = Watched(made)
    store.failing = keys[50]
    before = threading.active_count()
    with pytest.raises(Transient, match="no answer"):
        read_bucket(store, askers=Askers(workers=4))
    assert threading.active_count() == before


def test_an_object_that_goes_meanwhile_is_reported() -> None:
    made, keys = bucket()

    class Gone(Watched):
        def head(self, key: str) -> ObjectInfo:
            if key == keys[7]:
                self._objects.pop(key, None)
            return super().head(key)

    store = Gone(made)
    tree = read_bucket(store, askers=Askers(workers=4))
    assert [finding.object for finding in tree.findings if finding.kind == "vanished"] == [keys[7]]


@pytest.mark.parametrize("revision", [None, 100])
def test_checksums_are_read_with_their_path(revision: int | None) -> None:
    """The last file before a rename: no part costs a request of its own."""
    made = ClickHouse()
    for number in range(30):
        made.insert(f"all_{number}_{number}_0", "a.bin", "count.txt")
    store = Watched(made)
    store.asked.set()
    tree = read_bucket(store, revision=revision)
    assert store.gets.keys() == {".SCHEMA_VERSION"}
    assert set(store.heads.values()) == {1}
    assert len(tree.files) == (30 if revision is None else 20) * 4
    assert not tree.findings


def test_checksums_that_stand_elsewhere_are_read_later() -> None:
    """Two parts written at once: behind the checksums of the first stands a file of the second."""
    made = ClickHouse()
    first, second = f"{TABLE}/tmp_insert_all_1_1_0", f"{TABLE}/tmp_insert_all_2_2_0"
    made.part(first, "a.bin", checksums={"a.bin": 10, "empty.bin": 0})
    made.part(second, "a.bin")
    made.rename(f"{first}/", f"{TABLE}/all_1_1_0/")
    made.rename(f"{second}/", f"{TABLE}/all_2_2_0/")
    store = Watched(made)
    tree = read_bucket(store)
    assert sum(store.gets.values()) == 2  # the marker, and one of the two
    assert tree.files[f"{TABLE}/all_1_1_0/empty.bin"].blobs == ()
    assert not tree.findings


def test_what_is_taken_for_checksums_may_be_another_file() -> None:
    made = ClickHouse()
    made.part(f"{TABLE}/tmp_insert_all_1_1_0", "a.bin")
    made.file(f"{TABLE}/tmp_insert_all_1_1_0/late.bin", b"x" * 500)
    made.rename(f"{TABLE}/tmp_insert_all_1_1_0/", f"{TABLE}/all_1_1_0/")
    store = Watched(made)
    tree = read_bucket(store)
    assert tree.files[f"{TABLE}/all_1_1_0/late.bin"].size_bytes == 500
    assert sum(store.gets.values()) == 2
