"""What the policy decides, as data: moves, deletes, stays and explanations; and what it is asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Literal, Protocol

import msgspec

from tiering.config.settings import PricesConfig
from tiering.journal.records import Failures, PartPin, Pause
from tiering.policy.backoff import FIRST_WAIT, RARE_AFTER_ATTEMPTS
from tiering.table.part import Part, PartFacts, PartName
from tiering.table.schema import TableDefinition


class PlacedPart(Protocol):
    """A part and the disk it lies on. Of the part, its facts are enough."""

    @property
    def definition(self) -> TableDefinition: ...
    @property
    def part(self) -> Part | PartFacts: ...
    @property
    def name(self) -> PartName: ...
    @property
    def disk(self) -> str: ...


class Spent(msgspec.Struct, frozen=True):
    """What moves of a policy took from its budget."""

    bytes: int = 0
    requests: int = 0
    money: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.bytes + other.bytes, self.requests + other.requests, self.money + other.money)


class Budget(msgspec.Struct, frozen=True):
    """One budget of a policy in its interval of now."""

    policy: str
    of: str
    """`bytes`, `requests` or `money`."""
    spent: float
    limit: float
    until: datetime
    """When the next interval begins."""


HELD = ("window", "spread", "merge_first", "late", "cool_down", "budget")
"""Kinds of reasons of parts that the pacing of their policy holds back."""

NO_DISK = ("unusable_disk", "no_space")
"""Kinds of reasons of parts that wait for a disk: theirs, or the one that a rule wants them on, cannot be used now or
has no room."""


WAITING = ("paused", "clock", "backoff", "gave_up", *NO_DISK, *HELD)
"""Kinds of reasons of parts that a rule wants elsewhere, and that are kept from moving now."""


class Reason(msgspec.Struct, frozen=True, gc=False):
    """`kind` is a stable word for scripts, `detail` a sentence with numbers and times."""

    kind: str
    detail: str


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"source": "from", "target": "to"}):
    """One part from one disk to another. `table` is the name, `table_uuid` the identity."""

    table: str
    table_uuid: str
    part: str
    source: str
    target: str
    bytes: int
    reason: Reason
    keep_source: bool = False


class TtlDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A part whose every row is past its TTL."""

    table: str
    table_uuid: str
    part: str
    disk: str
    bytes: int
    reason: Reason


class Stay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part that stays, and why. `next_due`: when a rule acts on it or what blocks it ends, if that is known."""

    table: str
    table_uuid: str
    part: str
    disk: str
    bytes: int
    reason: Reason
    next_due: datetime | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves in the order to make them, deletes, and why the rest stays."""

    now: datetime
    moves: tuple[Move, ...] = ()
    deletes: tuple[TtlDelete, ...] = ()
    stays: tuple[Stay, ...] = ()
    rest: int = 0
    """Parts that stay for no other reason than that nothing concerns them, and are not among `stays`; where somebody
    asked for their number (`Options.rest`)."""
    rest_due: datetime | None = None
    """When a rule acts on the first of these."""

    @property
    def staying(self) -> int:
        """How many parts stay."""
        return len(self.stays) + self.rest

    @property
    def next_due(self) -> datetime | None:
        """When a rule acts on the first of the parts that stay, or what blocks it ends, if that is known."""
        times = (*(stay.next_due for stay in self.stays), self.rest_due)
        return min((time for time in times if time is not None), default=None)

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in self.moves)


class RuleState(msgspec.Struct, frozen=True, kw_only=True):
    """One TTL rule applied to one part."""

    rule: str
    due: datetime | None
    detail: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a part moves, why not, and when it will."""

    table: str
    part: str
    disk: str
    volume: str | None
    bytes: int
    decision: Literal["move", "delete", "stay"]
    target: str | None
    reason: Reason
    rules: tuple[RuleState, ...]
    next_due: datetime | None


Rest = Literal["each", "next", "none"]
"""What a plan says of the parts that nothing concerns: of each why it stays, and until when, for which every part has
to be looked at; how many they are, and when the next is due; or nothing."""


class Unseen(msgspec.Struct, frozen=True):
    """Parts that nothing concerns, and that a plan is made without."""

    by_disk: Mapping[str, int] = msgspec.field(default_factory=dict)
    next_due: datetime | None = None
    """When a rule acts on the first of them."""


class Options(msgspec.Struct, frozen=True):
    """What else bears on a decision."""

    pins: Sequence[PartPin] = ()
    pauses: Sequence[Pause] = ()
    failures: Mapping[tuple[str, str, str], Failures] = msgspec.field(default_factory=dict)
    """By (table uuid, part, target disk), from the journal."""
    claimed: Mapping[tuple[str, str], str] = msgspec.field(default_factory=dict)
    """(table uuid, part) -> what holds it now: a merge, a move."""
    leaving: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Disk -> bytes that moves under way will take off it: room that nothing else has to make."""
    spent: Mapping[str, Spent] = msgspec.field(default_factory=dict)
    """Policy -> what its moves took from the budget of this interval."""
    arrived: Mapping[tuple[str, str], datetime] = msgspec.field(default_factory=dict)
    """(table uuid, part) -> when its last move was done."""
    remote: Set[str] = frozenset()
    """The disks in buckets, whose requests cost."""
    prices: PricesConfig = msgspec.field(default_factory=PricesConfig)
    bound: Mapping[tuple[str, str, str], str] = msgspec.field(default_factory=dict)
    """(table uuid, part, target disk) -> why the part may not go there."""
    max_attempts: int = RARE_AFTER_ATTEMPTS
    backoff: timedelta = FIRST_WAIT
    """After the first failure; doubles with each, up to six hours."""
    reference_time: datetime | None = None
    """The time of another clock (a store's Date header). None skips the comparison, as `plan --at` does."""
    reference_source: str = "the object store"
    """Which clock that is, for people."""
    clock_doubt: str = ""
    """Why nothing may be dropped by a date: no other clock confirms this machine's."""
    max_skew: timedelta = timedelta(hours=1)
    written_ahead: datetime | None = None
    """Until when parts are dated by a clock that was wrong: somebody said that this machine's is right."""
    rest: Rest = "each"
    unseen: Unseen = msgspec.field(default_factory=Unseen)
