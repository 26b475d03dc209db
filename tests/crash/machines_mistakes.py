"""Seeded mistakes in what several machines on one log rely on, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable

_END = "tests/unit/disks/object_disk/test_end_of_log.py"
_WRITERS = "tests/unit/disks/object_disk/test_object_disk_writers.py"
_LEASE = f"{_WRITERS}::test_a_writer_that_outslept_its_lease_acknowledges_nothing"
_FENCES = "tests/unit/disks/object_disk/test_fences.py"


def _end_not_proved() -> None:
    from oplog import log

    log.check_end = lambda store, revision, digest, listed, following: None


def _next_entry_believed() -> None:
    from itertools import islice

    from oplog import log
    from oplog.log_end import check_end

    log.check_end = lambda store, revision, digest, listed, read: check_end(
        store, revision, digest, islice(listed, 2), read
    )


def _place_believed() -> None:
    from oplog import log_end

    log_end._lies_there = lambda revision, digest, read: True


def _unproved_entries_settle() -> None:
    from disks.object_disk.commit_checks import CommitChecks

    check = CommitChecks.check
    CommitChecks.check = lambda self, head, fence, between, *, proved: check(  # type: ignore[method-assign]
        self, head, fence, between, proved=head
    )


def _uncounted_not_named() -> None:
    from restore.check import bucket

    bucket.check_uncounted = lambda disk, found, findings: None


def _overslept_not_named() -> None:
    from restore.check import bucket

    bucket.check_overslept = lambda disk, findings: None


def _no_word_of_oversleeping() -> None:
    from disks.object_disk.lease import Lease

    Lease._leave_word = lambda self, mine, key: None  # type: ignore[method-assign]


def _word_is_swept() -> None:
    from disks.object_disk.lease import Lease

    Lease._tells = lambda self, item: False  # type: ignore[method-assign]


def _merged_over_not_named() -> None:
    from restore.check.merged_over import MergedOver

    MergedOver.tell = lambda self, tree, findings: None  # type: ignore[method-assign]


def _nobody_waits() -> None:
    from disks.object_disk.turns import Turns

    Turns.ahead = 0  # type: ignore[method-assign, assignment]


def _any_size_received() -> None:
    from disks.stores import memory

    memory.check_received = lambda size_bytes: None


def _no_floor() -> None:
    from disks.garbage.collect import _Collection

    _Collection._put_floor = lambda self, floor: None  # type: ignore[method-assign]


def _floor_not_heeded() -> None:
    from oplog.log import OperationsLog

    OperationsLog.floor = lambda self: 0  # type: ignore[method-assign]


def _old_head_believed() -> None:
    from disks.object_disk import disk

    disk._YOUNG_HEAD_SECONDS = 1e12


def _clock_compared_late() -> None:
    from disks.garbage.collect import _Collection

    _Collection._compare_clocks = lambda self: None  # type: ignore[method-assign]


def _way_back_by_any_clock() -> None:
    from restore.rebuild import held_revision

    held_revision.clock_objection = lambda skew: None


def _no_fence() -> None:
    from disks.garbage.collect import _Collection

    _Collection._put_fences = lambda self, intent: None  # type: ignore[method-assign]


def _fence_not_heeded() -> None:
    from disks.object_disk import disk
    from disks.object_disk.following import UnprovedEntries

    disk.newest_fence = lambda view: 0  # type: ignore[assignment]
    UnprovedEntries.newest_fence = property(lambda self: 0)  # type: ignore[assignment,method-assign]


def _announcement_not_read() -> None:
    from disks.object_disk.commit_checks import CommitChecks

    CommitChecks._announced = lambda self: set()  # type: ignore[method-assign]


def _committed_to_any_state() -> None:
    from disks.object_disk.commit_checks import CommitChecks

    CommitChecks._check_untouched = lambda self, head, between, proved: None  # type: ignore[method-assign]


def _lease_not_looked_at() -> None:
    from disks.object_disk.lease import Lease

    Lease.check_held = lambda self, written: None  # type: ignore[method-assign]


def _last_entry_believed() -> None:
    from disks.object_disk.disk import ObjectDisk

    ObjectDisk._check_last = lambda self, revision, digest: None  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "end not proved",
        "a commit counts in the hole of a truncated log",
        f"{_END}::test_no_commit_is_acknowledged_in_a_truncated_log_s_hole",
        _end_not_proved,
    ),
    (
        "next entry believed",
        "a stray entry counts because another stray one was built on it",
        f"{_END}::test_a_stray_entry_built_on_by_another_stray_counts_for_none",
        _next_entry_believed,
    ),
    (
        "place believed",
        "another machine's stray entry in the place of one that counted has it made twice",
        f"{_END}::test_another_s_stray_entry_for_a_collected_one_is_no_proof",
        _place_believed,
    ),
    (
        "unproved entries settle",
        "an entry that was read and is none of the log's decides what a restore was worked out from",
        f"{_END}::test_work_from_a_state_is_not_put_behind_a_stray_entry",
        _unproved_entries_settle,
    ),
    (
        "uncounted entries not named",
        "fsck passes over what an older version acknowledged where the log had been collected",
        f"{_END}::test_a_bystander_s_fsck_names_an_older_version_s_hole_commit",
        _uncounted_not_named,
    ),
    (
        "nobody waits",
        "who commits without pause leaves nobody a turn",
        "tests/unit/disks/object_disk/test_turns.py::test_three_go_one_after_the_other",
        _nobody_waits,
    ),
    (
        "any size received",
        "an entry that was not listed takes whatever memory it wants",
        "tests/unit/oplog/test_oplog_log.py::test_an_entry_is_peeked_at_only_up_to_its_largest_size",
        _any_size_received,
    ),
    (
        "no floor",
        "a collection deletes entries and does not say from where on it keeps them",
        f"{_END}::test_the_hole_that_holds_a_stray_entry_is_told_and_collected",
        _no_floor,
    ),
    (
        "floor not heeded",
        "a reader takes a stray entry for damage",
        f"{_END}::test_leftovers_before_a_stray_entry_do_not_make_it_count",
        _floor_not_heeded,
    ),
    (
        "old head believed",
        "a store kept open for longer than the retention puts stray entries",
        f"{_END}::test_a_head_that_is_old_is_looked_at_before_a_commit",
        _old_head_believed,
    ),
    (
        "clock compared late",
        "gc ends a live pin by a clock that is two hours ahead",
        "tests/unit/disks/garbage/test_garbage_log.py::test_a_wrong_clock_ends_no_pin_or_notice_without_orphans",
        _clock_compared_late,
    ),
    (
        "way back by any clock",
        "a restore with a wrong clock takes a pin that others see end too early",
        "tests/integration/test_rebuild_hindered.py::test_no_way_back_begins_with_a_wrong_clock",
        _way_back_by_any_clock,
    ),
    (
        "no fence",
        "gc deletes what a commit that waited goes on to name",
        f"{_FENCES}::test_what_a_collection_is_about_to_delete_is_not_named",
        _no_fence,
    ),
    (
        "fence not heeded",
        "a commit that waited does not look at its objects again",
        f"{_FENCES}::test_a_commit_that_waited_does_not_name_collected_blobs",
        _fence_not_heeded,
    ),
    (
        "announcement not read",
        "a commit names what is still there and about to go",
        f"{_FENCES}::test_what_a_collection_is_about_to_delete_is_not_named",
        _announcement_not_read,
    ),
    (
        "committed to any state",
        "of two restores at once each takes away what the other brought",
        "tests/integration/test_ways_back_at_once.py::test_two_restores_at_once_end_in_one_of_the_two_states",
        _committed_to_any_state,
    ),
    (
        "overslept not named",
        "fsck of a bystander says nothing of an entry that was put after its writer's turn",
        f"{_LEASE}[the successor has let it go]",
        _overslept_not_named,
    ),
    (
        "no word of oversleeping",
        "a writer that outslept its lease tells nobody else",
        f"{_LEASE}[the successor has let it go]",
        _no_word_of_oversleeping,
    ),
    (
        "word is swept",
        "what a writer that outslept its lease told goes after a day",
        f"{_LEASE}[the successor has let it go]",
        _word_is_swept,
    ),
    (
        "merged over not named",
        "fsck of a bystander says nothing of a merge over a part that another machine has",
        "tests/integration/test_covered_by_sources.py::test_a_bystander_s_fsck_names_a_merge_over_parts_taken_away",
        _merged_over_not_named,
    ),
    (
        "lease not looked at",
        "a writer that outslept its lease acknowledges what it wrote over another's entry",
        f"{_LEASE}[the successor has let it go]",
        _lease_not_looked_at,
    ),
    (
        "last entry believed",
        "a commit is built on an entry that another machine wrote over",
        f"{_LEASE}[the successor has let it go]",
        _last_entry_believed,
    ),
)
