"""Paths are read while the listing still comes in: each once, and an error ends everything at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from oplog.errors import Transient
from restore.clickhouse_bucket import read_bucket
from tests.compat.buckets import TABLE, ClickHouse


class Watched(MemoryStore):
    """Counts HEADs, notes whether some came before the listing ended, and fails when told to."""

    def __init__(self, made: ClickHouse) -> None:
        super().__init__("clickhouse")
        for item in made.objects.values():
            info = ObjectInfo(item.key, len(item.data), item.modified, item.metadata)
            self._objects[item.key] = (item.data, info)
        self.heads: Counter[str] = Counter()
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


def bucket() -> tuple[ClickHouse, list[str]]:
    made = ClickHouse()
    keys = [made.file(f"{TABLE}/all_1_1_0/{number}.bin") for number in range(300)]
    return made, [*keys, made.rename(f"{TABLE}/all_1_1_0/", f"{TABLE}/all_1_1_1/")]


def test_each_path_is_asked_for_once_and_early() -> None:
    made, keys = bucket()
    store = Watched(made)
    tree = read_bucket(store, workers=4)
    assert store.heads == Counter(keys)
    assert store.before_the_end > 0
    assert set(tree.files) == {f"{TABLE}/all_1_1_1/{number}.bin" for number in range(300)}


def test_an_earlier_revision_asks_for_nothing_above_it() -> None:
    made, keys = bucket()
    store = Watched(made)
    store.asked.set()
    read_bucket(store, revision=10, workers=4)
    assert store.heads == Counter(keys[:10])


def test_an_error_ends_the_reading() -> None:
    made, keys = bucket()
    store = Watched(made)
    store.failing = keys[50]
    before = threading.active_count()
    with pytest.raises(Transient, match="no answer"):
        read_bucket(store, workers=4)
    assert threading.active_count() == before


def test_an_object_that_goes_meanwhile_is_reported() -> None:
    made, keys = bucket()

    class Gone(Watched):
        def head(self, key: str) -> ObjectInfo:
            if key == keys[7]:
                self._objects.pop(key, None)
            return super().head(key)

    store = Gone(made)
    tree = read_bucket(store, workers=4)
    assert [finding.object for finding in tree.findings if finding.kind == "vanished"] == [keys[7]]
