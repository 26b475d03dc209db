"""The contract of an object store (`disks/stores/base.py`), for every store and every wrapper.

Guards I2 (a put is all or nothing), I6 (one winner per key: revisions are unique) and I15 (damage is never good data).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from disks.stores.base import ByteRange, ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.open import open_store
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.limit import LimitedStore, Limiter
from disks.stores.wrappers.metered import MeteredStore
from disks.stores.wrappers.named_log import NamedLogStore
from disks.stores.wrappers.retry import RetryingStore
from disks.stores.wrappers.wrapped import unwrapped
from oplog.bounds import at_most
from oplog.errors import AlreadyExists, Damaged, NotFound
from tests.documented import documented
from tests.faulty_store import FaultyStore
from tests.servers import Server

MIB = 1024 * 1024
MULTIPART_THRESHOLD = 6 * MIB
WRAPPERS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "retry": RetryingStore,
    "limit": lambda inner: LimitedStore(inner, Limiter(max_concurrency=4)),
    "metered": MeteredStore,
    "named_log": lambda inner: NamedLogStore(inner, "replica-1"),
    "faulty": FaultyStore,
}


def s3_store(server: Server, *, prefix: str = "some/prefix/") -> ObjectStore:
    config = server.disk(f"s3://{server.new_bucket()}/{prefix}", multipart_threshold_bytes=MULTIPART_THRESHOLD)
    store = open_store(config)
    raw = unwrapped(store)
    assert isinstance(raw, S3Store)
    raw._part_bytes = 5 * MIB
    return store


KINDS = [
    "memory",
    "directory",
    "documented",
    "s3",
    "s3-root",
    pytest.param("ceph", marks=pytest.mark.ceph),
    "rclone",
    pytest.param("moto", marks=pytest.mark.in_turn(one_in=3)),
    pytest.param("seaweedfs", marks=pytest.mark.in_turn(one_in=3)),
    *WRAPPERS,
]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    kind = request.param
    if kind in WRAPPERS:
        opened = WRAPPERS[kind](MemoryStore())
    elif kind == "memory":
        opened = MemoryStore()
    elif kind == "directory":
        opened = DirectoryStore(tmp_path / "bucket")
    elif kind == "documented":
        opened = documented("store").SQLiteStore(tmp_path / "objects.db")
    elif kind == "s3-root":
        opened = s3_store(request.getfixturevalue("ministack"), prefix="")
    else:
        opened = s3_store(request.getfixturevalue({"s3": "ministack"}.get(kind, kind)))
    with opened:
        yield opened


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def put(store: ObjectStore, key: str, data: bytes = b"data", **options: dict[str, str]) -> None:
    store.put(key, data, sha256=sha256(data), **options)


def keys(store: ObjectStore, prefix: str = "", *, start_after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, start_after=start_after)]


def test_put_then_get_head_and_list_agree(store: ObjectStore) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    put(store, "r01-file-a", b"hello")
    assert store.get("r01-file-a") == b"hello"
    head = store.head("r01-file-a")
    [listed] = store.list()
    assert (head.key, head.size_bytes) == (listed.key, listed.size_bytes) == ("r01-file-a", 5)
    assert store.get_with_info("r01-file-a") == (b"hello", head)
    assert before < head.modified < datetime.now(UTC) + timedelta(minutes=1)
    assert before < listed.modified < datetime.now(UTC) + timedelta(minutes=1)


def test_empty_object(store: ObjectStore) -> None:
    put(store, "empty", b"")
    assert store.get("empty") == b""
    assert store.get_with_info("empty") == (b"", store.head("empty"))


def test_put_takes_a_file_and_a_memoryview(store: ObjectStore, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    file = tmp_path / "part.parquet"
    file.write_bytes(data)
    store.put("from-file", file, sha256=sha256(data))
    store.put("from-view", memoryview(data), sha256=sha256(data))
    assert store.get("from-file") == store.get("from-view") == data


def test_missing_file_is_named(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"gone\.parquet"):
        store.put("key", tmp_path / "gone.parquet", sha256=sha256(b""))


@pytest.mark.parametrize("size_bytes", [0, 5, MULTIPART_THRESHOLD + 1], ids=["empty", "small", "multipart"])
def test_wrong_sha256_is_refused_and_nothing_is_written(store: ObjectStore, size_bytes: int, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(size_bytes))
    for payload in (bytes(size_bytes), file):
        with pytest.raises(Damaged, match="bad"):
            store.put("bad", payload, sha256=sha256(b"other bytes"))
    assert keys(store) == []
    assert list(store.list_uploads()) == []
    with pytest.raises(NotFound):
        store.get("bad")


def test_wrong_sha256_is_refused_by_put_if_absent(store: ObjectStore) -> None:
    with pytest.raises(Damaged):
        store.put_if_absent("bad", b"bytes", sha256=sha256(b"other"))
    assert keys(store) == []


def test_put_if_absent_keeps_what_is_there(store: ObjectStore) -> None:
    store.put_if_absent("operations/r01-commit", b"first", sha256=sha256(b"first"))
    with pytest.raises(AlreadyExists, match="r01-commit"):
        store.put_if_absent("operations/r01-commit", b"second", sha256=sha256(b"second"))
    assert store.get("operations/r01-commit") == b"first"


def test_race_of_eight_writers_has_one_winner(store: ObjectStore) -> None:
    """I6: the conditional put is the arbiter between writers."""
    if not store.capabilities.conditional_put:
        pytest.skip("this store says that it has no conditional put")
    for attempt in range(5):
        key = f"operations/r{attempt}"
        barrier = Barrier(8)

        def write(writer: int, key: str = key, barrier: Barrier = barrier) -> bytes | None:
            data = f"writer {writer}".encode() * 100
            barrier.wait()
            try:
                store.put_if_absent(key, data, sha256=sha256(data))
            except AlreadyExists:
                return None
            return data

        with ThreadPoolExecutor(8) as pool:
            winners = [data for data in pool.map(write, range(8)) if data is not None]
        assert len(winners) == 1
        assert store.get(key) == winners[0]


def test_ranges(store: ObjectStore) -> None:
    data = bytes(range(256)) * 100
    put(store, "data", data)
    for start, stop in [
        (0, 1),
        (0, len(data)),
        (100, 5000),
        (len(data) - 1, len(data)),
        (7, 7),
        (len(data), len(data)),
    ]:
        assert store.get("data", ByteRange(start, stop)) == data[start:stop]


def test_no_object_larger_than_its_reader_allows_is_taken_in(store: ObjectStore) -> None:
    put(store, "large", b"x" * 100_000)
    with at_most(100_000):
        assert len(store.get("large")) == 100_000
    with at_most(99_999), pytest.raises(Damaged, match="more than any valid one"):
        store.get("large")
    assert len(store.get("large")) == 100_000


def test_range_past_the_end_is_damage_never_short(store: ObjectStore) -> None:
    """I15: a file that is shorter than its metadata says must not look like a short read."""
    put(store, "data", b"0123456789")
    for start, stop in [(0, 11), (9, 11), (10, 11), (500, 600), (11, 11)]:
        with pytest.raises(Damaged, match="data"):
            store.get("data", ByteRange(start, stop))


def test_missing_objects(store: ObjectStore) -> None:
    with pytest.raises(NotFound, match="nothing-here"):
        store.get("nothing-here")
    with pytest.raises(NotFound, match="nothing-here"):
        store.get("nothing-here", ByteRange(0, 1))
    with pytest.raises(NotFound, match="nothing-here"):
        store.head("nothing-here")
    with pytest.raises(NotFound, match="nothing-here"):
        store.get_with_info("nothing-here")
    with pytest.raises(NotFound, match="nothing-here"):
        store.copy("nothing-here", "target")
    assert keys(store) == []


def test_listing_is_in_byte_order_and_prefix_is_a_plain_prefix(store: ObjectStore) -> None:
    wanted = ["a", "a!b", "a-b", "a.b", "ab/c", "ab/d/e", "ab0", "b", "z", "é", "日本/語", "ﬀ", "😀"]
    for key in reversed(wanted):
        put(store, key)
    assert wanted == sorted(wanted, key=str.encode)
    assert keys(store) == wanted
    assert keys(store, "a") == ["a", "a!b", "a-b", "a.b", "ab/c", "ab/d/e", "ab0"]
    assert keys(store, "ab/") == ["ab/c", "ab/d/e"]
    assert keys(store, "ab/d") == ["ab/d/e"]
    assert keys(store, "nothing") == []


def test_list_start_after_any_string(store: ObjectStore) -> None:
    wanted = ["a/1", "a/2", "a/3", "a0", "b/1", "日本"]
    for key in wanted:
        put(store, key)
    for after in ["", "a/", "a/1", "a/2", "a/25", "a/3", "a/~", "a0", "b/1", "z", "日", "日本", "😀"]:
        assert keys(store, start_after=after) == [key for key in wanted if key.encode() > after.encode()], after
    assert keys(store, "a/", start_after="a/2") == ["a/3"]


def test_list_start_after_the_name_of_a_directory(store: ObjectStore, request: pytest.FixtureRequest) -> None:
    """Which is no key. Nothing lists after one; SeaweedFS leaves out what is in the directory."""
    if "seaweedfs" in request.node.name:
        pytest.skip("SeaweedFS leaves out what is in the directory")
    for key in ("a/1", "a0"):
        put(store, key)
    assert keys(store, start_after="a") == ["a/1", "a0"]


UNUSUAL = [
    *["a b", "a+b", "a%2Fb", "100%", "a=b&c=d", "q?x#y", "ü/é", "'quote'\"", "(p)*!~", "<&>", "-", "日日日"],
    "x" * 200,
    "日" * 60,
]
HOSTILE = ["", "/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\nb", "a\0b", "\x7f", "x" * 1025]


@pytest.mark.in_turn
def test_unusual_keys_come_back_as_written(store: ObjectStore) -> None:
    for key in UNUSUAL:
        put(store, key, key.encode())
        assert store.get(key) == key.encode()
        assert store.get_with_info(key) == (key.encode(), store.head(key))
        assert key in keys(store, key[:1])
        store.copy(key, f"copies/{key}")
        assert store.get(f"copies/{key}") == key.encode()
    assert store.delete(UNUSUAL) == dict.fromkeys(UNUSUAL)
    assert set(keys(store)) == {f"copies/{key}" for key in UNUSUAL}


def test_hostile_keys_are_refused_by_every_verb(store: ObjectStore) -> None:
    calls: list[Callable[[str], object]] = [
        lambda key: put(store, key),
        lambda key: store.put_if_absent(key, b"", sha256=sha256(b"")),
        lambda key: store.get(key),
        lambda key: store.head(key),
        lambda key: store.get_with_info(key),
        lambda key: store.delete([key]),
        lambda key: store.copy("source", key),
        lambda key: store.copy(key, "target"),
        lambda key: store.url(key),
    ]
    put(store, "source")
    for key in HOSTILE:
        for call in calls:
            with pytest.raises(ValueError, match="key"):
                call(key)
    assert keys(store) == ["source"]


def test_digest_must_be_raw_bytes(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="32 raw bytes"):
        store.put("key", b"", sha256=hashlib.sha256(b"").hexdigest().encode())


def test_metadata_with_dashes_survives_put_and_copy(store: ObjectStore) -> None:
    metadata = {"path": "db/table/part/data-0000.parquet", "blob-set": "x=1, y; z"}
    put(store, "blob", b"data", metadata=metadata)
    assert metadata.items() <= store.head("blob").metadata.items()
    assert store.get_with_info("blob") == (b"data", store.head("blob"))
    store.copy("blob", "copy")
    assert metadata.items() <= store.head("copy").metadata.items()  # rclone adds a name of its own
    store.put_if_absent("once", b"", sha256=sha256(b""), metadata=metadata)
    assert metadata.items() <= store.head("once").metadata.items()
    assert keys(store) == ["blob", "copy", "once"]
    store.delete(["blob"])
    put(store, "blob", b"again")
    assert not metadata.keys() & store.head("blob").metadata.keys()


def test_metadata_that_some_server_would_change_is_refused(store: ObjectStore) -> None:
    for metadata in [{"with_underscore": "x"}, {"Upper": "x"}, {"a": "line\nbreak"}, {"a": "é"}, {"": "x"}]:
        with pytest.raises(ValueError, match="metadata"):
            put(store, "blob", b"data", metadata=metadata)
    assert keys(store) == []


def test_delete_answers_for_each_key(store: ObjectStore) -> None:
    put(store, "a")
    put(store, "b/c")
    assert store.delete(["a", "never-was", "b/c"]) == {"a": None, "never-was": None, "b/c": None}
    assert store.delete([]) == {}
    assert keys(store) == []
    assert store.delete(iter(["a"])) == {"a": None}


@pytest.mark.in_turn
def test_more_than_a_page_is_listed_and_deleted(store: ObjectStore) -> None:
    count = 1100
    wanted = [f"blobs/r{number:06d}" for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: put(store, key, b"x"), wanted))
    assert keys(store) == wanted
    assert keys(store, "blobs/r00", start_after=wanted[1049]) == wanted[1050:]
    answers = store.delete(wanted)
    assert answers == dict.fromkeys(wanted)
    assert keys(store) == []


def test_copy_takes_the_bytes_and_leaves_the_source(store: ObjectStore) -> None:
    put(store, "source", b"bytes")
    store.copy("source", "deep/target")
    store.copy("source", "other", source=store)
    assert store.get("source") == store.get("deep/target") == store.get("other") == b"bytes"


def test_multipart_above_the_threshold(store: ObjectStore, tmp_path: Path) -> None:
    data = os.urandom(MULTIPART_THRESHOLD * 2 + 12345)
    file = tmp_path / "large"
    file.write_bytes(data)
    store.put("large", file, sha256=sha256(data), metadata={"path": "a/b"})
    assert store.head("large").size_bytes == len(data)
    assert store.head("large").metadata["path"] == "a/b"
    assert store.get("large") == data
    assert store.get("large", ByteRange(5 * MIB - 3, 5 * MIB + 3)) == data[5 * MIB - 3 : 5 * MIB + 3]
    assert list(store.list_uploads()) == []


def test_url_names_the_key(store: ObjectStore) -> None:
    assert store.url("a/b").startswith(store.name.split("://")[0])
    assert store.url("a/b").endswith("/a/b")
    assert (store.s3_connection is not None) == store.url("a").startswith("s3://")


def test_no_secret_in_any_representation(store: ObjectStore) -> None:
    assert "frostline-secret" not in repr(store) + repr(vars(store)) + repr(store.s3_connection) + store.name
