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
from typing import Literal

from disks.base import Disk
from disks.stores.time_budget import time_budget
from oplog.errors import Conflict, Damaged, DiskUnreachable, FrostlineError, NotFound, Transient
from tiering.config.settings import Config
from tiering.policy.placement import ordered_volumes
from tiering.table import part as parts_format
from tiering.table import schema
from tiering.table.part import PART_FILE, Part, PartName
from tiering.table.places import STORE_DIRECTORY
from tiering.table.schema import TABLE_FILE, TableDefinition

_PATIENCE_SECONDS = 4.0
"""How long a bucket that does not answer is waited for: most of a store can be used without it."""

PartState = Literal["active", "outdated", "duplicate"]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One copy of a part: what it is and where it lies."""

    definition: TableDefinition
    part: Part
    name: PartName
    disk: str
    volume: str | None
    """None when the disk is not in the table's policy any more."""
    revision: int | None
    state: PartState = "active"

    @property
    def directory(self) -> str:
        """The part's directory, the same on every disk."""
        return self.definition.part_directory(self.part.name)

    def path(self, file_name: str) -> str:
        return f"{self.directory}/{file_name}"


@dataclass(frozen=True, slots=True)
class Broken:
    """Something on a disk that cannot be read; it is left as it is."""

    disk: str
    path: str
    what: str

    @property
    def text(self) -> str:
        """Where and what, in one phrase: most messages name the file themselves."""
        where = f"{self.disk}:{self.path}"
        return self.what if where in self.what else f"{where}: {self.what}"


@dataclass(slots=True)
class _Snapshot:
    """All the catalog knows, replaced as a whole by `refresh`."""

    tables: dict[str, TableDefinition] = field(default_factory=dict)
    """by uuid"""
    copies: dict[str, set[str]] = field(default_factory=dict)
    """uuid -> disks that hold the newest table.json"""
    parts: dict[str, list[StoredPart]] = field(default_factory=dict)
    """by uuid, in name order"""
    broken: list[Broken] = field(default_factory=list)
    dropping: frozenset[str] = frozenset()
    """Directories of tables and parts whose drop is decided and not finished."""


class Catalog:
    """A view of all disks at the last `refresh`. Readers may share it: a refresh replaces, never changes.

    `dropping` names directories that a drop is about to remove, disk by disk. They show as gone at once, so that nobody
    sees half of a table, and an interrupted drop is one.
    """

    def __init__(
        self, config: Config, disks: Mapping[str, Disk], *, dropping: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._config = config
        self._disks = disks
        self._dropping = dropping
        self._last = _Snapshot()
        self._outdated = False
        self._refreshing = threading.RLock()

    def refresh(self, *, disks: Iterable[str] | None = None) -> None:
        """Read all disks again; those in `disks` (default: all) first take in what other writers committed. A disk that
        cannot be reached counts with what it held when it last could be; it says so (`Disk.unreachable`)."""
        for name in self._disks if disks is None else disks:
            _refresh(self._disks[name])
        with self._refreshing:
            self._outdated = False
            snapshot = _Snapshot(dropping=frozenset(self._dropping()))
            for disk in self._disks.values():
                self._read_tables(disk, snapshot)
            for definition in snapshot.tables.values():
                snapshot.parts[definition.uuid] = self._read_parts(definition, snapshot)
            self._last = snapshot

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

    def table(self, full_name: str) -> TableDefinition:
        """The table `db.name`, or the one of this uuid.

        Raises `NotFound` with the known names, `DiskUnreachable` if it may exist after all, `Conflict` if two have it.
        """
        found = [table for table in self._now.tables.values() if full_name in (table.full_name, table.uuid)]
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
        known = ", ".join(table.full_name for table in self.tables()) or "none yet: see 'frostline table create --help'"
        raise NotFound(f"No such table: {full_name}", hint=f"the tables are: {known}")

    def disks_lacking_definition(self, definition: TableDefinition) -> list[str]:
        """Disks of the table's policy that hold no current `table.json`."""
        held = self._now.copies.get(definition.uuid, set())
        return [name for name in self.policy_disks(definition) if name not in held]

    def policy_disks(self, definition: TableDefinition) -> list[str]:
        """The disks of the table's policy, hottest first."""
        policy = self._config.policy(definition.policy)
        return [disk for volume in ordered_volumes(policy) for disk in volume.disks]

    def volume_of(self, definition: TableDefinition, disk: str) -> str | None:
        """The volume the disk belongs to in the table's policy."""
        for volume in self._config.policy(definition.policy).volumes:
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
                    f"part {name} of {definition.full_name} was merged", hint=f"it is now inside {stored.part.name}"
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
                known = snapshot.tables.get(definition.uuid)
                if known is None or definition.version > known.version:
                    snapshot.tables[definition.uuid] = definition
                    snapshot.copies[definition.uuid] = {disk.name}
                elif definition.version == known.version:
                    snapshot.copies[definition.uuid].add(disk.name)

    def _read_parts(self, definition: TableDefinition, snapshot: _Snapshot) -> list[StoredPart]:
        found: list[StoredPart] = []
        for disk in self._disks.values():
            volume = self.volume_of(definition, disk.name) if definition.policy in self._config.policies else None
            for path, data, revision in disk.small_files(definition.directory, PART_FILE):
                try:
                    part = parts_format.decode(data, path=f"{disk.name}:{path}")
                    if definition.part_directory(part.name) != path.rpartition("/")[0]:
                        raise Damaged(f"{disk.name}:{path} describes another part: {part.name}")
                except FrostlineError as error:
                    snapshot.broken.append(Broken(disk.name, path, error.message))
                    continue
                if definition.part_directory(part.name) not in snapshot.dropping:
                    found.append(StoredPart(definition, part, part.part_name, disk.name, volume, revision))
        return self._with_states(definition, found)

    def _with_states(self, definition: TableDefinition, found: list[StoredPart]) -> list[StoredPart]:
        known = definition.policy in self._config.policies
        heat = {name: rank for rank, name in enumerate(self.policy_disks(definition) if known else [])}
        found.sort(key=lambda stored: (stored.name, heat.get(stored.disk, len(heat)), stored.disk))
        active = parts_format.active([stored.name for stored in found])
        replaced = {name for stored in found for name in stored.part.replaces}
        seen: set[PartName] = set()
        result: list[StoredPart] = []
        for stored in found:
            current = stored.name in active and stored.part.name not in replaced
            state: PartState = "active" if current else "outdated"
            if state == "active" and stored.name in seen:
                state = "duplicate"
            seen.add(stored.name)
            result.append(stored if state == "active" else _with_state(stored, state))
        return result


def _refresh(disk: Disk) -> None:
    try:
        with time_budget(_PATIENCE_SECONDS):
            disk.refresh()
    except Transient as error:
        disk.work_offline(error)


def _with_state(stored: StoredPart, state: PartState) -> StoredPart:
    return StoredPart(stored.definition, stored.part, stored.name, stored.disk, stored.volume, stored.revision, state)
