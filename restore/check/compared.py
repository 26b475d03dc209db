"""What a check compares with, and only packages above can tell: the pins of backups, and replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from disks.stores.wrappers.limit import Limiter
from restore.check.findings import Problem
from restore.check.options import CountedPin
from tiering.config.settings import Config
from tiering.plugins import Plug


class Comparison(msgspec.Struct):
    """How replicas differ from what Keeper says of them, and why some tables were not compared."""

    problems: list[Problem]
    skipped: list[str]


class ReplicaComparison(Protocol):
    """Compares replicas with what Keeper says of them."""

    def compare(self, config: Config, *, everywhere: bool) -> Comparison:
        """Compare every replicated table here. `everywhere`: also with what Keeper says of the other replicas. Raises
        nothing of Keeper's: a table that could not be compared is skipped."""


class BackupPins(Protocol):
    """Knows the pins that backups count on."""

    def counted_pins(self, config: Config, limiter: Limiter | None) -> Mapping[str, Sequence[CountedPin]]:
        """By disk, the pins of all complete backups; nothing without a repository, or when it cannot be read, which the
        log says."""


replica_comparison = Plug[ReplicaComparison]("replicas compared")
backup_pins = Plug[BackupPins]("pins of backups")
