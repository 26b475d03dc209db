"""Seeded mistakes in going by what was seen of a bucket a while ago, for `tests.crash.mutants`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from disks.host.moment import Moment
from tests.crash.seeding import nothing, replaced

_LOOKS = "tests/integration/test_looks.py"
_LAST_LOOK = "tests/unit/disks/object_disk/test_last_look.py"


def _age_by_what_it_says(self: Any, state: Any) -> float:
    import msgspec

    from disks.object_disk.last_look import _Look

    try:
        return Moment(*msgspec.json.decode(self._file.read_bytes(), type=_Look).began).age_seconds
    except (OSError, msgspec.MsgspecError):
        return math.inf


def _written_anyway(self: Any, work: Any) -> None:
    self._looks = work()
    read = self.read

    @contextmanager
    def reading() -> Any:
        with read() as view:
            state = view.state
            view.state = lambda: state() | self._looks
            yield view

    self.read = reading


def _always_begins() -> None:
    from disks.file_table.table import FileTable

    FileTable.unless_written = _written_anyway  # type: ignore[method-assign]


def _any_name() -> None:
    from disks.object_disk import last_look

    age_seconds = last_look.LastLook.age_seconds

    def age(self: Any, state: Any) -> float:
        return age_seconds(self, {**state, last_look._NAME: _Any()})

    last_look.LastLook.age_seconds = age  # type: ignore[method-assign]


class _Any(str):
    """Is what it is compared with."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True


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
        "looks: an older one",
        "a look counts that is older than the newest one, where its file has the same number",
        f"{_LAST_LOOK}::test_an_older_one_does_not_count_in_a_file_of_its_number",
        _any_name,
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
