"""A seeded mistake for each bug of ClickHouse's zero-copy replication that is made in
`tests.replicas.zero_copy.test_clickhouse_bugs`, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash import marks_mistakes
from tests.crash.seeding import nothing, replaced

_BUGS = "tests/replicas/zero_copy/test_clickhouse_bugs.py"


def _stores_are_alike() -> None:
    for module in ("zerocopy.replica.sharing", "zerocopy.replica.connections", "zerocopy.interserver.server"):
        replaced(module, "store_identity", lambda disk: "0" * 32)()


def _without(word: str) -> Callable[[], None]:
    """What an operation of this kind brings is not marked."""

    def apply() -> None:
        from disks.object_disk.sharing.marks import Marking

        original = Marking.hold

        def hold(self: Any, table: Any, operations: Any) -> None:
            original(self, table, [one for one in operations if type(one).__name__ != word])

        Marking.hold = hold  # type: ignore[method-assign]

    return apply


def _marks_come_late() -> None:
    from disks.object_disk.transaction import ObjectTransaction

    ObjectTransaction.mark = nothing  # type: ignore[method-assign, assignment]
    marks_mistakes._marks_after_the_commit()


def _sets_stay() -> None:
    from zerocopy.marks.audit_result import MarkReferences

    MarkReferences.release = lambda self, keys: set()  # type: ignore[method-assign]


def _a_lost_keeper_is_believed() -> None:
    """Whatever it knows of the last audit, and whichever the bucket says has the marks."""
    replaced("zerocopy.marks.audit_result", "objection", lambda found, log, known: None)()
    replaced("disks.object_disk.sharing.recorded_keeper", "objection", lambda *arguments, **options: None)()


def _first_object_alone() -> None:
    from zerocopy.replica import sharing

    original = sharing.probe
    sharing.probe = lambda disk, parts: original(disk, {name: rows[:1] for name, rows in parts.items()})


def _bug(number: str, name: str, what: str, apply: Callable[[], None]) -> tuple[str, str, str, Callable[[], None]]:
    return f"sharing: {number.replace('_', ' ')}", what, f"{_BUGS}::test_{number}_{name}", apply


MISTAKES = (
    _bug("22864", "the_store_of_another_volume", "stores are told apart by nothing", _stores_are_alike),
    _bug("33642_57314", "every_replica_moves", "nobody claims a move", marks_mistakes._every_replica_moves),
    _bug(
        "35348",
        "a_fetch_while_the_source_drops_the_part",
        "the source's own mark is not asked for",
        marks_mistakes._taken_without("check"),
    ),
    _bug("39560", "a_part_with_links", "links are not marked", _without("Link")),
    _bug("40189", "a_part_goes_to_another_table", "renames are not marked", _without("Rename")),
    _bug(
        "47274",
        "the_sets_node_is_missing",
        "gc asks no other log",
        replaced("disks.garbage.reference_sources", "heeded_logs", lambda disk, now: []),
    ),
    _bug("49211", "a_kill_between_mark_and_commit", "marks come after the commit", _marks_come_late),
    _bug(
        "54193",
        "a_partition_is_replaced",
        "a mark goes with its first file",
        marks_mistakes._one_file_is_the_whole_directory,
    ),
    _bug("54426_54550", "what_a_dead_mover_left", "whatever has a set stays", _sets_stay),
    _bug(
        "54859",
        "a_link_that_may_not_have_been_committed",
        "what is unknown counts as nothing",
        marks_mistakes._what_is_unknown_is_taken_back,
    ),
    _bug("71845", "the_mark_comes_before_the_first_byte", "bytes before marks", marks_mistakes._bytes_before_marks),
    _bug(
        "72933",
        "no_node_says_nothing",
        "gc believes a Keeper that lost its data",
        _a_lost_keeper_is_believed,
    ),
    _bug("95597", "every_file_is_counted", "the probe looks at one object alone", _first_object_alone),
)
