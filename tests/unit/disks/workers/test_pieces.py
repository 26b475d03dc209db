"""How work is cut for others, sent, counted and shown: pure functions and runners, without Spark."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from disks.config import ObjectDiskConfig
from disks.stores.address import StoreAddress
from disks.stores.base import ObjectStore
from disks.workers.batches import cut
from disks.workers.counting import RequestCount
from disks.workers.parallel import Askers, ask
from disks.workers.progress import Silent
from disks.workers.runner import Remote, shown, threads
from oplog.errors import NotFound, UsageError
from oplog.replay import FileRow
from restore.check.data import Expected, StoredFiles, WorkSplit, cut_batches, read_batch
from spark_tiering.reading.scan_planning import OPEN_COST_BYTES, Piece, divide
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.output import Output
from tiering.cli.frame.remote_work import SparkWork, wanted
from tiering.config.settings import LimitsConfig


@given(st.lists(st.integers(0, 100)), st.integers(1, 150), st.integers(1, 5))
def test_pieces_hold_every_item_once_and_stay_within_their_size(sizes: list[int], most: int, most_items: int) -> None:
    pieces = list(cut(sizes, lambda size: size, most=most, most_items=most_items))
    assert [size for piece in pieces for size in piece] == sizes
    for piece in pieces:
        assert 1 <= len(piece) <= most_items
        assert sum(piece) <= most or len(piece) == 1


def files(*sizes: int) -> list[Expected]:
    return [
        Expected(FileRow(f"f{number}", size, "", "k", None, None, 1), "", None) for number, size in enumerate(sizes)
    ]


def test_files_to_read_are_balanced_by_bytes_the_largest_first() -> None:
    mega = 1 << 20
    source = StoredFiles(StoreAddress(ObjectDiskConfig(url="file:///nowhere/")), "cold")
    batches = cut_batches(source, files(*[mega] * 90, 500 * mega, 5), WorkSplit(10, 1, 1 << 30, 4))
    assert batches[0].size_bytes == 500 * mega
    assert sorted(one.row.path for batch in batches for one in batch.files) == sorted(f"f{n}" for n in range(92))
    assert all(batch.size_bytes <= 70 * mega for batch in batches[1:])
    few = cut_batches(source, files(*[mega] * 90), WorkSplit(10, 1 << 30, 1 << 30, 4))
    assert len(few) == 1, "nothing so small is worth a task of its own"
    many = cut_batches(source, files(*[0] * 5_000), WorkSplit(10, 1 << 30, 1 << 30, 4))
    assert [len(batch.files) for batch in many] == [4_000, 1_000]
    assert "frostline" not in repr(pickle.loads(pickle.dumps(batches[0])))


MEGA = 1 << 20


@given(
    st.lists(st.lists(st.integers(1, 40 * MEGA), min_size=1, max_size=8), max_size=30),
    st.integers(4 * MEGA, 64 * MEGA),
    st.integers(1, 5),
)
def test_a_scan_is_divided_evenly_and_leaves_no_row_group_out(files: list[list[int]], most: int, cores: int) -> None:
    pieces = [
        Piece(f"f{number}", sum(groups), "", None, sum(groups), tuple(groups)) for number, groups in enumerate(files)
    ]
    shares = divide(pieces, most, cores)
    read = [
        (piece.label, number)
        for share in shares
        for piece in share
        for number in (piece.row_groups or range(len(files[int(piece.label[1:])])))
    ]
    assert read == [(f"f{file}", number) for file, groups in enumerate(files) for number in range(len(groups))]
    sizes = [[piece.wanted_bytes + OPEN_COST_BYTES for piece in share] for share in shares]
    for share in sizes:
        assert sum(share) <= sum(map(sum, sizes)) / len(sizes) + max(map(max, sizes))


def test_the_last_round_of_tasks_has_work_for_every_core() -> None:
    """64 files in shares of up to seven were nine tasks of seven and one of one: on two cores, half a round idle."""
    pieces = [Piece(f"f{number}", 8 * MEGA, "", None, 8 * MEGA, ()) for number in range(64)]
    shares = divide(pieces, 64 * MEGA, 2)
    assert [len(share) for share in shares] == [6, 7, 6, 7, 6, 6, 7, 6, 7, 6]
    assert len(divide(pieces, 64 * MEGA, 4)) == 12
    assert len(divide(pieces[:1], 64 * MEGA, 4)) == 1
    assert divide([], 64 * MEGA, 4) == ()


def test_small_files_of_a_directory_are_few_tasks() -> None:
    """To open one takes no request there: a thousand were sixteen tasks, which took more than the reading."""
    objects = [Piece(f"f{number}", 5000, "", None, 5000, ()) for number in range(1000)]
    here = StoreAddress(ObjectDiskConfig(url="file:///bucket/"))
    there = StoreAddress(ObjectDiskConfig(url="s3://bucket/prefix/"))
    assert len(divide((replace(one, store=there) for one in objects), 64 * MEGA, 2)) == 16
    assert len(divide((replace(one, store=here) for one in objects), 64 * MEGA, 2)) == 2
    assert len(divide((replace(one, path=f"/ssd/{one.label}") for one in objects), 64 * MEGA, 2)) == 2


def test_planning_without_a_condition_loads_no_query_engine() -> None:
    """Spark plans in a process of its own, and waits for what that imports."""
    code = "import sys, spark_tiering.changes.planning; print('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


@pytest.fixture
def bucket(tmp_path: Path) -> StoreAddress:
    store = StoreAddress(ObjectDiskConfig(url=f"{(tmp_path / 'bucket').as_uri()}/"))
    for number in range(7):
        store.open().put(f"k{number}", bytes([number]) * 10, sha256=_sha256(bytes([number]) * 10))
    return store


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_a_batch_says_what_is_wrong_with_which_file(bucket: StoreAddress) -> None:
    """I1."""
    good, bad = _sha256(b"\x01" * 10).hex(), _sha256(b"other").hex()
    rows = [("k1", 10, good), ("k1", 10, bad), ("gone", 10, good), ("k2", 11, "")]
    wanted = [Expected(FileRow(key, size, sha256, key, None, None, 1), sha256, None) for key, size, sha256 in rows]
    (batch,) = cut_batches(StoredFiles(bucket, "cold"), wanted, WorkSplit(1, 1, 1 << 20, 2))
    found = dict(read_batch(batch))
    assert set(found) == {1, 2, 3}
    assert "SHA-256" in found[1]
    assert "gone" in found[2]


def size_of(store: ObjectStore, key: str) -> int | None:
    try:
        return store.head(key).size_bytes
    except NotFound:
        return None


@pytest.mark.parametrize("each", [1, 3, 100])
def test_questions_are_answered_in_order_here_and_elsewhere(bucket: StoreAddress, each: int) -> None:
    keys = ["k3", "k1", "no", "k6", "k0", "k5", "k2"]
    count = RequestCount(bucket)
    found: list[list[Any]] = [
        ask(bucket.open(), size_of, keys, Askers(2, remote=remote), title="sizes", task=Silent(), each=each)
        for remote in (None, Remote(threads().hooked(count), bucket))
    ]
    assert found[0] == found[1] == [10, 10, None, 10, 10, 10, 10]
    assert count.requests["HEAD"] == len(keys)
    nothing: list[str] = []
    assert ask(bucket.open(), size_of, nothing, Askers(2), title="sizes", task=Silent()) == []


class Recorded(Silent):
    """A progress with one task."""

    what, items, done = "", 0, 0

    def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> Self:
        self.what, self.items = title, items or 0
        return self

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        self.done += items


def test_a_shown_runner_tells_how_far_it_is() -> None:
    recorded = Recorded()
    answers: dict[int, str] = {}
    threads().hooked(shown(recorded)).run(str, [7, 8, 9], title="listing disk cold", on_done=answers.__setitem__)
    assert answers == {0: "7", 1: "8", 2: "9"}
    assert (recorded.what, recorded.items, recorded.done) == ("listing disk cold", 3, 3)


def test_limits_are_divided_among_the_tasks() -> None:
    """What the user allows is allowed to all executors together."""
    runner = SimpleNamespace(
        slots=4, master="local[4]", figures=SimpleNamespace(tasks=3, retried_tasks=1, seconds=1.23456)
    )
    limits = LimitsConfig(bytes_per_second=8_000_000, requests_per_second=20)
    session: Any = SimpleNamespace(
        options=GlobalOptions(bwlimit="4000000", json=True),
        loaded=SimpleNamespace(config=SimpleNamespace(limits=limits)),
        output=Output(json=True),
        spark_runner=lambda app, master: runner,
    )
    work = SparkWork(session, "fsck", None)
    store = work.remote(ObjectDiskConfig(url="file:///nowhere/")).store
    assert isinstance(store, StoreAddress)
    assert (store.bytes_per_second, store.requests_per_second) == (1_000_000, 5)
    work.report()
    assert session.output.beside["spark"] == {
        "master": "local[4]",
        "tasks": 3,
        "retried_tasks": 1,
        "seconds": 1.235,
    }
    with pytest.raises(UsageError, match="--master"):
        wanted(False, "local[2]")
