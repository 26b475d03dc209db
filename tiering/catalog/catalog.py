"""The catalog: which tables and parts exist, read from the disks themselves.

Nothing is kept here that the disks do not say: a table is its `table.json` (the highest version of all disks), a part
is its `part.json`. Which part answers a query follows from names alone: covered parts are outdated
(`tiering.table.part.active`); of a part that lies on two disks, as it does for a moment during a move, the copy on the
hotter volume is active and the other a duplicate. What cannot be read is reported as broken, never dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.stores.time_budget import time_budget
from disks.workers.progress import SILENT, Progress
from oplog.errors import Conflict, Damaged, DiskUnreachable, NotFound, Transient
from tiering.catalog.copies.source_copies import NOTHING_LISTED, ListedCopies, SourceCopies
from tiering.catalog.definitions.table_snapshot import DroppedTable, Snapshot, read_tables
from tiering.catalog.definitions.unreadable import UnreadableTable
from tiering.catalog.freshness import Freshness
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.past import PastTable
from tiering.catalog.index.rows import DiskTable
from tiering.catalog.index.table import IndexedTable
from tiering.catalog.lineage import Lineage, Merges, no_merges
from tiering.catalog.states import States
from tiering.catalog.stored import Broken, PartState, StoredPart
from tiering.config.settings import Config
from tiering.config.units import counted
from tiering.policy.placement import ordered_volumes
from tiering.table import tombstones
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition

__all__ = ["Broken", "Catalog", "DroppedTable", "PartState", "StoredPart"]

_PATIENCE_SECONDS = 4.0
"""How long a bucket that does not answer is waited for: most of a store can be used without it."""
_NAMED = 10

ONE_NAME_HINT = (
    "two machines created them at the same time, or a bucket was set back: use the uuid, and drop or rename one of them"
)
_NONE_YET = "none yet: see 'frostline table create --help'; one that you have is found by --config or FROSTLINE_HOME"


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
        index: PartIndex | None = None,
        copies: ListedCopies = NOTHING_LISTED,
        progress: Progress = SILENT,
        stand_still: bool = False,
    ) -> None:
        """`index`: what is known of parts; None for one in memory. `copies`: those that moves left here. `stand_still`:
        the disks never change, as those of the past; then the index of now is read, and not written."""
        self.index = index if index is not None else PartIndex(None)
        self.lineage = Lineage(disks, merges)
        self.copies = SourceCopies(disks, copies)
        self._states = States(config, self.lineage, self.copies)
        self._table: type[IndexedTable] = PastTable if stand_still else IndexedTable
        self._disks = disks
        self._dropping = dropping
        self._progress = progress
        self._lock = threading.RLock()
        self._last = Snapshot()
        self._is_outdated = False
        self._has_asked = False
        self._has_scanned = True

    @property
    def freshness(self) -> Freshness:
        """That of the last refresh. While a bucket does not answer: `LAST_ANSWER`."""
        if not self._has_asked:
            return Freshness.LAST_ANSWER
        return Freshness.EVERY_FILE if self._has_scanned else Freshness.CHANGES

    @property
    def config(self) -> Config:
        return self._states.config

    @config.setter
    def config(self, config: Config) -> None:
        self._states.config = config

    def refresh(self, freshness: Freshness = Freshness.EVERY_FILE, *, disks: Iterable[str] | None = None) -> None:
        """Read all disks again; those in `disks` (default: all) first take in what other writers committed. A disk that
        cannot be reached counts with what it held when it last could be; it says so (`Disk.unreachable`)."""
        chosen = list(self._disks if disks is None else disks)
        is_asked_when_due = freshness is Freshness.LAST_ANSWER
        asked = [name for name in chosen if _ask(self._disks[name], when_due=is_asked_when_due)]
        if disks is None:
            self._has_asked = len(asked) == len(chosen)
        self._read(every_file=freshness is Freshness.EVERY_FILE)

    def refresh_later(self) -> None:
        """As `refresh(Freshness.CHANGES, disks=())`, but when somebody asks: after work that few look back at."""
        self._is_outdated = True

    def _read(self, *, every_file: bool) -> None:
        with self._lock:
            self._has_scanned = every_file
            self._is_outdated = False
            self.copies.look()
            snapshot = read_tables(self._disks, frozenset(self._dropping()))
            hidden = [table.definition for table in snapshot.dropped.values()]
            hidden += [table.before for table in snapshot.unreadable.values() if table.before is not None]
            for definition in (*snapshot.tables.values(), *hidden):
                table = self._reader_of(definition, snapshot.dropping)
                table.scan(every_file=every_file)
                snapshot.parts[definition.uuid] = table
            self._last = snapshot

    def _reader_of(self, definition: TableDefinition, dropping: frozenset[str]) -> IndexedTable:
        """That of the last refresh, where it is of the same table."""
        dropping = frozenset(path for path in dropping if path.startswith(f"{definition.directory}/"))
        last = self._last.parts.get(definition.uuid)
        if last is not None and (last.definition, last.dropping) == (definition, dropping):
            return last
        return self._table(self.index, self._disks, self._states, definition, dropping, self._progress, self._lock)

    def close(self) -> None:
        """Release files. What was found can still be asked for."""
        self.index.close()

    @property
    def _now(self) -> Snapshot:
        if self._is_outdated:
            with self._lock:
                if self._is_outdated:
                    self.refresh(Freshness.CHANGES, disks=())
        return self._last

    @property
    def broken(self) -> list[Broken]:
        """What could not be read, with its path and the reason."""
        snapshot = self._now
        return [*snapshot.broken, *(broken for table in snapshot.parts.values() for broken in table.broken())]

    @property
    def unproved(self) -> list[str]:
        """Parts in a bucket that say that they take the place of others, and nothing shows it: one sentence each. All
        are active."""
        return [_unproved(*parts) for table in self._now.parts.values() for parts in table.now.doubts.unproved.values()]

    @property
    def unexplained(self) -> list[str]:
        """Copies of a bucket's part of which no log says why the bucket lacks it: one sentence each. All are active."""
        return [text for table in self._now.parts.values() for text in table.now.doubts.unexplained]

    def claims_unproved(self, disk: str, directory: str) -> str | None:
        """The sentence about the part there, if it is one of these: it must not come to a disk whose parts are
        believed."""
        doubts = (table.now.doubts.unproved for table in self._now.parts.values())
        parts = next((unproved[disk, directory] for unproved in doubts if (disk, directory) in unproved), None)
        return _unproved(*parts) if parts else None

    def check_readable(self, definition: TableDefinition) -> None:
        """Raise `Damaged` naming the first part of the table that cannot be read: its rows would be missing."""
        for broken in self.broken:
            if broken.path.startswith(f"{definition.directory}/") and not tombstones.is_definition(broken.path):
                raise Damaged(
                    broken.text,
                    hint=f"rows of {definition.full_name} would be missing; run 'frostline fsck'",
                )

    def last_tables(self) -> list[TableDefinition]:
        """The tables at the last refresh. Reads nothing."""
        return list(self._last.tables.values())

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
        if not found and self.freshness is Freshness.LAST_ANSWER:  # somebody may have made it since
            self.refresh()
            found = self._called(full_name)
        if len(found) > 1:
            several = " and ".join(sorted(table.uuid for table in found))
            raise Conflict(
                f"{counted(len(found), 'table')} are called {full_name}: {several}",
                hint=ONE_NAME_HINT,
            )
        if found:
            return found[0]
        for table in self.unreadable():
            if table.is_called(full_name):
                raise table.error()
        for disk in self._disks.values():
            if disk.broken is not None:
                raise type(disk.broken)(
                    f"no table {full_name} is available here: {disk.broken.message}", hint=disk.broken.hint
                )
            if disk.unreachable:
                raise DiskUnreachable(
                    f"no table {full_name} is available here: {disk.unreachable}",
                    hint="if another machine created it, try again when the bucket answers",
                )
        known = ", ".join(table.full_name for table in self.tables()) or _NONE_YET
        raise NotFound(f"No such table: {full_name}", hint=f"the tables are: {known}")

    def table_to_change(self, name: str) -> TableDefinition:
        """The same for who replaces the definition, or drops the table: where the newest one cannot be read, the one
        that a change goes on from. Raises `Damaged` where there is none."""
        found = next((table for table in self.unreadable() if table.is_called(name)), None)
        if found is None or self._called(name):
            return self.table(name)
        parts = self.parts(found.before, include_outdated=True) if found.before is not None else ()
        return found.base(parts)

    def unreadable(self) -> list[UnreadableTable]:
        """Tables whose newest definition cannot be read, by name."""
        return sorted(self._now.unreadable.values(), key=lambda table: (table.name, table.uuid))

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
        table = self._now.parts.get(definition.uuid)
        everything = table.everything() if table is not None else []
        return everything if include_outdated else [part for part in everything if part.state == "active"]

    def originals(self, definition: TableDefinition, partition: str | None = None) -> list[StoredPart]:
        """The parts that answer, or those of one partition, each where a change to it is made, in name order. Of a part
        on several disks that is the bucket's, in the coldest volume that has it: other copies only make reads
        faster."""
        if partition is None and not self.has_inactive(definition):
            return self.parts(definition)
        found: list[StoredPart] = []
        copies = (
            self.parts(definition, include_outdated=True)
            if partition is None
            else self.partition(definition, partition, include_outdated=True)
        )
        for stored in copies:  # of one name the hottest comes first
            if stored.state == "outdated":
                continue
            if not found or found[-1].name != stored.name:
                found.append(stored)
            elif self._rank(stored) >= self._rank(found[-1]):
                found[-1] = stored
        return found

    def _rank(self, stored: StoredPart) -> tuple[bool, bool]:
        return stored.volume is not None, self._disks[stored.disk].capabilities.remote

    def partition(
        self, definition: TableDefinition, partition: str, *, include_outdated: bool = False
    ) -> list[StoredPart]:
        """Those of one partition, in name order. Costs what is in it."""
        table = self._now.parts.get(definition.uuid)
        everything = table.partition(partition) if table is not None else []
        return [part for part in everything if include_outdated or part.state == "active"]

    def partitions(self, definition: TableDefinition, names: Collection[str]) -> list[StoredPart]:
        """Those that answer queries of several partitions, in name order."""
        table = self._now.parts.get(definition.uuid)
        found = table.partitions(names) if table is not None else ()
        return [part for part in found if part.state == "active"]

    def parts_where(
        self, definition: TableDefinition, may_match: Callable[[tuple[Any, ...]], bool]
    ) -> tuple[list[StoredPart], int]:
        """The parts that answer queries, in name order, without those of partitions that may not match by what their
        rows are partitioned by; and how many these are. Costs what is left."""
        table = self._now.parts.get(definition.uuid)
        return table.where(may_match) if table is not None else ([], 0)

    def has_inactive(self, definition: TableDefinition) -> bool:
        """Whether a part is outdated or a duplicate."""
        table = self._now.parts.get(definition.uuid)
        if table is None or table.now.are_all_active:
            return False
        return any(stored.state != "active" for stored in table.everything())

    def sums(self, definition: TableDefinition) -> Mapping[str, DiskTable] | None:
        """What the parts on each disk are together, all of them active. None where only going through them tells."""
        table = self._now.parts.get(definition.uuid)
        return table.sums() if table is not None else {}

    def due(self, definition: TableDefinition, until: datetime) -> set[str]:
        """The partitions with a part on which a rule acts by then."""
        table = self._now.parts.get(definition.uuid)
        return table.due(until) if table is not None else set()

    def newest(self, definition: TableDefinition) -> datetime | None:
        """When the last of the table's parts was written."""
        table = self._now.parts.get(definition.uuid)
        return table.newest() if table is not None else None

    def between_told(self, definition: TableDefinition, now: datetime) -> set[str]:
        """The partitions with a part of which a rule that plans only tell of was due, and another one will be."""
        table = self._now.parts.get(definition.uuid)
        return table.between_told(now) if table is not None else set()

    def next_due(self, definition: TableDefinition, after: datetime, without: Collection[str] = ()) -> datetime | None:
        """When a rule that acts, or one that plans only tell of, is due next for a part of another partition than
        these."""
        table = self._now.parts.get(definition.uuid)
        return table.next_due(after, without) if table is not None else None

    def part(self, definition: TableDefinition, name: str) -> StoredPart:
        """An active part by name. Raises `NotFound`, naming the part that replaced it if there is one."""
        wanted = PartName.parse(name)
        partition = self.partition(definition, wanted.partition)
        for stored in partition:
            if stored.name == wanted:
                return stored
        for stored in partition:
            if stored.name.covers(wanted):
                raise NotFound(
                    f"part {name} of {definition.full_name} was merged", hint=f"it is now inside {stored.facts.name}"
                )
        raise NotFound(
            f"table {definition.full_name} has no part {name}",
            hint=f"'frostline parts {definition.full_name}' lists them",
        )


def _unproved(cover: StoredPart, *hidden: StoredPart) -> str:
    names = ", ".join(f"{stored.facts.name} on {stored.disk}" for stored in hidden[:_NAMED])
    more = f" and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else ""
    return (
        f"{cover.part.name} of {cover.definition.full_name} on {cover.disk} says that it replaces {names}{more}, and "
        "nothing shows that it was made from it: all count; run 'frostline fsck'"
    )


def _ask(disk: Disk, *, when_due: bool = False) -> bool:
    """Take in what others committed. False when the disk was not asked, or does not answer."""
    logged = as_disk(disk, LoggedDisk)
    try:
        with time_budget(_PATIENCE_SECONDS):
            if when_due and logged is not None:
                return logged.refresh_when_due()
            disk.refresh()
            return disk.broken is None
    except Transient as error:
        if logged is None:
            raise
        logged.work_offline(error)
        return False
