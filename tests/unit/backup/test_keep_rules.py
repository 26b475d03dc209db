"""Which backups stay, and why: a table of cases, and what holds for all of them. Guards P32."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backup.format.header import DrillRecord, VerificationRecord
from backup.retention.rules import Candidate, KeepRules, RetentionChoice, choose, is_proved
from oplog.errors import UsageError

PERIODS = {"hourly": "%Y-%m-%dT%H", "daily": "%Y-%m-%d", "weekly": "%G-W%V", "monthly": "%Y-%m", "yearly": "%Y"}
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def made(moment: str, name: str = "", machine: str = "a", **more: object) -> Candidate:
    taken = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return Candidate(id=name or moment, name=name or moment, machine=machine, scope=(), taken=taken, **more)  # type: ignore[arg-type]


def kept(backups: list[Candidate], **rules: object) -> list[str]:
    return [choice.backup.name for choice in choose(backups, KeepRules(**rules)) if choice.keep]  # type: ignore[arg-type]


DAYS = [made(f"2026-01-{day:02}T{hour:02}:00") for day in (1, 2, 5) for hour in (3, 21)]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"last": 2}, ["2026-01-05T03:00", "2026-01-05T21:00"]),
        ({"last": 99}, [backup.name for backup in DAYS]),
        ({"hourly": 3}, ["2026-01-02T21:00", "2026-01-05T03:00", "2026-01-05T21:00"]),
        ({"daily": 2}, ["2026-01-02T21:00", "2026-01-05T21:00"]),
        ({"daily": 9}, ["2026-01-01T21:00", "2026-01-02T21:00", "2026-01-05T21:00"]),
        ({"weekly": 1}, ["2026-01-05T21:00"]),
        ({"weekly": 2}, ["2026-01-02T21:00", "2026-01-05T21:00"]),
        ({"monthly": 3}, ["2026-01-05T21:00"]),
        ({"yearly": 3}, ["2026-01-05T21:00"]),
        ({"within": timedelta(days=3)}, ["2026-01-02T21:00", "2026-01-05T03:00", "2026-01-05T21:00"]),
        ({"last": 1, "daily": 3}, ["2026-01-01T21:00", "2026-01-02T21:00", "2026-01-05T21:00"]),
        ({"tags": frozenset({"none"})}, ["2026-01-05T21:00"]),
    ],
)
def test_what_each_rule_keeps(rules: dict[str, object], expected: list[str]) -> None:
    assert kept(DAYS, **rules) == expected


def test_tags_and_series() -> None:
    """Each machine's backups, and each scope's, are counted by themselves."""
    monthly = made("2025-01-01T00:00", "old", tags=("year", "x"))
    there = made("2025-01-01T00:00", "there", machine="b")
    some = replace(made("2025-01-01T00:00", "some"), scope=("table a.b",))
    assert kept([*DAYS, monthly, there, some], last=1, tags=frozenset({"year"})) == [
        "old",
        "some",
        "there",
        "2026-01-05T21:00",
    ]


def test_periods_are_those_of_utc() -> None:
    """Half past midnight in Berlin is still the day before."""
    berlin = timezone(timedelta(hours=1))
    late = Candidate("late", "late", "a", (), datetime(2026, 1, 2, 0, 30, tzinfo=berlin))
    assert kept([made("2026-01-01T03:00", "early"), late], daily=2) == ["late"]
    assert kept([made("2024-12-30T03:00", "monday"), made("2025-01-02T03:00", "thursday")], weekly=5) == ["thursday"]


def test_the_newest_that_verified_stays() -> None:
    backups = [
        made("2026-01-01T00:00", verified=True),
        made("2026-01-02T00:00", verified=True),
        made("2026-01-03T00:00"),
    ]
    first, second, third = choose(backups, KeepRules(last=1))
    assert (first.keep, first.reasons) == (False, ("not among the last 1",))
    assert (second.keep, second.reasons) == (True, ("the newest that verified",))
    assert (third.keep, third.reasons) == (True, ("among the last 1",))
    assert kept([replace(backups[0], verified=False), backups[2]], last=1) == ["2026-01-03T00:00"]


def verified(hour: int, problems: int = 0, depth: str = "quick") -> VerificationRecord:
    time = NEW_YEAR + timedelta(hours=hour)
    return VerificationRecord(
        backup="b", time=time, actor="", depth=depth, files=1, size_bytes=1, problem_count=problems
    )  # type: ignore[arg-type]


def drilled(hour: int, problems: int = 0, *, whole: bool = True) -> DrillRecord:
    time = NEW_YEAR + timedelta(hours=hour)
    return DrillRecord(
        backup="b", time=time, actor="", whole=whole, parts=1, rows=1, size_bytes=1, problem_count=problems
    )


@pytest.mark.parametrize(
    ("verification", "drill", "proved"),
    [
        (None, None, False),
        (verified(1), None, True),
        (verified(1, 1), None, False),
        (None, drilled(1), True),
        (None, drilled(1, whole=False), True),
        (None, drilled(1, 1), False),
        (verified(1, 1), drilled(2), True),
        (verified(1, 1), drilled(2, whole=False), False),
        (verified(2, 1), drilled(1), False),
        (verified(2), drilled(1, 1), False),
        (verified(2, depth="subset"), drilled(1, 1), False),
        (verified(2, depth="data"), drilled(1, 1), True),
        (verified(1), drilled(2, 1), False),
    ],
)
def test_what_counts_as_verified(
    verification: VerificationRecord | None, drill: DrillRecord | None, proved: bool
) -> None:
    """A drill reads what it restores: it proves as much as a verification, and what it finds wrong counts as much."""
    assert is_proved(verification, drill) is proved


def test_each_reason_is_told() -> None:
    choices = {choice.backup.name: choice.reasons for choice in choose(DAYS, KeepRules(last=1, daily=2))}
    assert choices["2026-01-05T21:00"] == ("among the last 1", "daily: the newest of day 2026-01-05")
    assert choices["2026-01-05T03:00"] == ("not among the last 1", "2026-01-05T21:00 is newer in day 2026-01-05")
    assert choices["2026-01-01T03:00"][1].startswith("day 2026-01-01 is before the last 2")


@pytest.mark.parametrize(
    "rules", [KeepRules(), KeepRules(last=0), KeepRules(daily=-1), KeepRules(within=timedelta(0)), KeepRules(yearly=0)]
)
def test_rules_that_keep_nothing_are_refused(rules: KeepRules) -> None:
    with pytest.raises(UsageError):
        choose(DAYS, rules)


patient = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The machine may be busy: how long examples take to make says nothing."""

