"""Where parts belong: `decide` turns parts, disks, rules and a time into moves, deletes and stays, each with a reason.

Pure: no I/O, no clock, the same answer for the same question. `plan`, `explain`, `apply`, the daemon and the dashboard
all show what is decided here. The semantics are ClickHouse's, with two promises on top: a pass never moves a part to a
hotter volume (only a pin or a person does), and once a plan is carried out the next one is empty.

How: the moves are made on a model of the disks, hottest first, until nothing changes any more. A part that TTL brings
to a volume which then is too full goes on in the model, so it is copied once, to where it ends up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.config.units import format_duration, format_size
from tiering.journal.records import Failures, PartPin
from tiering.policy import placement, ttl
from tiering.policy.backoff import AHEAD, wait_after
from tiering.policy.due import Goal, earlier, goal_of
from tiering.policy.idle import IdleParts, clock_problem, to_look_at, unseen, why_blocked
from tiering.policy.items import PolicyItem, count_rest, explain_rest, next_due, next_goal, plan_of
from tiering.policy.pacing import Pacing
from tiering.policy.placement import DiskState, ordered_volumes, volume_index
from tiering.policy.plan import (
    Move,
    Options,
    PlacedPart,
    Plan,
    Reason,
    Stay,
    TtlDelete,
)
from tiering.table.schema import MoveToDisk, TtlRule

__all__ = [
    "DiskState",
    "IdleParts",
    "Move",
    "Options",
    "PlacedPart",
    "Plan",
    "Reason",
    "Stay",
    "Staying",
    "TtlDelete",
    "clock_problem",
    "decide",
    "to_look_at",
    "unseen",
]


def decide(
    parts: Iterable[PlacedPart],
    disks: Mapping[str, DiskState],
    policies: Mapping[str, PolicyConfig],
    now: datetime,
    options: Options | None = None,
) -> Plan:
    """What moves, what is deleted and what stays at `now`. `parts` are the active ones of every table concerned; but
    for those that `options.unseen` stands for."""
    return _Pass(parts, disks, policies, now, options or Options()).plan()


class Staying:
    """Says of single parts what a plan that says no more than when the next is due (`Options.rest`) leaves out: why
    they stay, and until when. Of parts that such a plan says nothing else of."""

    def __init__(
        self, disks: Mapping[str, DiskState], policies: Mapping[str, PolicyConfig], now: datetime, options: Options
    ) -> None:
        self._model = _Pass((), disks, policies, now, options)

    def why(self, part: PlacedPart) -> Reason:
        """Why it stays."""
        return self._model.why_it_stays(self._item(part))

    def why_due(self, part: PlacedPart) -> Reason:
        """Why a rule moves it now: of a part that is planned to move for a reason of the kind `ttl`."""
        due = ttl.winning_move(self._item(part).dues, self._model.now)
        return _by_rule(due, self._model.now) if due is not None else Reason("unknown", "no rule moves it now")

    def next_due(self, part: PlacedPart) -> datetime | None:
        """When a rule acts on it, if that is known."""
        return next_due(self._item(part), self._model.now)

    def next_goal(self, part: PlacedPart) -> str:
        """Where a rule brings it next: a disk, or a volume that has several; or what else it does. Empty: nothing."""
        return next_goal(self._item(part), self._model.now)

    def _item(self, part: PlacedPart) -> PolicyItem:
        return PolicyItem(part, self._model.policies.get(part.definition.policy))


_PACED = ("ttl", "move_factor")
"""The kinds of moves that a policy's pacing is about."""


