"""How current is what a screen shows: of when it is while an answer is waited for, and what of it nobody could ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from textual.timer import Timer

from tui.widgets.plain import Plain

_PATIENCE_SECONDS = 2.0
"""So long nobody wonders whether it still reads."""
_OLD_PATIENCE_SECONDS = 0.5
"""The same where what is shown is old: somebody came back to a screen."""
_OLD_SECONDS = 20.0
_EVERY_SECONDS = 0.5


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
        if self._asked is not None:
            waited = time.monotonic() - self._asked[1]
            lines += waiting_lines(waited, self._answered.get(self._here), datetime.now())
        self.say(lines)
        self.display = bool(lines)


def waiting_lines(waited_seconds: float, shown_of: datetime | None, now: datetime) -> list[str]:
    """What is said while an answer is waited for. `shown_of`: when the screen was answered last."""
    is_old = shown_of is not None and (now - shown_of).total_seconds() >= _OLD_SECONDS
    if waited_seconds < (_OLD_PATIENCE_SECONDS if is_old else _PATIENCE_SECONDS):
        return []
    shown = "" if shown_of is None else f"; what is shown is of {shown_of:%H:%M:%S}"
    return [f"Reading the store for {waited_seconds:.0f} s: no answer yet{shown}"]
