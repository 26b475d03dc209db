"""Seeded mistakes in the marks of objects that replicas share, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import replaced

_MARKS = "tests/replicas/zero_copy/test_marks.py"
_SHARING = "tests/replicas/zero_copy/test_sharing.py"
_VERBS = "tests/replicas/zero_copy/test_verbs.py"
_AUDIT = "tests/replicas/zero_copy/test_audit.py"
_PLACE = "tests/replicas/keeper/test_keeper_of_marks.py"


def _mark_makes_the_set() -> None:
    from zerocopy.marks.marks import Marks

    original = Marks.add

    def add(self: Any, references: Any) -> None:
        for one in references:
            self.keeper.make_path(self.nodes.blob_set(one.blob_set))
        original(self, references)

    Marks.add = add  # type: ignore[method-assign]


def _marks_one_by_one() -> None:
    from zerocopy.marks import changes

    original = changes.adding

    def adding(*arguments: Any) -> Any:
        return [[one] for request in original(*arguments) for one in request]

    changes.adding = adding


def _whatever_the_mark_is_now() -> None:
    from zerocopy.marks.marks import Marks

    original = Marks.remove

    def remove(self: Any, seen: Any) -> None:
        original(self, dict.fromkeys(seen, -1))

    Marks.remove = remove  # type: ignore[method-assign]


def _gate_left_open() -> None:
    from zerocopy.marks import census

    original = census._release

    def release(keeper: Any, nodes: Any, names: Any, gate: Any) -> bool:
        return original(keeper, nodes, names, census.CollectionGate(gate.path))

    census._release = release


def _what_was_read_is_free() -> None:
    from zerocopy.marks.audit_result import MarkReferences

    MarkReferences.release = lambda self, keys: keys  # type: ignore[method-assign]


def _marks_hold_nothing() -> None:
    from zerocopy.marks.audit_result import MarkReferences

    original = MarkReferences.held

    def held(self: Any) -> Any:
        original(self)
        return ()

    def release(self: Any, keys: Any) -> Any:
        return keys

    MarkReferences.held = held  # type: ignore[method-assign]
    MarkReferences.release = release  # type: ignore[method-assign]


def _any_audit_counts() -> None:
    from zerocopy.marks import audit_result

    def objection(found: Any, log: str, known: str | None) -> str | None:
        return None if found is not None and any(one.clean for one in found[0].audits.values()) else "never compared"

    audit_result.objection = objection


def _bytes_before_marks() -> None:
    from disks.object_disk.sharing.marks import Marking

    class Late:
        def __init__(self, marks: Any) -> None:
            self.sets: list[Any] = []
            self.marks = marks

        def create(self, sets: Any) -> None:
            self.sets += sets

        def __getattr__(self, name: str) -> Any:
            return getattr(self.marks, name)

    made, began = Marking.__init__, Marking.begin

    def init(self: Any, marks: Any) -> None:
        made(self, Late(marks))  # type: ignore[arg-type]

    def begin(self: Any) -> None:
        began(self)
        self._marks.marks.create(self._marks.sets)

    Marking.__init__ = init  # type: ignore[method-assign]
    Marking.begin = begin  # type: ignore[method-assign]


def _marks_after_the_commit() -> None:
    from disks.object_disk.sharing.marks import Marking

    held, ended = Marking.hold, Marking.end

    def hold(self: Any, table: Any, operations: Any) -> None:
        class Later:
            def add(later, references: Any) -> None:  # noqa: N805
                self.coming = references

            def seen(later, references: Any) -> Any:  # noqa: N805
                return self.known.seen(references)

        self.coming, self.known = set(), self._marks
        self._marks = Later()
        try:
            held(self, table, operations)
        finally:
            self._marks = self.known

    def end(self: Any) -> None:
        self._marks.add(self.coming)
        ended(self)

    Marking.hold = hold  # type: ignore[method-assign]
    Marking.end = end  # type: ignore[method-assign]


def _marks_go_before_the_commit() -> None:
    from disks.object_disk.sharing.marks import Marking

    original = Marking.hold

    def hold(self: Any, table: Any, operations: Any) -> None:
        original(self, table, operations)
        self._take_away(self._ended)

    Marking.hold = hold  # type: ignore[method-assign]


def _one_file_is_the_whole_directory() -> None:
    from disks.object_disk.sharing import marks

    marks.names = lambda table, reference: False


def _what_is_unknown_is_taken_back() -> None:
    from disks.object_disk.sharing.marks import Marking

    Marking.leave = lambda self: None  # type: ignore[method-assign]


def _taken_without(what: str) -> Callable[[], None]:
    """One clause of the order is left out."""

    def apply() -> None:
        from disks.object_disk.transaction import ObjectTransaction
        from zerocopy.replica import sharing

        def nothing(*arguments: Any) -> None:
            return None

        def only_the_marks_of_own(self: Any, references: Any, log: str | None = None) -> Any:
            return set() if log is not None else missing(self, references)

        from zerocopy.marks.marks import Marks

        missing = Marks.missing
        match what:
            case "mark":
                ObjectTransaction.mark = nothing  # type: ignore[method-assign, assignment]
            case "probe":
                sharing.probe = lambda disk, parts: {}
            case "check":
                Marks.missing = only_the_marks_of_own  # type: ignore[method-assign, assignment]
            case "look":
                sharing._look = lambda context, disk, wanted: {}

    return apply


def _looked_at_first() -> None:
    from zerocopy.replica import sharing

    original = sharing._read_whole

    def read_whole(disk: Any, row: Any) -> Any:
        disk.store.head(row.key)
        return original(disk, row)

    sharing._read_whole = read_whole


def _every_replica_moves() -> None:
    from zerocopy.execution import sharing_moves

    sharing_moves._claim_all = lambda replica, place, parts: set(parts)
    sharing_moves.say = lambda *arguments: None


def _whoever_marks_elsewhere() -> None:
    """Nobody looks where marks are kept before one is set."""
    from zerocopy.marks.marks_keeper import PlaceCheck

    PlaceCheck.__call__ = lambda self: None  # type: ignore[method-assign]


def _looked_once() -> None:
    """The bucket is asked where marks are kept when a collection begins, and not again."""
    from disks.garbage.reference_sources import ReferenceSources

    original = ReferenceSources._check_place

    def check_place(self: Any) -> None:
        if self._own is None:
            original(self)

    ReferenceSources._check_place = check_place  # type: ignore[method-assign]


def _none_if_the_last_says_so() -> None:
    from disks.object_disk.sharing import recorded_keeper

    recorded_keeper.in_force = lambda found: found[-1] if found and found[-1].record.keeper else None


def _mistake(name: str, what: str, check: str, apply: Callable[[], None]) -> tuple[str, str, str, Callable[[], None]]:
    return f"marks: {name}", what, check, apply


MISTAKES = (
    _mistake(
        "gc without keeper",
        "a machine without `keeper:` collects by the logs alone what marks hold",
        f"{_PLACE}::test_a_machine_without_keeper_does_not_collect_marked_blobs",
        replaced("disks.object_disk.sharing.recorded_keeper", "objection", lambda *arguments, **options: None),
    ),
    _mistake(
        "gc by another keeper",
        "an audit in any Keeper lets a machine collect",
        f"{_PLACE}::test_marks_in_another_keeper_count_for_nobody",
        replaced("disks.object_disk.sharing.recorded_keeper", "objection", lambda *arguments, **options: None),
    ),
    _mistake(
        "marks anywhere",
        "a machine sets its marks in whatever Keeper it is configured with",
        f"{_PLACE}::test_marks_in_another_keeper_count_for_nobody",
        _whoever_marks_elsewhere,
    ),
    _mistake(
        "looked once",
        "a collection that began when nobody marked goes on when somebody does",
        "tests/unit/disks/garbage/test_shared_garbage.py::test_a_machine_that_begins_to_mark_ends_a_collection",
        _looked_once,
    ),
    _mistake(
        "the last word counts",
        "a later record without a Keeper undoes those that name one",
        f"{_PLACE}::test_a_forged_word_that_nobody_marks_counts_for_nothing",
        _none_if_the_last_says_so,
    ),
    _mistake(
        "not waited for",
        "a collection that knows of no marks is at objects while the first ones are set",
        f"{_PLACE}::test_a_collection_that_began_before_anybody_marked",
        replaced("disks.object_disk.sharing.recorded_keeper", "is_new", lambda found, at: False),
    ),
    _mistake(
        "a mark makes its set",
        "who wants objects that are being collected makes the set's node anew",
        f"{_MARKS}::test_another_replicas_mark_does_not_make_the_set",
        _mark_makes_the_set,
    ),
    _mistake(
        "one by one",
        "the marks of a part are set in a request each",
        f"{_MARKS}::test_all_marks_of_a_part_or_none",
        _marks_one_by_one,
    ),
    _mistake(
        "whatever it is now",
        "a late drop takes away a mark that was written anew meanwhile",
        f"{_MARKS}::test_a_mark_that_was_written_anew_is_another_ones",
        _whatever_the_mark_is_now,
    ),
    _mistake(
        "gate left open",
        "a collection goes on though an audit began",
        f"{_AUDIT}::test_an_audit_stops_a_collection",
        _gate_left_open,
    ),
    _mistake(
        "what was read is free",
        "a set that had no mark when the marks were read is deleted without asking the server",
        f"{_AUDIT}::test_a_mark_that_comes_at_the_last_moment_keeps",
        _what_was_read_is_free,
    ),
    _mistake(
        "marks hold nothing",
        "a collection goes by the logs alone",
        f"{_AUDIT}::test_what_a_mark_holds_stays_though_no_log_names_it",
        _marks_hold_nothing,
    ),
    _mistake(
        "any audit counts",
        "a machine collects by another one's audit, and by that of a Keeper that was set back",
        f"{_AUDIT}::test_nothing_goes_before_an_audit_of_this_machine",
        _any_audit_counts,
    ),
    _mistake(
        "bytes before marks",
        "a part's objects go up before anything holds them",
        f"{_VERBS}::test_wherever_it_is_killed_no_mark_is_missing[move_more]",
        _bytes_before_marks,
    ),
    _mistake(
        "marks after the commit",
        "a detached part is marked when the log names it already",
        f"{_VERBS}::test_wherever_it_is_killed_no_mark_is_missing[detach]",
        _marks_after_the_commit,
    ),
    _mistake(
        "marks go before the commit",
        "the mark of a part that is dropped goes while the log still names it",
        f"{_VERBS}::test_wherever_it_is_killed_no_mark_is_missing[drop_partition]",
        _marks_go_before_the_commit,
    ),
    _mistake(
        "one file is the whole directory",
        "the mark goes with the first file that is removed",
        f"{_VERBS}::test_a_file_of_a_set_that_stays_keeps_its_mark",
        _one_file_is_the_whole_directory,
    ),
    _mistake(
        "what is unknown is taken back",
        "a commit whose answer was lost counts as none, and its marks go",
        f"{_VERBS}::test_a_commit_of_which_nobody_knows_leaves_its_marks",
        _what_is_unknown_is_taken_back,
    ),
    _mistake(
        "a part is taken over without a mark",
        "nothing tells others that its objects are used when it commits",
        f"{_SHARING}::test_a_set_that_is_being_collected_is_not_marked",
        _taken_without("mark"),
    ),
    _mistake(
        "a part is taken over without a look at its objects",
        "one of them is gone, or another one",
        f"{_SHARING}::test_an_object_that_is_not_the_one_is_not_taken_over",
        _taken_without("probe"),
    ),
    _mistake(
        "what is read is believed",
        "the object that is read in place of a checksum may be any",
        f"{_VERBS}::test_a_store_without_checksums_is_asked_once_a_file",
        replaced("zerocopy.replica.sharing", "_read_whole", lambda disk, row: True),
    ),
    _mistake(
        "every object is asked for twice",
        "one that is read is looked at as well",
        f"{_VERBS}::test_a_store_without_checksums_is_asked_once_a_file",
        _looked_at_first,
    ),
    _mistake(
        "a part is taken over while it is collected",
        "it has no mark, which would have been refused, and goes by the objects that are there yet",
        f"{_SHARING}::test_what_a_collection_is_at_is_not_taken_over",
        _taken_without("mark"),
    ),
    _mistake(
        "a part is taken over without its source's mark",
        "the source has dropped it meanwhile",
        f"{_SHARING}::test_a_source_without_its_own_mark_gives_whole_parts",
        _taken_without("check"),
    ),
    _mistake(
        "a part is taken over without a last look",
        "its mark went while it was committed, and nobody notices",
        f"{_SHARING}::test_a_mark_that_went_during_the_commit_is_missed",
        _taken_without("look"),
    ),
    _mistake(
        "every replica moves its own copy",
        "the same part goes up once a replica",
        f"{_SHARING}::test_a_part_goes_up_once",
        _every_replica_moves,
    ),
    _mistake(
        "the own log alone",
        "an audit reads no log but its own machine's",
        f"{_AUDIT}::test_marks_are_made_of_what_the_logs_name",
        replaced("zerocopy.execution.auditing", "heeded_logs", lambda disk, now: []),
    ),
)
