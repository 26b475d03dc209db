"""Seeded mistakes in going by what was seen of a bucket a while ago, for `tests.crash.mutants`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from disks.host.moment import Moment
from tests.crash.seeding import nothing, replaced

_LOOKS = "tests/integration/test_looks.py"
_LAST_LOOK = "tests/unit/disks/object_disk/test_last_look.py"


def _age_by_what_it_says(self: Any, revision: int) -> float:
    import msgspec

    from disks.object_disk.last_look import _Look

    try:
        return Moment(*msgspec.json.decode(self._file.read_bytes(), type=_Look).began).age_seconds
    except (OSError, msgspec.MsgspecError):
        return math.inf


def _always_begins() -> None:
    from disks.file_table.table import FileTable

    FileTable.unless_written = lambda self, work: work()  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "looks: a commit that died",
        "a look counts on after a commit of this machine has begun",
        f"{_LOOKS}::test_a_commit_ends_it",
        replaced("disks.object_disk.last_look:LastLook", "void", nothing),
    ),
    (
        "looks: from a copy",
        "a look counts also where the state was put back from a copy",
        f"{_LOOKS}::test_a_state_from_a_copy_does_not_count",
        replaced("disks.object_disk.last_look:LastLook", "age_seconds", _age_by_what_it_says),
    ),
    (
        "looks: beside a commit",
        "a look counts that was made while another process had not ended its commit",
        f"{_LAST_LOOK}::test_a_look_while_another_process_commits_does_not_count",
        _always_begins,
    ),
    (
        "looks: unseen rows go",
        "nobody notes that rows went into a table that somebody may have dropped",
        f"{_LOOKS}::test_rows_that_went_into_a_dropped_table_stay",
        replaced("tiering.journal.journal:Journal", "note_unseen", nothing),
    ),
    (
        "looks: unseen for ever",
        "a look does not tell that what went in before it was there before a drop",
        f"{_LOOKS}::test_what_went_in_before_a_look_goes_with_the_table",
        replaced("tiering.journal.journal:Journal", "seen", nothing),
    ),
    (
        "looks: shared tables too",
        "an insert does not look where other machines insert, too",
        f"{_LOOKS}::test_a_table_that_others_insert_into_is_looked_at",
        replaced("tiering.catalog.blocks", "is_shared", lambda context, definition: False),
    ),
    (
        "looks: blocks that are there",
        "what goes to a bucket is compared with what was there at the last look",
        f"{_LOOKS}::test_what_goes_to_the_bucket_is_compared_with_what_is_there",
        replaced("tiering.insert.insert:Inserting", "_ask_buckets", lambda self, disks: False),
    ),
    (
        "looks: a pass that acts unseeing",
        "a pass of the daemon moves and merges by an old look",
        f"{_LOOKS}::test_a_pass_looks_before_it_acts",
        replaced("tiering.engine.maintenance", "_look", lambda context: False),
    ),
)