_counts = st.none() | st.integers(1, 4)
_rules = st.builds(
    KeepRules,
    last=_counts,
    hourly=_counts,
    daily=_counts,
    weekly=_counts,
    monthly=_counts,
    yearly=_counts,
    within=st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=400)),
    tags=st.frozensets(st.sampled_from(["x", "y"])),
).filter(lambda rules: rules != KeepRules())
_backups = st.lists(
    st.builds(
        lambda key, machine, scope, minutes, tags, verified: Candidate(
            key, f"n{key}", machine, scope, NEW_YEAR + timedelta(minutes=minutes), tags, verified
        ),
        st.uuids().map(str),
        st.sampled_from(["a", "b"]),
        st.sampled_from([(), ("table t",)]),
        st.integers(0, 600_000) | st.integers(0, 300),
        st.sampled_from([(), ("x",), ("x", "y")]),
        st.booleans(),
    ),
    max_size=25,
    unique_by=lambda backup: backup.id,
)


def series_of(choices: list[RetentionChoice]) -> list[list[RetentionChoice]]:
    found: dict[tuple[str, tuple[str, ...]], list[RetentionChoice]] = {}
    for choice in choices:
        found.setdefault((choice.backup.machine, choice.backup.scope), []).append(choice)
    return list(found.values())


