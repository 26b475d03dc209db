"""Seeded mistakes in reading and undoing history, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_UNDO = "tests/unit/restore/history/test_undo.py"
_PARTS = "tests/unit/restore/history/test_part_history.py"
_COMMITS = "tests/unit/disks/object_disk/test_commits.py"


def _plan_without(name: str) -> Callable[[], None]:
    """One of the questions that an undo asks is left out."""

    def apply() -> None:
        from restore.history import undo_plan

        setattr(undo_plan, name, lambda situation, result: None)

    return apply


def _rows_doubled() -> None:
    from restore.history import undo_plan

    undo_plan._doubled = lambda note, part, others: ""


def _old_bytes_of_a_definition() -> None:
    from restore.history import undo_plan

    undo_plan.altered_definition = lambda situation: None


def _undo_unpinned() -> None:
    from restore.history import undo

    @contextmanager
    def pinned(*arguments: Any) -> Iterator[None]:
        yield None

    undo.pinned = pinned  # type: ignore[assignment]


def _undo_deaf() -> None:
    from restore.history import undo

    undo.announced = lambda disk, *, now: set()


def _undo_blind() -> None:
    from restore.history import undo

    undo._check_blobs = lambda disk, decided: None


def _undo_in_two() -> None:
    from disks.object_disk.transaction import ObjectTransaction
    from oplog.entry import Remove

    original = ObjectTransaction.commit

    def commit(self: Any) -> int | None:
        removes = [step for step in self._operations if isinstance(step, Remove)]
        rest = [step for step in self._operations if not isinstance(step, Remove)]
        if self._kind.word != "undo" or not removes or not rest:
            return original(self)
        second = ObjectTransaction(self._target, self._kind, reason="", actor="")
        second._operations = rest
        self._operations = removes
        original(self)
        return original(second)

    ObjectTransaction.commit = commit  # type: ignore[method-assign]


def _changes_not_seen() -> None:
    from oplog import replay

    original = replay.diff

    def diff(before: Any, after: Any) -> Iterator[Any]:
        return (one for one in original(before, after) if one.before is None or one.after is None)

    replay.diff = diff


def _sources_not_followed() -> None:
    from restore.history import blame

    original = blame._Inquiry._follow

    def follow(self: Any, part: str) -> tuple[str, ...]:
        original(self, part)
        return ()

    blame._Inquiry._follow = follow  # type: ignore[method-assign]


def _gap_noted_over() -> None:
    from disks.file_table import commit_index

    commit_index._new = lambda entries, span: [one for one in entries if one.commit.revision > span.last]


def _digests_ignored() -> None:
    from disks.file_table.commit_index import CommitIndex

    CommitIndex.digests = lambda self, revisions: {}  # type: ignore[method-assign]


def _leftovers_are_damage() -> None:
    from oplog.log import OperationsLog

    OperationsLog.first_kept = OperationsLog.first_revision  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "undo without looking",
        "an undo does not ask whether later commits changed what the commit made",
        f"{_UNDO}::TestMerge::test_of_a_part_that_was_merged_again",
        _plan_without("_check_unchanged"),
    ),
    (
        "undo loses a part",
        "an undo of a move takes away the only copy",
        f"{_UNDO}::TestMove::test_in_would_leave_the_part_on_no_disk",
        _plan_without("_check_leaving"),
    ),
    (
        "undo brings back the dropped",
        "an undo of a move out brings back what was dropped on the other disk",
        f"{_UNDO}::TestMove::test_out_of_a_part_that_is_gone",
        _plan_without("_check_kind"),
    ),
    (
        "undo doubles rows",
        "an undo brings back rows that were inserted again since",
        f"{_UNDO}::TestInsert::test_redo_of_rows_that_were_inserted_again",
        _rows_doubled,
    ),
    (
        "undo of an alter here only",
        "an undo of an alter puts back the old table.json on one disk",
        f"{_UNDO}::TestTables::test_alter_goes_the_way_of_an_alter",
        _old_bytes_of_a_definition,
    ),
    (
        "undo without a pin",
        "nothing keeps gc away while an undo runs",
        f"{_UNDO}::TestBytes::test_the_past_is_pinned_meanwhile",
        _undo_unpinned,
    ),
    (
        "undo ignores announcements",
        "an undo names objects that a collection is about to delete",
        f"{_UNDO}::TestBytes::test_objects_that_gc_has_announced",
        _undo_deaf,
    ),
    (
        "undo names lost objects",
        "an undo does not ask whether its objects are there",
        f"{_UNDO}::TestBytes::test_objects_that_are_gone",
        _undo_blind,
    ),
    (
        "undo in two commits",
        "an undo removes in one commit and brings back in another",
        "test_kill.py::test_killed_at_every_effect[undo_merge]",
        _undo_in_two,
    ),
    (
        "changes not seen",
        "a diff leaves out files that were replaced",
        f"{_PARTS}::test_a_diff_in_words",
        _changes_not_seen,
    ),
    (
        "sources not followed",
        "blame stops at a merge",
        f"{_PARTS}::test_merges_are_followed",
        _sources_not_followed,
    ),
    (
        "gap noted over",
        "the index of commits goes on behind a gap",
        f"{_COMMITS}::test_the_notes_of_a_log_that_was_replaced_do_not_count",
        _gap_noted_over,
    ),
    (
        "digests ignored",
        "an entry far from its neighbours is not checked",
        f"{_COMMITS}::test_an_altered_entry_is_named",
        _digests_ignored,
    ),
    (
        "leftovers of gc as the beginning",
        "the log is taken to begin at an entry that an interrupted collection left",
        f"{_COMMITS}::test_leftovers_of_an_interrupted_collection_are_passed_over",
        _leftovers_are_damage,
    ),
)
