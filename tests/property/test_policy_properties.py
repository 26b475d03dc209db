"""The policy, for random disks, rules, parts and times. Guards P18 (no ping-pong), P23 (clocks) and the promise that a
plan, once carried out, leaves nothing to plan."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.idle_parts import first_due, together
from tests.turns import examples
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.journal.records import Failures, PartPin, Pause
from tiering.policy.decide import Options, Plan, decide, to_look_at, unseen
from tiering.policy.due import dues_of
from tiering.policy.placement import DiskState, move_factor, ordered_volumes, size_limit, volume_index
from tiering.table.part import ColumnRange, DataFile, Part, PartName
from tiering.table.schema import (
    Column,
    Delete,
    MoveToDisk,
    MoveToVolume,
    Recompress,
    TableDefinition,
    TableSettings,
    TtlRule,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
GB = 1024**3


@dataclasses.dataclass(frozen=True)
class Placed:
    definition: TableDefinition
    part: Part
    name: PartName
    disk: str


@dataclasses.dataclass(frozen=True)
class World:
    parts: tuple[Placed, ...]
    disks: dict[str, DiskState]
    policies: dict[str, PolicyConfig]
    options: Options

    def plan(self, now: datetime = NOW) -> Plan:
        return decide(self.parts, self.disks, self.policies, now, self.options)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    volume_count = draw(st.integers(1, 4))
    disks: dict[str, DiskState] = {}
    volumes = []
    for number in range(volume_count):
        names = [f"disk{number}{letter}" for letter in "ab"[: draw(st.integers(1, 2))]]
        for name in names:
            total = draw(st.one_of(st.integers(0, 200 * GB), st.none() if number else st.just(100 * GB)))
            disks[name] = DiskState(
                total,
                None if total is None else draw(st.integers(0, total)),
                reserved_bytes=draw(st.sampled_from([0, 0, GB])),
                read_only=draw(st.integers(0, 9)) == 0,
                broken=draw(st.sampled_from(["", "", "", "", "", "gone"])),
            )
        volumes.append(
            VolumeConfig(
                name=f"v{number}",
                disks=tuple(names),
                max_data_part_size_bytes=draw(st.sampled_from([None, None, 5 * GB])),
                load_balancing=draw(st.sampled_from(["round_robin", "least_used"])),
            )
        )
    factor = draw(st.one_of(st.none(), st.floats(0, 1)))
    policies = {
        "p": PolicyConfig(volumes=tuple(volumes), move_factor=factor),
        "q": PolicyConfig(volumes=tuple(volumes[:2]), move_factor=draw(st.one_of(st.none(), st.floats(0, 0.5)))),
    }
    parts: list[Placed] = []
    pins: list[PartPin] = []
    failures: dict[tuple[str, str, str], Failures] = {}
    for policy in draw(st.sampled_from([["p"], ["p", "q"]])):
        definition = draw(tables(policy, volume_count, list(disks)))
        for number in range(draw(st.integers(0, 8))):
            placed = draw(placed_parts(definition, number, list(disks)))
            parts.append(placed)
            if draw(st.integers(0, 7)) == 0:
                volume = draw(st.sampled_from([None, "v0", "v1", "v9"]))
                pins.append(
                    PartPin(table_uuid=definition.uuid, scope="part", name=placed.part.name, volume=volume, created=NOW)
                )
            if draw(st.integers(0, 5)) == 0:
                key = (definition.uuid, placed.part.name, draw(st.sampled_from(sorted(disks))))
                failures[key] = Failures(attempts=draw(st.integers(1, 9)), error="no", at=NOW - timedelta(minutes=3))
    return World(tuple(parts), disks, policies, Options(pins=pins, failures=failures))


@st.composite
def tables(draw: st.DrawFn, policy: str, volume_count: int, disks: list[str]) -> TableDefinition:
    actions = st.one_of(
        st.integers(0, volume_count - 1).map(lambda number: MoveToVolume(volume=f"v{number}")),
        st.sampled_from(disks).map(lambda disk: MoveToDisk(disk=disk)),
        st.sampled_from(disks).map(lambda disk: MoveToDisk(disk=disk, if_exists=True)),
    )
    others = st.sampled_from([Recompress(codec="zstd"), MoveToVolume(volume="attic")])
    rules = draw(st.lists(st.tuples(st.integers(0, 60), st.one_of(actions, actions, others)), max_size=3))
    ttl = [TtlRule(after_seconds=days * 86400, column="ts", action=action) for days, action in rules]
    if draw(st.integers(0, 3)) == 0:
        ttl.append(TtlRule(after_seconds=55 * 86400, column="ts", action=Delete()))
    return TableDefinition(
        uuid=f"uuid-{policy}",
        database="d",
        name=policy,
        columns=(Column(id=1, name="ts", type="timestamp[us, UTC]"),),
        order_by=("ts",),
        policy=policy,
        ttl=tuple(ttl),
        settings=TableSettings(min_part_age_to_move_seconds=draw(st.sampled_from([0, 0, 3600]))),
    )


@st.composite
def placed_parts(draw: st.DrawFn, definition: TableDefinition, number: int, disks: list[str]) -> Placed:
    newest = NOW - timedelta(days=draw(st.integers(-1, 90)), minutes=draw(st.integers(0, 90)))
    oldest = draw(st.sampled_from([newest, newest, None, datetime(1970, 1, 1, tzinfo=UTC)]))
    size = draw(st.one_of(st.integers(0, 30 * GB), st.sampled_from([GB, 2 * GB])))
    part = Part(
        table=definition.uuid,
        name=f"{draw(st.sampled_from(['all', 'b', 'c', 'd']))}_{number}_{number}_0",
        rows=10,
        size_bytes=size,
        created=NOW - timedelta(minutes=draw(st.integers(0, 200))),
        files=(DataFile(name="data-0000.parquet", rows=10, size_bytes=size, sha256="0" * 64),),
        columns={}
        if draw(st.integers(0, 9)) == 0
        else {"1": ColumnRange(oldest and oldest.isoformat(), newest.isoformat(), draw(st.sampled_from([0, 0, 3])))},
    )
    return Placed(definition, part, part.part_name, draw(st.sampled_from(disks)))


def carry_out(world: World, plan: Plan) -> World:
    """The world after the plan, checking on the way that every single move fits when its turn comes."""
    disks = dict(world.disks)
    where = {(part.definition.uuid, part.part.name): part for part in world.parts}

    def change(disk: str, size: int) -> None:
        state = disks[disk]
        if state.free_bytes is not None:
            disks[disk] = msgspec.structs.replace(state, free_bytes=state.free_bytes + size)

    for delete in plan.deletes:
        change(delete.disk, delete.bytes)
        del where[delete.table_uuid, delete.part]
    for move in plan.moves:
        change(move.target, -move.bytes)
        change(move.source, move.bytes)
        where[move.table_uuid, move.part] = dataclasses.replace(where[move.table_uuid, move.part], disk=move.target)
    return dataclasses.replace(world, disks=disks, parts=tuple(where.values()))


@settings(max_examples=examples(400), deadline=None)
@given(worlds())
def test_a_plan_carried_out_leaves_nothing_to_plan(world: World) -> None:
    after = carry_out(world, world.plan())
    assert after.plan().moves == ()
    assert after.plan().deletes == ()


@settings(max_examples=examples(200), deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_a_plan_depends_on_nothing_but_its_arguments(world: World, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(world.parts)
    random.shuffle(shuffled)
    assert dataclasses.replace(world, parts=tuple(shuffled)).plan() == world.plan()


@settings(max_examples=examples(300), deadline=None)
@given(worlds())
def test_every_part_has_one_decision_with_a_reason(world: World) -> None:
    plan = world.plan()
    decided = [(m.table_uuid, m.part) for m in (*plan.moves, *plan.deletes, *plan.stays)]
    assert sorted(decided) == sorted((part.definition.uuid, part.part.name) for part in world.parts)
    assert all(m.reason.kind and m.reason.detail for m in (*plan.moves, *plan.deletes, *plan.stays))


@settings(max_examples=examples(300), deadline=None)
@given(worlds(), st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_no_part_ever_moves_back(world: World, days: list[int]) -> None:
    """P18: as time goes on and plans are carried out, a part only gets colder; pins alone may warm it."""
    pinned = {pin.name for pin in world.options.pins}
    now = NOW
    for more in days:
        now += timedelta(days=more)
        plan = world.plan(now)
        for move in plan.moves:
            if move.part in pinned:
                continue
            policy = world.policies[move.table.split(".")[1]]
            source, target = volume_index(policy, move.source), volume_index(policy, move.target)
            assert source is not None
            assert target is not None
            assert target >= source
            assert move.source != move.target
        world = carry_out(world, plan)


@settings(max_examples=examples(300), deadline=None)
@given(worlds())
def test_moves_for_space_cover_the_need_or_nothing_else_could_go(world: World) -> None:
    plan = world.plan()
    after = carry_out(world, plan)
    for policy_name, policy in world.policies.items():
        volumes = ordered_volumes(policy)
        for index, volume in enumerate(volumes[:-1]):
            for disk in volume.disks:
                state = after.disks[disk]
                if state.total_bytes is None or state.unreserved_bytes is None:
                    continue
                covered = state.unreserved_bytes >= int(state.total_bytes * move_factor(policy))
                stuck = [p for p in after.parts if p.disk == disk and p.definition.policy == policy_name]
                left = {(s.table_uuid, s.part): s for s in plan.stays}
                for part in [] if covered else stuck:
                    stay = left.get((part.definition.uuid, part.part.name))
                    colder = volumes[index + 1 :]
                    assert (
                        stay is None
                        or part.part.size_bytes == 0
                        or stay.reason.kind
                        in {
                            *("pin", "too_young", "no_space", "size_limit", "unusable_disk", "backoff", "gave_up"),
                            *("read_only", "undated_rows", "no_such_disk", "in_place", "colder"),
                        }
                    ), (stay, colder)


@settings(max_examples=examples(300), deadline=None)
@given(worlds())
def test_moves_for_space_are_the_fewest_heaviest(world: World) -> None:
    """With one table, one full disk and room below: dropping the smallest chosen part would not cover the need."""
    plan = world.plan()
    chosen: dict[str, list[int]] = {}
    for move in plan.moves:
        # A part that a rule brings to a disk which then is too full goes on at once: that is the other disk's need.
        if move.reason.kind == "move_factor" and move.reason.detail.startswith(f"disk {move.source} has"):
            chosen.setdefault(move.source, []).append(move.bytes)
    others = {move.source for move in plan.moves if move.reason.kind != "move_factor"} | {
        move.target for move in plan.moves
    }
    used = {part.definition.policy for part in world.parts}
    for disk, sizes in chosen.items():
        state = world.disks[disk]
        if disk in others or len(used) > 1 or plan.deletes:
            continue
        assert state.total_bytes is not None
        assert state.free_bytes is not None
        # Reservations may ask for more than is free: that is needed, too.
        need = int(state.total_bytes * move_factor(world.policies[min(used)])) - (
            state.free_bytes - state.reserved_bytes
        )
        assert sum(sizes) - min(sizes) < need
        assert sizes == sorted(sizes)


@settings(max_examples=examples(200), deadline=None)
@given(worlds())
def test_nothing_goes_where_it_may_not(world: World) -> None:
    plan = world.plan()
    parts = {(part.definition.uuid, part.part.name): part for part in world.parts}
    for move in plan.moves:
        assert not world.disks[move.target].read_only
        assert not world.disks[move.target].broken
        assert not world.disks[move.source].read_only
        part = parts[move.table_uuid, move.part]
        policy = world.policies[part.definition.policy]
        index = volume_index(policy, move.target)
        assert index is not None
        limit = size_limit(ordered_volumes(policy)[index], world.disks)
        to_disk = any(isinstance(rule.action, MoveToDisk) for rule in part.definition.ttl)
        assert limit is None or part.part.size_bytes <= limit or to_disk


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), st.sampled_from([timedelta(days=-20000), timedelta(days=-365), timedelta(hours=-6)]))
def test_a_clock_that_went_back_moves_and_deletes_nothing(world: World, jump: timedelta) -> None:
    """P23."""
    plan = world.plan(NOW + jump)
    assert plan.moves == ()
    assert plan.deletes == ()


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), st.sampled_from([timedelta(days=365), timedelta(days=-365), timedelta(hours=2)]))
def test_two_clocks_that_disagree_move_and_delete_nothing(world: World, jump: timedelta) -> None:
    """P23: the object store's clock is the second opinion."""
    options = msgspec.structs.replace(world.options, reference_time=NOW)
    plan = dataclasses.replace(world, options=options).plan(NOW + jump)
    assert plan.moves == ()
    assert plan.deletes == ()


