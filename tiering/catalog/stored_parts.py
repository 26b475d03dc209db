"""The parts of a table on a disk: each `part.json` is read once, and decoded when more is asked for than its facts.

What was read before is known by the file's mark: in this process from the last look, else from what the journal keeps
(`tiering.journal.kept_parts`). The disk is asked for its files at every look that is made anew, so nothing is shown
that is not there. One that is not goes by the state of the directory (`Disk.state_of`): while it is that of a look
before, the parts are those that this one found, and are not even read before somebody asks for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import is_
from typing import Literal

import msgspec

from disks.base import Disk, Mark, SmallFile
from oplog.errors import Damaged, FrostlineError
from tiering.config.settings import PolicyConfig
from tiering.journal.kept_looks import KeptLook, PartSums
from tiering.journal.kept_parts import KeptParts, KeptRow, NewLook, NewPart, Place
from tiering.policy import part_sums
from tiering.policy.due import rules_digest
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part, PartFacts, PartFiles, PartName, facts_of
from tiering.table.schema import TableDefinition

PartState = Literal["active", "outdated", "duplicate"]

KEPT_FROM = 64
"""Fewer new parts are not worth a write: the next process reads them again."""
_DOCUMENTS_AT_ONCE = 500

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartFacts)


class StoredPart(msgspec.Struct, frozen=True):
    """One copy of a part: what it is and where it lies."""

    definition: TableDefinition
    described: Part | KeptPart
    name: PartName
    disk: str
    volume: str | None
    """None when the disk is not in the table's policy any more."""
    revision: int | None
    state: PartState = "active"

    @property
    def facts(self) -> Part | PartFacts:
        """What is known without reading more."""
        return self.described if isinstance(self.described, Part) else self.described.facts

    @property
    def part(self) -> Part:
        """All of its `part.json`."""
        return self.described if isinstance(self.described, Part) else self.described.part()

    @property
    def directory(self) -> str:
        """The part's directory, the same on every disk."""
        return self.definition.part_directory(self.facts.name)

    def path(self, file_name: str) -> str:
        return f"{self.directory}/{file_name}"


class KeptPart:
    """A part whose `part.json` is read when it is asked for."""

    __slots__ = ("_number", "_part", "_path", "_source", "facts")

    def __init__(self, source: _Source, path: str, facts: PartFacts, number: int) -> None:
        self.facts = facts
        self._source = source
        self._path = path
        self._number = number
        self._part: Part | None = None

    def part(self) -> Part:
        """The whole. From the disk itself where it is not kept any more; raises what that raises."""
        if self._part is None:
            self._part, _ = self._source.read(self._path, self._number, self.facts)
        return self._part

    def document(self, known: bytes | None = None) -> tuple[bytes, PartFiles]:
        """The bytes of its `part.json`, as they were when the disk was looked at, and the files that they name; raises
        as `part` does. `known`: what is kept of it, where that was asked for."""
        where = f"{self._source.disk}:{self._path}"
        if known is not None:
            files = part_format.files_of(known, path=where)
            if (files.name, files.rows) == (self.facts.name, self.facts.rows):
                return known, files
        self._part, data = self._source.read(self._path, self._number, self.facts)
        return data, part_format.files_of(data, path=where)

    @staticmethod
    def documents(parts: Sequence[KeptPart]) -> Iterator[tuple[bytes, PartFiles]]:
        """The same of each, in their order: one question about some hundreds costs less than one about each."""
        for start in range(0, len(parts), _DOCUMENTS_AT_ONCE):
            batch = parts[start : start + _DOCUMENTS_AT_ONCE]
            kept = batch[0]._source.kept.documents([part._number for part in batch])
            for part in batch:
                yield part.document(kept.get(part._number))


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
class Looked:
    """What a look at a table's directory on a disk found."""

    definition: TableDefinition
    volume: str | None
    place: Place
    parts: dict[str, StoredPart] = field(default_factory=dict)
    """by the path of its `part.json`, in path order"""
    marks: dict[str, Mark] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    generation: int = 0
    """The same as that of a look before: the same parts."""
    state: Mark | None = None
    """That of the directory; None where it has none, or one that does not last."""
    rules: str = ""
    kept: KeptLook | None = None
    """By which it is kept."""
    is_unread: bool = False
    """Whether it has no parts yet: they are kept (`PartReader.read`)."""

    def asks_the_same(self, other: Looked) -> bool:
        """Whether what is asked of its parts is what the other look asks."""
        return (self.definition, self.volume, self.rules) == (other.definition, other.volume, other.rules)

    def sums(self, policy: PolicyConfig | None) -> PartSums | None:
        """What its parts are together; None where only going through many of them tells."""
        if self.kept is not None:
            return self.kept.sums
        return part_sums.of(self.parts.values(), policy) if len(self.parts) < KEPT_FROM else None

    @property
    def identity(self) -> str | None:
        """Another one for other parts, now and ever; None where nothing tells."""
        if self.kept is not None:
            return str(self.kept.id)
        if self.broken or len(self.parts) >= KEPT_FROM or len(self.marks) != len(self.parts):
            return None
        marks = repr(sorted(self.marks.items()))
        return hashlib.sha256(marks.encode()).hexdigest() if marks else ""


