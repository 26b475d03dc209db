"""Seeded mistakes in who says which tables and parts there are, for `tests.crash.mutants`: name, meaning, check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oplog.errors import NotFound
from tests.crash.seeding import nothing, replaced

_CHECKS = "tests/integration/test_definitions_hold.py"
_RENAME = "tests/integration/test_table_rename.py"
_BACK = "tests/integration/test_ways_back.py"
_UNREADABLE = "tests/integration/test_unreadable_tables.py"
_COVERS = "tests/integration/test_covered_by_sources.py"


def _nothing_settled(*arguments: Any, **options: Any) -> Any:
    from restore.rebuild.definitions import SettledDefinition

    return SettledDefinition()


def _old_version(old: Any, newest: Any) -> Any:
    return old


def _nothing_lost(*arguments: Any) -> set[str]:
    return set()


def _nowhere(part: Any, staying: Any) -> None:
    """No row is there already."""


def _always(*arguments: Any) -> bool:
    return True


def _written(document: Any, value: Any) -> bytes:
    return document._write(value)


def _snapshot_written(revision: int, digest: str, rows: Any) -> bytes:
    from oplog import snapshot
    from oplog.entry import now

    return snapshot._write(snapshot.SnapshotHeader(revision=revision, digest=digest, time=now()), rows)


def _itself(definition: Any) -> Any:
    return definition


def _hidden(disks: Any, uuid: str) -> Any:
    raise NotFound(f"No such table: {uuid}", hint="it is being dropped")


def _copy_believed(disk: Any, snapshot: Any, definition: Any, known: Any) -> None:
    snapshot.copies[definition.uuid].add(disk.name)


def _never(*arguments: Any) -> str:
    return ""


Mistake = tuple[str, str, str, Callable[[], Any]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "no tombstone (I17)",
        "a drop leaves nothing in the bucket that says so",
        f"{_CHECKS}::test_a_drop_holds_on_a_machine_that_has_the_table_on_its_ssd",
        replaced("tiering.table.tombstones", "encode", nothing),
    ),
    (
        "tombstones not read (I17)",
        "a definition that a bucket lacks was not copied there yet, whatever the reason",
        f"{_CHECKS}::test_a_restore_to_before_a_table_keeps_what_only_an_ssd_has",
        replaced("tiering.catalog.definitions.table_snapshot", "existing", lambda disk, paths: ()),
    ),
    (
        "a restored table.json as it was (I17)",
        "a restore puts back the bytes of then, and the newer version on the SSD wins",
        f"{_CHECKS}::test_a_restore_across_an_alter_brings_the_schema_back",
        replaced("restore.rebuild.rebuild", "settle", _nothing_settled),
    ),
    (
        "an undone drop in its old version (I17)",
        "the tombstone on another disk is as new as the table that came back",
        f"{_CHECKS}::test_a_table_dropped_on_two_object_disks_comes_back_on_both",
        replaced("restore.history.undo_definitions", "succeeding", _old_version),
    ),
    (
        "a lost object of one's own (I3)",
        "a restore from a copy takes what the file table names for there",
        f"{_BACK}::test_a_restore_from_a_copy_brings_lost_objects_back",
        replaced("restore.transfer.transfer", "lost_here", _nothing_lost),
    ),
    (
        "a name given to two (I17)",
        "a table gets a name without taking it in the bucket",
        f"{_RENAME}::test_the_second_machine_to_give_a_name_changes_nothing",
        replaced("tiering.catalog.definitions.table_names", "claim", nothing),
    ),
    (
        "a name kept for ever (I17)",
        "a table that is renamed keeps its old name for itself",
        f"{_RENAME}::test_a_table_with_rows_everywhere_gets_another_name",
        replaced("tiering.catalog.definitions.table_names", "path_where_owned", nothing),
    ),
    (
        "a restore brings what is there (I1)",
        "a restore does not ask whether the rows of its parts are on another disk, merged, or inserted again",
        f"{_BACK}::test_rows_that_were_inserted_again_do_not_come_twice",
        replaced("restore.rebuild.part_admission", "presence", _nowhere),
    ),
    (
        "a restore hides what is elsewhere (I1)",
        "a part of which another disk has some rows stays away as if all of them were there",
        f"{_BACK}::test_a_part_with_rows_elsewhere_is_refused_and_previewed_so",
        replaced("restore.rebuild.duplicates:Presence", "has_all_rows", True),
    ),
    (
        "covered by a range alone (I19)",
        "a part hides each one whose numbers lie within its own, whatever it was made of",
        f"{_COVERS}::test_an_older_version_s_merge_over_a_dropped_number_is_safe",
        replaced("tiering.table.part:Part", "was_made_from", _always),
    ),
    (
        "merged over a part that is gone (I19)",
        "a missing number between parts of this machine's range is nobody's",
        f"{_COVERS}::test_a_merge_over_what_was_taken_away_elsewhere_hides_no_row",
        replaced("tiering.catalog.blocks:Vanished", "between", nothing),
    ),
    (
        "another machine's part taken off the bucket (I19)",
        "a part moves to an SSD whoever inserted it",
        f"{_COVERS}::test_a_part_of_another_machine_stays_in_the_bucket",
        replaced("tiering.catalog.blocks", "why_bound", _never),
    ),
    (
        "written without reading it back (I23)",
        "a document is encoded, and nobody looks whether its reader takes it",
        "tests/unit/test_documents.py::test_a_document_that_is_encoded_reads_back",
        replaced("oplog.documents:Document", "encode", _written),
    ),
    (
        "read back, and not compared (I23)",
        "what a document reads back as may be something else",
        "tests/unit/test_documents.py::test_a_document_that_is_encoded_reads_back",
        replaced("oplog.documents", "_is_same", _always),
    ),
    (
        "a snapshot that nobody read back (I23)",
        "rows that a snapshot's reader refuses are in one",
        "tests/unit/test_documents.py::test_a_snapshot_that_is_encoded_reads_back",
        replaced("oplog.snapshot", "encode", _snapshot_written),
    ),
    (
        "an older definition in the place of an unreadable one (I17)",
        "a table.json that cannot be read says nothing, and an older copy of it counts",
        f"{_UNREADABLE}::test_an_older_copy_does_not_take_its_place",
        replaced("tiering.catalog.definitions.table_snapshot", "_take_out_unreadable", nothing),
    ),
    (
        "what cannot be stored goes on (I17)",
        "an alter of a table out of bounds goes on from a value that is out of bounds",
        f"{_UNREADABLE}::test_an_alter_goes_on_from_what_it_means",
        replaced("tiering.table.schema", "within_bounds", _itself),
    ),
    (
        "a tombstone of a hidden table (I17)",
        "the tombstone of a table that cannot be read is worked out from the catalog, from which the drop hides it",
        f"{_UNREADABLE}::test_a_drop_that_died_of_such_a_table_goes_on",
        replaced("tiering.catalog.tables", "last_definition", _hidden),
    ),
    (
        "marks without definitions (I17)",
        "nothing but table.json says how a table is defined",
        f"{_UNREADABLE}::test_a_damaged_definition_is_taken_from_its_mark",
        replaced("tiering.table.tombstones", "read_mark", nothing),
    ),
    (
        "of two copies the first (I17)",
        "copies of one version are not compared",
        f"{_UNREADABLE}::test_of_copies_that_differ_that_of_the_log_counts",
        replaced("tiering.catalog.definitions.table_snapshot", "_take_copy", _copy_believed),
    ),
    (
        "a rule deletes by what merges change (I13)",
        "what a TTL rule leaves of a key depends on which of its rows had met",
        "tests/unit/tiering/table/test_definitions.py::test_no_rule_deletes_by_what_merges_change",
        replaced("tiering.table.definitions", "check_deletes", nothing),
    ),
)
