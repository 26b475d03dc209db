"""The names of the screens in one line, each behind its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget


class TabLine(Widget):
    """Which screens there are and which one is seen. A click goes to another."""

    COMPONENT_CLASSES = {"tab-line--here"}  # noqa: RUF012  as textual declares it

    @dataclass
    class Chosen(Message):
        """Somebody wants to see a screen."""

        name: str

    def __init__(self, tabs: Sequence[tuple[str, str]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._tabs = tabs
        self.here = ""

    def go(self, name: str) -> None:
        """Show that this screen is seen."""
        self.here = name
        self.refresh()

    def _labels(self) -> list[tuple[str, str]]:
        """Where the names do not fit, those of the others are cut."""
        full = [(name, f" {key} {name} ") for key, name in self._tabs]
        if sum(len(label) for _, label in full) <= self.size.width:
            return full
        return [
            (name, f" {key} {name} " if name == self.here else f" {key} {name[:3]} "[: 7 - (len(self._tabs) > 10)])
            for key, name in self._tabs
        ]

    def render_line(self, y: int) -> Strip:
        """The one line."""
        base, here = self.rich_style, self.rich_style + self.get_component_rich_style("tab-line--here", partial=True)
        segments = [Segment(label, here if name == self.here else base) for name, label in self._labels()]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def on_click(self, event: events.Click) -> None:
        """To the screen whose name is there."""
        x = event.x
        for name, label in self._labels():
            if x < len(label):
                self.post_message(self.Chosen(name))
                return
            x -= len(label)
