"""The catalog: which tables and parts exist, read from the disks themselves.

Nothing is kept here that the disks do not say: a table is its `table.json` (the highest version of all disks), a part
is its `part.json`. Which part answers a query follows from names alone: covered parts are outdated
(`tiering.table.part.active`); of a part that lies on two disks, as it does for a moment during a move, the copy on the
hotter volume is active and the other a duplicate. What cannot be read is reported as broken, never dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from disks.base import Disk
from disks.stores.time_budget import time_budget
from oplog.errors import Conflict, Damaged, DiskUnreachable, FrostlineError, NotFound, Transient
from tiering.catalog.lineage import Lineage, Merges, claims, no_merges
from tiering.catalog.stored_parts import Broken, Looked, PartReader, PartState, StoredPart
from tiering.config.settings import Config
from tiering.journal.kept_parts import KeptParts
from tiering.policy.placement import ordered_volumes
from tiering.table import part as parts_format
from tiering.table import schema, tombstones
from tiering.table.part import PartName
from tiering.table.places import STORE_DIRECTORY
from tiering.table.schema import TABLE_FILE, TableDefinition
from tiering.table.tombstones import Tombstone

__all__ = ["Broken", "Catalog", "DroppedTable", "PartState", "StoredPart"]

_PATIENCE_SECONDS = 4.0
"""How long a bucket that does not answer is waited for: most of a store can be used without it."""
_NAMED = 10

_NONE_YET = "none yet: see 'frostline table create --help'; one that you have is found by --config or FROSTLINE_HOME"


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that a bucket says is gone, and some disk still has: no verb sees it."""

    definition: TableDefinition
    tombstone: Tombstone | None
    """None when it cannot be read: then nobody knows who took the table away."""
    disks: tuple[str, ...]
    """Those that have it."""


