"""Seeded mistakes in what several machines rely on, each of which the simulation must find: the mending of a fault that
was found once, taken out again. `python -m tests.simulation --mistakes` says how many seeds each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.crash import machines_mistakes
from tests.crash.seeding import nothing, replaced


@dataclass(frozen=True, slots=True)
class Mistake:
    """`world`: where it shows. `point`: what of the promises in docs/machines.md goes."""

    point: int
    name: str
    what: str
    world: str
    apply: Callable[[], Any]


def _of_machines(name: str) -> Callable[[], None]:
    return next(apply for known, _, _, apply in machines_mistakes.MISTAKES if known == name)


def _all(*applies: Callable[[], Any]) -> Callable[[], None]:
    def apply() -> None:
        for one in applies:
            one()

    return apply


def _unbound(*arguments: Any) -> str:
    return ""


def _never_refreshed_marks() -> None:
    """As it was: the range is written on every local disk, and one that lacks the table is a failure."""
    from tiering.catalog import blocks

    def take_range(context: Any, definition: Any) -> int:
        disks = list(blocks._disks(context, definition))
        index = blocks._first_unused(context, definition)
        for disk in disks:
            if disk.capabilities.shared:
                index = blocks._reserve(context, definition, disk, {})
        for disk in disks:
            if not disk.capabilities.shared:
                blocks._write_mark(context, definition, disk, index)
        blocks.take(context, definition, index)
        return index

    blocks.take_range = take_range


def _definitions_only_at_the_start() -> None:
    """As it was: what a disk lacks is written when a store opens, and to a new disk before its first write."""
    from tiering.engine import recovery

    repair = recovery._repair_definitions

    def repair_at_the_start(context: Any, *, begin: bool = False, looked: bool = False) -> list[str]:
        if begin and not any(recovery._is_fresh(context, name) for name in context.disks):
            return []
        return repair(context, begin=begin, looked=looked)

    recovery._repair_definitions = repair_at_the_start


def _believed_by_name() -> None:
    """As it was: what a part's name covers it takes the place of."""
    from tiering.catalog import lineage

    lineage.Lineage.hides = lambda self, cover, hidden: lineage.claims(cover, hidden)  # type: ignore[method-assign]


MISTAKES: tuple[Mistake, ...] = (
    Mistake(1, "simulated: end not proved", "a commit counts in a hole", "log", _of_machines("end not proved")),
    Mistake(1, "simulated: floor not heeded", "a stray entry is damage", "log", _of_machines("floor not heeded")),
    Mistake(1, "simulated: no floor", "a collection deletes entries silently", "log", _of_machines("no floor")),
    Mistake(
        2,
        "simulated: merged over another machine's part",
        "another machine's part leaves the bucket, and a merge spans its number",
        "tables",
        _all(
            replaced("tiering.catalog.blocks", "why_bound", _unbound),
            replaced("tiering.catalog.blocks:Vanished", "between", nothing),
            replaced("tiering.table.part:Part", "was_made_from", lambda *arguments: True),
            _believed_by_name,
        ),
    ),
    Mistake(
        3,
        "simulated: no tombstone",
        "a drop leaves nothing that says so",
        "tables",
        replaced("tiering.table.tombstones", "encode", nothing),
    ),
    Mistake(4, "simulated: no fence", "what is deleted is named", "log", _of_machines("no fence")),
    Mistake(4, "simulated: fence not heeded", "a commit does not look again", "log", _of_machines("fence not heeded")),
    Mistake(
        5,
        "simulated: clock compared late",
        "a wrong clock ends a live pin",
        "log",
        _of_machines("clock compared late"),
    ),
    Mistake(
        6,
        "simulated: committed to any state",
        "two restores at once end in neither",
        "log",
        _of_machines("committed to any state"),
    ),
    Mistake(
        7,
        "simulated: a table made elsewhere",
        "a store that was open when it was made cannot insert into it",
        "tables",
        _all(_never_refreshed_marks, _definitions_only_at_the_start),
    ),
    Mistake(
        8,
        "simulated: lease not looked at",
        "a writer that outslept its lease acknowledges",
        "lease",
        _all(_of_machines("lease not looked at"), _of_machines("last entry believed")),
    ),
)

MUTANTS = tuple(
    (one.name, one.what, f"tests/simulation/test_simulation.py::test_no_seed_fails[{one.world}]", one.apply)
    for one in MISTAKES
)
"""For `make mutants`."""
