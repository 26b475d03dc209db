"""Seeded mistakes in gc and fsck, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from oplog.kinds import SetAside
from tests.crash.seeding import nothing, replaced

_GC = "tests/unit/disks/garbage/test_garbage.py"
_GARBAGE_LOG = "tests/unit/disks/garbage/test_garbage_log.py"
_GARBAGE_REFUSALS = "tests/unit/disks/garbage/test_garbage_refusals.py"
_CLICKHOUSE = "tests/unit/disks/garbage/test_clickhouse_garbage.py"
_FSCK = "tests/unit/restore/check/test_check.py"
_CHECK_REPAIRS = "tests/unit/restore/check/test_check_repairs.py"
_CHECK_PARTS = "tests/unit/restore/check/test_check_parts.py"
_SERVERS = "tests/integration/test_collecting.py"
_KINDS = "tests/unit/disks/test_kinds.py"
_REBUILD = "tests/integration/test_rebuild.py"
_REBUILD_HINDERED = "tests/integration/test_rebuild_hindered.py"
_PAST = "tests/property/test_past.py"
_KEPT_REVISIONS = "tests/property/test_kept_revisions.py"


def _delete_unread(self: Any, keys: Any, *, floor: int | None = None) -> list[str]:
    self._store.delete(keys)
    return list(keys)


def _no_others(self: Any, past: Any) -> None:
    expected = {row.path: row for row in past.rows()}
    if any(expected.get(row.path) != row for row in self.table.rows()):
        self.problem = "the local file table is not what the log says"


def _keys_without_shadow(self: Any) -> Iterator[str]:
    for row in self.file_table.rows():
        if not row.path.startswith("shadow/"):
            yield from (key for key, _ in row.blobs)


def _nothing_pending() -> None:
    from disks.garbage import collect as garbage

    original = garbage.classify

    def classify(blobs: Any, referenced: Any, *, head: int, now: Any, guard: Any) -> Any:
        return original(blobs, referenced, head=head, now=now, guard=timedelta(0))

    garbage.classify = classify


def _repair_removes() -> None:
    from restore.check import set_aside
    from tiering.table.paths import directory_of

    def remove(disk: Any, key: Any, target: str, reason: str, claim: Any, actor: str) -> None:
        with disk.transaction(SetAside()) as transaction:
            transaction.remove(directory_of(key[1], key[2]))
            transaction.commit()

    set_aside._rename = remove


def _log_in_any_order() -> None:
    from disks.garbage import collect as garbage

    original = garbage._Collection._delete_announced

    def delete(self: Any, keys: Any, *, floor: int | None = None) -> list[str]:
        return original(self, keys)

    garbage._Collection._delete_announced = delete  # type: ignore[method-assign, assignment]


def _one_path_a_blob(self: Any, key: str, by: int) -> None:
    if self._balance is not None:
        self._balance[key] = by


def _rows_without_digest() -> None:
    from disks.file_table.views import TableWriter
    from oplog.table_digest import TableDigest

    original = TableWriter.insert_stored

    def insert_stored(self: TableWriter, rows: Any, table_digest: str) -> None:
        original(self, rows, TableDigest().hex)

    TableWriter.insert_stored = insert_stored  # type: ignore[method-assign]


def _first_snapshot_only() -> None:
    from disks.garbage import live_references

    original = live_references.named_anew

    def named_anew(past: Any, found: Any, *, gone_on: bool) -> set[str]:
        return original(past, found, gone_on=gone_on or past.start > 1)

    live_references.named_anew = named_anew


Mistake = tuple[str, str, str, Callable[[], None]]

_GC_MISTAKES: tuple[Mistake, ...] = (
    (
        "attached without reading",
        "what a repair set aside is attached whatever its files are",
        "tests/unit/restore/history/test_partitions.py::test_what_a_repair_set_aside_is_attached_again[s3]",
        replaced("restore.history.partitions", "fault_in_files", nothing),
    ),
    (
        "live objects not looked for (P25)",
        "gc does not ask whether the listing shows what the table names",
        f"{_GARBAGE_REFUSALS}::test_a_listing_twice_without_a_live_object_stops_everything",
        replaced("disks.garbage.live_references", "_check_present", nothing),
    ),
    (
        "every name is ours (P26)",
        "gc takes foreign names for blobs",
        f"{_GC}::test_foreign_names_are_reported_and_survive",
        replaced(
            "disks.object_disk.references", "is_blob_key", lambda key: "/" not in key and key != ".SCHEMA_VERSION"
        ),
    ),
    (
        "no class of pending objects (P27)",
        "gc knows two classes",
        f"{_GC}::test_young_orphans_are_pending",
        _nothing_pending,
    ),
    (
        "no floor (P28)",
        "any guard interval will do",
        f"{_GARBAGE_REFUSALS}::test_the_guard_has_a_floor",
        replaced("disks.garbage.collect", "GUARD_FLOOR_SECONDS", 0),
    ),
    (
        "one listing is enough (P29)",
        "the second listing is not compared",
        f"{_GARBAGE_REFUSALS}::test_listings_that_disagree_stop_everything",
        replaced("disks.garbage.listing", "disagreement", nothing),
    ),
    (
        "the end of the log is believed (P29)",
        "gc does not ask for the next entry by name",
        f"{_GARBAGE_REFUSALS}::test_a_hidden_next_entry_stops_everything",
        replaced("disks.garbage.live_references", "ends_at", lambda disk, head: True),
    ),
    (
        "answers not read (P30)",
        "what a batch delete answers for each key is not looked at",
        f"{_GC}::test_errors_for_every_seventh_key_lose_nothing",
        replaced("disks.garbage.collect:_Collection", "_delete_announced", _delete_unread),
    ),
    (
        "log deleted past an error (P30)",
        "entries go although an older one stays",
        f"{_GARBAGE_LOG}::test_a_log_entry_that_stays_ends_the_deletion_of_the_log",
        _log_in_any_order,
    ),
    (
        "quarantine ignored (P31)",
        "gc deletes what it announces",
        f"{_GC}::test_a_quarantine_deletes_only_what_an_earlier_run_announced",
        replaced("disks.garbage.collect", "out_of_quarantine", lambda orphaned, *others: list(orphaned)),
    ),
    (
        "lists kept for ever (P31)",
        "the lists of condemned objects stay when nothing of them is left",
        f"{_GC}::test_a_quarantine_deletes_only_what_an_earlier_run_announced",
        replaced("disks.garbage.announcements:Announced", "forget", nothing),
    ),
    (
        "a bucket's root accepted (P32)",
        "a disk without a prefix is collected",
        f"{_GARBAGE_REFUSALS}::test_a_disk_without_a_prefix_is_not_collected",
        replaced("disks.garbage.collect", "is_root", lambda name: False),
    ),
    (
        "pins not honoured (P33)",
        "gc takes every pin for one that ran out",
        f"{_GARBAGE_LOG}::test_a_pin_keeps_its_revision",
        replaced("disks.garbage.live_references", "is_live", lambda pin, now: False),
    ),
    (
        "a removal counts for all links",
        "gc takes a blob for unnamed at a pinned revision when one of its paths was removed before",
        f"{_KEPT_REVISIONS}::test_together_they_name_what_each_names",
        replaced("disks.file_table.views:TableWriter", "_count", _one_path_a_blob),
    ),
    (
        "a later pass is not looked through",
        "gc counts of a snapshot that it begins anew from only what comes after it",
        f"{_KEPT_REVISIONS}::test_together_they_name_what_each_names",
        _first_snapshot_only,
    ),
    (
        "snapshots believed unread",
        "log entries go for a snapshot that nobody has read",
        f"{_GARBAGE_LOG}::test_entries_go_only_behind_a_snapshot_that_was_read",
        replaced("disks.garbage.collect:_Collection", "_prove_snapshots", nothing),
    ),
    (
        "versions overlooked (P34)",
        "the report says nothing of old versions",
        f"{_GC}::test_old_versions_are_counted_and_never_touched",
        replaced("disks.garbage.collect:_Collection", "_look_at_versions", nothing),
    ),
    (
        "uploads overlooked (P35)",
        "unfinished uploads stay for ever",
        f"{_SERVERS}::test_an_upload_that_was_killed_in_its_third_part[ministack]",
        replaced("disks.garbage.collect:_Collection", "_old_uploads", lambda self: []),
    ),
    (
        "announcements never swept (P36)",
        "what a killed collection announced stays for ever",
        f"{_SERVERS}::test_all_that_killed_writers_left_in_the_bucket_goes[ministack]",
        replaced("disks.garbage.collect", "remove_stale", nothing),
    ),
    (
        "frozen files forgotten",
        "gc of ClickHouse's log does not count what lies below shadow/",
        f"{_CLICKHOUSE}::test_what_the_table_names_stays_and_operations_are_untouched",
        replaced("disks.clickhouse.disk:ClickHouseDisk", "kept_keys", _keys_without_shadow),
    ),
    (
        "doubt forgotten",
        "gc of ClickHouse's log trusts a table that was taken over a moment ago",
        f"{_CLICKHOUSE}::test_an_adopted_table_proves_nothing_until_retention_ends",
        replaced("disks.garbage.clickhouse", "_check_table", nothing),
    ),
)

_FSCK_MISTAKES: tuple[Mistake, ...] = (
    (
        "a wrapper is no disk with log",
        "a disk in a wrapper is passed over by what needs its log: it looks like a clean one",
        f"{_KINDS}::test_a_wrapper_is_of_the_kinds_of_its_inner_disk",
        replaced("disks.kinds", "WrappedDisk", int),
    ),
    (
        "the log of the inner disk",
        "what needs the log of a disk gets the disk in the wrapper, and reads past the wrapper",
        f"{_KINDS}::test_the_methods_of_a_wrapper_come_first",
        replaced("disks.wrappers.wrapped:WrappedDisk", "view", property(lambda self: self.inner)),
    ),
    (
        "rebuild without the digest",
        "rows of a rebuilt table are written, and the digest beside them is that of none",
        f"{_REBUILD}::test_what_is_rebuilt_is_what_was_kept_row_by_row",
        _rows_without_digest,
    ),
    (
        "objects noted while the cache was read stay away",
        "a rebuild compares nothing with the listing, and says that no object is lost",
        f"{_REBUILD_HINDERED}::test_a_lost_object_does_not_stop_the_cache_from_coming_back",
        replaced("disks.file_table.blobs_by_key:BlobsByKey", "_note", nothing),
    ),
    (
        "objects of another size are no loss where others list",
        "a rebuild takes only what is missing for lost, not what was cut off",
        f"{_REBUILD}::test_others_list_and_the_same_is_rebuilt",
        replaced("disks.garbage.listing:ComparedBlobs", "doubtful", ()),
    ),
    (
        "fsck blind for I1",
        "a part on two disks is no problem",
        f"{_CHECK_PARTS}::test_a_part_on_two_disks_unless_it_is_being_moved",
        replaced("restore.check.check", "check_copies", nothing),
    ),
    (
        "fsck blind for I2",
        "overlapping parts are no problem",
        f"{_CHECK_PARTS}::test_parts_that_overlap_across_disks",
        replaced("restore.check.copies", "_overlaps", lambda active: iter(list(active)[:0])),
    ),
    (
        "fsck blind for I3",
        "the table is not compared with the listing",
        f"{_FSCK}::test_an_object_deleted_behind_our_back",
        replaced("restore.check.bucket:BucketTree", "_check_blobs", nothing),
    ),
    (
        "fsck blind for I4",
        "retained revisions are not looked at",
        f"{_FSCK}::test_a_lost_object_that_only_a_retained_revision_names",
        replaced("restore.check.bucket", "still_kept", lambda disk, inventory, lost: ()),
    ),
    (
        "fsck blind for I5",
        "announcements are not looked at",
        f"{_FSCK}::test_announcements_that_cannot_be_right",
        replaced("restore.check.bucket", "announced", lambda disk, *, now: set()),
    ),
    (
        "fsck blind for I6",
        "gaps in the log are not looked for",
        f"{_FSCK}::test_a_gap_before_a_young_snapshot_is_still_a_gap",
        replaced("restore.check.bucket", "check_gaps", nothing),
    ),
    (
        "fsck blind for I7",
        "the cache is not compared with the log",
        f"{_FSCK}::test_a_cache_that_contradicts_the_log_is_seen_and_repaired",
        replaced("restore.check.cache:CachedTable", "compare", nothing),
    ),
    (
        "half the cache",
        "the cache is what the log says when it holds no other files",
        f"{_FSCK}::test_a_file_more_or_less_in_the_cache_counts",
        replaced("restore.check.cache:CachedTable", "compare", _no_others),
    ),
    (
        "the snapshot covers the log",
        "what a later entry removes stays, if a snapshot has it",
        f"{_PAST}::test_from_any_snapshot_the_log_leads_to_the_same_tables",
        replaced("disks.file_table.sorted_run:SortedRun", "take", lambda self, path: self.take_file(path)),
    ),
    (
        "a file may be made twice",
        "a file that an entry creates again is not looked for in the snapshot",
        f"{_PAST}::test_from_any_snapshot_the_log_leads_to_the_same_tables",
        replaced("disks.file_table.sorted_run:SortedRun", "take_file", lambda self, path: []),
    ),
    (
        "fsck blind for I8",
        "links are not counted",
        f"{_FSCK}::test_an_object_of_two_paths_that_is_gone",
        replaced("restore.check.bucket", "Counter", lambda keys: Counter()),
    ),
    (
        "fsck blind for I12",
        "nobody misses a pin that a backup counts on",
        "tests/integration/test_counted_pins.py::test_a_pin_that_is_gone_is_missed",
        replaced("backup.verbs.counted_pins", "counted_pins", lambda config, limiter=None: {}),
    ),
    (
        "data read and not compared",
        "fsck reads every byte and compares nothing",
        f"{_FSCK}::test_a_flipped_bit_is_found_by_reading_only",
        replaced("restore.check.data", "_fault_in", nothing),
    ),
    (
        "always the same share",
        "each run reads the first share",
        f"{_FSCK}::test_shares_are_drawn_until_everything_was_read",
        replaced("restore.check.check", "choose", lambda *arguments: 1),
    ),
    (
        "a short listing believed",
        "a repair does not ask for the objects that a listing lacks",
        f"{_CHECK_REPAIRS}::test_a_repair_believes_no_short_listing",
        replaced("restore.check.bucket:BucketTree", "_size", nothing),
    ),
    (
        "repair deletes",
        "a part that cannot be read is removed, not set aside",
        "test_repair.py::test_killed_at_every_effect_of_a_repair",
        _repair_removes,
    ),
)

MISTAKES: tuple[Mistake, ...] = (*_GC_MISTAKES, *_FSCK_MISTAKES)
