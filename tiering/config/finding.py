"""Which configuration is in force. Imports next to nothing: the shell's completion asks it at each press of a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PREFIX = "FROSTLINE_"
"""Of the environment variables that say anything about the configuration."""

HERE = Path("frostline.yaml")
"""In the current directory: nobody named it, so its owner may be anybody."""


def default_home(environment: Mapping[str, str]) -> Path:
    """The directory of the embedded default: `$FROSTLINE_HOME`, else `~/.local/share/frostline`."""
    home = environment.get("FROSTLINE_HOME")
    return (Path(home) if home else Path("~/.local/share/frostline")).expanduser().absolute()


def find_file(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """The configuration file to read, None for the embedded default. A file that was asked for must exist."""
    for named, by in ((given, "--config"), (environment.get("FROSTLINE_CONFIG"), "FROSTLINE_CONFIG")):
        if named:
            path = Path(named).expanduser()
            if not path.is_file():
                from oplog.errors import UsageError

                raise UsageError(
                    f"no such configuration file: {path} (from {by})",
                    hint="'frostline config default' prints one to begin with",
                )
            return path
    for candidate in (HERE, Path("~/.config/frostline/frostline.yaml").expanduser()):
        if candidate.is_file():
            return candidate
    return None
