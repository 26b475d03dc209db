"""The read cache: what it keeps, what it lets go, and that nothing it has is believed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path

import pytest

from disks import effects
from disks.host.locks import file_lock
from oplog.errors import Damaged, NoSpace
from tests.unit.tiering.parquet.cached_files import CHUNK_BYTES, Remote, kept_files, used_bytes
from tiering.parquet import read_cache
from tiering.parquet.read_cache import AGAIN, ONCE, ReadCache

ROOM = 1 << 20
"""Four files of the tests fit, with what their file system needs beside."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    effects.set_hook(None)


def cache_at(place: Path, max_bytes: int = 64 * ROOM) -> ReadCache:
    return ReadCache(place, max_bytes)


def used_in_order(place: Path, *remotes: Remote) -> None:
    """As if they had been read one after the other, whatever the clock of the file system tells apart."""
    for second, remote in enumerate(remotes, 1_000_000):
        key = cache_at(place).file("s3", remote.file.name, remote.file.sha256).key
        for folder in (ONCE, AGAIN):
            if (place / folder / key).exists():
                os.utime(place / folder / key, (second, second))


def is_kept(place: Path, remote: Remote, folder: str) -> bool:
    return (place / folder / cache_at(place).file("s3", remote.file.name, remote.file.sha256).key).exists()


def test_a_second_query_asks_for_nothing(place: Path) -> None:
    remote = Remote("a")
    assert remote.read(cache_at(place)) == remote.data
    assert remote.asked
    assert remote.read(cache_at(place)) == remote.data
    assert not remote.asked


def test_of_a_file_only_what_is_absent_is_asked_for(place: Path) -> None:
    remote = Remote("a")
    remote.read(cache_at(place), *remote.chunk(1))
    assert remote.read(cache_at(place)) == remote.data
    assert [(one.start, one.stop) for one in remote.asked] == [
        (0, remote.starts[1]),
        (remote.starts[2], len(remote.data)),
    ]
    assert used_bytes(place) < len(remote.data) + 4 * 4096


def test_a_hole_is_no_data(place: Path) -> None:
    """The file is as long as the whole, and holds one chunk."""
    remote = Remote("a")
    remote.read(cache_at(place), remote.starts[3], len(remote.data))
    (kept,) = kept_files(place)
    assert kept.stat().st_size == len(remote.data)
    assert remote.read(cache_at(place), *remote.chunk(0)) == remote.data[slice(*remote.chunk(0))]
    assert len(remote.asked) == 1


@pytest.mark.parametrize("harm", ["flip", "zeros", "short", "empty", "another", "link", "directory"])
def test_nothing_kept_is_believed(place: Path, harm: str) -> None:
    """A flipped bit, what a power cut leaves, another file: fetched again, and right from then on."""
    remote, other = Remote("a"), Remote("b")
    remote.read(cache_at(place))
    (kept,) = kept_files(place)
    data = bytearray(remote.data)
    data[remote.starts[2] + 17] ^= 4
    kept.unlink()
    if harm == "directory":
        kept.mkdir()
    elif harm == "link":
        (place.parent / "elsewhere").write_bytes(remote.data)
        kept.symlink_to(place.parent / "elsewhere")
    else:
        kept.write_bytes(
            {
                "flip": bytes(data),
                "zeros": bytes(len(remote.data)),
                "short": remote.data[: remote.starts[1] + 5],
                "empty": b"",
                "another": other.data,
            }[harm]
        )
    assert remote.read(cache_at(place)) == remote.data
    assert remote.asked
    assert remote.read(cache_at(place)) == remote.data
    if harm in ("flip", "zeros", "short", "empty", "another"):
        assert not remote.asked


def test_what_the_bucket_has_wrong_is_not_kept(place: Path) -> None:
    remote = Remote("a")
    right = remote.data
    remote.data = right[: remote.starts[1]] + bytes(CHUNK_BYTES) + right[remote.starts[2] :]
    with pytest.raises(Damaged):
        remote.read(cache_at(place))
    remote.data = right
    assert remote.read(cache_at(place)) == right


def test_files_are_told_apart_by_where_they_lie(place: Path) -> None:
    """A bucket that says of its file that it is another's cannot put bytes under that."""
    cache = cache_at(place)
    keys = {
        cache.file(*identity).key
        for identity in [("s3", "a", "d"), ("s3", "b", "d"), ("s4", "a", "d"), ("s3a", "", "d")]
    }
    assert len(keys) == 4
    assert cache.file("../../x", "/etc/passwd", "..").key.isalnum()


