"""Seeded mistakes in listings, reads and copies that others make, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.crash.seeding import nothing, replaced

_LISTING = "tests/unit/disks/garbage/test_listing.py"
_REMOTE_COPYING = "tests/unit/restore/transfer/test_remote_copying.py"


def _what_is_not_missing_is_there(self: Any, table: Any) -> set[str]:
    return {key for key, size in table.blobs() if key in self.missing}


def _expected_is_named(self: Any, referenced: Any) -> Iterator[Any]:
    return iter(self._unexpected)


def _any_key(wanted: Any) -> Iterator[Any]:
    return wanted.store.open().list(start_after=wanted.after)


def _own_newest(blobs: Any, found: Any) -> str | None:
    from disks.object_disk.references import late

    return next((one.disagreement or late(one.appeared, one.newest) for one in found), None)


def _gap_between_ranges() -> None:
    from disks.garbage import collect as garbage
    from disks.garbage import listing
    from restore.check import listing as check_listing

    original = listing.cut_ranges

    def cut(store: Any, expected: Any, **options: Any) -> Iterator[Any]:
        for number, one in enumerate(original(store, expected, **(cut.__kwdefaults__ | options))):
            if number != 2:
                yield one

    cut.__kwdefaults__ = dict(original.__kwdefaults__ or {})
    for module in (listing, garbage, check_listing):
        vars(module)["cut_ranges"] = cut


def _last_size_counts(table: Any) -> Iterator[Any]:
    return iter(sorted({key: size for key, size, _ in table.blobs_by_key()}.items()))


def _unexpected_is_there(self: Any, keys: Any) -> dict[str, int]:
    return {key: self._unexpected.size_of(key) or 1 for key in keys if key not in self.missing}


def _copies_of_others_forgotten() -> None:
    from restore.transfer import blob_copies

    original = blob_copies.CopyBatch
    blob_copies.CopyBatch = lambda target, source, attempt, there, rows: original(  # type: ignore[assignment, misc]
        target, source, attempt, {}, rows
    )


Mistake = tuple[str, str, str, Callable[[], None]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "ranges: all is there (P25)",
        "what no range called missing counts as listed, expected or not",
        f"{_LISTING}::test_what_no_range_shows_of_another_s_writes_stops_all",
        replaced("disks.garbage.listing:ComparedBlobs", "lacking", _what_is_not_missing_is_there),
    ),
    (
        "ranges: unexpected is unnamed (P25)",
        "gc takes for garbage whatever the ranges did not expect",
        f"{_LISTING}::test_young_garbage_and_pinned_revisions_stay",
        replaced("disks.garbage.listing:ComparedBlobs", "outside", _expected_is_named),
    ),
    (
        "ranges: one listing is enough (P29)",
        "that two listings of a range differ is not told",
        f"{_LISTING}::test_listings_of_a_range_that_disagree_are_told",
        replaced("disks.garbage.listing", "_disagreement", nothing),
    ),
    (
        "ranges: each its own clock (P29)",
        "what appears in a range is compared with the times of that range only",
        f"{_LISTING}::test_listings_of_a_range_that_disagree_are_told",
        replaced("disks.garbage.listing", "_disagreement", _own_newest),
    ),
    (
        "ranges: any key will do",
        "keys outside of the range are taken for its own",
        f"{_LISTING}::test_ranges_say_what_a_whole_listing_says",
        replaced("disks.garbage.listing", "_listed", _any_key),
    ),
    (
        "ranges: a gap",
        "one range is not listed",
        f"{_LISTING}::test_a_check_over_ranges_finds_the_same",
        _gap_between_ranges,
    ),
    (
        "ranges: sizes forgotten",
        "of a blob with two sizes the last is expected",
        f"{_LISTING}::test_of_a_blob_with_several_sizes_none_is_expected",
        replaced("disks.garbage.listing", "in_key_order", _last_size_counts),
    ),
    (
        "ranges: retention not expected",
        "what was removed within the retention counts as listed, since nobody expected it",
        f"{_LISTING}::test_what_was_there_when_the_retention_began_is_looked_for",
        replaced("disks.garbage.listing:ComparedBlobs", "sizes", _unexpected_is_there),
    ),
    (
        "work is not stopped",
        "a listing that nobody waits for any more is made to its end",
        f"{_LISTING}::test_work_in_a_pool_can_be_stopped",
        replaced("disks.workers.runner", "check_stop", nothing),
    ),
    (
        "others read and compare nothing",
        "a batch is read, and no fault in it told",
        f"{_LISTING}::test_data_that_others_read_is_found_to_be_altered",
        replaced("restore.check.data", "read_batch", lambda batch: []),
    ),
    (
        "copies of others forgotten",
        "executors copy again what an interrupted restore had copied",
        f"{_REMOTE_COPYING}::test_a_restore_whose_executors_went_away_goes_on",
        _copies_of_others_forgotten,
    ),
    (
        "copies of others not proved",
        "a store that copies nothing is believed",
        f"{_REMOTE_COPYING}::test_copies_that_were_not_made_are_noticed",
        replaced("restore.transfer.blob_copies:BlobCopier", "_check", nothing),
    ),
)