@dataclass(slots=True)
class _Snapshot:
    """All the catalog knows, replaced as a whole by `refresh`."""

    tables: dict[str, TableDefinition] = field(default_factory=dict)
    """by uuid"""
    copies: dict[str, set[str]] = field(default_factory=dict)
    """uuid -> disks that hold the newest table.json"""
    holders: dict[str, set[str]] = field(default_factory=dict)
    """uuid -> disks that hold any"""
    dropped: dict[str, DroppedTable] = field(default_factory=dict)
    """by uuid"""
    parts: dict[str, list[StoredPart]] = field(default_factory=dict)
    """by uuid, in name order"""
    broken: list[Broken] = field(default_factory=list)
    unproved: dict[tuple[str, str], list[StoredPart]] = field(default_factory=dict)
    """Disk and directory of a part -> those whose place it claims without a proof; itself first."""
    dropping: frozenset[str] = frozenset()
    """Directories of tables and parts whose drop is decided and not finished."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """The parts of a table with their states, as they follow from these looks and nothing else."""

    generations: tuple[int, ...]
    dropping: frozenset[str]
    parts: list[StoredPart]


class Catalog:
    """A view of all disks at the last `refresh`. Readers may share it: a refresh replaces, never changes.

    `dropping` names directories that a drop is about to remove, disk by disk. They show as gone at once, so that nobody
    sees half of a table, and an interrupted drop is one. `merges` are those that this machine knows it made.
    """

    def __init__(
        self,
        config: Config,
        disks: Mapping[str, Disk],
        *,
        dropping: Callable[[], Iterable[str]] = tuple,
        merges: Merges = no_merges,
        kept: KeptParts | None = None,
    ) -> None:
        """`kept`: what was read before, by any process of this machine."""
        self.lineage = Lineage(disks, merges)
        self.config = config
        self._disks = disks
        self._dropping = dropping
        self._reader = PartReader(disks, kept)
        self._settled: dict[str, _Settled] = {}
        self._last = _Snapshot()
        self._outdated = False
        self._refreshing = threading.RLock()
        self.is_current = False
        """Whether the last refresh asked every disk, and was answered: what others committed before it is seen."""

    def refresh(self, *, disks: Iterable[str] | None = None) -> None:
        """Read all disks again; those in `disks` (default: all) first take in what other writers committed. A disk that
        cannot be reached counts with what it held when it last could be; it says so (`Disk.unreachable`)."""
        chosen = list(self._disks if disks is None else disks)
        asked = [name for name in chosen if _ask(self._disks[name])]
        if disks is None:
            self.is_current = len(asked) == len(chosen)
        self._read()

    def refresh_when_due(self) -> None:
        """As `refresh`, but a bucket is asked only when nobody on this machine has lately (`Disk.refresh_when_due`):
        for who can do without what others committed since."""
        asked = [name for name, disk in self._disks.items() if _ask(disk, when_due=True)]
        self.is_current = len(asked) == len(self._disks)
        self._read()

    def _read(self) -> None:
        with self._refreshing:
            self._outdated = False
            snapshot = _Snapshot(dropping=frozenset(self._dropping()))
            for disk in self._disks.values():
                self._read_tables(disk, snapshot)
            self._take_out_dropped(snapshot)
            dropped = [table.definition for table in snapshot.dropped.values()]
            for definition in (*snapshot.tables.values(), *dropped):
                snapshot.parts[definition.uuid] = self._read_parts(definition, snapshot)
            self._reader.forget_all_but(snapshot.parts)
            self._last = snapshot

    def close(self) -> None:
        """Release files. What was found can still be asked for."""
        self._reader.close()

    def outdate(self) -> None:
        """As `refresh(disks=())`, but when somebody asks: after work that few look back at."""
        self._outdated = True

    @property
    def _now(self) -> _Snapshot:
        if self._outdated:
            with self._refreshing:
                if self._outdated:
                    self.refresh(disks=())
        return self._last

    @property
    def broken(self) -> list[Broken]:
        """What could not be read, with its path and the reason."""
        return list(self._now.broken)

    @property
    def unproved(self) -> list[str]:
        """Parts in a bucket that say that they take the place of others, and nothing shows it: one sentence each. All
        are active."""
        return [_unproved(*parts) for parts in self._now.unproved.values()]

    def claims_unproved(self, disk: str, directory: str) -> str | None:
        """The sentence about the part there, if it is one of these: it must not come to a disk whose parts are
        believed."""
        found = self._now.unproved.get((disk, directory))
        return _unproved(*found) if found else None

    def check_readable(self, definition: TableDefinition) -> None:
        """Raise `Damaged` naming the first part of the table that cannot be read: its rows would be missing."""
        for broken in self._now.broken:
            if broken.path.startswith(f"{definition.directory}/"):
                raise Damaged(
                    broken.text,
                    hint=f"rows of {definition.full_name} would be missing; run 'frostline fsck'",
                )

    def tables(self) -> list[TableDefinition]:
        """All tables by name."""
        return sorted(self._now.tables.values(), key=lambda table: table.full_name)

    def dropped(self) -> list[DroppedTable]:
        """Tables that a bucket says are gone and some disk still has, by name."""
        return sorted(self._now.dropped.values(), key=lambda table: table.definition.full_name)

    def table(self, full_name: str) -> TableDefinition:
        """The table `db.name`, or the one of this uuid.

        Raises `NotFound` with the known names, `DiskUnreachable` if it may exist after all, `Conflict` if two have it.
        """
        found = self._called(full_name)
        if not found and not self.is_current:  # somebody may have made it since
            self.refresh()
            found = self._called(full_name)
        if len(found) > 1:
            several = " and ".join(sorted(table.uuid for table in found))
            raise Conflict(
                f"{len(found)} tables are called {full_name}: {several}",
                hint="two machines created them at once: name the one you mean by its uuid, and drop it or the other",
            )
        if found:
            return found[0]
        for disk in self._disks.values():
            if disk.broken is not None:
                raise type(disk.broken)(
                    f"no table {full_name} is known here: {disk.broken.message}", hint=disk.broken.hint
                )
            if disk.unreachable:
                raise DiskUnreachable(
                    f"no table {full_name} is known here: {disk.unreachable}",
                    hint="if another machine created it, try again when the bucket answers",
                )
        known = ", ".join(table.full_name for table in self.tables()) or _NONE_YET
        raise NotFound(f"No such table: {full_name}", hint=f"the tables are: {known}")

    def _called(self, name: str) -> list[TableDefinition]:
        return [table for table in self._now.tables.values() if name in (table.full_name, table.uuid)]

    def disks_lacking_definition(self, definition: TableDefinition) -> list[str]:
        """Disks of the table's policy that hold no current `table.json`."""
        held = self._now.copies.get(definition.uuid, set())
        return [name for name in self.policy_disks(definition) if name not in held]

    def policy_disks(self, definition: TableDefinition) -> list[str]:
        """The disks of the table's policy, hottest first."""
        policy = self.config.policy(definition.policy)
        return [disk for volume in ordered_volumes(policy) for disk in volume.disks]

    def volume_of(self, definition: TableDefinition, disk: str) -> str | None:
        """The volume the disk belongs to in the table's policy."""
        for volume in self.config.policy(definition.policy).volumes:
            if disk in volume.disks:
                return volume.name
        return None

    def parts(self, definition: TableDefinition, *, include_outdated: bool = False) -> list[StoredPart]:
        """The table's parts in name order; by default only those that answer queries."""
        everything = self._now.parts.get(definition.uuid, [])
        return everything if include_outdated else [part for part in everything if part.state == "active"]

    def part(self, definition: TableDefinition, name: str) -> StoredPart:
        """An active part by name. Raises `NotFound`, naming the part that replaced it if there is one."""
        wanted = PartName.parse(name)
        for stored in self.parts(definition):
            if stored.name == wanted:
                return stored
        for stored in self.parts(definition):
            if stored.name.covers(wanted):
                raise NotFound(
                    f"part {name} of {definition.full_name} was merged", hint=f"it is now inside {stored.facts.name}"
                )
        raise NotFound(
            f"table {definition.full_name} has no part {name}",
            hint=f"'frostline parts {definition.full_name}' lists them",
        )

    def _read_tables(self, disk: Disk, snapshot: _Snapshot) -> None:
        for shard in disk.list(STORE_DIRECTORY):
            for path, data, _ in disk.small_files(f"{STORE_DIRECTORY}/{shard.rstrip('/')}", TABLE_FILE):
                try:
                    definition = schema.decode(data, path=f"{disk.name}:{path}")
                    if definition.directory != path.rpartition("/")[0]:
                        raise Damaged(f"{disk.name}:{path} describes another table: {definition.uuid}")
                except FrostlineError as error:
                    snapshot.broken.append(Broken(disk.name, path, error.message))
                    continue
                if definition.directory in snapshot.dropping:
                    continue
                snapshot.holders.setdefault(definition.uuid, set()).add(disk.name)
                known = snapshot.tables.get(definition.uuid)
                if known is None or definition.version > known.version:
                    snapshot.tables[definition.uuid] = definition
                    snapshot.copies[definition.uuid] = {disk.name}
                elif definition.version == known.version:
                    snapshot.copies[definition.uuid].add(disk.name)

    def _take_out_dropped(self, snapshot: _Snapshot) -> None:
        """Where the newest that any disk says of a table is a tombstone, there is no table."""
        for disk in self._disks.values():
            if not disk.capabilities.shared:
                continue
            lacking = {
                tombstones.path_of(uuid): table
                for uuid, table in snapshot.tables.items()
                if disk.name not in snapshot.holders[uuid]
            }
            for path in sorted(disk.existing(lacking)):
                table = lacking[path]
                try:
                    tombstone = tombstones.decode(disk.read(path), path=f"{disk.name}:{path}")
                except FrostlineError as error:  # somebody dropped it: who, only a person can find out
                    snapshot.broken.append(Broken(disk.name, path, error.message))
                    tombstone = None
                if tombstone is None or tombstone.version >= table.version:
                    disks = tuple(sorted(snapshot.holders[table.uuid]))
                    snapshot.dropped[table.uuid] = DroppedTable(table, tombstone, disks)
                    del snapshot.tables[table.uuid]

    def _read_parts(self, definition: TableDefinition, snapshot: _Snapshot) -> list[StoredPart]:
        looks: list[Looked] = []
        for disk in self._disks.values():
            volume = self.volume_of(definition, disk.name) if definition.policy in self.config.policies else None
            looks.append(self._reader.look(definition, disk, volume))
            snapshot.broken += looks[-1].broken
        generations = tuple(look.generation for look in looks)
        settled = self._settled.get(definition.uuid)
        if settled is not None and (settled.generations, settled.dropping) == (generations, snapshot.dropping):
            return settled.parts
        found = [stored for look in looks for stored in look.parts.values()]
        if snapshot.dropping:
            found = [stored for stored in found if stored.directory not in snapshot.dropping]
        parts, is_certain = self._with_states(definition, found, snapshot)
        self._settled.pop(definition.uuid, None)
        if is_certain:
            self._settled[definition.uuid] = _Settled(generations, snapshot.dropping, parts)
        return parts

    def _with_states(
        self, definition: TableDefinition, found: list[StoredPart], snapshot: _Snapshot
    ) -> tuple[list[StoredPart], bool]:
        """The parts in name order, each with its state; and whether that follows from what is found alone."""
        known = definition.policy in self.config.policies
        heat = {name: rank for rank, name in enumerate(self.policy_disks(definition) if known else [])}
        found.sort(key=lambda stored: (stored.name, heat.get(stored.disk, len(heat)), stored.disk))
        hidden = _may_be_hidden(found)
        outdated = self._outdated_among(hidden, found, snapshot) if hidden else set()
        last: PartName | None = None
        result: list[StoredPart] = []
        for stored in found:
            state: PartState = "outdated" if outdated and (stored.disk, stored.directory) in outdated else "active"
            if state == "active" and stored.name == last:
                state = "duplicate"
            last = stored.name
            result.append(stored if state == "active" else _with_state(stored, state))
        return result, not hidden

    def _outdated_among(
        self, hidden: list[StoredPart], found: list[StoredPart], snapshot: _Snapshot
    ) -> set[tuple[str, str]]:
        """Disk and directory of the parts whose place another one takes: names say which may be, lineage which are."""
        covers = [one for one in found if _reaches_beyond_itself(one)]
        outdated: set[tuple[str, str]] = set()
        for stored in hidden:
            above = [cover for cover in covers if claims(cover, stored)]
            if any(self.lineage.hides(cover, stored) for cover in above):
                outdated.add((stored.disk, stored.directory))
            elif above:
                for cover in above:
                    snapshot.unproved.setdefault((cover.disk, cover.directory), [cover]).append(stored)
        return outdated


