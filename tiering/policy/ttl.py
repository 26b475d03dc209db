"""When a part's TTL rules are due, from the column ranges in its `part.json`. Pure: `now` is an argument.

A rule is due when the part's newest value plus the rule's time is not after `now`. Of several due rules that move, the
one whose time came last wins; on a tie the later one in the table's list (ClickHouse's semantics).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from oplog.errors import NotFound
from tiering.table.part import Part, PartFacts
from tiering.table.schema import Delete, MoveToDisk, MoveToVolume, Recompress, TableDefinition, TtlRule

EARLIEST_PLAUSIBLE = datetime(1971, 1, 1, tzinfo=UTC)
"""A newest row before this is more likely a missing time than a fact: such a part is never deleted by a rule."""


class Due(msgspec.Struct, frozen=True, gc=False):
    """One rule applied to one part. Without statistics `due` is None and `missing` says why."""

    rule: TtlRule
    newest: datetime | None = None
    due: datetime | None = None
    missing: str = ""

    def is_due(self, now: datetime) -> bool:
        return self.due is not None and self.due <= now

    @property
    def moves(self) -> bool:
        return isinstance(self.rule.action, MoveToVolume | MoveToDisk)

    @property
    def deletes(self) -> bool:
        return isinstance(self.rule.action, Delete)

    def describe(self, now: datetime) -> str:
        """In words: `newest row 2013-01-31T23:00Z + 30d was due 2013-03-02T23:00Z`."""
        if self.newest is None or self.due is None:
            return f"rule '{rule_text(self.rule)}' cannot be computed: {self.missing}"
        verb = "was due" if self.due <= now else "is due"
        return f"newest row {short_time(self.newest)} + {short_duration(self.rule.after)} {verb} {short_time(self.due)}"


def due_times(definition: TableDefinition, part: Part | PartFacts) -> tuple[Due, ...]:
    """Every rule of the table applied to the part, in the table's order."""
    return tuple([_due(definition, part, rule) for rule in definition.ttl])


def winning_move(dues: Iterable[Due], now: datetime) -> Due | None:
    """The due rule that decides where the part belongs."""
    best: Due | None = None
    for due in dues:
        if due.moves and due.is_due(now) and (best is None or _time_of(best) <= _time_of(due)):
            best = due
    return best


def due_delete(dues: Iterable[Due], now: datetime) -> Due | None:
    """The rule that deletes the whole part now: every row in it is past its time."""
    found = [due for due in dues if due.deletes and due.is_due(now)]
    return max(found, key=_time_of) if found else None


def due_recompressions(dues: Iterable[Due], now: datetime) -> list[Due]:
    """The due rules that ask for another codec; merges carry them out."""
    return [due for due in dues if isinstance(due.rule.action, Recompress) and due.is_due(now)]


def next_due(dues: Iterable[Due], now: datetime) -> Due | None:
    """The rule that comes due next."""
    waiting = [due for due in dues if due.due is not None and due.due > now]
    return min(waiting, key=_time_of, default=None)


@lru_cache(maxsize=1024)  # a plan says it of thousands of parts
def rule_text(rule: TtlRule) -> str:
    """As the user writes it: `7d on ts to volume cold`."""
    return f"{short_duration(rule.after)} on {rule.column} {action_text(rule)}"


def action_text(rule: TtlRule) -> str:
    """What the rule does: `to volume cold`."""
    match rule.action:
        case MoveToVolume(volume=volume):
            return f"to volume {volume}"
        case MoveToDisk(disk=disk, if_exists=if_exists):
            return f"to disk {disk}{' if exists' if if_exists else ''}"
        case Recompress(codec=codec, level=level):
            return f"recompress {codec}({level})"
        case _:
            return "delete"


@lru_cache(maxsize=1024)
def short_duration(duration: timedelta) -> str:
    """Exact and short: `30d`, `1d12h`, `0s`."""
    seconds = int(duration.total_seconds())
    text = ""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            text += f"{count}{unit}"
    return text or "0s"


def short_time(moment: datetime) -> str:
    """UTC to the minute where that is exact: `2013-01-31T23:00Z`."""
    utc = moment.astimezone(UTC)
    if utc.second or utc.microsecond:
        return utc.replace(tzinfo=None, microsecond=0).isoformat() + "Z"
    return utc.replace(tzinfo=None).isoformat(timespec="minutes") + "Z"


def _due(definition: TableDefinition, part: Part | PartFacts, rule: TtlRule) -> Due:
    try:
        column = definition.column(rule.column)
    except NotFound:
        return Due(rule, missing=f"the table has no column {rule.column} any more")
    known = part.columns.get(str(column.id))
    if known is None:
        return Due(rule, missing=f"{part.name} has no statistics of {rule.column}; a merge of the part adds them")
    if known.max is None:
        everything = known.nulls >= part.rows > 0
        why = f"{rule.column} is null in every row" if everything else f"the newest {rule.column} is not known"
        return Due(rule, missing=why)
    newest = _as_time(known.max)
    if newest is None:
        return Due(rule, missing=f"the newest {rule.column} is {known.max!r}, which is not a time")
    try:
        return Due(rule, newest, newest + rule.after)
    except OverflowError:
        return Due(rule, missing=f"{short_time(newest)} + {short_duration(rule.after)} is beyond the calendar")


def _as_time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
    else:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _time_of(due: Due) -> datetime:
    return due.due or datetime.min.replace(tzinfo=UTC)
