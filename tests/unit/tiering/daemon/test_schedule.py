"""When jobs are due: intervals, cron lines, windows over midnight and over both ends of daylight saving."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from oplog.errors import UsageError
from tiering.config.jobs import parse_cron, parse_window, parse_zone
from tiering.config.reading import load
from tiering.config.settings import JobConfig
from tiering.daemon.jobs.schedule import Schedule, schedule_of

NOW = datetime(2026, 6, 10, 12, tzinfo=UTC)
BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(schedule: Schedule, begin: str, count: int) -> list[str]:
    """When it runs, each run beginning as soon as it is due."""
    found: list[str] = []
    moment = at(begin)
    for _ in range(count):
        due = schedule.next_run(moment, at(begin), moment, first_wait=timedelta(0))
        moment = max(due, moment)
        found.append(f"{moment:%m-%dT%H:%M}")
    return found


def next_run(schedule: Schedule, begun: datetime | None, now: datetime, since: datetime = NOW) -> datetime:
    return schedule.next_run(begun, since, now, first_wait=timedelta(minutes=1))


class TestIntervals:
    EVERY = schedule_of(JobConfig(), 3600.0)

    def test_it_counts_from_the_beginning_of_the_last_run(self) -> None:
        assert next_run(self.EVERY, NOW, NOW + timedelta(minutes=30)) == NOW + timedelta(hours=1)

    def test_what_never_ran_waits_from_when_it_was_switched_on(self) -> None:
        assert next_run(self.EVERY, None, NOW + timedelta(minutes=30)) == NOW + timedelta(minutes=1)

    def test_what_was_missed_a_hundred_times_is_due_once(self) -> None:
        late = NOW + timedelta(hours=100)
        assert next_run(self.EVERY, NOW, late) <= late
        assert next_run(self.EVERY, late, late) == late + timedelta(hours=1)

    def test_a_clock_a_year_ahead_keeps_nothing_waiting_for_a_year(self) -> None:
        ahead = NOW + timedelta(days=365)
        assert next_run(self.EVERY, ahead, NOW, since=ahead) == NOW + timedelta(hours=1)
        assert next_run(schedule_of(JobConfig(cron="0 3 * * *"), None), ahead, NOW, since=ahead) == at(
            "2026-06-11T03:00"
        )

    def test_on_and_off(self) -> None:
        assert not schedule_of(JobConfig(), None).is_on
        assert not schedule_of(JobConfig(enabled=True), None).is_on
        assert not schedule_of(JobConfig(enabled=False, cron="@daily"), 60.0).is_on
        assert schedule_of(JobConfig(every_seconds=5), None).every == timedelta(seconds=5)
        assert schedule_of(JobConfig(cron="@daily"), 60.0).every is None


class TestCron:
    def test_missed_times_are_one(self) -> None:
        daily = schedule_of(JobConfig(cron="0 3 * * *"), None)
        now = NOW + timedelta(days=5)
        assert next_run(daily, NOW, now) == at("2026-06-11T03:00")
        assert next_run(daily, now, now) == at("2026-06-16T03:00")

    def test_what_never_ran_does_not_run_for_times_before_its_switch(self) -> None:
        """For times before it was switched on."""
        daily = schedule_of(JobConfig(cron="0 3 * * *"), None)
        assert next_run(daily, None, NOW) == at("2026-06-11T03:00")
        assert next_run(daily, at("2026-01-01T03:00"), NOW) == at("2026-06-11T03:00")

    def test_sunday_is_0_and_7_and_sun(self) -> None:
        for text in ("0 0 * * 0", "0 0 * * 7", "0 0 * * sun"):
            assert times(schedule_of(JobConfig(cron=text), None), "2026-06-10", 2) == ["06-14T00:00", "06-21T00:00"]
        assert parse_cron("0 0 * * fri-sun").weekdays == {5, 6, 0}
        assert parse_cron("0 0 * * mon-fri") == parse_cron("0 0 * * 1-5")

    def test_lists_steps_and_words(self) -> None:
        assert parse_cron("*/20 8-10,22 1 jan,7 *").minutes == {0, 20, 40}
        assert parse_cron("*/20 8-10,22 1 jan,7 *").hours == {8, 9, 10, 22}
        assert parse_cron("*/20 8-10,22 1 jan,7 *").months == {1, 7}
        assert parse_cron("@weekly") == parse_cron("0 0 * * 0")
        assert parse_cron("5/20 * * * *").minutes == {5, 25, 45}

    def test_a_time_that_spring_leaves_out_comes_once_and_later(self) -> None:
        daily = schedule_of(JobConfig(cron="30 2 * * *", timezone=BERLIN), None)
        assert times(daily, "2026-03-27T12:00", 4) == ["03-28T01:30", "03-29T01:30", "03-30T00:30", "03-31T00:30"]

    def test_a_time_that_autumn_repeats_comes_once(self) -> None:
        daily = schedule_of(JobConfig(cron="30 2 * * *", timezone=BERLIN), None)
        assert times(daily, "2026-10-23T12:00", 3) == ["10-24T00:30", "10-25T00:30", "10-26T01:30"]

    def test_what_runs_in_every_hour_runs_in_the_repeated_one(self) -> None:
        hourly = schedule_of(JobConfig(cron="0 * * * *", timezone=BERLIN), None)
        assert times(hourly, "2026-10-24T23:30", 3) == ["10-25T00:00", "10-25T01:00", "10-25T02:00"]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "not a cron line"),
            ("1 2 3 4", "not a cron line"),
            ("1 2 3 4 5 6", "not a cron line"),
            ("60 * * * *", "'60' is no minute"),
            ("* 24 * * *", "'24' is no hour"),
            ("* * 0 * *", "'0' is no day"),
            ("* * * 13 *", "'13' is no month"),
            ("* * * foo *", "'foo' is no month"),
            ("* * * * 8", "'8' is no day_of_week"),
            ("*/0 * * * *", "is no minute"),
            ("5-1 * * * *", "is no minute"),
            ("a;b * * * *", "is no minute"),
            ("*-5 * * * *", "is no minute"),
            ("0 0 30 2 *", "a day that does not exist"),
            ("0 0 31 4,6 *", "a day that does not exist"),
            ("0 0 1 * 1", "restricts both"),
        ],
    )
    def test_what_is_no_cron_line(self, text: str, problem: str) -> None:
        with pytest.raises(UsageError, match=problem.replace("*", r"\*")):
            parse_cron(text)


class TestWindows:
    def test_what_is_due_outside_waits_for_it(self) -> None:
        nightly = schedule_of(JobConfig(every_seconds=3600, window="22:00-06:00"), None)
        assert next_run(nightly, NOW - timedelta(hours=9), NOW) == at("2026-06-10T22:00")
        assert next_run(nightly, at("2026-06-10T23:30"), at("2026-06-10T23:40")) == at("2026-06-11T00:30")
        assert next_run(nightly, at("2026-06-11T05:30"), at("2026-06-11T05:31")) == at("2026-06-11T22:00")

    def test_the_end_is_outside_and_the_beginning_inside(self) -> None:
        nightly = schedule_of(JobConfig(every_seconds=60, window="22:00-06:00"), None)
        assert nightly.into_window(at("2026-06-11T06:00")) == at("2026-06-11T22:00")
        assert nightly.into_window(at("2026-06-11T22:00")) == at("2026-06-11T22:00")
        assert nightly.into_window(at("2026-06-11T05:59:59")) == at("2026-06-11T05:59:59")

    def test_a_window_that_spring_leaves_out_opens_after_it(self) -> None:
        odd = schedule_of(JobConfig(every_seconds=60, window="02:15-02:45", timezone=BERLIN), None)
        opening = odd.into_window(at("2026-03-28T12:00"))
        assert opening == at("2026-03-29T01:15")

    def test_a_window_that_autumn_repeats_opens_with_the_first(self) -> None:
        odd = schedule_of(JobConfig(every_seconds=60, window="02:15-02:45", timezone=BERLIN), None)
        assert odd.into_window(at("2026-10-25T00:00")) == at("2026-10-25T00:15")
        assert odd.into_window(at("2026-10-25T01:20")) == at("2026-10-25T01:20"), "it is open again"

    def test_a_window_over_midnight_in_which_the_clock_is_set(self) -> None:
        nightly = schedule_of(JobConfig(every_seconds=60, window="22:00-06:00", timezone=BERLIN), None)
        for night, opens, closes in (
            ("2026-03-28", "2026-03-28T21:00", "2026-03-29T04:00"),  # seven hours
            ("2026-10-24", "2026-10-24T20:00", "2026-10-25T05:00"),  # nine
        ):
            assert nightly.into_window(at(f"{night}T12:00")) == at(opens)
            for hours in range(1, int((at(closes) - at(opens)).total_seconds() / 3600)):
                moment = at(opens) + timedelta(hours=hours)
                assert nightly.into_window(moment) == moment, "it is open"
            assert nightly.into_window(at(closes)) > at(closes) + timedelta(hours=12)

    def test_a_delay_by_chance_never_leaves_it(self) -> None:
        nightly = schedule_of(JobConfig(cron="0 5 * * *", window="22:00-06:00", jitter_seconds=7200), None)
        due = at("2026-06-11T05:00")
        assert nightly.delayed(due, lambda: 0.25) == at("2026-06-11T05:30")
        assert nightly.delayed(due, lambda: 0.75) == due

    @pytest.mark.parametrize("text", ["", "22-6", "24:00-06:00", "22:00-22:00", "22:00", "22:00-06:60"])
    def test_what_is_no_window(self, text: str) -> None:
        with pytest.raises(UsageError, match="window"):
            parse_window(text)

    @pytest.mark.parametrize("text", ["", "Mars/Base", "../../etc/passwd", "/etc/localtime", "Europe"])
    def test_what_is_no_zone(self, text: str) -> None:
        with pytest.raises(UsageError, match="time zone"):
            parse_zone(text)


@pytest.mark.parametrize(
    ("jobs", "line", "problem", "hint"),
    [
        ("backups: {cron: '@daily'}", 3, "no such job: backups", "did you mean 'backup'?"),
        ("fsck: {cron: '61 * * * *'}", 3, "'61' is no minute", "from 0 to 59"),
        ("fsck: {cron: '@daily', every_seconds: 5}", 3, "exclude each other", ""),
        ("fsck: {window: '9-5'}", 3, "not a window", "22:00-06:00"),
        ("fsck: {timezone: Mars}", 3, "no such time zone", "Europe/Berlin"),
        ("policy: {options: [--only]}", 3, "no verb of their own", ""),
        ("fsck: {every: 5}", 3, "no such key", "every_seconds"),
        ("fsck: {every_seconds: 0}", 3, "every_seconds", ""),
    ],
)
def test_a_mistake_names_file_line_and_key(tmp_path: Path, jobs: str, line: int, problem: str, hint: str) -> None:
    file = tmp_path / "frostline.yaml"
    file.write_text(f"daemon:\n  jobs:\n    {jobs}\n")
    with pytest.raises(UsageError, match=problem) as caught:
        load(file, {})
    assert f"frostline.yaml, line {line}: daemon.jobs." in caught.value.message
    assert hint in caught.value.hint
