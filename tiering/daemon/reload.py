"""A changed configuration while the daemon works: read when it is whole and valid, and in force as far as may be.

What a running daemon cannot take is named, and the old value stays in force until a restart. A file that is not valid
changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tiering.config.settings import Config, PolicyConfig

_LIVE = ("daemon", "prices", "backup", "dashboard", "spark", "hooks")
"""Sections that their users read again at each use. Policies are taken one by one."""


class Taken(msgspec.Struct, frozen=True):
    """What a running daemon makes of another configuration."""

    config: Config
    """In force from now on."""
    changed: tuple[str, ...]
    """Keys whose new value is in force."""
    kept: tuple[str, ...]
    """Keys whose old value is, until a restart."""


def take_over(old: Config, new: Config) -> Taken:
    """As much of the new configuration as a daemon can take that opened its store by the old one."""
    policies = {**old.policies, **{name: one for name, one in new.policies.items() if _fits(name, one, old)}}
    config = msgspec.structs.replace(old, policies=policies, **{name: getattr(new, name) for name in _LIVE})
    return Taken(config, tuple(_differences(old, config)), tuple(_differences(config, new)))


def _fits(name: str, policy: PolicyConfig, old: Config) -> bool:
    """Whether no part comes to lie on another volume than before, and every disk is there."""
    if name not in old.policies:
        return all(disk in old.disks for volume in policy.volumes for disk in volume.disks)
    return _layout(policy) == _layout(old.policies[name])


def _layout(policy: PolicyConfig) -> list[tuple[Any, ...]]:
    return [(volume.name, volume.disks, volume.volume_priority) for volume in policy.volumes]


def _differences(old: Config, new: Config) -> Iterator[str]:
    """The keys that differ, as the file has them; lists as a whole. No values: some are secret."""
    waiting: list[tuple[tuple[str, ...], Any, Any]] = [((), msgspec.to_builtins(old), msgspec.to_builtins(new))]
    while waiting:
        path, before, after = waiting.pop()
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            names = sorted({*before, *after}, reverse=True)
            waiting += [((*path, name), before.get(name, {}), after.get(name, {})) for name in names]
        else:
            yield ".".join(path)


class FileWatch:
    """Notices that a file is another one than was read: by its time, size and place, once it rested for a look.

    By looking, not by events: those of a file that is replaced, linked to or on a network come from elsewhere or never.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known = self._seen = self._look()

    def is_changed(self) -> bool:
        """Whether it is to be read. Says so once."""
        found = self._look()
        rests, self._seen = found == self._seen, found
        if found == self._known or not rests:
            return False
        self._known = found
        return True

    def _look(self) -> tuple[int, ...] | None:
        if self._file is None:
            return None
        try:
            found = os.stat(self._file)
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
