"""Which backups stay, by rules, and why. Pure: no clock, no I/O; the order in which the backups come plays no part.

Backups of one machine with one scope are a series, and each rule counts within a series. Periods are those of UTC. A
period counts only if it has a backup, and its newest one stays; so a machine that rested for a year loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec

from backup.format.header import DrillRecord, VerificationRecord
from oplog.errors import UsageError

CLOCKS_DIFFER = timedelta(days=1)
"""So far the clocks of machines may be apart."""


class KeepRules(msgspec.Struct, frozen=True):
    """What is to stay. None of a rule: it was not given."""

    last: int | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    yearly: int | None = None
    within: timedelta | None = None
    """So far back from the newest backup of the series: a clock that jumps ahead makes nothing old."""
    tags: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise `UsageError` for rules that say nothing, or that nothing is to stay."""
        counts = [count for count in (self.last, *(getattr(self, name) for name in _PERIODS)) if count is not None]
        if any(count < 1 for count in counts) or (self.within is not None and self.within <= timedelta(0)):
            raise UsageError("a rule that keeps nothing", hint="leave it out, or give a number of at least 1")
        if not counts and self.within is None and not self.tags:
            raise UsageError(
                "no --keep rule is given", hint="--keep-last 7, --keep-daily 14, --keep-within 30d, --keep-tag T …"
            )


class Candidate(msgspec.Struct, frozen=True):
    """A complete backup, as the rules see it."""

    id: str
    name: str
    machine: str
    scope: tuple[str, ...]
    taken: datetime
    tags: tuple[str, ...] = ()
    verified: bool = False
    """What was found last, by a verification or a drill, says that it is whole (`is_proved`)."""
    tables: frozenset[tuple[str, str]] = frozenset()
    """Those it has, by uuid and name."""
    left_out: frozenset[tuple[str, str]] = frozenset()
    """Those it lacks, for they could not be read."""


class RetentionChoice(msgspec.Struct, frozen=True):
    """A backup, whether it stays, and each reason why or why not."""

    backup: Candidate
    keep: bool
    reasons: tuple[str, ...]


def is_proved(verified: VerificationRecord | None, drilled: DrillRecord | None) -> bool:
    """Whether a backup counts as verified: the newest finding is clean, and what the other kind found wrong before it
    is only outweighed by one that read everything."""
    found = sorted((record for record in (verified, drilled) if record is not None), key=lambda record: record.time)
    if not found or found[-1].problem_count:
        return False
    return not found[0].problem_count or _read_all(found[-1])


def _read_all(record: VerificationRecord | DrillRecord) -> bool:
    return record.whole if isinstance(record, DrillRecord) else record.depth == "data"


_PERIODS: dict[str, Callable[[datetime], str]] = {
    "hourly": lambda moment: f"hour {moment:%Y-%m-%dT%H}",
    "daily": lambda moment: f"day {moment:%Y-%m-%d}",
    "weekly": lambda moment: f"week {moment:%G-W%V}",
    "monthly": lambda moment: f"month {moment:%Y-%m}",
    "yearly": lambda moment: f"year {moment:%Y}",
}


def choose(backups: Iterable[Candidate], rules: KeepRules, now: datetime | None = None) -> list[RetentionChoice]:
    """Every backup with its reasons, the oldest first. The newest of a series that no rule keeps anything of stays, and
    the newest that verified where none that stays has; and the newest that has a table which a later one of the machine
    had to leave out, and of these the newest that verified. One that says it was taken after `now` stays and counts for
    nothing: newer ones would go for it. Raises `UsageError` for rules that say nothing."""
    rules.check()
    series: dict[tuple[str, tuple[str, ...]], list[Candidate]] = {}
    found: list[RetentionChoice] = []
    for backup in backups:
        if now is not None and backup.taken - now > CLOCKS_DIFFER:
            found.append(RetentionChoice(backup, True, ("from the future: the clock was wrong when it was made",)))
        else:
            series.setdefault((backup.machine, backup.scope), []).append(backup)
    found += [choice for members in series.values() for choice in _of_series(members, rules)]
    found = _with_tables(found)
    return sorted(found, key=lambda choice: (choice.backup.taken, choice.backup.id))


