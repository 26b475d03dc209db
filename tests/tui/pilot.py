"""Drives a dashboard on a real store, without a terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

import pytest
from textual import events
from textual.css.query import NoMatches
from textual.geometry import Size
from textual.keys import key_to_character
from textual.message_pump import MessagePump

from disks.workers.progress import Progress
from tiering.catalog.context import wall_clock
from tiering.config.reading import load
from tiering.engine.store import Store
from tui.app import Dashboard, Settings
from tui.screens.list_view import ListView
from tui.source import Opener, Source

_PATIENCE_SECONDS = 120.0
"""Only a dashboard that hangs takes so long."""


class Commanded(Protocol):
    """A machine of tests: what has a configuration and a command line."""

    configuration: Path

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The document that a command line answers with."""


class Driver:
    """A dashboard that is being driven. What is seen is waited for: a screen is painted some time after a key."""

    def __init__(self, app: Dashboard, streams: tuple[TextIO, TextIO]) -> None:
        self.app = app
        self.told: list[str] = []
        """The remarks that were made. They leave the screen after seconds, which a slow machine takes to look."""
        self._streams = streams
        notify = app.notify

        def noting(message: str, **how: Any) -> None:
            self.told.append(message)
            notify(message, **how)

        app.notify = noting  # type: ignore[method-assign]

    def beside(self, home: Commanded, *arguments: str, code: int = 0) -> Any:
        """What a command line answers meanwhile: textual takes what is printed for its own."""
        out, err = self._streams
        with redirect_stdout(out), redirect_stderr(err):
            return home.json(*arguments, code=code)

    async def press(self, *keys: str) -> None:
        """Press the keys one after the other, each when the one before has had its effect."""
        for key in keys:
            self.send(key)
            await self.settle()

    async def write(self, text: str) -> None:
        """Type a text."""
        for character in text:
            self.send(_KEYS.get(character, character), character)
        await self.settle()

    def send(self, key: str, character: str | None = None) -> None:
        """Press a key and wait for nothing. textual waits for a machine that is idle."""
        event = events.Key(key, character or key_to_character(key))
        event.set_sender(self.app)
        assert self.app._driver is not None
        self.app._driver.send_message(event)

    async def resize(self, width: int, height: int) -> None:
        """Another size of the terminal."""
        self.begin_resize(width, height)
        await self.settle()

    def begin_resize(self, width: int, height: int) -> None:
        """The same, and wait for nothing."""
        size = Size(width, height)
        self.app._driver._size = size  # type: ignore[union-attr]  # the headless one has it
        self.app.post_message(events.Resize(size, size))

    # What is waited for

    async def until(self, holds: Callable[[], object]) -> None:
        """Until that holds, while the dashboard goes on. Fails with what is seen when it never does."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while not _true(holds):
            if self.app._exception is not None:
                raise self.app._exception
            if time.monotonic() > give_up:
                pytest.fail(f"waited in vain; told: {self.told}; seen:\n{self.text}")
            await asyncio.sleep(0.01)

    async def sees(self, *texts: str) -> None:
        """Until all of these stand on the screen."""
        await self.until(lambda: all(text in self.text for text in texts))

    async def lacks(self, *texts: str) -> None:
        """Until none of these stands on the screen."""
        await self.until(lambda: not any(text in self.text for text in texts))

    async def lists(self, expected: object, read: Callable[[list[dict[str, Any]]], object]) -> None:
        """Until what is read from the rows that are seen is what is expected."""
        await self.until(lambda: read(self.rows) == expected)

    async def is_told(self, *remarks: str) -> None:
        """Until these remarks were made, and no other."""
        await self.until(lambda: self.told == list(remarks))

    async def settle(self) -> None:
        """Until nothing is read, done or drawn any more; a dialog may wait for an answer."""
        quiet = 0

        def calm() -> bool:
            nonlocal quiet
            quiet = 0 if self._busy() else quiet + 1
            return quiet > 2

        await self._all_take_a_turn()
        await self.until(calm)
        await self._all_take_a_turn()  # what a handler that had begun still did
        quiet = 0
        await self.until(calm)

    async def _all_take_a_turn(self) -> None:
        """Until each widget has handled what was sent to it before."""
        waiting: list[MessagePump] = []
        for pump in self._pumps():
            if pump.call_later(lambda pump=pump: waiting.remove(pump)):
                waiting.append(pump)
        await self.until(lambda: not any(pump.is_running for pump in waiting))

    def _pumps(self) -> list[MessagePump]:
        screens = self.app.screen_stack
        return [self.app, *screens, *(child for screen in screens for child in screen.walk_children())]

    def _busy(self) -> bool:
        """Whether something is to be read, done or drawn. textual draws when a timer says so, at most 60 times a
        second: a screen whose messages are all handled may still be as it was."""
        asked, screen = len(self.app.screen_stack) > 1, self.app.screen
        waiting = {"choice", "leave"} if asked else set()
        return (
            any(pump.message_queue_size or pump._next_callbacks for pump in self._pumps())
            or any((screen._layout_required, screen._scroll_required, screen._repaint_required))
            or any((screen._dirty_widgets, screen._callbacks, screen._recompose_required, self.app._batch_count))
            or bool(self.app.source.running)
            or any(not worker.is_finished and worker.group not in waiting for worker in self.app.workers)
        )

    @property
    def text(self) -> str:
        """What is seen, a line a line of the terminal."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The documents of the rows that are seen, in their order."""
        assert isinstance(self.app.view, ListView)
        shown = self.app.view.grid.shown
        assert shown is not None, self.text
        return [dict(shown.listing.document(row)) for row in shown.rows]


def _true(holds: Callable[[], object]) -> bool:
    """Whether it holds; what is not there yet does not."""
    try:
        return bool(holds())
    except (AssertionError, LookupError, NoMatches):
        return False


_KEYS = {" ": "space", ".": "full_stop", "*": "asterisk", ":": "colon", "_": "underscore", ">": "greater_than_sign"}
_KEYS |= {"-": "minus", "(": "left_parenthesis", ")": "right_parenthesis", "=": "equals_sign", "<": "less_than_sign"}
_KEYS |= {"[": "left_square_bracket", "/": "slash", ",": "comma"}


def opener(home: Commanded, clock: Callable[[], datetime] = wall_clock) -> Opener:
    """Opens the store of a home, as `top` does."""
    config = load(home.configuration)

    def open_store(progress: Progress | None = None) -> Store:
        return Store.open(config, actor="somebody@here", progress=progress, clock=clock, partial=True)

    return open_store


def drive(
    home: Commanded,
    story: Callable[[Driver], Awaitable[None]],
    *,
    size: tuple[int, int] = (120, 30),
    opened: Callable[..., Store] | None = None,
    clock: Callable[[], datetime] = wall_clock,
    settled: bool = True,
    **settings: Any,
) -> None:
    """Run the story on a dashboard of the home's store."""

    streams = (sys.stdout, sys.stderr)

    async def run() -> None:
        source = Source(opened or opener(home, clock))
        wanted = Settings(state_directory=load(home.configuration).state_directory, **{"watch": False, **settings})
        app = Dashboard(source, wanted)
        try:
            async with app.run_test(size=size):
                driver = Driver(app, streams)
                if settled:
                    await driver.settle()
                await story(driver)
        finally:
            source.close()
            source.wait()

    asyncio.run(run())
