"""When a part's TTL rules are due, from the column ranges in its `part.json`. Pure: `now` is an argument.

A rule goes by the rows that have a time: it is due when the part's newest time plus the rule's wait is not after `now`.
A part without any time is never due. Of several due rules that move, the one whose time came last wins; on a tie the
later one in the table's list (ClickHouse's semantics).

A row without a time, or with one that looks missing, is never deleted: a part that has such a row, or may have one, is
not deleted whole. A merge takes its due rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from oplog.errors import NotFound
from tiering.config.units import counted
from tiering.table.part import ColumnRange, Part, PartFacts
from tiering.table.schema import Delete, MoveToDisk, MoveToVolume, Recompress, TableDefinition, TtlRule

EARLIEST_PLAUSIBLE = datetime(1971, 1, 1, tzinfo=UTC)
"""A time before this is more likely a missing time than a fact: no rule deletes such a row."""


class Due(msgspec.Struct, frozen=True, gc=False):
    """One rule applied to one part. Without statistics `due` is None and `missing` says why."""

    rule: TtlRule
    newest: datetime | None = None
    """Of the rows that have a time."""
    due: datetime | None = None
    missing: str = ""
    first: datetime | None = None
    """Of a rule that deletes: when it is due for the oldest row that it may delete; None where nobody knows."""
    undated: str = ""
    """Of a rule that deletes: which rows it never deletes, because their time is missing, or may be. Empty if none."""

    def is_due(self, now: datetime) -> bool:
        return self.due is not None and self.due <= now

    @property
    def moves(self) -> bool:
        return isinstance(self.rule.action, MoveToVolume | MoveToDisk)

    @property
    def deletes(self) -> bool:
        return isinstance(self.rule.action, Delete)

    @property
    def is_implausible(self) -> bool:
        """Whether even the newest time looks like a missing one."""
        return self.newest is not None and self.newest < EARLIEST_PLAUSIBLE

    def describe(self, now: datetime) -> str:
        """A sentence: `newest row 2013-01-31T23:00Z + 30d was due 2013-03-02T23:00Z`."""
        if self.newest is None or self.due is None:
            return f"rule '{rule_text(self.rule)}' cannot be computed: {self.missing}"
        verb = "was due" if self.due <= now else "is due"
        text = f"newest row {short_time(self.newest)} + {short_duration(self.rule.after)} {verb} {short_time(self.due)}"
        return f"{text}; {self.undated}" if self.undated else text


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
    """The rule that deletes the whole part now: every row in it has a time, and is past it."""
    return max((due for due in dues if due.deletes and not due.undated and due.is_due(now)), key=_time_of, default=None)


def due_in_part(dues: Iterable[Due], now: datetime) -> Due | None:
    """The rule that deletes rows of the part now, and keeps those whose time is missing: a merge carries it out."""
    found = (due for due in dues if due.deletes and due.undated and due.is_due(now))
    return max((due for due in found if not due.is_implausible), key=_time_of, default=None)


def due_rows(dues: Iterable[Due], now: datetime) -> Due | None:
    """The rule that deletes the oldest rows of the part now, and not yet all. None where the oldest time is not known
    or looks like a missing one: a merge would keep those rows."""
    for due in dues:
        if not due.deletes or due.first is None or due.first > now or due.is_due(now):
            continue
        if due.first - due.rule.after > EARLIEST_PLAUSIBLE:
            return due
    return None


def may_have_due_rows(dues: Iterable[Due], now: datetime) -> bool:
    """Whether a rule may delete a row of the part now, by the oldest time in it; true where that is not known."""
    return any(due.deletes and (due.first is None or due.first <= now) for due in dues)


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
    undated = _undated(known, part.rows, rule) if isinstance(rule.action, Delete) else ""
    oldest = _as_time(known.min)
    try:
        first = max(oldest, EARLIEST_PLAUSIBLE) + rule.after if oldest is not None else None
        return Due(rule, newest, newest + rule.after, first=first, undated=undated)
    except OverflowError:
        return Due(rule, newest, missing=f"{short_time(newest)} + {short_duration(rule.after)} is beyond the calendar")


def _undated(column_range: ColumnRange, rows: int, rule: TtlRule) -> str:
    """Which rows have no time that the rule may delete by, or may have none; empty if every row has one."""
    if column_range.nulls:
        return f"{min(column_range.nulls, rows)} of {counted(rows, 'row')} have no {rule.column}"
    oldest = _as_time(column_range.min)
    if oldest is None:
        return f"the oldest {rule.column} is not known"
    if oldest < EARLIEST_PLAUSIBLE:
        return f"the oldest {rule.column} is {short_time(oldest)}, which looks like a missing time"
    return ""


def _as_time(value: Any) -> datetime | None:
    if not isinstance(value, str | datetime):
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _time_of(due: Due) -> datetime:
    return due.due or datetime.min.replace(tzinfo=UTC)
