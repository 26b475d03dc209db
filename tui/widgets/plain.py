"""Text of any origin on a screen: never markup or an escape sequence, and on a terminal without UTF-8 only ASCII."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
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


_LIKE = str.maketrans(
    {
        **dict.fromkeys("─━═▔▀╌┄", "-"),
        **dict(zip("▁▂▃▄▅▆▇█", "_,-~=+*#", strict=True)),
        **dict.fromkeys("│┃║▌▐▊▎▏▕▍▋▉", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝▖▗▘▝", "+"),
        "…": "~",
        "•": "*",
        "▶": ">",
        "▼": "v",
        "▲": "^",
        "→": ">",
        "←": "<",
        "◀": "<",
        "⏎": "<",
        "\u00a0": " ",
    }
)


class Ascii(LineFilter):
    """Replaces every other character by one like it, or by `?`; the width stays."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same line in ASCII."""
        return [
            segment if segment.control or segment.text.isascii() else Segment(ascii_text(segment), segment.style)
            for segment in segments
        ]


def ascii_text(segment: Segment) -> str:
    """A question mark a cell where there is nothing like it."""
    text = segment.text.translate(_LIKE)
    if text.isascii():
        return text
    return "".join(one if one.isascii() else "?" * cell_len(one) for one in text)
