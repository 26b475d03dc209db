"""Names and texts in ClickHouse's statements and files: written so that nothing of them is anything else. Pure."""

from __future__ import annotations

import re

NAME = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
"""A quoted name; its group is what `unescaped` reads."""
TEXT = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
"""A literal; its group is what `unescaped` reads."""
_ESCAPED = re.compile(r"\\(x[0-7][0-9a-fA-F]|.)", re.DOTALL)
_MEANING = {"a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_STAND_FOR_THEMSELVES = "\\'\"`/="
_ESCAPES = str.maketrans(
    {
        "\\": r"\\",
        "'": r"\'",
        "`": r"\`",
        **{meaning: f"\\{sign}" for sign, meaning in _MEANING.items() if sign not in "ae"},
    }
)


def quoted_name(name: str) -> str:
    """A name as a statement has it."""
    return f"`{name.translate(_ESCAPES)}`"


def quoted_text(text: str) -> str:
    """A literal as a statement has it."""
    return f"'{text.translate(_ESCAPES)}'"


def unescaped(text: str) -> str:
    """What the text between the quotes means, as ClickHouse reads it."""
    return _ESCAPED.sub(_meaning, text)


def _meaning(match: re.Match[str]) -> str:
    sign = match[1]
    if len(sign) == 3:
        return chr(int(sign[1:], 16))
    return _MEANING.get(sign, sign if sign in _STAND_FOR_THEMSELVES else match[0])