_SAID_OF_ALL = {"in_place", "colder", "no_such_volume", "no_such_disk", "not_due", "no_rule", "no_statistics", "busy"}
"""Why parts stay that nothing holds back."""


@settings(max_examples=examples(500), deadline=None)
@given(worlds(), st.data())
def test_who_looks_at_what_may_move_alone_plans_the_same(world: World, data: st.DataObject) -> None:
    """What the parts of each partition are together tells which have to be looked at, to the moment at which a rule is
    due. The oracle goes through all parts, and says of each why it stays."""
    options = data.draw(options_of(world))
    dues = [
        dues_of(part.definition, part.part, part.disk, world.policies[part.definition.policy]) for part in world.parts
    ]
    times = {time for acting, told in dues for time in (acting, max(told, default=None)) if time is not None}
    shifts = (timedelta(seconds=-1), timedelta(), timedelta(seconds=1))
    for now in [NOW, *(time + shift for time in sorted(times) for shift in shifts)]:
        whole = decide(world.parts, world.disks, world.policies, now, options)
        places = together(world.parts, world.policies, now)
        for rest in ("next", "none"):
            less = msgspec.structs.replace(options, rest=rest)
            wanted = to_look_at(places, world.disks, world.policies, now, less)
            if wanted is None:
                continue
            seen = [part for part in world.parts if (part.definition.uuid, part.name.partition) in wanted]
            less = msgspec.structs.replace(
                less, unseen=unseen(places, wanted, first_due(world.parts, wanted, world.policies, now))
            )
            plan = decide(seen, world.disks, world.policies, now, less)
            assert (plan.moves, plan.deletes) == (whole.moves, whole.deletes)
            held = [stay for stay in whole.stays if stay.reason.kind not in _SAID_OF_ALL]
            assert [stay.reason for stay in plan.stays if stay.reason.kind not in _SAID_OF_ALL] == [
                stay.reason for stay in held
            ]
            if rest == "next":
                assert {stay.part for stay in plan.stays} <= {stay.part for stay in whole.stays}
                assert plan.staying == len(whole.stays)
                assert plan.next_due == whole.next_due


@st.composite
def options_of(draw: st.DrawFn, world: World) -> Options:
    """What else bears on the world: less of it, so that not everything has to be looked at, and what is at work."""
    names = [(part.definition.uuid, part.part.name) for part in world.parts]
    pause = Pause(table_uuid=None, kind=draw(st.sampled_from(["merges", "merges", "moves"])), created=NOW)
    return msgspec.structs.replace(
        world.options,
        pins=draw(st.sampled_from([(), world.options.pins])),
        pauses=draw(st.sampled_from([(), (), (pause,)])),
        claimed={name: "merge" for name in names if draw(st.integers(0, 7)) == 0},
    )
