"""The dashboard in a real terminal: one that is lost, one without UTF-8, one that ends in the middle of work."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.homes import Home
from tests.tui.conftest import DUE
from tests.tui.pilot import Driver, drive
from tests.tui.terminals import PATIENCE_SECONDS, Terminal
from tui.app import Dashboard
from tui.screens.storage import Tables
from tui.terminal import TerminalDriver, _exit_between_steps


@pytest.mark.in_turn
def test_a_lost_connection_ends_it_and_nothing_is_damaged(home: Home) -> None:
    with Terminal(home, patient=True) as terminal:
        terminal.sees("Overview")
        terminal.press("3")
        terminal.sees("202001_1_1_0")
        terminal.lose()
        assert terminal.ends() in (0, 1, -signal.SIGHUP)
    assert home.json("fsck", "ssd")["ok"]
    assert home.json("moves", "list")["moves"] == []


@pytest.mark.in_turn
def test_a_move_cut_by_a_lost_connection_goes_on_next_pass(home: Home) -> None:
    """I1: each row once, whatever was copied by then."""
    rows = home.json("query", "SELECT ts, k FROM d.events ORDER BY ts, k")["rows"]
    before = home.configuration.read_text()
    home.configuration.write_text(f"{before}limits: {{bytes_per_second: 100}}\n")
    with Terminal(home, patient=True) as terminal:
        terminal.sees("Overview")
        terminal.press("5")
        terminal.sees(DUE)
        terminal.press("a")
        terminal.sees("y confirms")
        terminal.press("y")
        terminal.sees("Carry out 1 planned move")
        while not home.json("moves", "list")["moves"]:
            terminal.drain()
        terminal.lose()
        assert terminal.ends() in (0, 1, -signal.SIGHUP)
    home.configuration.write_text(before)
    home("tick")
    assert {part["part"]: part["disk"] for part in home.json("parts", "d.events")["parts"]}[DUE] == "s3"
    assert home.json("query", "SELECT ts, k FROM d.events ORDER BY ts, k")["rows"] == rows
    assert home.json("fsck", "ssd")["ok"]
    assert home.json("fsck", "s3")["ok"]


def test_a_storm_of_sizes_of_a_real_terminal_leaves_the_keys(home: Home) -> None:
    with Terminal(home) as terminal:
        terminal.sees("Overview")
        terminal.press("3")
        terminal.sees(DUE)
        for step in range(60):
            terminal.resize(10 + 17 * (step % 9), 3 + 7 * (step % 6))
            terminal.drain()
        terminal.resize(100, 30)
        terminal.press("2")
        terminal.sees("d.small")
        terminal.process.terminate()
        assert terminal.ends() == 0
        assert b"Traceback" not in terminal.drawn


def test_the_loss_of_a_terminal_that_sends_no_signal_ends_it(home: Home) -> None:
    with Terminal(home, controls=False) as terminal:
        terminal.sees("Overview")
        terminal.lose()
        assert terminal.ends() == 0


@pytest.mark.slow
def test_a_signal_ends_it_while_nobody_reads_what_it_draws(home: Home) -> None:
    with Terminal(home) as terminal:
        terminal.sees("Overview")
        terminal.stuff("23")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(PATIENCE_SECONDS) in (0, 128 + signal.SIGTERM)
    assert home.json("fsck", "ssd")["ok"]


@pytest.mark.in_turn
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signals_end_it_orderly(home: Home, number: signal.Signals) -> None:
    with Terminal(home) as terminal:
        terminal.sees("Overview")
        terminal.process.send_signal(number)
        assert terminal.ends() == 0
        assert b"\x1b[?1049l" in terminal.drawn  # the screen that was there before
        assert b"Traceback" not in terminal.drawn


def test_a_screen_that_comes_after_the_end_is_not_shown(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.sees("Overview")
        driver.app.exit()
        await Dashboard._see.__wrapped__(driver.app, Tables)  # type: ignore[attr-defined]

    drive(home, story)


def test_a_signal_ends_the_dashboard_between_two_of_its_steps() -> None:
    ended: list[int] = []
    board: Any = SimpleNamespace(_loop=asyncio.new_event_loop(), exit=lambda: ended.append(1))
    _exit_between_steps(board)
    assert not ended
    board._loop.run_until_complete(asyncio.sleep(0))
    assert ended == [1]
    board._loop.close()
    _exit_between_steps(board)
    board._loop = None
    _exit_between_steps(board)
    assert ended == [1, 1]


@pytest.mark.parametrize("called", ["_sigtstp_application", "_sigcont_application"])
def test_a_signal_changes_nothing_on_the_screen_by_itself(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost terminal brings SIGCONT with SIGHUP: it came while something was put where a thread writes it from, put
    the screen back at once, and waited for ever for the lock that it had interrupted."""
    done: list[str] = []
    monkeypatch.setattr(TerminalDriver, "suspend_application_mode", lambda driver: done.append("given back"))
    monkeypatch.setattr(TerminalDriver, "resume_application_mode", lambda driver: done.append("taken"))
    monkeypatch.setattr(os, "kill", lambda pid, number: done.append("stopped"))
    driver = object.__new__(TerminalDriver)
    driver._auto_restart, driver._must_signal_resume = True, False
    driver._loop = asyncio.new_event_loop()
    getattr(driver, called)()
    assert done == []
    driver._loop.run_until_complete(asyncio.sleep(0))
    assert done == ["given back", "stopped" if called == "_sigtstp_application" else "taken"]
    done.clear()
    driver._loop.close()  # the dashboard has ended, and waits for what runs
    getattr(driver, called)()
    assert done == (["stopped"] if called == "_sigtstp_application" else [])


@pytest.mark.in_turn
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_it_is_drawn_again_when_it_goes_on(home: Home, number: signal.Signals) -> None:
    """A shell had the terminal meanwhile. It was put aside by the shell's key, or stopped from elsewhere."""
    with Terminal(home) as terminal:
        terminal.sees("Overview")
        terminal.press("2")
        terminal.sees("d.small")
        terminal.process.send_signal(number)
        os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
        terminal.press("")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.sees("d.small")
        terminal.press("3")
        terminal.sees("202001_1_1_0")
        terminal.process.terminate()
        assert terminal.ends() == 0


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "environment", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["as Python finds it", "by the locale"]
)
def test_a_terminal_without_utf_8_gets_ascii(home: Home, environment: dict[str, str]) -> None:
    with Terminal(home, LC_ALL="C", **environment) as terminal:
        terminal.sees("Overview")
        terminal.press("2")
        terminal.sees("d.small")
        terminal.press("D")
        terminal.sees("Type d.events")
        assert terminal.drawn.isascii()
        terminal.process.terminate()
        assert terminal.ends() == 0
