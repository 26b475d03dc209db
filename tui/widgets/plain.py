"""Text of any origin on a screen: never markup, never an escape sequence."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content
from textual.widgets import Static

from oplog.errors import FrostlineError
from tiering.config.escaping import visible


class Plain(Static):
    """Lines of text."""

    def __init__(self, *lines: str, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(plain_content(lines), id=id, classes=classes, markup=False)
        self.lines = list(lines)

    def say(self, lines: Iterable[str]) -> None:
        """Show these lines instead; nothing is drawn when they are the same."""
        new = list(lines)
        if new != self.lines:
            self.lines = new
            self.update(plain_content(new))


def plain_content(lines: Iterable[str]) -> Content:
    """The lines as they can be shown."""
    return Content("\n".join(visible(line) for line in lines))


def error_lines(error: Exception) -> list[str]:
    """Message and hint; of a fault of ours, what it is."""
    if isinstance(error, FrostlineError):
        return [error.message, *([error.hint] if error.hint else [])]
    return [f"unexpected {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"]
