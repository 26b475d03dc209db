"""What may be wrong with a disk, and the error for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from oplog.errors import DiskUnreachable, FrostlineError, Refused
from tiering.config.units import counted
from tiering.journal.known_disks import Holding


class Fault(msgspec.Struct, frozen=True):
    """One disk that is not what it was, or not all of it. `tables` are those that had parts there, by uuid."""

    disk: str
    kind: str
    """`missing`, `other`, `twice`, `unconfigured`, `given_up`, `older` or `cloned`."""
    error: FrostlineError
    tables: frozenset[str] = frozenset()
    whole_disk: bool = True
    """The disk is taken out; else only these tables are not whole."""
    needs_new_identity: bool = False
    """Another home may use the id of the disk, and that of the journal: adoption gives this one ids of its own."""
    any_table: bool = False
    """Somebody wrote there since the parts were counted: any table may have some."""


def was_given_up(name: str, location: str, shown: str) -> Refused:
    """The error for a disk that somebody gave up, and that is back."""
    return Refused(
        f"disk {name} was given up: {location} holds disk {shown}, which was given up here or on another machine;"
        " its rows may have been inserted again since",
        hint=f"take it out of the configuration, or 'frostline disk adopt {name}', which sets duplicate parts aside",
    )


def is_older_copy(name: str, location: str, why: str) -> DiskUnreachable:
    """The error for a disk that is older than somebody has seen it."""
    return DiskUnreachable(
        f"disk {name} was set back to an older copy: {location} {why}; what came since is missing, and what went since"
        " is back",
        hint=f"bring the newer one back; or 'frostline disk adopt {name}', which accepts this one",
    )


def is_cloned(name: str, location: str, why: str) -> Refused:
    """The error for a disk of which another home has a copy that was written to."""
    return Refused(
        f"another machine uses the identity of this machine: disk {name}, {location}, {why}; two copies of it are"
        " written to, as after a machine was cloned with its disks: both would give the same names to different rows",
        hint=f"continue on only one of the two machines; 'frostline disk adopt {name}' gives this "
        "one an identity of its own",
    )


def without_id(name: str, location: str, expected_id: str) -> DiskUnreachable:
    """The error for a location with tables and no disk id, where this machine knows a disk."""
    return DiskUnreachable(
        f"disk {name} is missing: {location} holds tables and no id of a disk, "
        f"and this machine knows disk {expected_id} there",
        hint="mount it or correct the configuration; if it is a copy of the disk's files that lacks its id: "
        f"'frostline disk adopt {name}'",
    )


def parts_lacking(name: str, location: str, lost: Mapping[str, Holding], held: Mapping[str, Holding]) -> Fault:
    """The fault of a disk that holds less of these tables than was counted."""
    differences = ", ".join(_difference(held.get(uuid), before) for uuid, before in lost.items())
    error = DiskUnreachable(
        f"parts are missing from disk {name} ({location}): {differences}",
        hint=f"bring them back; if they are gone for good: 'frostline disk adopt {name}'",
    )
    return Fault(name, "missing", error, frozenset(lost), whole_disk=False)


def _difference(now: Holding | None, before: Holding) -> str:
    parts, rows = (now.parts, now.rows) if now is not None else (0, 0)
    if parts < before.parts:
        return f"{before.parts - parts} of {before.parts} of {before.table}"
    return f"those with {before.rows - rows:,} of {counted(before.rows, 'row')} of {before.table}: is it an older copy?"


def named(holdings: Iterable[Holding]) -> str:
    """The tables of these, for people."""
    return ", ".join(sorted({holding.table for holding in holdings}))
