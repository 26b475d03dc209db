"""A scan of a table's directory on a disk: compares it with the index of parts, and brings in what differs.

A file is read when its mark is not the one that the index has (`Disk.look_over`). While the directory shows the state
of the last scan, or commits say what they touched since (`Disk.changed_between`), only those names are looked at. A
directory of very many parts is scanned some thousands at a time; a scan that was killed does not read again what the
one before brought in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from disks.base import Disk, Mark, SmallFile
from disks.workers.progress import SILENT, Progress
from oplog.errors import Damaged, FrostlineError, Transient
from tiering.catalog.index.database import OvertakenError
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import (
    UNSETTLED,
    Change,
    Facts,
    KnownPart,
    NewPart,
    Place,
    encoded_facts,
    in_microseconds,
)
from tiering.config.settings import PolicyConfig
from tiering.policy.due import dues_of, rules_digest
from tiering.table import kept_facts
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part, facts_of
from tiering.table.schema import TableDefinition

AT_ONCE = 4096
"""So many names are looked at in one transaction."""
FOLLOWED = 2048
"""So many names that commits touched are looked at one by one: more, and the directory is scanned as a whole."""
_TRIES = 8
"""So often a scan begins again that others overtake."""


class Question(msgspec.Struct, frozen=True):
    """What is asked of the parts of a table on a disk."""

    disk: Disk
    definition: TableDefinition
    policy: PolicyConfig | None = None

    @property
    def directory(self) -> str:
        return self.definition.directory

    @property
    def columns(self) -> list[str]:
        """Those of which the facts have the ranges."""
        return kept_facts.columns_of(self.definition)

    @property
    def basis(self) -> int:
        """Tells what facts and times are computed with: other columns or rules, another number."""
        what = msgspec.json.encode((self.columns, rules_digest(self.definition, self.policy)))
        return int.from_bytes(hashlib.sha256(what).digest()[:8], "big", signed=True)

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}/{PART_FILE}"


def look(index: PartIndex, question: Question, *, every_file: bool, progress: Progress = SILENT) -> Place:
    """The parts of the table on the disk now. With `every_file` the disk is asked for each file; else what shows no
    change is believed."""
    for _ in range(_TRIES):
        with suppress(OvertakenError), question.disk.steady():
            return _look(index, question, every_file=every_file, progress=progress)
    raise Transient(
        f"what is known of {question.definition.full_name} on {question.disk.name} is changed all the time",
        hint="try again when other processes do less",
    )


def _look(index: PartIndex, question: Question, *, every_file: bool, progress: Progress) -> Place:
    disk, directory = question.disk, question.directory
    state = disk.state_of(directory)
    place = index.place(disk.name, directory)
    basis = question.basis
    if not every_file and state is not None and place.row.state is not None and place.row.basis == basis:
        names = set() if place.row.state == state else disk.changed_between(directory, place.row.state, state)
        if names is not None and len(names) <= FOLLOWED:
            names |= {name for name, _ in place.row.broken}
            return _follow(index, question, place, names, state, basis)
    return _scan(index, question, place, state, basis, progress)


def _follow(index: PartIndex, question: Question, place: Place, names: set[str], state: Mark, basis: int) -> Place:
    if not names and place.row.state == state:
        return place
    change = _compared(index, question, basis, index.known_among(place, names), names)
    change.broken = sorted(change.broken + [one for one in place.row.broken if one[0] not in names])
    if question.disk.state_of(question.directory) != state:  # a bucket, to which others commit meanwhile
        raise OvertakenError
    if change.is_empty() and tuple(change.broken) == place.row.broken and place.row.state == state:
        return place
    return index.follow(place, change, state)


def _scan(
    index: PartIndex, question: Question, place: Place, state: Mark | None, basis: int, progress: Progress
) -> Place:
    disk, table = question.disk, question.definition.full_name
    names = sorted(disk.directories(question.directory))
    if len(names) <= AT_ONCE:
        return index.finish(place, _compared(index, question, basis, index.known(place), None), state, basis)
    whole = Change()
    with progress.task(f"reading what the parts of {table} on {disk.name} say", items=len(names)) as task:
        for batch, *limits in _batches(names):
            change = _compared(index, question, basis, index.known(place, *limits), batch)
            whole.parts, whole.check = whole.parts + change.parts, whole.check + change.check
            whole.broken = whole.broken + change.broken
            if not change.is_empty():
                index.put(place, change)
            task.advance(items=len(batch))
    return index.finish(place, whole, state, basis)


def _batches(names: Sequence[str]) -> Iterator[tuple[Sequence[str], str, str]]:
    """Some names at a time, and the range of names up to the next ones: together all that there can be."""
    low = ""
    for start in range(0, len(names), AT_ONCE):
        following = names[start + AT_ONCE : start + AT_ONCE + 1]
        high = following[0] if following else "\U0010ffff"
        yield names[start : start + AT_ONCE], low, high
        low = high


def _compared(
    index: PartIndex,
    question: Question,
    basis: int,
    known: Mapping[str, KnownPart],
    among: Sequence[str] | set[str] | None,
) -> Change:
    """What the disk has at these names, or at all, against what is known of them."""
    marks = {question.path(name): one.mark for name, one in known.items() if one.mark != UNSETTLED}
    arguments = () if among is None else (among,)
    files = question.disk.look_over(question.directory, PART_FILE, marks, *arguments)
    change, seen = Change([], [], {}, []), set[str]()
    kept = _kept_documents(index, known, files, basis)
    for file in files:
        name = file.path.split("/")[-2]
        before = known.get(name)
        mark = UNSETTLED if file.mark is None else file.mark
        is_known = before is not None and (before.basis, before.revision) == (basis, file.revision)
        if before is not None and is_known and (file.data is None or file.data == kept.get(before.document)):
            change.parts, change.check = change.parts + 1, change.check + before.crc32
            if mark != before.mark:
                change.marks[name] = mark
            seen.add(name)
            continue
        data = file.data
        if data is None and before is not None:
            data = kept.get(before.document)
        try:
            data = question.disk.read(file.path) if data is None else data
            part = _decoded(question, file, data)
        except FrostlineError as error:
            change.broken.append((name, error.message))
            continue
        new = _new_part(question, part, data, mark, file.revision, basis)
        change.new.append(new)
        change.parts, change.check = change.parts + 1, change.check + new.facts.crc32(0)
        seen.add(name)
    gone = known.keys() - seen
    change.gone = sorted(gone)
    return change


def _kept_documents(
    index: PartIndex, known: Mapping[str, KnownPart], files: Sequence[SmallFile], basis: int
) -> Mapping[int, bytes]:
    """The `part.json` as they are kept, of the files that were read though they are known, and of those whose facts
    were computed with something else."""
    numbers = []
    for file in files:
        before = known.get(file.path.split("/")[-2])
        if before is not None and (file.data is not None or (before.basis, before.revision) != (basis, file.revision)):
            numbers.append(before.document)
    return index.documents(numbers) if numbers else {}


def _decoded(question: Question, file: SmallFile, data: bytes) -> Part:
    where = f"{question.disk.name}:{file.path}"
    part = part_format.decode(data, path=where)
    if question.path(part.name) != file.path:
        raise Damaged(f"{where} describes another part: {part.name}")
    return part


def _new_part(question: Question, part: Part, data: bytes, mark: Mark, revision: int | None, basis: int) -> NewPart:
    facts = facts_of(part, question.columns)
    due, told = dues_of(question.definition, facts, question.disk.name, question.policy)
    times = [in_microseconds(at) for at in told]
    kept = Facts(
        part.name,
        basis,
        revision,
        part.rows,
        part.size_bytes,
        in_microseconds(part.created),
        None if due is None else in_microseconds(due),
        min(times, default=None),
        max(times, default=None),
        len(part.replaces),
        encoded_facts(facts),
    )
    return NewPart(kept, mark, part.partition_values, data)
