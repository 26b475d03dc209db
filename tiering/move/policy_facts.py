"""What the policy is asked: gathers parts, disks, pins, pauses and failures, and hands them to the pure `policy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from oplog.errors import Refused, UsageError
from tiering.catalog import blocks, reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context, wall_clock
from tiering.journal.records import Failures, MoveRecord
from tiering.policy import change as policy_change
from tiering.policy import decide as policy
from tiering.policy import explaining, pacing
from tiering.policy.pacing import has_budget, interval_of, price_of
from tiering.policy.placement import DiskState
from tiering.policy.plan import Budget, Explanation, Move, Options, PlacedPart, Plan, Rest, Spent, Unseen
from tiering.table.part import Part, PartFacts, PartName, range_of
from tiering.table.paths import part_name
from tiering.table.schema import Delete, TableDefinition

_BELIEVE = "'frostline tick --believe-clock'"


def plan(
    context: Context,
    definitions: Sequence[TableDefinition],
    *,
    at: datetime | None = None,
    rest: Rest = "each",
) -> Plan:
    """What moves, what is deleted and what stays now, or at a time that need not be that of any clock. Changes
    nothing. Where the parts are known by their sums, only those are looked at that may move, unless something is to be
    said of each part."""
    now = at or context.clock()
    states, policies = context.reservations.states(), context.config.policies
    options = replace(_options(context, now if at is None else None, at), rest=rest)
    parts, unseen = _deciding(context, definitions, states, now, options)
    return policy.decide(parts, states, policies, now, replace(options, unseen=unseen))


def staying(context: Context, at: datetime) -> policy.Staying:
    """What a plan of that time leaves out that says of the rest only when the next is due."""
    return policy.Staying(context.reservations.states(), context.config.policies, at, Options())


def _deciding(
    context: Context,
    definitions: Sequence[TableDefinition],
    states: Mapping[str, DiskState],
    now: datetime,
    options: Options,
    also: Iterable[tuple[str, str]] = (),
) -> tuple[list[PlacedPart], Unseen]:
    """The parts that a plan is made of, and what the others are together. `also`: partitions that are among them."""
    places = _places(context, definitions, now)
    wanted = policy.to_look_at(places, states, context.config.policies, now, options) if places is not None else None
    if places is None or wanted is None:
        return [placed(stored) for definition in definitions for stored in context.catalog.parts(definition)], Unseen()
    seen = {*wanted, *also}
    names: dict[str, list[str]] = {}
    for uuid, name in sorted(seen):
        names.setdefault(uuid, []).append(name)
    found = [
        placed(stored)
        for definition in definitions
        if definition.uuid in names
        for stored in context.catalog.partitions(definition, names[definition.uuid])
    ]
    first = [
        context.catalog.next_due(definition, now, [name for uuid, name in seen if uuid == definition.uuid])
        for definition in definitions
    ]
    return found, policy.unseen(places, seen, min(filter(None, first), default=None))


def clock_problem(context: Context) -> str:
    """Why nothing that counts days may be done now: the clock is wrong by all signs. Empty when it is not."""
    now = context.clock()
    options = _options(context, now)
    return _contradiction(context, now, options) or options.clock_doubt


def _contradiction(context: Context, now: datetime, options: Options) -> str:
    """Which parts or clocks contradict this machine's clock; empty if none do."""
    return policy.clock_problem(filter(None, [newest_part(context)]), now, options)


def newest_part(context: Context) -> datetime | None:
    """When the last part of all tables was written, by the clock of who wrote it."""
    return max(filter(None, map(context.catalog.newest, context.catalog.tables())), default=None)


def delete_doubt(context: Context, definition: TableDefinition) -> str:
    """Why the table's rules delete no rows now; empty where they do, or there are none."""
    return clock_problem(context) if _has_deletes(definition) else ""


def check_merge(context: Context, definition: TableDefinition) -> str:
    """Why merges of the table keep rows past their TTL now: no clock confirms this machine's. Empty: they delete them.
    Raises `Refused` where the table has rules that delete, and another clock contradicts this machine's."""
    if not _has_deletes(definition):
        return ""
    now = context.clock()
    options = _options(context, now)
    if why := _contradiction(context, now, options):
        raise Refused(
            f"{definition.full_name} has a rule that deletes rows, and is not merged by a wrong clock: {why}",
            hint=f"set the clock; if it is right: {_BELIEVE}",
        )
    return f"{options.clock_doubt}; if the clock is right: {_BELIEVE}" if options.clock_doubt else ""


