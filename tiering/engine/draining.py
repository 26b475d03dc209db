"""Emptying a disk: what lies there goes to the other disks of the tables' policies, and nothing new comes.

    wish      the journal says that the disk is drained                 nothing comes there any more
    moves     as any other; and what is detached, copied by one commit  the part on both disks
    source    one commit: it goes from there                            done

The same call again does the rest, wherever it was broken off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from disks.base import Disk
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import FrostlineError, NotFound, Refused
from oplog.kinds import SetAside
from tiering.catalog import blocks, reachability
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.config.units import counted
from tiering.engine import recovery, replication
from tiering.move import policy_facts
from tiering.move.report import MoveReport
from tiering.policy import change
from tiering.policy.plan import Move
from tiering.table.part import PART_FILE, Part
from tiering.table.schema import TableDefinition

_ROUNDS = 5
"""What was under way when the drain began may still bring parts, and merge some."""


class DetachedThere(msgspec.Struct, frozen=True):
    """A part in `detached/` of the disk, whole, and the disk that takes it."""

    definition: TableDefinition
    part: Part
    directory: str
    target: str


class StaysThere(msgspec.Struct, frozen=True):
    """What lies on the disk and is not moved, and why."""

    table: str
    what: str
    why: str


class DrainPlan(msgspec.Struct):
    """What goes where."""

    moves: list[Move] = msgspec.field(default_factory=list)
    detached: list[DetachedThere] = msgspec.field(default_factory=list)
    stays: list[StaysThere] = msgspec.field(default_factory=list)


class DrainReport(msgspec.Struct):
    """What went, and what is left."""

    moves: MoveReport = msgspec.field(default_factory=MoveReport)
    detached: list[DetachedThere] = msgspec.field(default_factory=list)
    left: list[StaysThere] = msgspec.field(default_factory=list)


def plan(context: Context, name: str) -> DrainPlan:
    """Where everything of the disk goes. Changes nothing. Raises `Refused` where something has no place, or is for all
    replicas of a table, `DiskUnreachable` where the disk does not answer."""
    disk = context.disk(name)
    reachability.require([disk], f"draining {name}")
    if disk.read_only:
        raise Refused(
            f"disk {name} is read-only: nothing can leave it",
            hint="set read_only: false in its configuration, or remount it for writing",
        )
    result = DrainPlan()
    parts, aside = [], []
    for definition in context.catalog.tables():
        everything = context.catalog.parts(definition, include_outdated=True)
        own = [stored for stored in everything if stored.disk == name and stored.state != "outdated"]
        if own:
            reachability.check_whole(context, definition, f"draining {name} of parts of {definition.full_name}")
        if own and definition.is_replicated and disk.capabilities.shared:
            raise Refused(
                f"disk {name} holds parts of {definition.full_name} for all of its replicas: one "
                "machine cannot move them",
                hint="only a drop removes them; with a log per machine (`log: NAME`) each machine drains its own parts",
            )
        parts += [policy_facts.placed(stored) for stored in own]
        for entry in _aside(disk, definition):
            if isinstance(entry, StaysThere):
                result.stays.append(entry)
            else:
                aside.append(entry)
    for gone in context.catalog.dropped():
        if name in gone.disks:
            table = gone.definition.full_name
            result.stays.append(StaysThere(table, "what is left of a dropped table", f"'frostline table drop {table}'"))
    bound = {
        (stored.definition.uuid, stored.name, target): why
        for stored in parts
        for target in context.disks
        if (why := blocks.why_bound(context, stored.definition, stored.name, name, target))
    }
    states = context.reservations.states()
    result.moves, room = change.drain_moves(parts, name, context.config.policies, states, bound)
    for entry in sorted(aside, key=lambda entry: (entry.part.size_bytes, entry.directory)):
        target = change.drain_target(
            name, entry.definition.policy, entry.part.size_bytes, context.config.policies, room
        )
        if isinstance(target, change.NoPlace):
            raise change.no_place(name, [(entry.definition.full_name, entry.part.size_bytes, target)])
        room[target] = change.less(room[target], entry.part.size_bytes)
        result.detached.append(replace(entry, target=target))
    return result


def drain(context: Context, name: str) -> DrainReport:
    """Move everything off the disk, and let nothing new come to it until the journal's wish is ended. Raises as `plan`
    does, before anything is changed; never for a single part."""
    report, begun = DrainReport(), False
    for _ in range(_ROUNDS):
        try:
            planned = plan(context, name)
        except Refused:
            if not begun:
                raise
            break  # new arrivals have no place: the report lists them as left
        if not begun:
            context.journal.overrides.drain(name, actor=context.actor)
            recovery.begin_disks(context)
            for definition in context.catalog.tables():
                replication.before_a_disk_goes(context, definition)
            begun = True
        report.left = list(planned.stays)
        if not planned.moves and not planned.detached:
            break
        moves = replication.moved(context, planned.moves)
        report.moves = MoveReport(moved=report.moves.moved + moves.moved, failed=moves.failed, skipped=moves.skipped)
        gone, kept = _move_detached(context, name, planned.detached)
        report.detached += gone
        report.left += kept
        context.catalog.refresh()
        if context.stop.is_set() or not (moves.moved or gone):
            break
    reachability.compare(context)
    for definition in context.catalog.tables():
        still = [stored for stored in context.catalog.parts(definition, include_outdated=True) if stored.disk == name]
        if still:
            names = ", ".join(stored.facts.name for stored in still[:3]) + (", …" if len(still) > 3 else "")
            report.left.append(
                StaysThere(definition.full_name, f"{counted(len(still), 'part')}: {names}", "run it again")
            )
    return report


def _aside(disk: Disk, definition: TableDefinition) -> Iterator[DetachedThere | StaysThere]:
    """What lies in `detached/` of the table, on this disk; without a target yet."""
    place = f"{definition.directory}/{DETACHED_DIRECTORY}"
    for child in disk.list(place):
        directory = f"{place}/{child.rstrip('/')}"
        try:
            part, _ = copying.read_part(disk, directory)
            copying.check_files(disk, directory, part)
        except FrostlineError as error:
            yield StaysThere(definition.full_name, f"{DETACHED_DIRECTORY}/{child.rstrip('/')}", error.message)
        else:
            yield DetachedThere(definition, part, directory, "")


def _move_detached(
    context: Context, name: str, detached: Sequence[DetachedThere]
) -> tuple[list[DetachedThere], list[StaysThere]]:
    gone: list[DetachedThere] = []
    kept: list[StaysThere] = []
    if not detached:
        return gone, kept
    total = sum(one.part.size_bytes for one in detached)
    with context.progress.task("moving detached parts", items=len(detached), size_bytes=total) as task:
        for one in detached:
            if context.stop.is_set():
                break
            try:
                with context.journal.claim(one.definition.uuid, [one.part.name], "move"):
                    _move(context, context.disk(name), one)
            except (FrostlineError, OSError) as error:
                why = error.message if isinstance(error, FrostlineError) else str(error)
                kept.append(StaysThere(one.definition.full_name, f"{DETACHED_DIRECTORY}/{one.part.name}", why))
                continue
            gone.append(one)
            task.advance(items=1, size_bytes=one.part.size_bytes)
    return gone, kept


def _move(context: Context, source: Disk, detached: DetachedThere) -> None:
    """Have it on its target by one commit, and then no more on the source."""
    target, reason = context.disk(detached.target), f"drained off {source.name}"
    _, described = copying.read_part(source, detached.directory)
    if not copying.is_complete(target, detached.directory, described, proof=True):
        local = copying.local_directory(source, detached.directory)
        with (
            context.reservations.reserve(target.name, detached.part.size_bytes),
            target.transaction(SetAside(), reason=reason, actor=context.actor) as transaction,
        ):
            transaction.require(
                present=(detached.definition.path,), absent=(detached.directory, *detached.definition.barred_by)
            )
            for file in detached.part.files:
                path = f"{detached.directory}/{file.name}"
                copying.copy_file(source, path, file, transaction, lambda: None, local)
            transaction.create(f"{detached.directory}/{PART_FILE}", described)
            transaction.commit()
        if not copying.is_complete(target, detached.directory, described, proof=True):
            raise NotFound(f"{target.name}:{detached.directory} is not there after its commit", hint="run it again")
    with source.transaction(SetAside(), reason=reason, actor=context.actor) as transaction:
        transaction.remove(detached.directory)
        transaction.commit()
