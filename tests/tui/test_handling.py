"""The hands: keys and mouse in a real terminal, the clipboard, no colours, and a journal that another process holds."""

from __future__ import annotations

import base64
import json
import re
import sqlite3

import pytest

from tests.homes import Home
from tests.tui.conftest import DUE, STAYS, due_move
from tests.tui.pilot import Driver, drive
from tests.tui.terminals import Terminal
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.journal import file as journal_file
from tui.app import VIEWS

_COLOUR = re.compile(rb"[34]8;5;([0-9]+)|[34]8;2;([0-9]+);([0-9]+);([0-9]+)")
_GREYS = {16, 59, 102, 145, 188, 231, *range(232, 256)}
"""Of the 256 colours of a terminal."""
_CLIPBOARD = re.compile(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")


def coloured(drawn: bytes) -> list[str]:
    """The colours that are no greys."""
    return [
        found[0].decode()
        for found in _COLOUR.finditer(drawn)
        if (len(set(found.groups()[1:])) > 1 if found[1] is None else int(found[1]) not in _GREYS)
    ]


def click(x: int, y: int) -> str:
    """What a terminal sends for a click on a cell, counted from 1."""
    return f"\x1b[<0;{x};{y}M\x1b[<0;{x};{y}m"


@pytest.mark.in_turn
def test_mouse_and_clipboard_of_a_terminal_without_colours(home: Home) -> None:
    with Terminal(home, NO_COLOR="1") as terminal:
        terminal.sees("Overview")
        terminal.press(click(22, 1))  # the tab of the parts
        terminal.sees(DUE)
        assert not coloured(terminal.drawn)
        terminal.press(click(10, 5))  # the third of the rows
        terminal.press("\x19")  # Ctrl+Y
        terminal.sees("Copied 1 as JSON")
        (copied,) = _CLIPBOARD.findall(terminal.drawn)
        third = json.loads(base64.b64decode(copied))[0]
        assert (third["table"], third["part"]) != ("d.events", DUE)
        terminal.process.terminate()
        assert terminal.ends() == 0


def test_a_terminal_with_colours_gets_them(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Terminal(home) as terminal:
        terminal.sees("Overview")
        assert coloured(terminal.drawn)
        terminal.process.terminate()
        assert terminal.ends() == 0


def test_marked_rows_are_copied_in_their_order(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "space", "space", "ctrl+y")
        await driver.is_told("Copied 2 as JSON.")
        copied = json.loads(driver.app.clipboard)
        assert [part["part"] for part in copied] == [part["part"] for part in driver.rows[:2]]
        assert {part["part"] for part in copied} <= {DUE, STAYS, "all_1_1_0"}

    drive(home, story)


@pytest.mark.in_turn
def test_a_journal_that_another_holds_is_said_and_keys_work(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds it."""
    monkeypatch.setattr(journal_file, "_BUSY_SECONDS", 0.2)
    other = sqlite3.connect(home.path / "state" / "journal.db", isolation_level=None)

    async def story(driver: Driver) -> None:
        await driver.press("3")
        await driver.lists(3, len)
        other.execute("BEGIN EXCLUSIVE")
        await driver.press("asterisk", "p")
        await driver.until(lambda: len(driver.told) == 1 and "is busy" in driver.told[0])
        assert "another process writes to it" in driver.told[0]
        await driver.press("2")
        await driver.lists(["d.events", "d.small"], lambda rows: [row["table"] for row in rows])
        other.execute("ROLLBACK")
        await driver.press("3", "p")
        assert len(driver.beside(home, "status")["pins"]) == 3

    try:
        drive(home, story)
    finally:
        other.close()


@pytest.mark.in_turn
def test_rows_of_another_kind_are_not_new(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("2", "p")
        await driver.sees("202001", "209902")
        assert driver.app.view.grid.shown.changed == frozenset()  # type: ignore[union-attr]
        (home.path / "rows.csv").write_text("k\n4\n")
        driver.beside(home, "insert", "d.small", str(home.path / "rows.csv"))
        await driver.press("r")
        await driver.until(lambda: len(driver.app.view.grid.shown.changed) == 1)  # type: ignore[union-attr]

    drive(home, story)


@pytest.mark.in_turn
def test_the_palette_has_every_action_of_every_screen(home: Home) -> None:
    async def story(driver: Driver) -> None:
        titles = [command.title for command in driver.app.get_system_commands(driver.app.screen)]
        every = {f"{view.name_}: {choice.title}" for _, view in VIEWS for choice in view.choices}
        assert every <= set(titles)
        assert len(titles) == len(set(titles))
        await driver.press("ctrl+p")
        await driver.write("parts: move")
        await driver.sees("go to Parts")
        await driver.press("enter")
        await driver.lists(3, len)
        await driver.is_told("Move: f6 or M does it here.")

    drive(home, story, keys={"parts.move": "f6,M"})


@pytest.mark.in_turn
def test_what_came_while_another_screen_was_seen_stands_in_view(home: Home) -> None:
    """Rows that came before the one under the cursor: what is under way is the first of the moves."""
    with Store.open(load(home.configuration), actor="another@there") as store:
        work = store.context.journal.work
        for number in work.plan_moves([due_move(store)] * 40):
            work.set_move(number, "cancelled")

        async def story(driver: Driver) -> None:
            await driver.press("4")
            await driver.lists(40, len)
            await driver.press("1")
            work.plan_moves([due_move(store)] * 3)
            await driver.press("4")
            await driver.lists(43, len)
            await driver.until(lambda: driver.text.count("planned") == 3)
            assert driver.app.view.grid.cursor == 3  # type: ignore[union-attr]

        drive(home, story)