def _has_deletes(definition: TableDefinition) -> bool:
    return any(isinstance(rule.action, Delete) for rule in definition.ttl)


def clock_doubt(context: Context, now: datetime) -> str:
    """Why nothing may be dropped by a date now; empty when it may."""
    trust = timedelta(seconds=context.config.limits.clock_trust_seconds)
    return context.clocks.doubt(context.disks, now, context.journal.confirmed_time(), trust)


def explain(context: Context, definition: TableDefinition, part: str, *, now: datetime) -> Explanation:
    """Why the part moves, why not, and when it will. Raises `NotFound`."""
    states, policies, options = context.reservations.states(), context.config.policies, _options(context, now)
    chosen = placed(context.catalog.part(definition, part))
    own = definition.uuid, chosen.name.partition
    less = replace(options, rest="none")
    parts, unseen = _deciding(context, context.catalog.tables(), states, now, less, [own])
    return explaining.explain(chosen, parts, states, policies, now, replace(options, unseen=unseen))


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
        name, what = context.catalog.part(definition, part).name, f"part '{part}'"
        copies = context.catalog.partition(definition, name.partition, include_outdated=True)
        chosen = [stored for stored in copies if stored.name == name and stored.state != "outdated"]
    else:
        copies = context.catalog.partition(definition, str(partition), include_outdated=True)
        chosen, what = [stored for stored in copies if stored.state != "outdated"], f"partition '{partition}'"
    policy_config = context.config.policy(definition.policy)
    targets = [disk for volume in policy_config.volumes if volume.name == to_volume for disk in volume.disks]
    targets = [to_disk] if to_disk is not None else targets
    if all(name in context.disks and context.disk(name).unreachable for name in targets):
        reachability.require(map(context.disk, targets), f"moving {what}")
    reachability.require({context.disk(stored.disk) for stored in chosen}, f"moving {what}")
    moves = policy_change.manual_moves(
        [placed(stored) for stored in chosen],
        what,
        policy_config,
        context.reservations.states(),
        to_volume=to_volume,
        to_disk=to_disk,
        keep_source=keep_source,
    )
    for move in moves:
        if why := blocks.why_bound(context, definition, PartName.parse(move.part), move.source, move.target):
            raise Refused(
                f"{what} cannot move: {why}",
                hint=f"make it this machine's own first: frostline merge {definition.full_name} --adopt",
            )
    return moves


class _Placed(msgspec.Struct, frozen=True, gc=False):
    """A part as the policy sees it: nothing of it has to be read for that."""

    definition: TableDefinition
    part: Part | PartFacts
    name: PartName
    disk: str


def _places(context: Context, definitions: Sequence[TableDefinition], now: datetime) -> list[policy.IdleParts] | None:
    """The parts of each table on each disk as a whole; None where only going through them tells."""
    found: list[policy.IdleParts] = []
    for definition in definitions:
        sums = context.catalog.sums(definition)
        if sums is None:
            return None
        newest = context.catalog.newest(definition)
        due, between = context.catalog.due(definition, now), context.catalog.between_told(definition, now)
        found += [
            policy.IdleParts(definition.uuid, definition.policy, disk, whole.partitions, newest, due, between)
            for disk, whole in sums.items()
            if whole.parts
        ]
    return found


def placed(stored: StoredPart) -> PlacedPart:
    """The part as the policy sees it."""
    return _Placed(stored.definition, stored.facts, stored.name, stored.disk)


def _options(context: Context, now: datetime | None, at: datetime | None = None) -> Options:
    """`now` is what the clock says, to be compared with others; None to believe it. `at`: the time that is asked about,
    where that is not the clock's."""
    journal = context.journal
    other, doubt = None, ""
    if now is not None:
        own = context.clock is wall_clock  # a clock that a program brings along may run as it likes
        other = context.clocks.other(context.disks, now, steady=own)
        doubt = clock_doubt(context, now) if own else ""
    claimed = {
        (definition.uuid, part): what
        for definition in context.catalog.tables()
        for part, what in journal.claimed(definition.uuid).items()
        if part_name(part) is not None  # inserts and merges hold numbers and digests by claims, too
    }
    return Options(
        reference_time=other.time if other else None,
        reference_source=other.source if other else "",
        clock_doubt=doubt,
        written_ahead=journal.written_ahead(),
        pins=journal.overrides.pins(),
        pauses=journal.overrides.pauses(),
        failures=journal.work.failures(),
        bound=_bound(context),
        claimed=claimed,
        leaving=_leaving(context, claimed),
        remote=frozenset(context.config.buckets()),
        prices=context.config.prices,
        **_paced(context, context.clock() if at is None else at),
    )


