"""Seeded mistakes in what is believed of a bucket, for `tests.crash.mutants`: name, meaning, check, how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import replaced
from tests.hostile.forge import TABLE

_PARTS = "tests/hostile/test_forged_parts.py"
_SNAPSHOTS = "tests/hostile/test_forged_snapshots.py"
_DOCUMENTS = "tests/hostile/test_forged_documents.py"


def _believed(*arguments: Any) -> bool:
    return True


def _nobody(*arguments: Any) -> None:
    return None


def _as_they_are(rows: Any, *arguments: Any) -> Any:
    return rows


Mistake = tuple[str, str, str, Callable[[], Any]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "names believed (I1)",
        "a part in a bucket hides what its name covers",
        f"{_PARTS}::test_what_the_issue_tried",
        replaced("tiering.catalog.lineage:Lineage", "_is_proved", _believed),
    ),
    (
        "rows of a merge not added up (I1)",
        "a commit that names its inputs is believed whatever their rows",
        f"{_PARTS}::test_a_merge_of_more_rows_than_it_has_is_no_proof",
        replaced("tiering.catalog.lineage", "_fits", _believed),
    ),
    (
        "carried to where names are believed (I1)",
        "a part that claims others without a proof is moved to a local disk",
        f"{_PARTS}::test_a_forged_part_is_not_carried_where_it_would_be_believed"
        f"[by its range-move {TABLE} --part {{part}} --to-disk ssd]",
        replaced("tiering.catalog.catalog:Catalog", "claims_unproved", _nobody),
    ),
    (
        "snapshots not compared with entries (I7)",
        "a snapshot with the right digest of its entry is believed whatever its files are",
        f"{_SNAPSHOTS}::test_a_snapshot_that_contradicts_the_log_is_passed_over[empty]",
        replaced("oplog.snapshot", "_compared", _as_they_are),
    ),
    (
        "older starts not compared (I4)",
        "where entries tell nothing of the table, gc believes the snapshot",
        f"{_SNAPSHOTS}::test_below_entries_of_an_older_version_too[a part less]",
        replaced("disks.garbage.live_references", "check_start", _nobody),
    ),
    (
        "what an entry says of the table not compared (I7)",
        "an entry is applied to whatever table there is",
        f"{_SNAPSHOTS}::test_an_untrue_entry_is_reported_and_nothing_goes",
        replaced("disks.object_disk.following", "agrees", _believed),
    ),
    (
        "fields of entries not looked at (I15)",
        "an entry is what its types say",
        f"{_DOCUMENTS}::test_a_forgery_is_named_and_nothing_wrong_is_answered[a digest]",
        replaced("oplog.entry", "_fault_in", _nobody),
    ),
    (
        "any layout taken for ours",
        ".SCHEMA_VERSION is not looked at",
        f"{_DOCUMENTS}::test_every_verb_refuses_a_layout_it_does_not_know[fresh-gc cold --delete --yes]",
        replaced("oplog.log:OperationsLog", "check_schema", _believed),
    ),
)
