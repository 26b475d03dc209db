"""Snapshots and pins: what is written is read, what is damaged is named. Guards I7, I15, P44, P47."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
import zstandard

from disks.stores.memory import MemoryStore
from oplog import pins, replay, snapshot
from oplog.entry import now
from oplog.errors import AlreadyExists, Damaged, FrostlineError, NotFound, UsageError
from oplog.replay import FileRow
from tests import worm
from tests.memory_table import MemoryTable

ROWS = [
    FileRow(
        f"t/p{number:03}/größe", number, "ab" * 32, f"key{number}" if number % 2 else None, bytes([number]), "set", 7
    )
    for number in range(200)
]


def test_rows_come_back_as_they_were() -> None:
    header, rows = snapshot.decode(snapshot.encode(9, "d" * 64, ROWS), name="x")
    assert (header.revision, header.digest) == (9, "d" * 64)
    assert list(rows) == ROWS


@pytest.mark.parametrize("cut", [1, 10, 100, 0.5, 0.9])
def test_a_truncated_snapshot_is_damaged(cut: float) -> None:
    data = snapshot.encode(9, "d" * 64, ROWS)
    length = len(data) - int(cut) if cut >= 1 else int(len(data) * cut)
    with pytest.raises(Damaged, match="snapshot x"):
        list(snapshot.decode(data[:length], name="x")[1])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"not json\n",
        b'{"format":2}\n',
        b"x" * (3 << 20),
    ],
)
def test_other_content_is_damaged(content: bytes) -> None:
    with pytest.raises(Damaged):
        list(snapshot.decode(zstandard.compress(content), name="x")[1])


def test_a_changed_row_and_an_unsafe_path_are_seen() -> None:
    plain = zstandard.ZstdDecompressor().stream_reader(snapshot.encode(9, "d" * 64, ROWS)).read()
    with pytest.raises(Damaged, match="checksum"):
        list(snapshot.decode(zstandard.compress(plain.replace(b"t/p007/g", b"t/p007/h")), name="x")[1])
    with pytest.raises(Damaged, match="unsafe"):
        list(snapshot.decode(zstandard.compress(plain.replace(b"t/p007/", b"t/../xx/")), name="x")[1])


@pytest.mark.parametrize("rows", [[ROWS[1], ROWS[0]], [ROWS[0], ROWS[0]]], ids=["turned round", "twice"])
def test_files_out_of_order_are_seen(rows: list[FileRow]) -> None:
    header = snapshot.SnapshotHeader(revision=9, digest="d" * 64, time=now())
    with pytest.raises(Damaged, match="not in path order"):
        list(snapshot.decode(snapshot._write(header, rows), name="x")[1])


def test_a_bomb_is_stopped_while_it_is_decompressed() -> None:
    bomb = zstandard.compress(b"[" * (64 << 20))
    with pytest.raises(Damaged, match="larger"):
        list(snapshot.decode(bomb, name="x")[1])


def test_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    data = zstandard.ZstdCompressor(compression_params=parameters).compressobj().compress(b"x" * (1 << 20))
    with pytest.raises(Damaged):
        list(snapshot.decode(data + b"", name="x")[1])


def test_snapshots_are_found_by_revision_and_written_once() -> None:
    store = MemoryStore()
    for revision in (3, 12, 7):
        snapshot.write(store, revision, "d" * 64, ROWS[:revision])
    snapshot.write(store, 7, "d" * 64, [])
    assert snapshot.revisions(store) == [3, 7, 12]
    header, rows = snapshot.read(store, 7)
    assert (header.revision, len(list(rows))) == (7, 7)
    with pytest.raises(NotFound):
        snapshot.read(store, 8)


def test_the_difference_of_two_tables() -> None:
    a, b, c = ROWS[:3]
    changed = FileRow(b.path, 99, b.sha256, b.key, b.inline, b.blob_set, 8)
    found = list(replay.diff(MemoryTable([a, b]), MemoryTable([changed, c])))
    assert [(one.path, one.before, one.after) for one in found] == [
        (a.path, a, None),
        (b.path, b, changed),
        (c.path, None, c),
    ]


def test_pins_are_listed_until_they_are_released() -> None:
    store = MemoryStore()
    until = datetime.now(UTC) + timedelta(hours=1)
    pins.create(store, "restore-1", 5, holder="restore", until=until, reason="test")
    pins.create(store, "kept", 3, holder="user")
    assert [(pin.name, pin.revision, pin.until) for pin in pins.list_pins(store)] == [
        ("kept", 3, None),
        ("restore-1", 5, until),
    ]
    assert pins.release(store, "kept")
    assert not pins.release(store, "kept")
    assert [pin.name for pin in pins.list_pins(store)] == ["restore-1"]


@pytest.mark.skipif(worm.ACTIVE, reason="has a lock of its own")
def test_a_pin_that_a_lock_keeps_counts_as_released() -> None:
    """P56: nothing can be deleted yet. Once it can, the pin goes before the mark that hides it (P31)."""
    store = MemoryStore(keep_for=timedelta(hours=1))
    pins.create(store, "kept", 3, holder="user")
    pins.create(store, "restore-1", 5, holder="restore")
    for first in (True, False):
        assert pins.release(store, "restore-1") == first
        assert [pin.name for pin in pins.list_pins(store)] == ["kept"]
    with pytest.raises(AlreadyExists, match="could not be deleted yet"):
        pins.create(store, "restore-1", 6, holder="restore")
    pins.sweep(store)
    assert len(list(store.list("pins/"))) == 3
    store._keep_for = timedelta(0)
    pins.sweep(store)
    assert [info.key for info in store.list("pins/")] == ["pins/kept.json"]


def test_a_pin_is_taken_once() -> None:
    store = MemoryStore()
    pins.create(store, "mine", 5, holder="a")
    pins.create(store, "mine", 5, holder="a")
    with pytest.raises(AlreadyExists, match="revision 5"):
        pins.create(store, "mine", 6, holder="a")
    for name in ("", "../x", "a/b", "x" * 200):
        with pytest.raises(UsageError):
            pins.create(store, name, 1, holder="a")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"name":"other","revision":1,"holder":"x","created":"2026-01-01T00:00:00Z"}']
)
def test_a_pin_that_cannot_be_read_stops_the_listing(data: bytes) -> None:
    store = MemoryStore()
    store.put("pins/p.json", data, sha256=hashlib.sha256(data).digest())
    with pytest.raises(FrostlineError, match=r"pins/p\.json"):
        pins.list_pins(store)