def failing_moves(context: Context) -> dict[tuple[str, str, str], Failures]:
    """By (table uuid, part, target): the moves whose last try failed, of parts that are still there; one that was
    merged, dropped or replaced moves no more. Of a table that cannot be seen nobody knows."""
    tried = context.journal.work.failures()
    if not tried:
        return {}
    tables = {table.uuid: table for table in context.catalog.tables()}
    whole = {table.uuid for table in reachability.whole_tables(context)}
    there: dict[tuple[str, str], set[str]] = {}

    def is_there(uuid: str, part: str) -> bool:
        if uuid not in whole:
            return uuid in tables
        key = (uuid, PartName.parse(part).partition)
        if key not in there:
            there[key] = {stored.facts.name for stored in context.catalog.partition(tables[uuid], key[1])}
        return part in there[key]

    return {key: failure for key, failure in tried.items() if is_there(key[0], key[1])}


def _paced(context: Context, now: datetime) -> dict[str, Any]:
    """What the pacing of policies asks for, from the journal; nothing is read where no policy has any."""
    paced = {name: policy.pacing for name, policy in context.config.policies.items()}
    found: dict[str, Any] = {}
    if any(pacing.cool_down_seconds for pacing in paced.values()):
        found["arrived"] = context.journal.work.arrivals()
    if any(has_budget(pacing) for pacing in paced.values()):
        found["spent"] = _spent(context, now)
    return found


def _spent(context: Context, now: datetime) -> dict[str, Spent]:
    """What moves of each policy that has budgets took from them, in the interval of now."""
    paced = {name: policy.pacing for name, policy in context.config.policies.items()}
    times = {name: interval_of(pacing, now) for name, pacing in paced.items() if has_budget(pacing)}
    policies = {definition.uuid: definition.policy for definition in context.catalog.tables()}
    spent: dict[str, Spent] = {}
    begins, ends = [begin for begin, _ in times.values()], [end for _, end in times.values()]
    for move in context.journal.work.paid_moves(min(begins), max(ends)) if times else ():
        name = policies.get(move.table_uuid, "")
        if name in times and times[name][0] <= move.created < times[name][1]:
            spent[name] = spent.get(name, Spent()) + _price(context, move)
    return spent


def _price(context: Context, move: MoveRecord) -> Spent:
    remote = frozenset(context.config.buckets())
    return price_of(move.bytes, move.source, move.target, remote, context.config.prices)


def budgets(context: Context) -> list[Budget]:
    """How far each budget of the policies is used up now. Reads the journal where there is any."""
    now = context.clock()
    return pacing.budgets(context.config.policies, _spent(context, now), now)


def money_since(context: Context, since: datetime) -> float:
    """What the moves that rules asked for since then cost, those that failed included."""
    return sum(_price(context, move).money for move in context.journal.work.paid_moves(since, context.clock()))


def _leaving(context: Context, claimed: Mapping[tuple[str, str], str]) -> dict[str, int]:
    """What moves under way take off disks. Those that only wait for their turn are planned as if nobody had them."""
    found: dict[str, int] = {}
    for move in context.journal.work.moves(active=True) if "move" in claimed.values() else ():
        is_at_work = claimed.get((move.table_uuid, move.part)) == "move"
        if is_at_work and not move.keep_source and move.source in context.disks:
            found[move.source] = found.get(move.source, 0) + move.bytes
    return found


def _bound(context: Context) -> dict[tuple[str, str, str], str]:
    """The parts of other machines, each with the disks of this one that it may not go to."""
    own_disks = [name for name, disk in context.disks.items() if not disk.capabilities.shared]
    found: dict[tuple[str, str, str], str] = {}
    for definition in context.catalog.tables():
        if definition.policy not in context.config.policies:
            continue
        taken = {
            name: blocks.taken_by_others(context, definition, disk)
            for name, disk in context.disks.items()
            if disk.capabilities.shared
        }
        if not any(taken.values()):
            continue
        for stored in context.catalog.parts(definition):
            if range_of(stored.name.max_block) in taken.get(stored.disk, ()):
                for name in own_disks:
                    why = blocks.bound_to(stored.name, stored.disk, name)
                    found[definition.uuid, stored.facts.name, name] = why
    return found
