"""How current is what a screen shows: of when it is while an answer is waited for, and what of it nobody could ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from textual.timer import Timer

from tui.widgets.plain import Plain

_PATIENCE_SECONDS = 2.0
"""So long nobody wonders whether it still reads."""
_EVERY_SECONDS = 1.0


class AsOf(Plain):
    """A line above the rows; nothing while they are what the store says now."""

    def __init__(self) -> None:
        super().__init__(id="as-of")
        self.display = False
        self._asked: tuple[str, float] | None = None
        self._answered: dict[str, datetime] = {}
        """When each screen was answered last."""
        self._missing: dict[str, Sequence[str]] = {}
        """What of its answer is as it was seen before."""
        self._here = ""
        self._ticks: Timer | None = None

    def on_mount(self) -> None:
        """Only while something is waited for."""
        self._ticks = self.set_interval(_EVERY_SECONDS, self.tell, pause=True)

    def see(self, screen: str) -> None:
        """That screen is shown now."""
        self._here = screen
        self.tell()

    def ask(self, screen: str) -> None:
        """It is being read."""
        self._asked = (screen, time.monotonic())
        if self._ticks is not None:
            self._ticks.resume()

    def answer(self, screen: str, missing: Sequence[str]) -> None:
        """It shows what the store says now, but for that."""
        self._answered[screen], self._missing[screen] = datetime.now(), missing
        self.give_up()

    def give_up(self) -> None:
        """Nothing is waited for any more."""
        self._asked = None
        if self._ticks is not None:
            self._ticks.pause()
        self.tell()

    def tell(self) -> None:
        """What there is to say now."""
        lines = list(self._missing.get(self._here, ()))
        if self._asked is not None and (waited := time.monotonic() - self._asked[1]) >= _PATIENCE_SECONDS:
            when = self._answered.get(self._here)
            shown = f"; what is shown is of {when:%H:%M:%S}" if when is not None else ""
            lines.append(f"Reading the store for {waited:.0f} s: no answer yet{shown}")
        self.say(lines)
        self.display = bool(lines)
