"""When a due move may begin: windows, spreading, cool-down, merges first, and budgets of a policy. Pure.

All of it is reckoned from the part, the time and what the journal says was moved, so that a restart changes nothing.
Pins and what people ask for are not held; a part that has to make room on a full disk waits for its cool-down and for
the budget alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime, timedelta
from zlib import crc32

from tiering.config.jobs import parse_window, parse_zone
from tiering.config.settings import PacingConfig, PolicyConfig, PricesConfig
from tiering.config.units import counted, format_size
from tiering.policy import cost, ttl
from tiering.policy.backoff import AHEAD
from tiering.policy.cost import Cost
from tiering.policy.items import PolicyItem
from tiering.policy.late import LatePartitions
from tiering.policy.plan import Budget, Reason, Spent

_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, lie evenly between 0 and 1, wherever one begins and ends."""

Held = tuple[Reason, datetime | None]


def interval_of(pacing: PacingConfig, now: datetime) -> tuple[datetime, datetime]:
    """When the budget's interval began that `now` is in, and when the next one does: the same after a restart."""
    length = pacing.every_seconds
    begin = now.timestamp() // length * length
    return datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(begin + length, UTC)


def price_of(size_bytes: int, source: str, target: str, remote: Set[str], prices: PricesConfig) -> Spent:
    """What one try of a move takes from a budget."""
    estimated = Cost()
    if target in remote:
        estimated += Cost(put=cost.uploads(size_bytes), bytes_up=size_bytes)
    if source in remote:
        estimated += Cost(get=cost.downloads(size_bytes), bytes_down=size_bytes)
    return Spent(size_bytes, estimated.requests, cost.price(estimated, prices))