def _unproved(cover: StoredPart, *hidden: StoredPart) -> str:
    names = ", ".join(f"{stored.facts.name} on {stored.disk}" for stored in hidden[:_NAMED])
    more = f" and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else ""
    return (
        f"{cover.part.name} of {cover.definition.full_name} on {cover.disk} says that it replaces {names}{more}, and "
        "nothing shows that it was made from it: all count; run 'frostline fsck'"
    )


def _may_be_hidden(found: list[StoredPart]) -> list[StoredPart]:
    """Those whose place another one may take, by the names. `found` is in name order."""
    replaced = {name for stored in found for name in stored.facts.replaces}
    names = [stored.name for stored in found]
    active = parts_format.active(names) if parts_format.meet(names) else None
    if not replaced and active is None:
        return []
    return [
        stored
        for stored in found
        if (active is not None and stored.name not in active) or stored.facts.name in replaced
    ]


def _reaches_beyond_itself(stored: StoredPart) -> bool:
    """Whether it can take the place of another part: few of a table's parts can."""
    name = stored.name
    return name.max_block > name.min_block or bool(name.level or name.mutation or stored.facts.replaces)


def _ask(disk: Disk, *, when_due: bool = False) -> bool:
    """Take in what others committed. False when the disk was not asked, or does not answer."""
    try:
        with time_budget(_PATIENCE_SECONDS):
            if when_due:
                return disk.refresh_when_due() and disk.broken is None
            disk.refresh()
            return disk.broken is None
    except Transient as error:
        disk.work_offline(error)
        return False


def _with_state(stored: StoredPart, state: PartState) -> StoredPart:
    return msgspec.structs.replace(stored, state=state)
