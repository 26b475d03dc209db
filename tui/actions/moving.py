"""Moves, merges, pins, pauses, passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from oplog.errors import PartlyDone, Refused
from tiering.catalog.freshness import Freshness
from tiering.config.units import counted, format_size
from tui.actions.action import Action, Lines, NothingToDo, each

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.journal.records import PauseKind
    from tiering.move.mover import MoveReport
    from tiering.policy.plan import Move

Part = tuple[str, str]
"""Table and part, by name."""


def move_parts(parts: Sequence[Part], *, volume: str = "", disk: str = "") -> Action:
    """`move DB.TABLE --part X --to-volume V` for each."""
    where = ("--to-volume", volume) if volume else ("--to-disk", disk)

    def planned(store: Store) -> list[Move]:
        return [
            move
            for table, part in parts
            for move in store.plan_manual_move(table, part=part, to_volume=volume or None, to_disk=disk or None)
        ]

    return Action(
        title=f"Move {counted(len(parts), 'part')} to {'volume' if volume else 'disk'} {volume or disk}",
        commands=tuple(("move", table, "--part", part, *where) for table, part in parts),
        preview=lambda store: move_lines(planned(store)),
        run=lambda store: reported(store.apply(planned(store))),
    )


def apply_moves(moves: Sequence[Move]) -> Action:
    """What `apply` does with a plan that holds these moves."""
    return Action(
        title=f"Carry out {counted(len(moves), 'planned move')}",
        commands=tuple(("move", move.table, "--part", move.part, "--to-disk", move.target) for move in moves),
        preview=lambda store: move_lines(moves),
        run=lambda store: reported(store.apply(moves)),
    )


def move_lines(moves: Sequence[Move]) -> Lines:
    """The dry run of moves."""
    lines = [
        f"{move.table} {move.part}  {move.source} -> {move.target}  {format_size(move.bytes)}: {move.reason.detail}"
        for move in moves
    ]
    return lines or NothingToDo(["Nothing to move: all parts are there."])


def reported(report: MoveReport) -> str:
    """What moved, in a sentence. Raises `PartlyDone` when some failed, `Refused` when all were skipped."""
    total = sum(item.bytes for item in report.moved)
    done = f"{counted(len(report.moved), 'part')} moved ({format_size(total)}), {len(report.skipped)} skipped"
    if report.failed:
        first = report.failed[0]
        raise PartlyDone(
            f"{done}, {len(report.failed)} failed; {first.part}: {first.error}", hint="frostline moves list --failed"
        )
    if report.skipped and not report.moved:
        first_left = report.skipped[0]
        raise Refused(
            f"No part moved, {len(report.skipped)} skipped; {first_left.part}: {first_left.reason}",
            hint="frostline moves list",
        )
    why = f": {report.skipped[0].reason}" if report.skipped else ""
    return f"{done}{why}."


def cancel_moves(ids: Sequence[int]) -> Action:
    """`moves cancel ID` for each."""

    def run(store: Store) -> str:
        work = store.context.journal.work
        states = [work.request_cancel(number) for number in ids]
        stopped = sum(state in ("planned", "copying") for state in states)
        return f"{counted(stopped, 'move')} asked to stop" + (
            f"; {len(ids) - stopped:,} had ended or could not be stopped." if stopped < len(ids) else "."
        )

    return Action(
        title=f"Cancel {counted(len(ids), 'move')}",
        commands=tuple(("moves", "cancel", str(number)) for number in ids),
        run=run,
        brief=True,
    )


def pin_parts(parts: Sequence[Part], *, pinned: bool) -> Action:
    """`pin` or `unpin DB.TABLE --part X` for each."""
    verb = "pin" if pinned else "unpin"

    def run(store: Store) -> str:
        overrides, actor = store.context.journal.overrides, store.context.actor
        store.refresh(Freshness.CHANGES)  # others may have taken away what is shown

        def step(table: str, part: str) -> None:
            definition = store.definition(table)
            if pinned:
                store.context.catalog.part(definition, part)
                overrides.pin(definition.uuid, part=part, actor=actor)
            else:
                overrides.unpin(definition.uuid, part=part)

        done = each([part for _, part in parts], [partial(step, *part) for part in parts])
        return f"{verb}ned {done}."

    return Action(
        title=f"{verb.capitalize()} {counted(len(parts), 'part')}",
        commands=tuple((verb, table, "--part", part) for table, part in parts),
        run=run,
        brief=True,
    )


def pause(table: str, *, paused: bool) -> Action:
    """`pause` or `resume`, of everything: of a table, or with none of the whole store."""
    verb = "pause" if paused else "resume"

    def run(store: Store) -> str:
        from tiering.journal.records import PAUSE_KINDS

        kinds: tuple[PauseKind, ...] = PAUSE_KINDS
        if table:
            store.refresh(Freshness.CHANGES)  # others may have dropped it
        uuid = store.definition(table).uuid if table else None
        overrides = store.context.journal.overrides
        if paused:
            overrides.pause(uuid, kinds, actor=store.context.actor)
        else:
            overrides.resume(uuid, kinds)
        return f"{verb}d moves, merges and gc of {table or 'all tables'}."

    return Action(
        title=f"{verb.capitalize()} automatic work on {table or 'all tables'}",
        commands=((verb, *([table] if table else [])),),
        run=run,
        brief=True,
    )


def merge(table: str, partition: str | None = None) -> Action:
    """`merge DB.TABLE [--partition P]`."""
    from tiering.merge.request import MergeRequest

    request = MergeRequest(partition=partition)

    def preview(store: Store) -> Lines:
        plans = store.plan_merges(table, request)
        lines = [
            f"{plan.parts[0].name.partition}: {counted(len(plan.parts), 'part')} into one,"
            f" {format_size(sum(stored.facts.size_bytes for stored in plan.parts))}: {plan.reason}"
            for plan in plans
        ]
        stays = store.explain_merges(table, plans, request)
        unmerged = [f"not merged: {stay.partition}: {stay.reason.detail}" for stay in stays]
        return [*lines, *unmerged] if lines else NothingToDo(["Nothing to merge now.", *unmerged])

    def run(store: Store) -> str:
        done = store.merge(table, request)
        return (
            f"{counted(len(done), 'merge')} of {table}, {counted(sum(len(one.inputs) for one in done), 'part')} merged."
        )

    return Action(
        title=f"Merge {table}" + (f", partition {partition}" if partition else ""),
        commands=(("merge", table, *(("--partition", partition) if partition else ())),),
        preview=preview,
        run=run,
    )


def tick() -> Action:
    """`tick`: one pass of the daemon. It may delete what is past its TTL."""

    def preview(store: Store) -> Lines:
        planned = store.plan(rest="none")
        deletes = [f"DELETE {gone.table} {gone.part}: {gone.reason.detail}" for gone in planned.deletes]
        moves = move_lines(planned.moves) if planned.moves else []
        return [*deletes, *moves] or ["No move and no delete is due; checking for merges."]

    def run(store: Store) -> str:
        report = store.tick()
        text = f"{len(report.merges)} merged, {len(report.deleted)} deleted; {reported(report.moves)}"
        if report.problems:
            raise PartlyDone(f"{text} Not done: {report.problems[0]}", hint="frostline tick")
        return text

    return Action(title="Run one daemon pass now", commands=(("tick",),), preview=preview, run=run)
