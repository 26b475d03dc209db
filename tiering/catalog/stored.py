"""A copy of a part on a disk: what it is, where it lies, and its `part.json`, read when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, Protocol

import msgspec

from disks.base import Disk
from oplog.errors import Damaged
from tiering.catalog.index.rows import DocumentKey, decoded_facts
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part, PartFacts, PartFiles, PartName
from tiering.table.schema import TableDefinition

PartState = Literal["active", "outdated", "duplicate"]

_DOCUMENTS_AT_ONCE = 500


class PartDocuments(Protocol):
    """Where each `part.json` is kept, by its number and checksum."""

    def documents(self, keys: Sequence[DocumentKey], /) -> Mapping[DocumentKey, bytes]:
        """The bytes of each, without those that are kept no more."""


class StoredPart(msgspec.Struct, frozen=True, gc=False):
    """One copy of a part: what it is and where it lies."""

    definition: TableDefinition
    described: Part | LazyPart
    name: PartName
    disk: str
    volume: str | None
    """None when the disk is not in the table's policy any more."""
    revision: int | None
    state: PartState = "active"

    @property
    def label(self) -> str:
        """Its name as it is written. Nothing is decoded for it, as for its facts."""
        described = self.described
        return described.name if isinstance(described, Part) else described.path.rsplit("/", 2)[1]

    @property
    def facts(self) -> Part | PartFacts:
        """What is known without reading more."""
        return self.described if isinstance(self.described, Part) else self.described.facts

    @property
    def part(self) -> Part:
        """All of its `part.json`."""
        return self.described if isinstance(self.described, Part) else self.described.part()

    @property
    def inserted(self) -> tuple[int, int]:
        """The first and the last block number under which its rows were inserted."""
        return part_format.inserted_blocks(self.facts)

    def is_copy_of(self, other: StoredPart) -> bool:
        """Whether both are one part, as their facts tell: of two that only bear one name, each has rows of its own."""
        if self.name != other.name:
            return False
        here, there = self.facts, other.facts
        return (here.rows, here.size_bytes, here.created) == (there.rows, there.size_bytes, there.created)

    @property
    def replaces(self) -> tuple[str, ...]:
        """Those of its facts."""
        return self.described.replaces

    @property
    def directory(self) -> str:
        """The part's directory, the same on every disk."""
        described = self.described
        if isinstance(described, Part):
            return self.definition.part_directory(described.name)
        return described.path[: -len(PART_FILE) - 1]

    def path(self, file_name: str) -> str:
        return f"{self.directory}/{file_name}"


class LazyPart(msgspec.Struct, eq=False, gc=False):
    """A part whose `part.json` is read when it is asked for; `path` is the place of that. Its facts are held as they
    are kept: of a hundred thousand parts most are never asked for theirs, and decoded they take five times as much."""

    source: PartSource
    path: str
    encoded_facts: bytes
    replaces: tuple[str, ...]
    number: DocumentKey
    _part: Part | None = None

    @property
    def facts(self) -> PartFacts:
        """Decoded each time."""
        return decoded_facts(self.encoded_facts)

    def part(self) -> Part:
        """The whole. From the disk itself where it is not kept any more; raises what that raises."""
        if self._part is None:
            self._part, _ = self.source.read(self.path, self.number, self.facts)
        return self._part

    @property
    def is_read(self) -> bool:
        """Whether the whole is held."""
        return self._part is not None

    def part_of(self, cached: bytes | None) -> Part:
        """The whole, without holding it. `cached`: what is kept of it, where that was asked for."""
        return self._part or self.source.read(self.path, self.number, self.facts, cached)[0]

    def document(self, cached: bytes | None = None) -> tuple[bytes, PartFiles]:
        """The bytes of its `part.json`, as they were when the disk was scanned, and the files that they name; raises
        as `part` does. `cached`: what is kept of it, where that was asked for."""
        where = f"{self.source.disk}:{self.path}"
        if cached is not None:
            files = part_format.files_of(cached, path=where)
            facts = self.facts
            if (files.name, files.rows) == (facts.name, facts.rows):
                return cached, files
        self._part, data = self.source.read(self.path, self.number, self.facts)
        return data, part_format.files_of(data, path=where)

    @staticmethod
    def documents(parts: Sequence[LazyPart]) -> Iterator[tuple[bytes, PartFiles]]:
        """The same of each, in their order: one question about some hundreds costs less than one about each."""
        for start in range(0, len(parts), _DOCUMENTS_AT_ONCE):
            batch = parts[start : start + _DOCUMENTS_AT_ONCE]
            numbers = [part.number for part in batch]
            kept = source.documents(numbers) if (source := batch[0].source.kept) is not None else {}
            for part in batch:
                yield part.document(kept.get(part.number))


def described(parts: Iterable[StoredPart]) -> Iterator[tuple[StoredPart, Part]]:
    """Each with all of its `part.json`, as `StoredPart.part`; some hundreds are read at once, and none of them holds
    what it says: of many parts an answer needs few."""
    waiting = iter(parts)
    while batch := list(islice(waiting, _DOCUMENTS_AT_ONCE)):
        asked: dict[int, tuple[PartDocuments, list[DocumentKey]]] = {}
        for one in (stored.described for stored in batch):
            if isinstance(one, LazyPart) and not one.is_read and one.source.kept is not None:
                asked.setdefault(id(one.source.kept), (one.source.kept, []))[1].append(one.number)
        kept = {place: documents.documents(numbers) for place, (documents, numbers) in asked.items()}
        for stored in batch:
            one = stored.described
            if isinstance(one, Part):
                yield stored, one
            else:
                yield stored, one.part_of(kept.get(id(one.source.kept), {}).get(one.number))


class Broken(msgspec.Struct, frozen=True):
    """Something on a disk that cannot be read; it is left as it is."""

    disk: str
    path: str
    what: str

    @property
    def text(self) -> str:
        """Where and what, in one phrase: most messages name the file themselves."""
        where = f"{self.disk}:{self.path}"
        return self.what if where in self.what else f"{where}: {self.what}"


class PartSource(msgspec.Struct, frozen=True):
    """Where whole parts come from."""

    disks: Mapping[str, Disk]
    kept: PartDocuments | None
    """None for disks that stand still, as those of the past: they say it again."""
    disk: str

    def read(self, path: str, number: DocumentKey, facts: PartFacts, cached: bytes | None = None) -> tuple[Part, bytes]:
        """What `part.json` says, and its bytes: `cached`, else those that are kept, else those on the disk."""
        if cached is None and self.kept is not None:
            cached = self.kept.documents([number]).get(number)
        for data in (cached, None):
            if data is None:
                data = self.disks[self.disk].read(path)
            part = part_format.decode(data, path=f"{self.disk}:{path}")
            if part.name == facts.name and part.rows == facts.rows:
                return part, data
        raise Damaged(f"{self.disk}:{path} describes another part: {part.name}", hint="run 'frostline fsck'")
