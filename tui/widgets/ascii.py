"""For terminals without UTF-8: what is drawn with other characters is drawn with those of ASCII."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

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