def test_the_limit_holds_at_every_moment(place: Path) -> None:
    over: list[int] = []

    def look(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if name == "fs.write" and used_bytes(place) > ROOM:
            over.append(used_bytes(place))

    effects.set_hook(look)
    for number in range(20):
        remote = Remote(f"{number}")
        assert remote.read(cache_at(place, ROOM)) == remote.data
    assert not over
    assert used_bytes(place) > ROOM // 2


def test_what_is_larger_than_the_cache_is_not_kept(place: Path) -> None:
    remote = Remote("a", chunks=20)
    assert remote.read(cache_at(place, ROOM)) == remote.data
    assert used_bytes(place) == 0


def test_the_limit_holds_though_the_number_was_lost(place: Path) -> None:
    """As after a power cut: bytes are there that nobody counted."""
    for number in range(3):
        Remote(f"{number}").read(cache_at(place, ROOM))
    for left in (None, b"torn"):
        figures = place / "figures"
        figures.unlink() if left is None else figures.write_bytes(left)
        for number in range(3, 6):
            Remote(f"{number}").read(cache_at(place, ROOM))
            assert used_bytes(place) <= ROOM


def test_the_longest_unread_goes_first(place: Path) -> None:
    remotes = [Remote(f"{number}", chunks=3) for number in range(4)] + [Remote("long", chunks=6)]
    for remote in remotes[:4]:
        remote.read(cache_at(place, ROOM))
    used_in_order(place, remotes[1], remotes[0], remotes[3], remotes[2])
    remotes[4].read(cache_at(place, ROOM))
    assert not is_kept(place, remotes[1], ONCE)
    assert all(is_kept(place, remote, ONCE) for remote in (remotes[3], remotes[2], remotes[4]))


def test_a_scan_does_not_empty_it(place: Path) -> None:
    wanted = [Remote("a"), Remote("b")]
    for _ in range(2):
        for remote in wanted:
            remote.read(cache_at(place, ROOM))
    scan = cache_at(place, ROOM)
    for number in range(30):
        scanned = Remote(f"{number}")
        for chunk in range(4):  # a scan comes back to a file, in one query
            assert scanned.opened(scan).pieces(*scanned.chunk(chunk))
    for remote in wanted:
        assert remote.read(cache_at(place, ROOM)) == remote.data
        assert not remote.asked


def test_what_was_read_often_once_makes_room(place: Path) -> None:
    """Rows of last year do not keep those of this year out."""
    for number in range(14):
        for _ in range(2):
            Remote(f"old {number}").read(cache_at(place, 3 * ROOM))
    fresh = [Remote("fresh"), Remote("too")]
    for _ in range(2):
        for remote in fresh:
            remote.read(cache_at(place, 3 * ROOM))
    assert all(is_kept(place, remote, AGAIN) for remote in fresh)
    assert used_bytes(place) <= 3 * ROOM


def test_hits_are_counted_over_queries(place: Path) -> None:
    remote = Remote("a")
    for _ in range(4):
        cache = cache_at(place)
        remote.read(cache)
        cache.close()
    figures = cache_at(place).figures()
    assert (figures.missed_bytes, figures.hit_bytes) == (len(remote.data), 3 * len(remote.data))
    assert figures.hit_rate == 0.75
    assert (figures.files, figures.bytes, figures.again_bytes) == (1, used_bytes(place), used_bytes(place))


def test_dropped_it_is_as_new(place: Path) -> None:
    remote = Remote("a")
    cache = cache_at(place)
    remote.read(cache)
    opened = remote.opened(cache)
    cache_at(place).drop()
    assert kept_files(place) == []
    assert b"".join(opened.pieces(0, len(remote.data))) == remote.data
    assert cache_at(place).figures().hit_rate is None
    cache_at(place.parent / "nowhere").drop()
    assert not (place.parent / "nowhere").exists()


def test_a_full_disk_fails_no_query(place: Path) -> None:
    remote = Remote("a")

    def full(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "fs.write":
            raise OSError(ENOSPC, "no space")

    effects.set_hook(full)
    cache = cache_at(place)
    assert remote.read(cache) == remote.data
    assert isinstance(cache.failure, NoSpace)
    effects.set_hook(None)
    assert remote.read(cache_at(place)) == remote.data
    assert remote.read(cache_at(place)) == remote.data
    assert not remote.asked


def test_a_place_that_is_no_directory_fails_no_query(place: Path) -> None:
    place.write_text("in the way")
    remote = Remote("a")
    cache = cache_at(place)
    assert remote.read(cache) == remote.data
    assert remote.read(cache) == remote.data
    cache.close()


def test_who_holds_the_lock_holds_no_query_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_cache, "_WAIT_SECONDS", 0)
    remote = Remote("a")
    place.mkdir()
    with file_lock(place / "lock"):
        cache = cache_at(place)
        for _ in range(6):
            assert remote.read(cache) == remote.data
        cache.close()
    assert kept_files(place) == []
    assert remote.read(cache_at(place)) == remote.data
    assert len(kept_files(place)) == 1


def _read_many(place: Path, seed: int) -> None:
    for number in range(12):
        remote = Remote(f"{(number * (seed + 1)) % 9}")
        cache = cache_at(place, ROOM)
        if remote.read(cache) != remote.data:
            os._exit(3)
        cache.close()
        if seed == 0 and number == 6:
            cache_at(place, ROOM).drop()


def test_processes_share_it(place: Path) -> None:
    """They read, let go and drop at once: right answers, and the limit holds."""
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=_read_many, args=(place, seed)) for seed in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    assert [one.exitcode for one in running] == [0] * 4
    assert used_bytes(place) <= ROOM