class PartReader:
    """Looks at the disks of one catalog, one look at a time."""

    def __init__(self, disks: Mapping[str, Disk], kept: KeptParts | None) -> None:
        self._disks = disks
        self._kept = kept
        self._looked: dict[tuple[str, str], Looked] = {}
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
        columns = _columns(definition)
        place = Place(disk.name, definition.directory, ",".join(columns))
        rules = rules_digest(definition, policy)
        empty = Looked(definition, volume, place, generation=next(self._generations), rules=rules)
        if disk.broken is not None:
            return empty
        last = self._looked.get((disk.name, definition.uuid))
        if last is not None and last.place != place:
            last = None
        with disk.steady():
            state = disk.state_of(definition.directory)
            known = None if anew or state is None else self._known(last, empty, state)
            if known is not None:
                self._looked[disk.name, definition.uuid] = known
                return known
            if last is None or last.is_unread:
                last = self._load(empty)
            look = _Look(definition, volume, place, columns, last)
            for file in disk.look_over(definition.directory, PART_FILE, last.marks):
                look.take(file)
        look.result.state, look.result.rules = state, rules
        is_same = look.found_the_same()
        look.result.generation = last.generation if is_same else next(self._generations)
        if is_same and last.kept is not None and (last.state, last.rules) == (state, rules):
            look.result.kept = last.kept
        else:
            self._keep(look, policy)
        self._looked[disk.name, definition.uuid] = look.result
        return look.result

    def read(self, looked: Looked) -> bool:
        """Give the look its parts; False where they are kept no more."""
        rows = self._rows_of(looked)
        if rows is None:
            return False
        self._take_rows(looked, rows)
        looked.is_unread = False
        return True

    def read_partition(self, looked: Looked, partition: str) -> list[StoredPart] | None:
        """Its parts of one partition, in no order; None where they are kept no more."""
        if looked.is_unread:
            rows = self._rows_of(looked, partition)
            if rows is None:
                return None
            some = Looked(looked.definition, looked.volume, looked.place)
            self._take_rows(some, rows)
            return list(some.parts.values())
        return [stored for stored in looked.parts.values() if stored.name.partition == partition]

    def _rows_of(self, looked: Looked, partition: str | None = None) -> list[KeptRow] | None:
        if self._kept is None or looked.kept is None:
            return None
        return self._kept.parts_of(looked.place, looked.kept.id, partition)

    def _known(self, last: Looked | None, empty: Looked, state: Mark) -> Looked | None:
        """The look of this process, or of another one, that found the directory in this state."""
        if last is not None and last.state == state and not last.broken and last.asks_the_same(empty):
            return last
        kept = self._kept.look(empty.place) if self._kept is not None else None
        if kept is None or kept.state != state or kept.rules != empty.rules:
            return None
        return replace(empty, state=state, kept=kept, is_unread=True)

    def close(self) -> None:
        """Close what is kept. It is opened again when it is needed."""
        if self._kept is not None:
            self._kept.close()

    def forget_all_but(self, uuids: Iterable[str]) -> None:
        """Keep what was seen of these tables, and of no others."""
        known = set(uuids)
        self._looked = {key: looked for key, looked in self._looked.items() if key[1] in known}

    def _load(self, looked: Looked) -> Looked:
        """With what an earlier process kept."""
        if self._kept is None:
            return looked
        kept = self._kept.look(looked.place)
        rows = self._kept.parts_of(looked.place, kept.id) if kept is not None else None
        if kept is not None and rows is not None and kept.rules == looked.rules:
            looked.kept, looked.state = kept, kept.state
        self._take_rows(looked, self._kept.load(looked.place) if rows is None else rows)
        return looked

    def _take_rows(self, looked: Looked, rows: Iterable[KeptRow]) -> None:
        assert self._kept is not None
        source = _Source(self._disks, self._kept, looked.place.disk)
        definition, volume, disk = looked.definition, looked.volume, looked.place.disk
        for path, mark, revision, data, number in rows:
            try:
                facts = _decoder.decode(data)
            except msgspec.MsgspecError:
                continue
            if not path.endswith(f"/{facts.name}/{PART_FILE}"):
                continue
            kept = KeptPart(source, path, facts, number)
            looked.parts[path] = StoredPart(definition, kept, facts.part_name, disk, volume, revision)
            looked.marks[path] = mark

    def _keep(self, look: _Look, policy: PolicyConfig | None) -> None:
        """Note what is new, where it is worth it: the parts are then read when they are asked for. And the look, where
        all that it found is kept."""
        if self._kept is None:
            return
        result, gone = look.result, look.gone()
        whole = None
        if result.state is not None and not result.broken and KEPT_FROM <= len(result.parts) == len(result.marks):
            whole = NewLook(result.state, result.rules, look.sums(gone, policy), result.marks)
        if len(look.new) + len(gone) < KEPT_FROM and whole is None:
            return
        numbers, kept = self._kept.note(result.place, [new for new, _ in look.new.values()], gone, whole)
        if kept is not None and whole is not None:
            result.kept = KeptLook(kept, whole.state, whole.rules, whole.sums)
        source = _Source(self._disks, self._kept, result.place.disk)
        for path, number in numbers.items():
            part = KeptPart(source, path, look.new[path][1], number)
            result.parts[path] = msgspec.structs.replace(result.parts[path], described=part)


