"""Seeded mistakes in reading and undoing history, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.crash.seeding import replaced

_PARTITIONS = "tests/unit/restore/history/test_partitions.py"
_UNDO = "tests/unit/restore/history/test_undo.py"
_UNDO_REFUSED = "tests/unit/restore/history/test_undo_refused.py"
_PARTS = "tests/unit/restore/history/test_part_history.py"
_COMMITS = "tests/unit/disks/file_table/test_commits.py"
_KEPT = "tests/compat/test_kept_log.py"
_KINDS = "tests/unit/oplog/test_commit_kinds.py"


def _plan_without(name: str) -> Callable[[], None]:
    """One of the questions that an undo asks is left out."""

    def apply() -> None:
        from restore.history import undo_plan

        setattr(undo_plan, name, lambda situation, result: None)

    return apply


def _rows_doubled() -> None:
    from restore.history import undo_plan

    undo_plan.presence = lambda part, staying: None


def _attached_unasked() -> None:
    from restore.history import partitions

    partitions.presence = lambda part, staying: None


def _replaced_left() -> None:
    from restore.history import partitions

    partitions.tables.drop_parts = lambda context, to_delete, **reasons: None


def _attached_beside_inserts() -> None:
    from restore.history import partitions

    partitions._claims = lambda coming: {found.part.name for found in coming}


def _old_bytes_of_a_definition() -> None:
    from restore.history import undo_definitions, undo_plan

    undo_plan.altered_definition = lambda situation: None
    undo_definitions.succeeding = lambda old, newest: old


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


def _field_not_read(kind: str, field: str) -> Callable[[], None]:
    """What the details of an entry say of one field is passed over."""

    def apply() -> None:
        from oplog import kinds

        fields = kinds._FIELDS[getattr(kinds, kind)]
        fields[:] = [known for known in fields if known.name != field]

    return apply


def _undone_not_read() -> None:
    from restore.history import undo_plan

    undo_plan.undone_revision = lambda kind: None


def _unknown_kind_undone() -> None:
    from oplog import kinds

    kinds._KINDS = {**kinds._KINDS, "thawed": kinds.Repaired}


def _forged_details_passed_over() -> None:
    from oplog import kinds

    for fields in kinds._FIELDS.values():
        fields[:] = [
            kinds._Field(known.name, known.key, known.default, _lenient(known.read, known.default)) for known in fields
        ]


def _lenient(read: Callable[[str], Any], default: Any) -> Callable[[str], Any]:
    def lenient(text: str) -> Any:
        try:
            return read(text)
        except Exception:
            return default

    return lenient


def _finished_drop_forgets_the_rule() -> None:
    from tiering.journal import journal

    original = journal.decode_drop

    def decode_drop(kind: str, payload: str, *, journal: str) -> Any:
        return original(kind, payload.replace('"by_ttl":true', '"by_ttl":false'), journal=journal)

    journal.decode_drop = decode_drop


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "attached unasked",
        "a partition is attached whose rows were inserted again",
        f"{_PARTITIONS}::test_rows_that_were_inserted_again_are_not_doubled",
        _attached_unasked,
    ),
    (
        "attached twice",
        "what is detached twice, as files of it were attached in between, is attached twice",
        f"{_PARTITIONS}::test_what_is_detached_twice_comes_back_once",
        replaced("restore.history.partitions", "_is_copy", lambda found: True),
    ),
    (
        "replaced left",
        "a detached part leaves the copies that it hid",
        f"{_PARTITIONS}::test_copies_that_a_merge_replaced_do_not_answer_in_its_place",
        _replaced_left,
    ),
    (
        "attached beside inserts",
        "an insert brings the rows of a partition while it is attached",
        f"{_PARTITIONS}::test_the_same_rows_are_not_inserted_and_attached_at_once",
        _attached_beside_inserts,
    ),
    (
        "origin not read",
        "recovery without a journal does not see where a commit says that a part came from",
        f"{_KEPT}::test_a_lost_journal_is_made_good_by_the_log",
        _field_not_read("Moved", "sources"),
    ),
    (
        "kept sources not read",
        "recovery without a journal removes a copy that was to stay",
        f"{_KEPT}::test_a_lost_journal_is_made_good_by_the_log",
        _field_not_read("Moved", "kept"),
    ),
    (
        "undone not read",
        "nobody sees which revision an undo took back",
        f"{_KEPT}::test_a_change_does_what_it_did",
        _undone_not_read,
    ),
    (
        "unknown kind undone",
        "an undo reverses what it does not know the meaning of",
        f"{_UNDO}::test_a_kind_that_is_not_known",
        _unknown_kind_undone,
    ),
    (
        "forged details pass",
        "details that are not what they must be count as not said",
        f"{_KINDS}::test_forged_details_are_named",
        _forged_details_passed_over,
    ),
    (
        "drop finished without its rule",
        "a drop by a TTL rule that recovery finishes is logged as anybody's",
        "tests/unit/tiering/journal/test_journal.py::test_pauses_pins_and_drops",
        _finished_drop_forgets_the_rule,
    ),
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
        f"{_UNDO_REFUSED}::TestBytes::test_the_past_is_pinned_meanwhile",
        _undo_unpinned,
    ),
    (
        "undo ignores announcements",
        "an undo names objects that a collection is about to delete",
        f"{_UNDO_REFUSED}::TestBytes::test_objects_that_gc_has_announced",
        _undo_deaf,
    ),
    (
        "undo names lost objects",
        "an undo does not ask whether its objects are there",
        f"{_UNDO_REFUSED}::TestBytes::test_objects_that_are_gone",
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