@patient
@given(backups=_backups, rules=_rules, data=st.data())
def test_the_order_plays_no_part_and_each_has_a_reason(
    backups: list[Candidate], rules: KeepRules, data: st.DataObject
) -> None:
    choices = choose(backups, rules)
    assert choose(data.draw(st.permutations(backups)), rules) == choices
    assert {choice.backup for choice in choices} == set(backups)
    assert all(choice.reasons and all(choice.reasons) for choice in choices)


@patient
@given(backups=_backups, rules=_rules)
def test_never_fewer_than_the_rules_say(backups: list[Candidate], rules: KeepRules) -> None:
    for series in series_of(choose(backups, rules)):
        stays = [choice.backup for choice in series if choice.keep]
        assert stays, "a series never goes as a whole"
        if rules.last is not None:
            assert len(stays) >= min(rules.last, len(series))
        for rule, form in PERIODS.items():
            count = getattr(rules, rule)
            if count is not None:
                periods = sorted({choice.backup.taken.strftime(form) for choice in series})[-count:]
                newest = [
                    max(
                        (choice.backup for choice in series if choice.backup.taken.strftime(form) == period),
                        key=lambda backup: (backup.taken, backup.id),
                    )
                    for period in periods
                ]
                assert set(newest) <= set(stays)
        if any(choice.backup.verified for choice in series):
            assert any(backup.verified for backup in stays)
        assert all(choice.keep for choice in series if rules.tags & set(choice.backup.tags))


@patient
@given(backups=_backups, rules=_rules, more=_rules)
def test_another_rule_never_drops_more(backups: list[Candidate], rules: KeepRules, more: KeepRules) -> None:
    """But for what stayed because no rule kept anything, or nothing that verified."""
    both = replace(more, **{name: value for name in rules.__struct_fields__ if (value := getattr(rules, name))})
    stays = {choice.backup.id for choice in choose(backups, both) if choice.keep}
    for choice in choose(backups, rules):
        if choice.keep and not any(reason.startswith("the newest") for reason in choice.reasons):
            assert choice.backup.id in stays


@patient
@given(backups=_backups, rules=_rules)
def test_a_second_time_drops_nothing(backups: list[Candidate], rules: KeepRules) -> None:
    stays = [choice.backup for choice in choose(backups, rules) if choice.keep]
    assert all(choice.keep for choice in choose(stays, rules))


def test_what_a_wrong_clock_dated_ahead_stays_and_is_not_counted() -> None:
    ahead = made("2027-01-05T00:00", "ahead", verified=True)
    now = datetime(2026, 1, 5, 22, tzinfo=UTC)
    choices = {choice.backup.name: choice for choice in choose([*DAYS, ahead], KeepRules(last=1), now)}
    assert {name for name, choice in choices.items() if choice.keep} == {"ahead", "2026-01-05T21:00"}
    assert "future" in choices["ahead"].reasons[0]
    hours_apart = made("2026-01-06T20:00", "hours apart")
    assert [choice.backup.name for choice in choose([*DAYS, hours_apart], KeepRules(last=1), now) if choice.keep] == [
        "hours apart"
    ]


def test_the_newest_with_a_table_that_later_ones_lack_stays() -> None:
    """I12: and of these the newest that verified; once a later one has the table again, neither."""
    table = frozenset({("u", "d.t")})
    proved, newest = made("2026-01-01", verified=True, tables=table), made("2026-01-02", tables=table)
    lacking = [made("2026-01-03", left_out=table), made("2026-01-04", verified=True, left_out=table)]
    elsewhere = made("2026-01-05", machine="b", tables=table)
    backups = [made("2025-12-31", tables=table), proved, newest, *lacking]
    assert kept([*backups, elsewhere], last=1) == ["2026-01-01", "2026-01-02", "2026-01-04", "2026-01-05"]
    again = made("2026-01-06", verified=True, tables=frozenset({("v", "d.t")}))
    assert kept([*backups, again], last=1) == ["2026-01-06"]
