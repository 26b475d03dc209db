"""Seeded mistakes of the read cache, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_UNITS = "tests/unit/tiering/parquet/test_read_cache.py"
_OPENED = "tests/integration/test_cached_files.py"
_KILLED = "tests/crash/test_read_cache.py::test_stopped_at_every_effect"
_CACHE = "tiering.parquet.read_cache:ReadCache"


def _room_made_later() -> None:
    """What does not fit is let go after the bytes are there."""
    from tiering.parquet.read_cache import ReadCache

    original, make_room = ReadCache._keep, ReadCache._make_room

    def keep(self: Any, key: str, start: int, data: memoryview, folder: str) -> None:
        original(self, key, start, data, folder)
        make_room(self, 0)

    ReadCache._keep = keep  # type: ignore[method-assign]
    ReadCache._make_room = lambda self, needed: 0  # type: ignore[method-assign]


def _own_reads_count() -> None:
    """A file counts as read again by the query that brought it."""
    from tiering.parquet.read_cache import ReadCache

    original = ReadCache.use

    def keep(
        self: Any, key: str, start: int, data: memoryview, folder: str, *, _keep: Any = ReadCache.keep, **more: Any
    ) -> None:
        _keep(self, key, start, data, folder, **more)
        self._ours.discard(key)
        original(self, key, 0)

    ReadCache.keep = keep  # type: ignore[method-assign]


def _number_believed() -> None:
    """The number of bytes that was noted is taken for true after a power cut."""
    from tiering.parquet.read_cache import ReadCache

    original = ReadCache.__init__

    def begin(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._is_counted = True

    ReadCache.__init__ = begin  # type: ignore[method-assign]


def _one_name_for_all() -> None:
    """Files are told apart by their digests alone, which a bucket says of itself."""
    from tiering.parquet.read_cache import ReadCache

    original = ReadCache.file
    ReadCache.file = lambda self, *identity, **more: original(self, identity[-1], **more)  # type: ignore[method-assign]


def _kept_by_name() -> None:
    """The engine is given the name in the cache, which may be another file by then."""
    from tiering.query.sql.cached_files import CachedFiles

    link = CachedFiles._link

    def named(self: Any, file: Any, cached: Any, read: Any) -> None:
        link(self, file, cached, read)
        found = self._held[id(file)].link
        place = found.resolve()
        found.unlink()
        found.symlink_to(place)

    CachedFiles._link = named  # type: ignore[method-assign]


def _holes_kept() -> None:
    """A file that is there is taken for whole."""
    from tiering.query.sql import cached_files

    cached_files._is_filled = lambda descriptor, read: True
    cached_files.which_are_whole = lambda reads: [True] * len(reads)


Mistake = tuple[str, str, str, Callable[[], None]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "cache: believed",
        "a hole in a kept file, or a bit turned over there, is taken for data",
        f"{_UNITS}::test_a_hole_is_no_data",
        replaced("tiering.parquet.checked_file", "_is", lambda *arguments: True),
    ),
    (
        "cache: believed after a crash",
        "what a power cut left is taken for data",
        f"{_KILLED}[kill]",
        replaced("tiering.parquet.checked_file", "_is", lambda *arguments: True),
    ),
    (
        "cache: opened unseen",
        "the engine opens a file that is kept in part",
        f"{_OPENED}::test_what_is_not_what_was_written_is_fetched[hole]",
        _holes_kept,
    ),
    (
        "cache: opened by its name",
        "the engine opens what came there after the comparison",
        f"{_OPENED}::test_a_file_that_has_to_go_meanwhile_is_read_to_its_end[another]",
        _kept_by_name,
    ),
    (
        "cache: never opened",
        "what is kept is served as if it were not",
        f"{_OPENED}::test_what_is_kept_the_engine_opens",
        replaced("tiering.query.sql.cached_files:CachedFiles", "hold", nothing),
    ),
    (
        "cache: limit held later",
        "the limit holds after the write only",
        f"{_UNITS}::test_the_limit_holds_at_every_moment",
        _room_made_later,
    ),
    (
        "cache: limit on trust",
        "bytes that were there before a power cut do not count",
        f"{_UNITS}::test_the_limit_holds_though_the_number_was_lost",
        _number_believed,
    ),
    (
        "cache: emptied by a scan",
        "nothing counts as read again",
        f"{_UNITS}::test_a_scan_does_not_empty_it",
        replaced(_CACHE, "use", nothing),
    ),
    (
        "cache: a scan counts twice",
        "what one query brings and reads counts as read again",
        f"{_UNITS}::test_a_scan_does_not_empty_it",
        _own_reads_count,
    ),
    (
        "cache: full of the past",
        "what was read again once stays for ever",
        f"{_UNITS}::test_what_was_read_often_once_makes_room",
        replaced("tiering.parquet.read_cache", "_AGAIN_SHARE", 2),
    ),
    (
        "cache: one name for all",
        "a bucket that says of its file that it is another's puts bytes under that",
        f"{_UNITS}::test_files_are_told_apart_by_where_they_lie",
        _one_name_for_all,
    ),
    (
        "cache: drops nothing",
        "what is dropped is there still",
        f"{_UNITS}::test_dropped_it_is_as_new",
        replaced(_CACHE, "drop", nothing),
    ),
)
