"""Macros in paths of Keeper: `{shard}` and `{replica}` of this machine, `{uuid}`, `{database}` and `{table}`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oplog.errors import UsageError

OF_A_TABLE = {
    "uuid": "table's uuid",
    "database": "table's database",
    "table": "table's name",
}
"""What each table says itself -> its meaning."""

_MACRO = re.compile(r"\{([^{}]*)\}")
_STEP = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}\Z", re.ASCII)


def is_step(text: str) -> bool:
    """Whether the text is a name between two slashes."""
    return _STEP.match(text) is not None


def is_path(text: str) -> bool:
    """Whether the text is an absolute path of names, at least one."""
    return text.startswith("/") and all(map(is_step, text[1:].split("/")))


def expand(text: str, values: Mapping[str, str], *, subject: str) -> str:
    """The text with its macros put in. Raises `UsageError` naming the first that nothing is known of."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            names = ", ".join(f"{{{name}}}" for name in sorted(values)) or "none"
            raise UsageError(
                f"{subject} is {text}, and nothing says what {match[0]} stands for",
                hint=f"give it in the section 'macros' of the configuration; known here: {names}",
            )
        return values[match[1]]

    return _MACRO.sub(value, text)