class _Look:
    """One look while it goes on."""

    def __init__(
        self, definition: TableDefinition, volume: str | None, place: Place, columns: list[str], last: Looked
    ) -> None:
        self.result = Looked(definition, volume, place)
        self.new: dict[str, tuple[NewPart, PartFacts]] = {}
        self._columns = columns
        self._last = last
        self._is_as_before = last.definition == definition and last.volume == volume

    def take(self, file: SmallFile) -> None:
        """One more file, in path order."""
        result = self.result
        if file.data is None:
            stored = self._last.parts[file.path]
            if not self._is_as_before or stored.revision != file.revision:
                stored = StoredPart(
                    result.definition, stored.described, stored.name, stored.disk, result.volume, file.revision
                )
        else:
            read = self._read(file, file.data)
            if read is None:
                return
            stored = read
        result.parts[file.path] = stored
        if file.mark is not None:
            result.marks[file.path] = file.mark

    def gone(self) -> list[tuple[str, Mark]]:
        """What was known of before and is not there any more, or is another file."""
        marks = self.result.marks
        return [(path, mark) for path, mark in self._last.marks.items() if marks.get(path) != mark]

    def sums(self, gone: Sequence[tuple[str, Mark]], policy: PolicyConfig | None) -> PartSums:
        """Of all that was found: by what has changed since the last look, where that has sums."""
        last, parts = self._last, self.result.parts
        if last.kept is None or last.rules != self.result.rules:
            return part_sums.of(parts.values(), policy)
        new = [parts[path] for path, mark in self.result.marks.items() if last.marks.get(path) != mark]
        return part_sums.changed(last.kept.sums, [last.parts[path] for path, _ in gone], new, parts.values(), policy)

    def _read(self, file: SmallFile, data: bytes) -> StoredPart | None:
        result = self.result
        definition, disk = result.definition, result.place.disk
        try:
            part = part_format.decode(data, path=f"{disk}:{file.path}")
            if definition.part_directory(part.name) != file.path.rpartition("/")[0]:
                raise Damaged(f"{disk}:{file.path} describes another part: {part.name}")
        except FrostlineError as error:
            result.broken.append(Broken(disk, file.path, error.message))
            return None
        facts = facts_of(part, self._columns)
        if file.mark is not None and (encoded := _encoded(facts)) is not None:
            self.new[file.path] = NewPart(file.path, file.mark, file.revision, encoded, data), facts
        return StoredPart(definition, part, facts.part_name, disk, result.volume, file.revision)

    def found_the_same(self) -> bool:
        """Whether the parts are those of the look before."""
        last, found = self._last.parts, self.result.parts
        return len(last) == len(found) and all(map(is_, last.values(), found.values()))


