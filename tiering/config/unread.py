"""Of a configuration that cannot be read: where its state lies. A daemon works on by what the file said before, and
its clients must find it by the file as it is now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oplog.errors import UsageError
from tiering.config.finding import PREFIX, default_home, find_file
from tiering.config.given_file import CONFIGURATION_BYTES, text_of
from tiering.config.settings import embedded

_LINE = re.compile(r"""^state_path:[ \t]+(?:"([^"]+)"|'([^']+)'|([^\s'"#&*!|>{\[][^#\n]*))""", re.MULTILINE)


def state_directory(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """What can be made out of it; None where the file is gone or says nothing of the kind that can be read."""
    try:
        file = find_file(given, environment)
        base = default_home(environment) if file is None else file.absolute().parent
        path = environment.get(f"{PREFIX}STATE_PATH") or (
            None if file is None else _said(text_of(file, CONFIGURATION_BYTES))
        )
    except (UsageError, OSError, UnicodeDecodeError):
        return None
    return (base / Path(path).expanduser()).absolute() if path else embedded(default_home(environment)).state_directory


def _said(text: str) -> str | None:
    """The file's `state_path`, by itself where the file is no YAML. None where it has none."""
    import yaml

    value: Any = None
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        if (line := _LINE.search(text)) is not None:
            return next(part for part in line.groups() if part is not None).strip()
    path = value.get("state_path") if isinstance(value, dict) else None
    return path if isinstance(path, str) else None
