"""The parts of a table on a disk: each `part.json` is read once, and decoded when more is asked for than its facts.

What was read before is known by the file's mark: in this process from the last look, else from what the journal keeps
(`tiering.journal.kept_parts`). The disk is asked for its files at every look, so nothing is shown that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import is_
from typing import Literal

import msgspec

from disks.base import Disk, Mark, SmallFile
from oplog.errors import Damaged, FrostlineError
from tiering.journal.kept_parts import KeptParts, NewPart, Place
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


class PartReader:
    """Looks at the disks of one catalog, one look at a time."""

    def __init__(self, disks: Mapping[str, Disk], kept: KeptParts | None) -> None:
        self._disks = disks
        self._kept = kept
        self._looked: dict[tuple[str, str], Looked] = {}
        self._generations = count(1)

    def look(self, definition: TableDefinition, disk: Disk, volume: str | None) -> Looked:
        """The parts of the table on the disk now."""
        columns = _columns(definition)
        place = Place(disk.name, definition.directory, ",".join(columns))
        empty = Looked(definition, volume, place, generation=next(self._generations))
        if disk.broken is not None:
            return empty
        last = self._looked.get((disk.name, definition.uuid))
        if last is None or last.place != place:
            last = self._load(empty)
        look = _Look(definition, volume, place, columns, last)
        for file in disk.look_over(definition.directory, PART_FILE, last.marks):
            look.take(file)
        if look.found_the_same():
            look.result.generation = last.generation
        else:
            look.result.generation = next(self._generations)
            self._keep(look)
        self._looked[disk.name, definition.uuid] = look.result
        return look.result

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
        source = _Source(self._disks, self._kept, looked.place.disk)
        definition, volume, disk = looked.definition, looked.volume, looked.place.disk
        for path, mark, data, number in self._kept.load(looked.place):
            try:
                facts = _decoder.decode(data)
            except msgspec.MsgspecError:
                continue
            if not path.endswith(f"/{facts.name}/{PART_FILE}"):
                continue
            kept = KeptPart(source, path, facts, number)
            looked.parts[path] = StoredPart(definition, kept, facts.part_name, disk, volume, None)
            looked.marks[path] = mark
        return looked

    def _keep(self, look: _Look) -> None:
        """Note what is new, where it is worth it: the parts are then read when they are asked for."""
        gone = look.gone() if self._kept is not None else []
        if self._kept is None or len(look.new) + len(gone) < KEPT_FROM:
            return
        disk = look.result.place.disk
        numbers = self._kept.note(look.result.place, [new for new, _ in look.new.values()], gone)
        source = _Source(self._disks, self._kept, disk)
        for path, number in numbers.items():
            kept = KeptPart(source, path, look.new[path][1], number)
            look.result.parts[path] = msgspec.structs.replace(look.result.parts[path], described=kept)


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
            self.new[file.path] = NewPart(file.path, file.mark, encoded, data), facts
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


def _encoded(facts: PartFacts) -> bytes | None:
    """The facts as they are kept; None for what no other process would understand."""
    try:
        return _encoder.encode(facts)
    except (OverflowError, TypeError, ValueError):
        return None
