"""Where this machine keeps what the store is: the few words of the configuration that names are found by.

    $XDG_CACHE_HOME/frostline/completion.json

Reading a configuration takes twice as long as all else of a press. What it said is kept, without its secrets, while the
file has the time and the size that it had, and the environment says the same.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiering.config.finding import PREFIX, default_home, find_file


@dataclass(frozen=True)
class Places:
    """What a configuration says of places and names."""

    state: str
    """The state directory."""
    directories: dict[str, str]
    """Local disk -> its directory."""
    buckets: list[str]
    """Disks in buckets."""
    policies: dict[str, dict[str, list[str]]]
    """Policy -> volume -> disks."""

    @property
    def disks(self) -> list[str]:
        return [*self.directories, *self.buckets]


def read_places(given: str | None, environment: Mapping[str, str]) -> Places:
    """By the configuration in force; `given`: the file that `--config` names. Raises what reading it raises."""
    stamp = _stamp(given, environment)
    kept = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "frostline" / "completion.json"
    try:
        known = json.loads(kept.read_bytes())
        if known["stamp"] == stamp:
            return Places(**known["places"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    places = _read(given, environment)
    _keep(kept, {"stamp": stamp, "places": asdict(places)})
    return places


def _stamp(given: str | None, environment: Mapping[str, str]) -> list[Any]:
    said = sorted(item for item in environment.items() if item[0].startswith(PREFIX) and item[0] != "FROSTLINE_CONFIG")
    digest = hashlib.sha256(repr((str(default_home(environment)), said)).encode()).hexdigest()
    file = find_file(given, environment)
    if file is None:
        return [None, digest]
    status = file.stat()
    return [str(file.absolute()), status.st_mtime_ns, status.st_size, digest]


def _read(given: str | None, environment: Mapping[str, str]) -> Places:
    from disks.config import LocalDiskConfig
    from tiering.config.reading import load

    config = load(given, environment)
    local = {name: disk.path for name, disk in config.disks.items() if isinstance(disk, LocalDiskConfig)}
    return Places(
        state=str(config.state_directory),
        directories={name: str(Path(path).expanduser()) for name, path in local.items()},
        buckets=list(config.buckets()),
        policies={
            name: {volume.name: list(volume.disks) for volume in policy.volumes}
            for name, policy in config.policies.items()
        },
    )


def _keep(path: Path, document: Mapping[str, object]) -> None:
    """Where it cannot be kept it is read again."""
    from disks.effects import make_directory, replace_file
    from oplog.errors import FrostlineError

    try:
        make_directory(path.parent)
        replace_file(path, json.dumps(document).encode())
    except (OSError, FrostlineError):
        pass
