"""What the policy is asked: gathers parts, disks, pins, pauses and failures, and hands them to the pure `policy`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from oplog.errors import UsageError
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context, wall_clock
from tiering.policy import change as policy_change
from tiering.policy import decide as policy
from tiering.policy.plan import Explanation, Move, Options, Plan
from tiering.table.schema import TableDefinition


def plan(context: Context, definitions: Sequence[TableDefinition], *, at: datetime | None = None) -> Plan:
    """What moves, what is deleted and what stays now, or at a time that need not be that of any clock. Changes
    nothing."""
    now = at or context.clock()
    return policy.decide(
        _parts(context, definitions),
        context.reservations.states(),
        context.config.policies,
        now,
        _options(context, now if at is None else None),
    )


def clock_problem(context: Context) -> str:
    """Why nothing that counts days may be done now: the clock is wrong by all signs. Empty when it is not."""
    now = context.clock()
    created = (stored.part.created for stored in _parts(context, context.catalog.tables()))
    options = _options(context, now)
    return policy.clock_problem(created, now, options) or options.clock_doubt


def clock_doubt(context: Context, now: datetime) -> str:
    """Why nothing may be dropped by a date now; empty when it may."""
    trust = timedelta(seconds=context.config.limits.clock_trust_seconds)
    return context.clocks.doubt(context.disks, now, context.journal.confirmed_time(), trust)


def explain(context: Context, definition: TableDefinition, part: str, *, now: datetime) -> Explanation:
    """Why the part moves, why not, and when it will. Raises `NotFound`."""
    return policy.explain(
        context.catalog.part(definition, part),
        _parts(context, context.catalog.tables()),
        context.reservations.states(),
        context.config.policies,
        now,
        _options(context, now),
    )


def manual_moves(
    context: Context,
    definition: TableDefinition,
    *,
    partition: str | None,
    part: str | None,
    to_volume: str | None,
    to_disk: str | None,
    keep_source: bool,
) -> list[Move]:
    """The moves a person asks for. Pins and pauses do not bind them. Raises `NotFound`, `UsageError`, `NoSpace`."""
    if (partition is None) == (part is None):
        raise UsageError("name either a partition or a part to move", hint="--partition P or --part X")
    if part is not None:
        chosen, what = [context.catalog.part(definition, part)], f"part '{part}'"
    else:
        everything = context.catalog.parts(definition)
        chosen = [stored for stored in everything if stored.name.partition == partition]
        what = f"partition '{partition}'"
    policy_config = context.config.policy(definition.policy)
    targets = [disk for volume in policy_config.volumes if volume.name == to_volume for disk in volume.disks]
    targets = [to_disk] if to_disk is not None else targets
    if all(name in context.disks and context.disk(name).unreachable for name in targets):
        reachability.require(map(context.disk, targets), f"moving {what}")
    reachability.require({context.disk(stored.disk) for stored in chosen}, f"moving {what}")
    return policy_change.manual_moves(
        chosen,
        what,
        policy_config,
        context.reservations.states(),
        to_volume=to_volume,
        to_disk=to_disk,
        keep_source=keep_source,
    )


def _parts(context: Context, definitions: Sequence[TableDefinition]) -> list[StoredPart]:
    return [part for definition in definitions for part in context.catalog.parts(definition)]


def _options(context: Context, now: datetime | None) -> Options:
    """`now` is what the clock says, to be compared with others; None to believe it."""
    journal = context.journal
    other, doubt = None, ""
    if now is not None:
        own = context.clock is wall_clock  # a clock that a program brings along may run as it likes
        other = context.clocks.other(context.disks, now, steady=own)
        doubt = clock_doubt(context, now) if own else ""
    return Options(
        reference_time=other.time if other else None,
        reference_source=other.source if other else "",
        clock_doubt=doubt,
        pins=journal.wishes.pins(),
        pauses=journal.wishes.pauses(),
        failures=journal.work.failures(),
        claimed={
            (definition.uuid, part): what
            for definition in context.catalog.tables()
            for part, what in journal.claimed(definition.uuid).items()
        },
    )
