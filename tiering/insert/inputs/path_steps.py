"""The directories `key=value` of a path, as Hive writes them. Pure; no I/O.

All directories of the path count, as it was named, and its file name never does. Key and value are written as in a URL,
and `__HIVE_DEFAULT_PARTITION__` is null.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from oplog.errors import UsageError

NO_HIVE = "--no-hive takes the columns of the file alone"
_NULL = "__HIVE_DEFAULT_PARTITION__"


def path_steps(path: str) -> dict[str, tuple[str, ...]]:
    """Key -> the directories that have it, `key=value`, from the first. Those of a URL begin behind its host, or its
    bucket."""
    found: dict[str, tuple[str, ...]] = {}
    steps = path.split("/")[3 if "://" in path else 0 : -1]
    for step in steps:
        key, equals, value = step.partition("=")
        if key and equals and "=" not in value:
            key = _decoded(key) or key
            found[key] = (*found.get(key, ()), step)
    return found


def value_of(step: str, label: str) -> str | None:
    """The value of a directory. Raises `UsageError` for one that is no text."""
    text = step.partition("=")[2]
    value = _decoded(text)
    if value is None:
        raise UsageError(f"{label}: the directory {step} is no text of UTF-8", hint=f"rename it; or {NO_HIVE}")
    return None if text == _NULL else value


def _decoded(text: str) -> str | None:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        return None
