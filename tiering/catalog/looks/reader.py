"""The parts of a table on a disk: each `part.json` is read once, and decoded when more is asked for than its facts.

What was read before is known by the file's mark: in this process from the last look, else from what the journal keeps
(`tiering.journal.kept_parts`). Every full look asks the disk for its files, so nothing is shown
that is not there. One that is not goes by the state of the directory (`Disk.state_of`): while it is that of a look
before, the parts are those that this one found, and are not even read before somebody asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import msgspec
from msgspec.structs import replace

from disks.base import Disk, Mark
from disks.workers.progress import SILENT, Progress
from tiering.catalog.looks import look as looks
from tiering.catalog.looks.batches import look_by_batches
from tiering.catalog.looks.look import Look, Looked, ReadApart, is_between
from tiering.catalog.looks.stored import LazyPart, PartSource, StoredPart
from tiering.config.settings import PolicyConfig
from tiering.journal.kept_looks import FoundFiles, KeptLook, PartSums
from tiering.journal.kept_parts import KeptParts, KeptRow, NewLook, PartsPlace
from tiering.policy.due import rules_digest
from tiering.table import kept_facts
from tiering.table.part import PART_FILE, PartName
from tiering.table.paths import part_name
from tiering.table.schema import TableDefinition

_FOLLOWED = 2048
"""So many names that commits touched are looked at one by one: more, and the directory is looked into as a whole."""


class PartReader:
    """Looks at the disks of one catalog, one look at a time."""

    def __init__(
        self,
        disks: Mapping[str, Disk],
        kept: KeptParts | None,
        progress: Progress = SILENT,
        *,
        stand_still: bool = False,
    ) -> None:
        """`stand_still`: the disks are those of the past. Nothing more is kept of them, and parts hold only their facts
        nevertheless."""
        self._disks = disks
        self._kept = kept
        self._progress = progress
        self._stand_still = stand_still
        self._looked: dict[tuple[str, str], Looked] = {}
        self._unkept: dict[tuple[str, str], int] = {}
        """How many parts a look had that could not be kept."""
        self._generations = count(1)

    def look(
        self,
        definition: TableDefinition,
        disk: Disk,
        volume: str | None,
        policy: PolicyConfig | None = None,
        *,
        anew: bool = True,
    ) -> Looked:
        """The parts of the table on the disk now. Unless `anew`, they may be those of a look before."""
        place = PartsPlace(disk.name, definition.directory, ",".join(kept_facts.columns_of(definition)))
        rules = rules_digest(definition, policy)
        empty = Looked(definition, volume, place, generation=next(self._generations), rules=rules)
        if disk.broken is not None:
            return empty
        last = self._looked.get((disk.name, definition.uuid))
        if last is not None and last.location != place:
            last = None
        with disk.steady():
            state = disk.state_of(definition.directory)
            known = None
            if not anew and state is not None:
                known = self._known(last, empty, state, policy)
            if known is None and state is not None and (last is None or last.is_unread):
                found = self._look_by_batches(empty, disk, state, policy, anew=anew)
                known = None if anew else found
            if known is not None:
                self._looked[disk.name, definition.uuid] = known
                return known
            if last is None or last.is_unread:
                last = self._load(empty)
            look = self._look_over(empty, last, disk, state, policy)
            if self._has_outgrown_memory(look.result):
                self._unkept[place.disk, definition.uuid] = len(look.result.parts)
                look = self._look_over(empty, self._load(empty), disk, state, policy)
        if look.result.kept is not None:
            self._unkept.pop((place.disk, definition.uuid), None)
        self._looked[disk.name, definition.uuid] = look.result
        return look.result

    def _look_over(
        self, empty: Looked, last: Looked, disk: Disk, state: Mark | None, policy: PolicyConfig | None
    ) -> Look:
        """Look at each file, knowing what the `last` look found, and keep what is worth it."""
        look = Look(empty, last, state, again=self._again(disk))
        for file in disk.look_over(empty.location.directory, PART_FILE, last.marks):
            look.take(file)
        if self._stand_still:
            look.result.whole = look.sums(policy)
        is_same = look.found_the_same()
        look.result.generation = last.generation if is_same else next(self._generations)
        if is_same and last.kept is not None and (last.state, last.rules) == (state, look.result.rules):
            look.result.kept = last.kept
        elif not self._stand_still:
            self._keep(look, policy)
        return look

    def _again(self, disk: Disk) -> PartSource | None:
        """Where parts come from once more that are not kept."""
        return PartSource(self._disks, None, disk.name) if self._stand_still else None

    def _has_outgrown_memory(self, looked: Looked) -> bool:
        """Whether a look should be kept and is not, since its first parts were too few to be kept when they were read:
        looked at as a new process does, all of it can be. What cannot be kept is tried again when there is twice as
        much of it."""
        if self._kept is None or self._stand_still or looked.kept is not None:
            return False
        if looked.state is None or looked.broken or len(looked.parts) < looks.KEPT_FROM:
            return False
        tried = self._unkept.get((looked.location.disk, looked.definition.uuid), 0)
        return len(looked.parts) >= 2 * tried

    def _look_by_batches(
        self, empty: Looked, disk: Disk, state: Mark, policy: PolicyConfig | None, *, anew: bool
    ) -> Looked | None:
        """Where there are many parts, and none are held; of a look anew only where no other is kept, for it holds all
        of them in the end."""
        if self._kept is None or self._stand_still or (anew and self._kept.look(empty.location) is not None):
            return None
        return look_by_batches(
            empty, disk, self._kept, state, policy=policy, take_rows=self._take_rows, progress=self._progress
        )

    def read(self, looked: Looked) -> bool:
        """Give the look its parts; False where they are kept no more."""
        if not self._take_kept(looked, looked):
            return False
        looked.is_unread = False
        return True

    def read_partition(self, looked: Looked, partition: str, to: str | None = None) -> list[StoredPart] | None:
        """Its parts of one partition, or of all from that one `to` another in the order of paths; in no order. None
        where they are kept no more."""
        if looked.is_unread:
            some = Looked(looked.definition, looked.volume, looked.location)
            return list(some.parts.values()) if self._take_kept(some, looked, partition, to) else None
        return [stored for stored in looked.parts.values() if is_between(stored.name.partition, partition, to)]

    def _take_kept(self, into: Looked, look: Looked, partition: str | None = None, to: str | None = None) -> bool:
        """Bring what is kept of a look's parts `into` one; False where it is kept no more."""
        asked, apart = (() if partition is None else (partition, to)), look.apart
        rows = self._rows_of(look.location, look.kept, *asked)
        if rows is None:
            return False
        self._take_rows(into, rows if apart is None else [row for row in rows if row[0] not in apart.files])
        if apart is not None:
            into.parts.update(apart.between(partition, to))
        if _are_all(into, look, partition, to):
            return True
        if self._kept is not None:
            self._kept.throw_away()
        into.parts.clear()
        into.marks.clear()
        return False

    def _rows_of(
        self, location: PartsPlace, kept: KeptLook | None, partition: str | None = None, to: str | None = None
    ) -> list[KeptRow] | None:
        if self._kept is None or kept is None:
            return None
        return self._kept.parts_of(location, kept.id, partition, to)

    def _known(self, last: Looked | None, empty: Looked, state: Mark, policy: PolicyConfig | None) -> Looked | None:
        """The look of this process, or of another one, that found the directory in this state, or in one before."""
        if last is not None and last.state == state and not last.broken and last.asks_the_same(empty):
            return last
        kept = self._kept.look(empty.location) if self._kept is not None else None
        if kept is None or kept.rules != empty.rules:
            return None
        if kept.state == state:
            return replace(empty, state=state, kept=kept, is_unread=True)
        return self._followed(empty, kept, state, policy)

    def _followed(self, empty: Looked, last: KeptLook, state: Mark, policy: PolicyConfig | None) -> Looked | None:
        """The kept look, with what commits have changed since then, or before it; None where that is not known, or all
        that is found cannot be kept."""
        assert self._kept is not None
        place, directory = empty.location, empty.definition.directory
        disk = self._disks[place.disk]
        names = disk.changed_between(directory, last.state, state)
        if names is None or len(names) > _FOLLOWED:
            return None
        files = {f"{directory}/{name}/{PART_FILE}" for name in names}
        rows = self._kept.parts_at(place, last.id, sorted(files))
        if rows is None:
            return None
        before = replace(empty, kept=last, parts={}, marks={})
        self._take_rows(before, rows)
        if not _may_be_among(before.parts.values(), last.sums):
            self._kept.throw_away()
            return None
        look = Look(empty, before, state, again=self._again(disk))
        for file in disk.look_over(directory, PART_FILE, before.marks, names):
            look.take(file)
        if len(before.parts) != len(rows) or disk.state_of(directory) != state:
            return None
        # A name that is not kept is new, or its row is lost: that shows where the parts of its partition are counted.
        changed = look.changed() | {name.partition for name in map(part_name, names) if name is not None}
        unread = replace(empty, state=state, is_unread=True, after=last.id, changed=changed)

        def untouched(partition: str) -> Iterator[StoredPart]:
            found = self.read_partition(replace(unread, kept=last), partition) or ()
            return (stored for stored in found if f"{stored.directory}/{PART_FILE}" not in files)

        if self._stand_still:
            if look.result.broken:
                return None
            kept = KeptLook(last.id, state, empty.rules, look.sums(policy, untouched))
            return replace(unread, kept=kept, apart=ReadApart(frozenset(files), look.result.parts))
        if not look.can_be_kept():
            return None
        whole = NewLook(state, empty.rules, look.sums(policy, untouched))
        _, number = self._kept.note(place, look.new_rows, look.gone(), whole, after=last.id)
        if number is None:
            return None
        return replace(unread, kept=KeptLook(number, whole.state, whole.rules, whole.sums))

    def close(self) -> None:
        """Close what is kept. It is opened again when it is needed."""
        if self._kept is not None:
            self._kept.close()

    def forget_unread(self, definition: TableDefinition) -> None:
        """Of the table go by no look of this process whose parts it does not have."""
        self._looked = {
            key: looked for key, looked in self._looked.items() if key[1] != definition.uuid or not looked.is_unread
        }

    def forget_all_but(self, uuids: Iterable[str]) -> None:
        """Keep what was seen of these tables, and of no others."""
        known = set(uuids)
        self._looked = {key: looked for key, looked in self._looked.items() if key[1] in known}
        self._unkept = {key: parts for key, parts in self._unkept.items() if key[1] in known}

    def _load(self, empty: Looked) -> Looked:
        """What an earlier process kept."""
        if self._kept is None:
            return empty
        looked = replace(empty, parts={}, marks={})
        kept = self._kept.look(looked.location)
        rows = self._kept.parts_of(looked.location, kept.id) if kept is not None else None
        if kept is None or rows is None:
            self._take_rows(looked, self._kept.load(looked.location))
            return looked
        self._take_rows(looked, rows)
        if not _are_all(looked, replace(looked, kept=kept), None, None):
            self._kept.throw_away()
            return replace(empty, parts={}, marks={})
        if kept.rules == looked.rules:
            looked.kept, looked.state = kept, kept.state
        return looked

    def _take_rows(self, looked: Looked, rows: Iterable[KeptRow]) -> None:
        assert self._kept is not None
        source = PartSource(self._disks, self._kept, looked.location.disk)
        definition, volume, disk = looked.definition, looked.volume, looked.location.disk
        partition = ""  # of a partition with many parts one text
        for path, mark, revision, data, number in rows:
            facts = kept_facts.decoded(data)
            if facts is None or not path.endswith(f"/{facts.name}/{PART_FILE}"):
                continue
            name = facts.part_name
            if name.partition != partition:
                partition = name.partition
            name = PartName(partition, name.min_block, name.max_block, name.level, name.mutation)
            kept = LazyPart(source, path, data, facts.replaces, number)
            looked.parts[path] = StoredPart(definition, kept, name, disk, volume, revision)
            looked.marks[path] = mark

    def _keep(self, look: Look, policy: PolicyConfig | None) -> None:
        """Note what is new, where it is worth it: the parts are then read when they are asked for. And the look, where
        all that it found is kept."""
        if self._kept is None:
            return
        result, gone = look.result, look.gone()
        whole = None
        if len(result.parts) >= looks.KEPT_FROM and result.state is not None and look.can_be_kept():
            whole = NewLook(result.state, result.rules, look.sums(policy), FoundFiles.of(result.marks))
        if len(look.new) + len(gone) < looks.KEPT_FROM and whole is None:
            return
        numbers, kept = self._kept.note(result.location, look.new_rows, gone, whole)
        if kept is not None and whole is not None:
            result.kept = KeptLook(kept, whole.state, whole.rules, whole.sums)
        source = PartSource(self._disks, self._kept, result.location.disk)
        for path, number in numbers.items():
            row, replaces = look.new[path]
            part = LazyPart(source, path, row.facts, replaces, number)
            result.parts[path] = msgspec.structs.replace(result.parts[path], described=part)


def _are_all(result: Looked, look: Looked, partition: str | None, to: str | None) -> bool:
    """Whether there are as many parts as the look found: a file that a hand or a disk altered may lose rows, while
    those that are left have their checksums."""
    assert look.kept is not None
    sums = look.kept.sums
    if partition is None:
        return len(result.parts) == sums.parts
    if to is None:  # many are asked for one by one
        return len(result.parts) == (sums.partitions[partition].parts if partition in sums.partitions else 0)
    return len(result.parts) == sum(
        partition_sums.parts for name, partition_sums in sums.partitions.items() if is_between(name, partition, to)
    )


def _may_be_among(parts: Iterable[StoredPart], sums: PartSums) -> bool:
    """Whether the sums may be those of parts among which these are: of a file that is put together from an old one and
    a new log they are not."""
    counted = Counter(stored.name.partition for stored in parts)
    return all(name in sums.partitions and count <= sums.partitions[name].parts for name, count in counted.items())
