"""Seeded mistakes of the read cache, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_UNITS = "tests/unit/tiering/parquet/test_read_cache.py"
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

    def keep(self: Any, key: str, start: int, data: memoryview, folder: str, _keep: Any = ReadCache.keep) -> None:
        _keep(self, key, start, data, folder)
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
