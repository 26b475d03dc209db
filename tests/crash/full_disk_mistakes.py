"""Seeded mistakes in what is done without room, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_CHECKS = "tests/hostile/test_full_disk.py"


def _reading_needs_the_file() -> None:
    from oplog.errors import NoSpace
    from tiering.journal import file

    def refuse(path: object) -> None:
        raise NoSpace(f"no space left for {path}")

    file.open_copy = refuse  # type: ignore[assignment]


def _log_left_out() -> None:
    """Only the file itself is copied."""
    from disks.host import database

    database._opened = lambda path: database._connected(path, "immutable=1")


def _locks_are_made() -> None:
    import os

    from disks.host import locks

    locks._open = lambda path: os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _one_record_more_each_pass() -> None:
    from tiering.move import mover

    mover.finish_earlier = lambda context, moves: (list(moves), [])


Mistake = tuple[str, str, str, Callable[[], Any]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "a reserve that is kept (I20)",
        "the reserve is not given up when the disk is full",
        f"{_CHECKS}::TestFull::test_parts_are_taken_off_by_hand_and_by_passes",
        replaced("disks.host.reserve:Reserve", "give_up", lambda self: False),
    ),
    (
        "a reserve that is not made again (I20)",
        "a reserve that was given up, or never made, stays missing",
        f"{_CHECKS}::TestFull::test_the_reserve_is_made_again_when_there_is_room",
        replaced("disks.host.reserve:Reserve", "make", nothing),
    ),
    (
        "reading needs the journal's file (I20)",
        "a journal that cannot be opened where it lies is not copied",
        f"{_CHECKS}::TestFull::test_reading_needs_no_room",
        _reading_needs_the_file,
    ),
    (
        "a copy without the log (I20)",
        "what a killed process committed and SQLite has not yet put into the file is not read",
        f"{_CHECKS}::TestWhileSomethingIsMissing::test_killed_before",
        _log_left_out,
    ),
    (
        "taken off before it is noted (I20)",
        "a part leaves the SSD though only a copy of the file table in memory has it",
        f"{_CHECKS}::test_a_part_leaves_only_when_its_arrival_is_noted",
        replaced("disks.object_disk.disk:ObjectDisk", "remember", nothing),
    ),
    (
        "a record more each pass (I20)",
        "a part that could not be taken off is planned anew by each pass",
        f"{_CHECKS}::TestFull::test_without_a_reserve_nothing_piles_up",
        _one_record_more_each_pass,
    ),
    (
        "locks on a read-only disk (I20)",
        "a lock file that cannot be created is an error",
        f"{_CHECKS}::TestReadOnly::test_reading_works",
        _locks_are_made,
    ),
)