class Pacing:
    """What holds the moves of one plan back."""

    def __init__(
        self,
        items: Iterable[PolicyItem],
        policies: Mapping[str, PolicyConfig],
        now: datetime,
        *,
        spent: Mapping[str, Spent],
        arrived: Mapping[tuple[str, str], datetime],
        remote: Set[str],
        prices: PricesConfig,
    ) -> None:
        """`spent` by policy; `arrived`: when the last move of a part, by table's uuid and name, was done."""
        self._now, self._arrived, self._remote, self._prices = now, arrived, remote, prices
        self._paced = {name: policy.pacing for name, policy in policies.items() if policy.pacing != PacingConfig()}
        self._spent = dict(spent)
        self._beside: Counter[tuple[str, str, str]] = Counter()
        self._late = LatePartitions(now)
        if any(pacing.late_seconds for pacing in self._paced.values()):
            for item in items:
                if item.policy is not None:
                    self._late.add(item.uuid, item.name, item.part, item.dues, item.source, item.policy)
        if any(pacing.merge_first_parts for pacing in self._paced.values()):
            self._beside.update((item.uuid, item.name.partition, item.source) for item in items)

    @property
    def has_budgets(self) -> bool:
        """Whether it matters who goes first."""
        return any(has_budget(pacing) for pacing in self._paced.values())

    def is_paced(self, policy: str) -> bool:
        """Whether anything may hold its moves back."""
        return policy in self._paced

    def hold(self, candidate: PolicyItem, due: ttl.Due | None, *, lacks_room: bool = False) -> Held | None:
        """Why the part does not move now, and until when. `due`: the rule that moves it; None: it makes room.
        `lacks_room`: room has to be made where it is."""
        pacing = self._paced.get(candidate.table.policy)
        if pacing is None:
            return None
        held = self._cool_down(candidate, pacing)
        if due is not None and due.due is not None:
            held = held or (None if lacks_room else self._wait_for_late(candidate))
            held = held or self._merge_first(candidate, pacing, due.due)
            held = held or self._spread(candidate, pacing, due.due) or self._window(pacing)
        return held or self._budget(candidate.table.policy, pacing)

    def take(self, candidate: PolicyItem, target: str) -> None:
        """The part will move: it takes that from the budget."""
        name = candidate.table.policy
        if name in self._paced and has_budget(self._paced[name]):
            price = price_of(candidate.size, candidate.source, target, self._remote, self._prices)
            self._spent[name] = self._spent.get(name, Spent()) + price

    def _cool_down(self, candidate: PolicyItem, pacing: PacingConfig) -> Held | None:
        arrived = self._arrived.get((candidate.uuid, candidate.part.name))
        if not pacing.cool_down_seconds or arrived is None or arrived - self._now > AHEAD:
            return None
        until = arrived + timedelta(seconds=pacing.cool_down_seconds)
        wait = ttl.short_duration(timedelta(seconds=pacing.cool_down_seconds))
        detail = f"it was moved at {ttl.short_time(arrived)}; parts stay {wait} where they came to"
        return self._until(until, "cool_down", detail)

    def _wait_for_late(self, candidate: PolicyItem) -> Held | None:
        waiting = (
            self._late.of(candidate.uuid, candidate.name, candidate.source, candidate.policy)
            if candidate.policy is not None
            else None
        )
        if waiting is None:
            return None
        few = "1 small part" if waiting.parts == 1 else f"{waiting.parts} small parts"
        rows = f"partition {candidate.name.partition} has {few} of late rows"
        if not waiting.is_over(self._now):
            return self._until(waiting.ends(), "late", f"{rows}; such parts are merged, then they move together")
        return self._until(waiting.gives_up(), "late", f"{rows}; the next merge takes them, then they move together")

    def _merge_first(self, candidate: PolicyItem, pacing: PacingConfig, due: datetime) -> Held | None:
        beside = self._beside[candidate.uuid, candidate.name.partition, candidate.source]
        if not pacing.merge_first_parts or beside <= pacing.merge_first_parts:
            return None
        detail = (
            f"partition {candidate.name.partition} has {counted(beside, 'part')} on disk {candidate.source}, which "
            f"merge before they move; at {pacing.merge_first_parts} they are few enough"
        )
        return self._until(due + timedelta(seconds=pacing.merge_first_seconds), "merge_first", detail)

    def _spread(self, candidate: PolicyItem, pacing: PacingConfig, due: datetime) -> Held | None:
        if not pacing.spread_seconds:
            return None
        fraction = (candidate.name.min_block * _GOLDEN + crc32(candidate.name.partition.encode()) / 2**32) % 1
        wait = ttl.short_duration(timedelta(seconds=pacing.spread_seconds))
        detail = f"what became due at {ttl.short_time(due)} is moved in the course of {wait}, each part at its time"
        return self._until(due + timedelta(seconds=pacing.spread_seconds * fraction), "spread", detail)

    def _window(self, pacing: PacingConfig) -> Held | None:
        if pacing.window is None:
            return None
        opens = parse_window(pacing.window).opens(self._now, parse_zone(pacing.timezone))
        return self._until(opens, "window", f"parts move from {pacing.window} ({pacing.timezone}) only")

    def _budget(self, name: str, pacing: PacingConfig) -> Held | None:
        spent, (_, until) = self._spent.get(name, Spent()), interval_of(pacing, self._now)
        every = ttl.short_duration(timedelta(seconds=pacing.every_seconds))
        used = ""
        if pacing.bytes is not None and spent.bytes >= pacing.bytes:
            used = f"{format_size(spent.bytes)} of {format_size(pacing.bytes)}"
        elif pacing.requests is not None and spent.requests >= pacing.requests:
            used = f"{spent.requests:,} of {counted(pacing.requests, 'request')}"
        elif pacing.money is not None and spent.money >= pacing.money:
            used = f"{spent.money:.6g} of {pacing.money:.6g} {self._prices.currency}"
        return (
            self._until(until, "budget", f"the budget of policy {name} is spent: {used} each {every}") if used else None
        )

    def _until(self, until: datetime, kind: str, detail: str) -> Held | None:
        if until <= self._now:
            return None
        return Reason(kind, f"{detail}; it waits until {ttl.short_time(until)}"), until


def has_budget(pacing: PacingConfig) -> bool:
    """Whether anything is limited by interval."""
    return any(limit is not None for limit in (pacing.bytes, pacing.requests, pacing.money))


def budgets(policies: Mapping[str, PolicyConfig], spent: Mapping[str, Spent], now: datetime) -> list[Budget]:
    """How far each budget is used up."""
    found = []
    for name, policy in policies.items():
        pacing, used = policy.pacing, spent.get(name, Spent())
        amounts = (
            ("bytes", used.bytes, pacing.bytes),
            ("requests", used.requests, pacing.requests),
            ("money", used.money, pacing.money),
        )
        _, until = interval_of(pacing, now)
        found += [Budget(name, of, value, limit, until) for of, value, limit in amounts if limit is not None]
    return found
