"""What verbs say of their work is so: sizes, counts, times, and nothing with --quiet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.homes import Home
from tiering.cli.frame.terminal_progress import LINE_EVERY_SECONDS, Lines
from tiering.cli.reports.moves import print_report
from tiering.daemon import status
from tiering.daemon.status import DaemonStatus, StatusRecord, read_status
from tiering.move.report import MovedPart, MoveReport


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "a", capsys)
    home.create()
    return home


def test_quiet_leaves_out_what_was_done(home: Home, tmp_path: Path) -> None:
    """--quiet: only data and errors; what a dry run would do is its answer."""
    (tmp_path / "rows.csv").write_text("k\n1\n")
    rows = str(tmp_path / "rows.csv")
    assert home("insert", "-q", "d.t", rows) == ""
    assert home("table", "create", "-q", "d.u", "--column", "k:int64", "--order-by", "k") == ""
    assert home("table", "alter", "-q", "d.u", "--add-column", "x:int64") == ""
    assert home("table", "drop", "-q", "d.u", "-n") != ""
    assert home("table", "drop", "-q", "d.u") == ""
    assert "Inserted" in home("insert", "d.t", rows)


def test_a_duration_without_a_unit_is_refused(home: Home, tmp_path: Path) -> None:
    """Also where nothing goes by it."""
    (tmp_path / "rows.csv").write_text("k\n1\n")
    home("insert", "d.t", str(tmp_path / "rows.csv"), "--quorum-timeout", "5", code=2)
    assert "5s is so many seconds" in home.error


def test_a_pass_that_deleted_says_that_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "a", capsys)
    columns = ("--column", "k:int64", "--column", "ts:timestamp[us, UTC]", "--order-by", "k")
    home("table", "create", "d.t", *columns, "--ttl", "1d on ts delete")
    (tmp_path / "rows.csv").write_text("k,ts\n1,2001-01-01T00:00:00Z\n")
    home("insert", "d.t", str(tmp_path / "rows.csv"))
    text = home("tick", "--believe-clock")
    assert "1 part deleted by TTL rules." in text
    assert "moved" not in text


def test_a_move_without_a_byte_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from tiering.cli.frame.output import Output

    moved = MovedPart(
        table="d.t", part="all_1_1_0", source="ssd", target="s3", bytes=4800, seconds=0.1, requests=0, copied=False
    )
    print_report(Output(), MoveReport(moved=(moved,)))
    out = capsys.readouterr().out
    assert "without a byte" in out
    assert "1 part moved (0 B)" in out
    assert "4.7 KiB" not in out


def test_progress_by_items_says_no_bytes() -> None:
    """What is done without a byte through here is counted by its items."""
    lines: list[str] = []
    now = [0.0]
    with Lines(lines.append, lambda: now[0]).task("moving parts", items=3, size_bytes=153 << 20) as task:
        for size_bytes in (0, 5 << 20):
            now[0] += LINE_EVERY_SECONDS
            task.advance(items=1, size_bytes=size_bytes)
    assert lines == ["moving parts: 1 of 3", "moving parts: 2 of 3, 5.0 MiB of 153.0 MiB"]


def test_the_last_error_has_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    monkeypatch.setattr(status, "now", lambda: moments[0])
    record = StatusRecord(tmp_path, DaemonStatus())
    record.change(failures=1, last_error="full")
    monkeypatch.setattr(status, "now", lambda: moments[1])
    record.change(last_error="full", ticks=1)
    assert read_status(tmp_path).last_error_at == moments[0]
    record.change(failures=2, last_error="full")
    assert read_status(tmp_path).last_error_at == moments[1]