@dataclass(frozen=True, slots=True)
class _Source:
    """Where whole parts come from."""

    disks: Mapping[str, Disk]
    kept: KeptParts
    disk: str

    def read(self, path: str, number: int, facts: PartFacts) -> tuple[Part, bytes]:
        for data in (self.kept.documents([number]).get(number), None):
            if data is None:
                data = self.disks[self.disk].read(path)
            part = part_format.decode(data, path=f"{self.disk}:{path}")
            if part.name == facts.name and part.rows == facts.rows:
                return part, data
        raise Damaged(f"{self.disk}:{path} describes another part: {part.name}", hint="run 'frostline fsck'")


def _columns(definition: TableDefinition) -> list[str]:
    """The ids of the columns whose ranges are asked of every part: those that tell how old its rows are."""
    rules = {rule.column for rule in definition.ttl}
    return [
        str(column.id)
        for column in definition.columns
        if column.type.startswith(("timestamp", "date")) or column.name in rules
    ]


def facts_are_of(encoded: bytes, data: bytes, place: Place, *, path: str) -> bool:
    """Whether these are the facts of the `part.json` with these bytes, as they are kept there."""
    try:
        facts = facts_of(part_format.decode(data, path=path), [column for column in place.shape.split(",") if column])
    except FrostlineError:
        return False
    return _encoded(facts) == encoded


def sums_are_of(sums: PartSums, parts: Iterable[tuple[Mark, bytes]]) -> bool:
    """Whether the sums are those of parts with these facts, but for when a rule is due."""
    facts = [_decoder.decode(data) for _, data in parts]
    partitions: dict[str, tuple[int, int, int]] = {}
    for fact in facts:
        count, rows, size_bytes = partitions.get(fact.part_name.partition, (0, 0, 0))
        partitions[fact.part_name.partition] = (count + 1, rows + fact.rows, size_bytes + fact.size_bytes)
    kept = {partition: whole[:3] for partition, whole in sums.partitions.items()}
    totals = (len(facts), sum(fact.rows for fact in facts), sum(fact.size_bytes for fact in facts))
    newest = max((fact.created for fact in facts), default=None)
    return totals == (sums.parts, sums.rows, sums.bytes) and partitions == kept and newest == sums.newest


def _encoded(facts: PartFacts) -> bytes | None:
    """The facts as they are kept; None for what no other process would understand."""
    try:
        return _encoder.encode(facts)
    except (OverflowError, TypeError, ValueError):
        return None
