"""Seeded mistakes in restoring, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TRANSFER = "tests/integration/test_transfer.py"
_HISTORY = "tests/property/test_restore_history.py"


def _copies_forgotten() -> None:
    from restore.transfer import transfer

    original = transfer.begin_copy_journal
    transfer.begin_copy_journal = lambda disk, source, fresh=False: original(disk, source, fresh=True)


def _copies_not_proved() -> None:
    from restore.transfer.blob_copies import BlobCopier

    BlobCopier._check = lambda self, rows: None  # type: ignore[method-assign]


def _bytes_not_compared() -> None:
    from msgspec.structs import replace

    from disks.workers.object_copier import ObjectCopier

    original = ObjectCopier._put

    def put(self: Any, wanted: Any, payload: Any, digest: bytes) -> str:
        return original(self, replace(wanted, sha256=""), payload, digest)

    ObjectCopier._put = put  # type: ignore[method-assign]


def _others_removed() -> None:
    from restore.transfer.changes import TransferChanges

    TransferChanges._is_of_a_table = lambda self, path: True  # type: ignore[method-assign]


def _pin_not_renewed() -> None:
    from restore.rebuild import held_revision as keeping

    keeping._renew = lambda held, stop, every: None


def _announcements_ignored() -> None:
    from restore.transfer import transfer

    transfer._is_going = lambda disk, copied: False


def _gone_is_final() -> None:
    from restore.transfer import transfer

    transfer._ATTEMPTS = 1


def _retention_one_short() -> None:
    from disks.garbage import live_references as evidence

    original = evidence.retained_from
    evidence.retained_from = lambda commits, **options: min(original(commits, **options) + 1, max(commits))


def _between_forgotten() -> None:
    """Blobs that came and went within the retention."""
    from disks.garbage import live_references as evidence

    evidence.named_blobs = lambda commit: set()
    from disks.object_disk import history

    history.named_blobs = lambda commit: set()


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "copies forgotten",
        "a killed restore does not know what it had copied",
        "test_transfer.py::test_dying_and_running_again[directory-100-7]",
        _copies_forgotten,
    ),
    (
        "copies not proved",
        "a copy counts because the store said so",
        f"{_TRANSFER}::test_a_copy_that_was_only_promised_is_found_out",
        _copies_not_proved,
    ),
    (
        "bytes not compared",
        "what was read from the source is not compared with its digest",
        f"{_TRANSFER}::test_changed_bytes_are_never_committed",
        _bytes_not_compared,
    ),
    (
        "others removed",
        "a restore from another bucket removes the tables that bucket does not know",
        f"{_TRANSFER}::test_a_table_becomes_that_of_the_source_and_others_stay",
        _others_removed,
    ),
    (
        "pin not renewed",
        "a restore that takes longer than its pin is not protected any more",
        "tests/integration/test_rebuild_hindered.py::test_a_restore_that_outlasts_its_pin_renews_it",
        _pin_not_renewed,
    ),
    (
        "announcements ignored",
        "copies are named that a collection is about to delete",
        f"{_TRANSFER}::test_copies_that_a_collection_has_announced_are_made_anew",
        _announcements_ignored,
    ),
    (
        "gone is final",
        "a restore does not plan anew when its source has moved on",
        f"{_TRANSFER}::test_a_source_that_collects_meanwhile_is_planned_anew",
        _gone_is_final,
    ),
    (
        "retention one short",
        "gc keeps one revision too few",
        f"{_HISTORY}::test_the_revision_that_the_retention_began_with_is_kept",
        _retention_one_short,
    ),
    (
        "between forgotten",
        "gc takes objects that only revisions between the oldest kept and the newest name",
        f"{_HISTORY}::test_what_came_and_went_within_the_retention_is_kept",
        _between_forgotten,
    ),
)