def _with_tables(choices: Sequence[RetentionChoice]) -> list[RetentionChoice]:
    """The choices, and what has to stay of tables that could not be read when later backups were made."""
    newest_first = sorted(
        (choice.backup for choice in choices), key=lambda backup: (backup.taken, backup.id), reverse=True
    )
    reasons: dict[str, list[str]] = {}
    for position, later in enumerate(newest_first):
        for uuid, name in sorted(later.left_out):
            has = partial(_has, later.machine, uuid, name)
            if any(map(has, newest_first[:position])):
                continue
            having = list(filter(has, newest_first[position:]))
            proved = [backup for backup in having if backup.verified]
            for backup, words in ((having[:1], "has"), (proved[:1], "verified and has")):
                for kept in backup:
                    why = f"the newest that {words} {name}, which {later.name} had to leave out"
                    reasons.setdefault(kept.id, []).append(why)
    return [
        RetentionChoice(
            choice.backup,
            True,
            tuple(dict.fromkeys([*(choice.reasons if choice.keep else ()), *reasons[choice.backup.id]])),
        )
        if choice.backup.id in reasons
        else choice
        for choice in choices
    ]


def _has(machine: str, uuid: str, name: str, backup: Candidate) -> bool:
    """Whether a backup of the machine has the table, or another one of its name, as a restore makes it."""
    return backup.machine == machine and any(uuid == one or name == other for one, other in backup.tables)


def _of_series(members: Sequence[Candidate], rules: KeepRules) -> list[RetentionChoice]:
    newest_first = sorted(members, key=lambda backup: (backup.taken, backup.id), reverse=True)
    keep: dict[str, list[str]] = {backup.id: [] for backup in newest_first}
    drop: dict[str, list[str]] = {backup.id: [] for backup in newest_first}
    if rules.last is not None:
        for place, backup in enumerate(newest_first, start=1):
            inside = place <= rules.last
            (keep if inside else drop)[backup.id].append(
                f"among the last {rules.last}" if inside else f"not among the last {rules.last}"
            )
    for rule, period_of in _PERIODS.items():
        if (count := getattr(rules, rule)) is not None:
            _by_period(newest_first, rule, count, period_of, keep, drop)
    if rules.within is not None:
        first = newest_first[0].taken - rules.within
        for backup in newest_first:
            inside = backup.taken >= first
            text = f"within {_days(rules.within)} of the newest"
            (keep if inside else drop)[backup.id].append(text if inside else f"not {text}")
    for backup in newest_first if rules.tags else ():
        shared = sorted(rules.tags & set(backup.tags))
        wanted = "tagged " + ", ".join(shared or sorted(rules.tags))
        (keep if shared else drop)[backup.id].append(wanted if shared else f"not {wanted}")
    if not any(keep.values()):
        keep[newest_first[0].id].append("the newest: no rule keeps any")
    if not any(backup.verified and keep[backup.id] for backup in newest_first):
        proved = next((backup for backup in newest_first if backup.verified), None)
        if proved is not None:
            keep[proved.id].append("the newest that verified")
    return [
        RetentionChoice(backup, bool(keep[backup.id]), tuple(keep[backup.id] or drop[backup.id]))
        for backup in newest_first
    ]


def _by_period(
    newest_first: Sequence[Candidate],
    rule: str,
    count: int,
    period_of: Callable[[datetime], str],
    keep: dict[str, list[str]],
    drop: dict[str, list[str]],
) -> None:
    standing: dict[str, Candidate] = {}
    for backup in newest_first:
        period = period_of(backup.taken.astimezone(UTC))
        newest = standing.setdefault(period, backup)
        if len(standing) > count and period not in list(standing)[:count]:
            drop[backup.id].append(f"{period} is before the last {count} with a backup")
        elif newest is backup:
            keep[backup.id].append(f"{rule}: the newest of {period}")
        else:
            drop[backup.id].append(f"{newest.name} is newer in {period}")


def _days(duration: timedelta) -> str:
    return f"{duration.days} d" if duration.seconds == 0 else f"{duration.total_seconds() / 3600:g} h"
