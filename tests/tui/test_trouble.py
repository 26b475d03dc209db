"""Nothing that goes wrong ends the dashboard, freezes a key or is obeyed by the terminal."""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
import threading
import unicodedata
from datetime import datetime, timedelta
from typing import Any

import pytest
from rich.segment import Segment

from oplog.errors import Locked, Transient
from tests.homes import Home
from tests.tui.conftest import DUE, due_move
from tests.tui.pilot import Driver, drive, opener
from tiering.catalog.freshness import Freshness
from tiering.config.reading import load
from tiering.engine.store import Store
from tui.widgets.as_of import waiting_lines
from tui.widgets.grid import Grid, fitted
from tui.widgets.plain import ascii_text

HOSTILE = "[bold red]x[/] [@click=app.quit]y[/] \x1b[2J\x9b31m\u202e\r\n]8;;http://evil\x07"


def _obeyed(text: str) -> list[str]:
    return [one for one in text if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") or one == "\u202e"]


@pytest.mark.in_turn
def test_hostile_texts_are_shown_as_they_are(home: Home) -> None:
    database = sqlite3.connect(home.path / "state" / "journal.db")
    home.to_bucket(table="d.small")
    with database:
        database.execute("UPDATE moves SET state = 'failed', error = ?, reason_detail = ?", (HOSTILE, HOSTILE))
        database.execute("UPDATE moves SET part = ?, table_name = ?", (HOSTILE[:20], HOSTILE))
    database.close()

    async def story(driver: Driver) -> None:
        await driver.press("4", "enter")
        await driver.lists(HOSTILE, lambda rows: rows[0]["error"])
        await driver.until(lambda: "[bold red]x[/]" in driver.text.replace("│", ""))
        await driver.until(lambda: not _obeyed(driver.text.replace("\n", "")))
        await driver.press("c")
        await driver.until(lambda: driver.told)
        driver.app.tell(HOSTILE)
        driver.app.tell_error(Locked(HOSTILE, hint=HOSTILE))
        await driver.sees("[@click=app.quit]")
        assert len(driver.told) == 3
        assert not _obeyed(driver.text.replace("\n", ""))
        assert not any(_obeyed(told.replace("\n", "")) for told in driver.told)

    drive(home, story, size=(200, 40))


def test_a_store_that_cannot_be_opened_is_said_and_tried_again(home: Home) -> None:
    open_store, failures = opener(home), [Locked("the journal is busy", hint="try again"), OSError("gone")]

    def opened(*progress: Any) -> Store:
        if failures:
            raise failures.pop(0)
        return open_store(*progress)

    async def story(driver: Driver) -> None:
        await driver.sees("the journal is busy", "try again")
        await driver.press("r")
        await driver.sees("unexpected OSError: gone")
        await driver.press("r", "3")
        await driver.until(lambda: driver.app.problem is None)
        await driver.lists(3, len)

    drive(home, story, opened=opened)


@pytest.mark.in_turn
def test_keys_work_while_a_bucket_does_not_answer(home: Home) -> None:
    open_store, answering = opener(home), threading.Event()

    def opened(*progress: Any) -> Store:
        answering.wait()
        return open_store(*progress)

    async def story(driver: Driver) -> None:
        app = driver.app
        driver.send("3")
        await driver.until(lambda: app.query("#view-Parts Grid:focus"))
        await driver.sees("Reading the store")
        driver.send("f1")
        await driver.until(lambda: len(app.screen_stack) == 2)
        answering.set()
        await driver.press("escape")
        await driver.lists(3, len)

    drive(home, story, opened=opened, settled=False)


@pytest.mark.in_turn
def test_what_a_bucket_no_longer_says_stays_and_is_said(home: Home) -> None:
    home.to_bucket(table="d.small")
    open_store = opener(home)
    stores: list[Store] = []

    def opened(*progress: Any) -> Store:
        stores.append(open_store(*progress))
        return stores[-1]

    async def story(driver: Driver) -> None:
        await driver.press("3")
        await driver.lists(3, len)
        before = driver.rows

        def refuse(freshness: Freshness = Freshness.EVERY_FILE, *, again: bool = False) -> None:
            raise Transient("the bucket does not answer", hint="wait")

        stores[0].refresh = refuse  # type: ignore[method-assign]
        await driver.press("r")
        await driver.sees("the bucket does not answer")
        await driver.lists(before, lambda rows: rows)
        del stores[0].refresh
        await driver.press("r")
        await driver.lacks("does not answer")

    drive(home, story, opened=opened)


def test_what_is_old_is_said_to_be_soon() -> None:
    """Who comes back to a screen sees what was there when they left, until it is read."""
    now = datetime(2026, 1, 2, 3, 4, 5)
    fresh, old = now - timedelta(seconds=5), now - timedelta(seconds=60)
    assert waiting_lines(1.0, fresh, now) == waiting_lines(1.0, None, now) == waiting_lines(0.2, old, now) == []
    (line,) = waiting_lines(1.0, old, now)
    assert line.startswith("Reading the store for 1 s")
    assert line.endswith("of 03:03:05")
    (line,) = waiting_lines(3.0, None, now)
    assert line.startswith("Reading the store for 3 s")
    assert line.endswith("no answer yet")


@pytest.mark.in_turn
def test_what_somebody_does_while_rows_are_read_stays(home: Home) -> None:
    """The cursor where it went, the filter that was written."""
    open_store, begun, go_on = opener(home), threading.Event(), threading.Event()
    stores: list[Store] = []

    def opened(*progress: Any) -> Store:
        stores.append(open_store(*progress))
        return stores[-1]

    def refresh(freshness: Freshness = Freshness.EVERY_FILE, *, again: bool = False) -> None:
        begun.set()
        go_on.wait()

    async def story(driver: Driver) -> None:
        await driver.press("3")
        await driver.lists(3, len)
        stores[0].refresh = refresh  # type: ignore[method-assign]
        grid = driver.app.query_one("#view-Parts Grid", Grid)
        for keys, effect in (
            (["down"], lambda grid: grid.cursor == 1),
            (["slash", *"events", "enter"], lambda grid: grid.shown is not None and len(grid.shown.rows) == 2),
        ):
            begun.clear()
            go_on.clear()
            driver.send("r")
            await driver.until(begun.is_set)
            for key in keys:
                driver.send(key)
                await driver.until(lambda key=key: key != "slash" or not grid.has_focus)
            await driver.until(lambda effect=effect: effect(grid))
            go_on.set()
            await driver.settle()
            assert effect(grid)

    drive(home, story, opened=opened)


def test_a_disk_that_is_gone_stands_first(home: Home) -> None:
    async def story(driver: Driver) -> None:
        shutil.rmtree(home.path / "ssd")
        await driver.press("r")
        await driver.until(lambda: "!" in driver.text.splitlines()[2])
        await driver.press("6")
        broken = {"s3": False, "ssd": True}
        await driver.lists(broken, lambda rows: {row["name"]: bool(row["broken"]) for row in rows})
        await driver.press("3", "m", "escape")

    drive(home, story)


@pytest.mark.in_turn
def test_every_screen_and_action_outlives_a_disk_that_is_gone(home: Home) -> None:
    home.to_bucket(table="d.small")

    async def story(driver: Driver) -> None:
        shutil.rmtree(home.path / "ssd")
        for key, actions in (
            *(("1", "T"), ("2", "pmPUD"), ("3", "mpub"), ("4", "c"), ("5", "aT"), ("6", "cwm"), ("7", "dz")),
            *(("8", "cvR"), ("9", "TPU"), ("minus", "wy"), ("0", "")),
        ):
            await driver.press(key, *(["escape"] if key == "0" else ["r"]))
            for action in actions:
                await driver.press(action)
                while len(driver.app.screen_stack) > 1:
                    await driver.press("escape")
            assert "unexpected" not in driver.text, (key, driver.text)
            await driver.press("f1")
            await driver.until(lambda: len(driver.app.screen_stack) == 2)
            await driver.press("escape")
        assert driver.told
        assert not [told for told in driver.told if "unexpected" in told or "Traceback" in told]

    drive(home, story, size=(140, 40))


def test_a_log_that_cannot_be_read_is_not_taken_for_none(home: Home) -> None:
    bucket = home.path.parent / "s3"
    away = bucket.with_name("away")

    async def story(driver: Driver) -> None:
        await driver.press("7")
        await driver.until(lambda: driver.rows)
        bucket.rename(away)
        await driver.press("r")
        await driver.sees("The log of s3 cannot be read now")
        away.rename(bucket)
        await driver.press("r")
        await driver.until(lambda: driver.rows)
        await driver.lacks("cannot be read")

    drive(home, story)


def test_what_others_begin_is_seen_when_reading_all_costs_much(home: Home) -> None:
    """Another process begins it."""
    with Store.open(load(home.configuration), actor="another@there") as store:

        async def story(driver: Driver) -> None:
            await driver.sees("0 under way")
            driver.app.refresh_interval._read_after = math.inf
            store.context.journal.work.plan_moves([due_move(store)])
            await driver.sees("1 under way", f"planned    {DUE}")
            (move,) = store.context.journal.work.moves(active=True)
            store.context.journal.work.set_move(move.id, "copying")
            store.context.journal.work.note_bytes({move.id: 250_000})
            await driver.sees("[#####...............]  25%")
            await driver.press("4")
            await driver.sees("#...  25%")

        drive(home, story, watch=True)


def test_what_others_commit_is_seen_by_a_look_at_the_disks(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3")
        await driver.lists({"ssd"}, lambda rows: {row["disk"] for row in rows})
        driver.beside(home, "move", "d.small", "--partition", "all", "--to-disk", "s3")
        driver.app._look_at_others()
        await driver.lists({"ssd", "s3"}, lambda rows: {row["disk"] for row in rows})

    drive(home, story)


def test_what_nobody_waits_for_any_more_is_not_read(home: Home) -> None:
    read: list[int] = []

    async def story(driver: Driver) -> None:
        begun, go_on = threading.Event(), threading.Event()
        source = driver.app.source
        first = asyncio.create_task(source.read(lambda store: (begun.set(), go_on.wait())))
        await driver.until(begun.is_set)
        others = [
            asyncio.create_task(source.read(lambda store, number=number: read.append(number))) for number in (1, 2)
        ]
        await asyncio.sleep(0)
        others[0].cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, others[1])

    drive(home, story)
    assert read == [2]


@pytest.mark.in_turn
def test_parts_that_another_process_takes_away(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "end", "space", "enter")
        driver.beside(home, "table", "drop", "d.events")
        await driver.press("p", "r", "enter")
        await driver.lists(["d.small"], lambda rows: [row["table"] for row in rows])

    drive(home, story)


@pytest.mark.in_turn
@pytest.mark.parametrize("screen_and_keys", ["2 P", "2 m", "2 D", "3 m enter", "3 p", "5 a y"])
def test_actions_on_what_another_process_took_away_say_so(home: Home, screen_and_keys: str) -> None:
    """In words, and what is there by then is not touched."""
    small = home.json("parts", "d.small")
    screen, *keys = screen_and_keys.split()

    async def story(driver: Driver) -> None:
        await driver.press(screen)
        await driver.until(lambda: driver.rows[0]["table"] == "d.events")
        driver.beside(home, "table", "drop", "d.events")
        await driver.press(*keys)
        await driver.until(lambda: _words(driver))
        assert "unexpected" not in _words(driver)
        await driver.press("escape", "r")
        await driver.until(lambda: all(row["table"] == "d.small" for row in driver.rows))

    drive(home, story)
    assert home.tables() == ["d.small"]
    assert home.json("parts", "d.small") == small


def _words(driver: Driver) -> str:
    """What was said of something that is not there."""
    said = " ".join([*driver.told, " ".join(driver.text.replace("│", "").split())])
    return said if any(one in said for one in ("No such table", "No such part", "1 skipped")) else ""


@pytest.mark.in_turn
def test_a_table_dropped_elsewhere_during_the_question_is_named(home: Home) -> None:
    """Another process drops it; the answer says that it is gone."""
    name = "d.events"

    async def story(driver: Driver) -> None:
        await driver.press("2", "home", "D")
        await driver.sees(f"Type {name}")
        driver.beside(home, "table", "drop", name)
        await driver.write(name)
        await driver.press("enter")
        await driver.until(lambda: driver.told and "No such table" in driver.told[-1])

    drive(home, story)
    assert home.tables() == ["d.small"]


@pytest.mark.in_turn
def test_a_terminal_without_utf_8(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("2", "D")
        await driver.sees("$ frostline table drop d.events")
        strips = driver.app.screen._compositor.render_strips()
        filters = driver.app.get_line_filters()
        for strip in strips:
            for line in filters:
                strip = strip.apply_filter(line, driver.app.screen.background_colors[1])
            assert strip.text.isascii(), strip.text
        await driver.press("escape")

    drive(home, story, ascii=True)
    assert ascii_text(Segment("─│┌ 日x é")) == "-|+ ??x ?"


def test_cells_are_as_wide_as_their_column() -> None:
    for text in ("short", "日本語日本語", "é" * 20, HOSTILE, ""):
        assert len(fitted(text, 9).encode("utf-16-le")) <= 18
        assert not _obeyed(fitted(text, 9))
        from rich.cells import cell_len

        assert cell_len(fitted(text, 9)) == cell_len(fitted(text, 9, right=True)) == 9


@pytest.mark.in_turn
def test_the_detail_goes_below_where_there_is_little_room(home: Home) -> None:
    """At once, also after a larger size."""

    async def story(driver: Driver) -> None:
        await driver.press("3", "enter")
        for width, is_below in ((80, True), (120, False), (90, True), (140, False)):
            await driver.resize(width, 30)
            grid, pane = (driver.app.query_one(f"#view-Parts {what}").region for what in ("Grid", ".detail"))
            assert (pane.y >= grid.bottom, pane.x >= grid.right) == (is_below, not is_below), width

    drive(home, story)


@pytest.mark.in_turn
def test_a_storm_of_sizes(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "enter")
        for step in range(12):
            driver.begin_resize(10 + 17 * (step % 7), 3 + 7 * (step % 5))
            await driver.settle() if step % 3 else None
        await driver.resize(100, 30)
        await driver.lists(3, len)

    drive(home, story)