class _Pass:
    """One run of `decide` on a model of the disks."""

    def __init__(
        self,
        parts: Iterable[PlacedPart],
        disks: Mapping[str, DiskState],
        policies: Mapping[str, PolicyConfig],
        now: datetime,
        options: Options,
    ) -> None:
        self.now = now
        self.options = options
        self.disks = dict(disks)
        for disk, size in options.leaving.items():
            self._release(disk, size)
        self.policies = policies
        self.items = sorted(
            (PolicyItem(part, policies.get(part.definition.policy)) for part in parts), key=lambda i: i.key
        )
        self.pacing = Pacing(
            self.items,
            policies,
            now,
            spent=options.spent,
            arrived=options.arrived,
            remote=options.remote,
            prices=options.prices,
        )
        self.goals: dict[tuple[str, TtlRule], Goal] = {}
        """By policy and rule."""
        self.turns: dict[tuple[str, str], int] = {}
        self.blocked: dict[tuple[str, str], Reason | None] = {}
        """By policy and disk."""
        self.freeing: set[str] = set()
        """Disks that were too full in this pass."""
        self.pauses = {pause.table_uuid: pause for pause in options.pauses if pause.kind == "moves"}
        self.pins = {(pin.table_uuid, pin.scope, pin.name): pin for pin in options.pins}

    def plan(self) -> Plan:
        problem = self._clock_problem()
        free = [] if problem else [item for item in self.items if not self._is_blocked(item)]
        if problem:
            for item in self.items:
                item.stay = (Reason("clock", problem), None)
        pins = [(item, self._pin_of(item)) for item in free] if self.pins else []
        pinned = [(item, pin) for item, pin in pins if pin is not None]
        movable = [item for item, pin in pins if pin is None] if pins else free
        self._delete(movable)
        movable = [item for item in movable if item.deleted is None]
        due = self._due(movable)
        while self._pin_pass(pinned) or self._ttl_pass(due) or self._space_pass(movable):
            pass
        match self.options.rest:
            case "each":
                explain_rest(movable, self.disks, self.now)
            case "next":
                return self._with_rest(movable)
        return plan_of(self.items, self.now)

    def _with_rest(self, movable: list[PolicyItem]) -> Plan:
        count, first = count_rest(movable, self.now)
        without = self.options.unseen
        return msgspec.structs.replace(
            plan_of(self.items, self.now),
            rest=count + sum(without.by_disk.values()),
            rest_due=earlier(first, without.next_due),
        )

    def why_it_stays(self, candidate: PolicyItem) -> Reason:
        """Of a part that nothing concerns."""
        self._ttl_pass(self._due([candidate]))
        explain_rest([candidate], self.disks, self.now)
        return candidate.stay[0] if candidate.stay is not None else Reason("unknown", "it is due by now")

    # Parts that no rule may touch

    def _clock_problem(self) -> str:
        return clock_problem((item.part.created for item in self.items), self.now, self.options)

    def _is_blocked(self, candidate: PolicyItem) -> bool:
        reason = self._blocked(candidate)
        if reason is not None:
            candidate.stay = (reason, None)
        return reason is not None

    def _blocked(self, candidate: PolicyItem) -> Reason | None:
        where = (candidate.table.policy, candidate.source)
        if where not in self.blocked:
            self.blocked[where] = why_blocked(
                candidate.table.policy, candidate.policy, candidate.source, self.disks.get(candidate.source)
            )
        if (reason := self.blocked[where]) is not None:
            return reason
        pause = (self.pauses.get(candidate.uuid) or self.pauses.get(None)) if self.pauses else None
        if pause is not None:
            whose = f"of {candidate.table.full_name}" if pause.table_uuid else "of all tables"
            return Reason("paused", f"moves {whose} are paused since {ttl.short_time(pause.created)}")
        holder = self.options.claimed.get((candidate.uuid, candidate.part.name)) if self.options.claimed else None
        return Reason("busy", f"a {holder} works on the part now") if holder else None

    def _pin_of(self, candidate: PolicyItem) -> PartPin | None:
        part = self.pins.get((candidate.uuid, "part", candidate.part.name))
        return part or self.pins.get((candidate.uuid, "partition", candidate.name.partition))

    def _pin_pass(self, pinned: list[tuple[PolicyItem, PartPin]]) -> bool:
        changed = False
        for item, pin in pinned:
            if item.policy is not None and self._follow_pin(item, item.policy, pin):
                changed = True
        return changed

    def _follow_pin(self, candidate: PolicyItem, policy: PolicyConfig, pin: PartPin) -> bool:
        pinned = f"{pin.scope} {pin.name} is pinned"
        volume = _find_volume(policy, pin.volume)
        if pin.volume is None:
            return self._stay(candidate, "pin", f"{pinned} where it is")
        if volume is None:
            return self._stay(candidate, "pin", f"{pinned} to volume {pin.volume}, which the policy does not have")
        if candidate.at in volume.disks:
            return self._stay(candidate, "pin", f"{pinned} to volume {pin.volume}")
        return self._try_move(candidate, [volume], Reason("pin", f"{pinned} to volume {pin.volume}"))

    # Rules

    def _delete(self, items: list[PolicyItem]) -> None:
        for item in items:
            due = ttl.due_delete(item.dues, self.now)
            if due is None:
                self._keep_undated(item)
                continue
            if self.options.clock_doubt:
                item.stay = (self._clock_reason(due), None)
                continue
            item.deleted = Reason("ttl_delete", f"{due.describe(self.now)}: rule '{ttl.rule_text(due.rule)}'")
            self._release(item.at, item.size)

    def _clock_reason(self, due: ttl.Due) -> Reason:
        return Reason(
            "clock",
            f"rule '{ttl.rule_text(due.rule)}' is due by this machine's clock, but {self.options.clock_doubt}: "
            "nothing is deleted until one does, or 'frostline tick --believe-clock'",
        )

    def _keep_undated(self, candidate: PolicyItem) -> None:
        """Give a part that is not deleted whole, because rows in it have no time, its reason."""
        due = ttl.due_in_part(candidate.dues, self.now)
        if due is not None and self.options.clock_doubt:
            candidate.stay = (self._clock_reason(due), None)
            return
        if due is not None:
            detail = (
                f"{due.describe(self.now)}: rule '{ttl.rule_text(due.rule)}' keeps them, a merge deletes the others"
            )
            candidate.stay = (Reason("undated_rows", detail), None)
            return
        due = next((due for due in candidate.dues if due.deletes and due.is_due(self.now)), None)
        if due is not None and due.newest is not None:
            detail = (
                f"rule '{ttl.rule_text(due.rule)}' is due, but the newest row has {ttl.short_time(due.newest)}, "
                "which looks like a missing time: drop the part manually if the time is right"
            )
            candidate.stay = (Reason("implausible_time", detail), None)

    def _due(self, items: list[PolicyItem]) -> list[tuple[PolicyItem, ttl.Due]]:
        """Those that a rule moves now, each with it; where what is left of a budget is for those that wait longest,
        these first."""
        winning = (
            (candidate, ttl.winning_move(candidate.dues, self.now))
            for candidate in items
            if candidate.policy is not None
        )
        due_candidates = [(candidate, due) for candidate, due in winning if due is not None]
        if self.pacing.has_budgets:
            due_candidates.sort(key=lambda pair: (pair[1].due, pair[0].key))
        return due_candidates

    def _ttl_pass(self, dues: list[tuple[PolicyItem, ttl.Due]]) -> bool:
        """Move parts where their rules say, in the model; whether any moved. Those that no later pass moves by a rule
        are taken from the list."""
        changed, waiting = False, []
        for item, due in dues:
            if item.policy is None or (volume := self._volume_wanted(item, item.policy, due)) is None:
                continue
            if self._follow_rule(item, volume, due):
                changed = True
            else:
                waiting.append((item, due))
        dues[:] = waiting
        return changed

    def _volume_wanted(self, candidate: PolicyItem, policy: PolicyConfig, due: ttl.Due) -> VolumeConfig | None:
        """The volume to which the rule moves the part; None where there is none, or it is there or colder by now: for
        all that a pass may do, that stays so."""
        goal = self._goal_of(due.rule, candidate.table.policy, policy)
        if goal.volume is None:
            self._stay(candidate, *goal.nowhere)
            return None
        if candidate.at in goal.volume.disks:
            self._stay(candidate, "in_place", f"already on {candidate.at}, where {goal.rule} wants it")
            return None
        here = volume_index(policy, candidate.at)
        if here is None or goal.coldness < here:
            goal_text = f"{goal.rule} wants volume {goal.volume.name}"
            self._stay(
                candidate, "colder", f"{goal_text}; the part is on a colder one and never moves back automatically"
            )
            return None
        return goal.volume

    def _follow_rule(self, candidate: PolicyItem, volume: VolumeConfig, due: ttl.Due) -> bool:
        if self._too_young(candidate) or self._is_held(candidate, due):
            return False
        obey_limit = not isinstance(due.rule.action, MoveToDisk)
        return self._try_move(candidate, [volume], _by_rule(due, self.now), obey_limit=obey_limit)

    def _goal_of(self, rule: TtlRule, name: str, policy: PolicyConfig) -> Goal:
        known = self.goals.get((name, rule))
        if known is None:
            known = self.goals[name, rule] = goal_of(rule, name, policy, self.disks)
        return known

    def _space_pass(self, items: list[PolicyItem]) -> bool:
        changed = False
        for name, policy in sorted(self.policies.items()):
            volumes = ordered_volumes(policy)
            for index, volume in enumerate(volumes[:-1]):
                for disk in volume.disks:
                    changed |= self._free_space(name, policy, index, disk, items)
        return changed

    def _free_space(self, name: str, policy: PolicyConfig, index: int, disk: str, items: list[PolicyItem]) -> bool:
        """Move the heaviest parts off a disk that is too full, as few as cover the need; whether any moved."""
        state, factor = self.disks.get(disk), placement.move_factor(policy)
        if state is None or state.total_bytes is None or state.unreserved_bytes is None:
            return False
        wanted_bytes = int(state.total_bytes * factor)
        if wanted_bytes <= state.unreserved_bytes and disk not in self.freeing:
            return False
        self.freeing.add(disk)  # and on to where moves end, which is more than where they begin
        need, changed = int(state.total_bytes * placement.move_until(policy)) - state.unreserved_bytes, False
        if need <= 0:
            return False
        reason = Reason(
            "move_factor",
            f"disk {disk} has {format_size(state.unreserved_bytes)} of {format_size(state.total_bytes)} free, "
            f"less than the {factor:.0%} ({format_size(wanted_bytes)}) of move_factor: the largest parts move first",
        )
        colder = list(ordered_volumes(policy)[index + 1 :])
        candidates = [
            candidate
            for candidate in items
            if candidate.at == disk and candidate.table.policy == name and candidate.size
        ]
        for candidate in sorted(candidates, key=lambda candidate: (-candidate.size, candidate.key)):
            if need <= 0:
                break
            if (
                not self._too_young(candidate)
                and not self._is_held(candidate, None)
                and self._try_move(candidate, colder, reason)
            ):
                need -= candidate.size
                changed = True
        return changed

    # The model

    def _try_move(
        self, candidate: PolicyItem, volumes: Sequence[VolumeConfig], reason: Reason, *, obey_limit: bool = True
    ) -> bool:
        """Move the part in the model to the first of the volumes that takes it; else note why it stays."""
        problems: list[str] = []
        kind, until = "no_space", None
        for volume in volumes:
            turn = self._turn(candidate, volume)
            waiting = self._waiting(candidate, volume)
            skip = {disk: (blocked.kind, blocked.detail) for disk, (blocked, _) in waiting.items()}
            choice = placement.choose_disk(
                volume, self.disks, candidate.size, turn=turn, obey_limit=obey_limit, skip=skip
            )
            if choice.disk is None:
                kind = choice.kind
                problems.append(choice.why)
                until = min((time for _, time in waiting.values() if time is not None), default=until)
                continue
            if candidate.move is None and reason.kind in _PACED:
                self.pacing.take(candidate, choice.disk)
            self.turns[candidate.table.policy, volume.name] = turn + 1
            self._release(candidate.at, candidate.size)
            self._take(choice.disk, candidate.size)
            candidate.at, candidate.move, candidate.stay = choice.disk, reason, None
            return True
        candidate.stay = (Reason(kind, f"{reason.detail}; but {'; '.join(problems)}"), until)
        return False

    def _waiting(self, candidate: PolicyItem, volume: VolumeConfig) -> dict[str, tuple[Reason, datetime | None]]:
        """The volume's disks that are not for the part, or to which moving it failed lately, or too often: why, and
        until when."""
        if not self.options.failures and not self.options.bound:
            return {}
        blocked = {
            disk: self._failure_block(self.options.failures.get((candidate.uuid, candidate.part.name, disk)), disk)
            for disk in volume.disks
        }
        for disk in volume.disks:
            if why := self.options.bound.get((candidate.uuid, candidate.part.name, disk)):
                blocked[disk] = Reason("another_machine", why), None
        return {disk: waiting for disk, waiting in blocked.items() if waiting is not None}

    def _turn(self, candidate: PolicyItem, volume: VolumeConfig) -> int:
        key = (candidate.table.policy, volume.name)
        if key not in self.turns:
            without = self.options.unseen.by_disk
            there = sum(1 for other in self.items if other.source in volume.disks)
            self.turns[key] = there + sum(without.get(disk, 0) for disk in volume.disks)
        return self.turns[key]

    def _failure_block(self, failure: Failures | None, target: str) -> tuple[Reason, datetime | None] | None:
        if failure is None:
            return None
        tries = f"{failure.attempts} attempt{'s' if failure.attempts > 1 else ''} to move it to {target} failed"
        rare = failure.attempts >= self.options.max_attempts
        wait = wait_after(failure.attempts, first=self.options.backoff, rare_after=self.options.max_attempts)
        until = failure.at + wait
        if until <= self.now or failure.at - self.now > AHEAD:
            return None
        if not rare:
            return Reason("backoff", f"{tries}: {failure.error}; next try at {ttl.short_time(until)}"), until
        detail = f"{tries}, the last with: {failure.error}; next try at {ttl.short_time(until)}, or by 'frostline move'"
        return Reason("gave_up", detail), until

    def _too_young(self, candidate: PolicyItem) -> bool:
        """Whether the part must wait so that merges come first; its reason is set then."""
        seconds = candidate.table.settings.min_part_age_to_move_seconds
        if not seconds or candidate.move is not None:
            return False
        least = timedelta(seconds=seconds)
        until = candidate.part.created + least
        ahead = candidate.part.created - self.now > AHEAD  # by a wrong clock: it would wait for years
        if until <= self.now or ahead:
            return False
        age = format_duration(max(self.now - candidate.part.created, timedelta()))
        wait = ttl.short_duration(least)
        detail = f"the part is {age} old; parts wait {wait} before they move, so that merges run first"
        candidate.stay = (Reason("too_young", detail), until)
        return True

    def _is_held(self, candidate: PolicyItem, due: ttl.Due | None) -> bool:
        """Whether the part must wait for its time or the policy's budget; its reason is set then."""
        if candidate.move is not None or not self.pacing.is_paced(candidate.table.policy):
            return False
        lacks_room = candidate.policy is not None and placement.lacks_room(
            candidate.policy, self.disks.get(candidate.source)
        )
        if (
            held := self.pacing.hold(candidate, due, lacks_room=lacks_room or candidate.source in self.freeing)
        ) is None:
            return False
        candidate.stay = held
        return True

    def _stay(self, candidate: PolicyItem, kind: str, detail: str) -> bool:
        if candidate.move is None:
            candidate.stay = (Reason(kind, detail), None)
        return False

    def _release(self, disk: str, size: int) -> None:
        state = self.disks[disk]
        if state.free_bytes is not None:
            self.disks[disk] = _with_free(state, state.free_bytes + size)

    def _take(self, disk: str, size: int) -> None:
        state = self.disks[disk]
        if state.free_bytes is not None:
            self.disks[disk] = _with_free(state, state.free_bytes - size)


def _find_volume(policy: PolicyConfig, name: str | None) -> VolumeConfig | None:
    return next((volume for volume in policy.volumes if volume.name == name), None)


def _by_rule(due: ttl.Due, now: datetime) -> Reason:
    return Reason("ttl", f"{due.describe(now)}: {ttl.action_text(due.rule)}")


def _with_free(state: DiskState, free_bytes: int) -> DiskState:
    return msgspec.structs.replace(state, free_bytes=free_bytes)
