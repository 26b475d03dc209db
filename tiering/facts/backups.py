"""What `status` says of backups."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class ProofRow(msgspec.Struct, frozen=True):
    """A verification or a drill of a backup."""

    backup: str
    time: str
    how: str
    """`quick`, `subset`, `data`; of a drill `whole` or `share`."""
    problems: int
    ok: bool


class TableBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A table's newest backup, verification and drill; all None without a backup."""

    table: str
    backup: str | None = None
    machine: str | None = None
    taken: str | None = None
    verified: ProofRow | None = None
    drilled: ProofRow | None = None


class BackupsStatus(msgspec.Struct, frozen=True):
    """The repository as this machine last saw it."""

    repository: str | None
    as_of: str | None
    """None if this machine has not looked at it."""
    tables: list[TableBackup]
    what: str | UnsetType = UNSET
    """Why there is no repository."""
