"""A scan of a table's directory on a disk: compares it with the index of parts, and brings in what differs.

A file is read when its fingerprint is not the one that the index has (`Disk.look_over`). While the directory shows the
state of the last scan, or commits say what they touched since (`Disk.changed_between`), only those names are compared.
A directory of very many parts is scanned some thousands at a time; a scan that was killed does not read again what the
one before brought in.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from disks.base import Disk, Fingerprint, SmallFile
from disks.workers.progress import SILENT, Progress
from oplog.errors import Damaged, FrostlineError, Transient
from tiering.catalog.index.database import OvertakenError
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import (
    UNSETTLED,
    AddedPart,
    Basis,
    DiskTable,
    DocumentKey,
    Facts,
    IndexChange,
    KnownPart,
    decoded_facts,
    encoded_facts,
    in_microseconds,
)
from tiering.config.settings import PolicyConfig
from tiering.policy.due import dues_of, rules_digest, timed_columns
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part, PartFacts, facts_of
from tiering.table.schema import TableDefinition

AT_ONCE = 4096
"""So many names are compared in one transaction."""
FOLLOWED = 2048
"""So many names that commits touched are compared one by one: more, and the directory is scanned as a whole."""
_TRIES = 8
"""So often a scan begins again that others overtake."""


class ScanTarget(msgspec.Struct, frozen=True):
    """A table on a disk, and what facts and times of its parts are computed with."""

    disk: Disk
    definition: TableDefinition
    policy: PolicyConfig | None = None

    @property
    def directory(self) -> str:
        return self.definition.directory

    @property
    def columns(self) -> list[str]:
        """Those of which the facts have the ranges."""
        return timed_columns(self.definition)

    @property
    def basis(self) -> Basis:
        """What facts and times are computed with: other columns or rules, other numbers."""
        return _number(",".join(self.columns)), _number(rules_digest(self.definition, self.policy))

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}/{PART_FILE}"


def scan(index: PartIndex, target: ScanTarget, *, every_file: bool, progress: Progress = SILENT) -> DiskTable:
    """The parts of the table on the disk now. With `every_file` the disk is asked for each file; else what shows no
    change is believed."""
    for _ in range(_TRIES):
        with suppress(OvertakenError), target.disk.steady():
            return _scan(index, target, every_file=every_file, progress=progress)
    raise Transient(
        f"what is known of {target.definition.full_name} on {target.disk.name} is changed all the time",
        hint="try again when fewer processes change the table",
    )


def _scan(index: PartIndex, target: ScanTarget, *, every_file: bool, progress: Progress) -> DiskTable:
    disk, directory = target.disk, target.directory
    state = disk.state_of(directory)
    table = index.table(disk.name, directory)
    basis = target.basis
    if not every_file and state is not None and table.row.state is not None and table.row.basis == basis:
        names = set() if table.row.state == state else disk.changed_between(directory, table.row.state, state)
        if names is not None and len(names) <= FOLLOWED:
            names |= {name for name, _ in table.row.broken}
            return _follow(index, target, table, names, state, basis)
    return _full_scan(index, target, table, state, basis, progress)


def _follow(
    index: PartIndex, target: ScanTarget, table: DiskTable, names: set[str], state: Fingerprint, basis: Basis
) -> DiskTable:
    if not names and table.row.state == state:
        return table
    change = compared(index, table, target, basis, index.known_among(table, names), names)
    change.broken = sorted(change.broken + [one for one in table.row.broken if one[0] not in names])
    if target.disk.state_of(target.directory) != state:  # a bucket, to which others commit meanwhile
        raise OvertakenError
    if change.is_empty() and tuple(change.broken) == table.row.broken and table.row.state == state:
        return table
    return index.follow(table, change, state, names)


def _full_scan(
    index: PartIndex, target: ScanTarget, table: DiskTable, state: Fingerprint | None, basis: Basis, progress: Progress
) -> DiskTable:
    disk, full_name = target.disk, target.definition.full_name
    names = sorted(disk.directories(target.directory))
    if len(names) <= AT_ONCE:
        return index.finish(table, compared(index, table, target, basis, index.known(table), None), state, basis)
    whole = IndexChange()
    with progress.task(f"reading what the parts of {full_name} on {disk.name} say", items=len(names)) as task:
        for batch, *limits in _batches(names):
            change = compared(index, table, target, basis, index.known(table, *limits), batch)
            whole.parts, whole.check = whole.parts + change.parts, whole.check + change.check
            whole.broken = whole.broken + change.broken
            if not change.is_empty():
                index.put(table, change)
            task.advance(items=len(batch))
    return index.finish(table, whole, state, basis)


def _batches(names: Sequence[str]) -> Iterator[tuple[Sequence[str], str, str]]:
    """Some names at a time, and the range of names up to the next ones: together all that there can be."""
    low = ""
    for start in range(0, len(names), AT_ONCE):
        following = names[start + AT_ONCE : start + AT_ONCE + 1]
        high = following[0] if following else "\U0010ffff"
        yield names[start : start + AT_ONCE], low, high
        low = high


def compared(
    index: PartIndex,
    table: DiskTable,
    target: ScanTarget,
    basis: Basis,
    known_parts: Mapping[str, KnownPart],
    among: Sequence[str] | set[str] | None,
) -> IndexChange:
    """What the disk has at these names, or at all, against the parts known there."""
    start, end = f"{target.directory}/", f"/{PART_FILE}"
    fingerprints = {
        f"{start}{name}{end}": one.fingerprint for name, one in known_parts.items() if one.fingerprint != UNSETTLED
    }
    arguments = () if among is None else (among,)
    files = target.disk.look_over(target.directory, PART_FILE, fingerprints, *arguments)
    change, seen = IndexChange([], [], {}, []), set[str]()
    names = [file.path[len(start) : -len(end)] for file in files]
    kept = _kept_documents(index, known_parts, zip(names, files, strict=True), basis)
    other = index.facts_among(table, [name for name, one in known_parts.items() if one.rules != basis[1]])
    for name, file in zip(names, files, strict=True):
        before = known_parts.get(name)
        fingerprint = UNSETTLED if file.fingerprint is None else file.fingerprint
        data = kept.get(before.document) if before is not None and kept else None
        is_same = before is not None and before.revision == file.revision and before.columns == basis[0]
        if before is not None and is_same and (file.data is None or file.data == data):
            crc32 = before.crc32
            if fingerprint != before.fingerprint:
                change.fingerprints[name] = fingerprint
            if before.rules != basis[1]:
                if (facts := other.get(name)) is None:
                    raise OvertakenError
                later = _with_times(target, facts, decoded_facts(facts.facts), basis)
                change.times.append((facts, later))
                crc32 = later.crc32(before.state)
            change.parts, change.check = change.parts + 1, change.check + crc32
            seen.add(name)
            continue
        try:
            if file.data is not None:
                data = file.data
            elif data is None:
                data = target.disk.read(file.path)
            part = _decoded(target, file, data)
        except FrostlineError as error:
            change.broken.append((name, error.message))
            continue
        new = AddedPart(_facts(target, part, data, file.revision, basis), fingerprint, part.partition_values, data)
        change.new.append(new)
        change.parts, change.check = change.parts + 1, change.check + new.facts.crc32(0)
        seen.add(name)
    change.gone = sorted(known_parts.keys() - seen)
    return change


def _kept_documents(
    index: PartIndex, known_parts: Mapping[str, KnownPart], files: Iterable[tuple[str, SmallFile]], basis: Basis
) -> Mapping[DocumentKey, bytes]:
    """The kept `part.json` of the files that were read though they are known, and of those of which more
    has to be known now."""
    columns = basis[0]
    keys = [
        before.document
        for name, file in files
        if (before := known_parts.get(name)) is not None and (file.data is not None or before.columns != columns)
    ]
    return index.documents(keys) if keys else {}


def _decoded(target: ScanTarget, file: SmallFile, data: bytes) -> Part:
    where = f"{target.disk.name}:{file.path}"
    part = part_format.decode(data, path=where)
    if target.path(part.name) != file.path:
        raise Damaged(f"{where} describes another part: {part.name}")
    return part


def _facts(target: ScanTarget, part: Part, data: bytes, revision: int | None, basis: Basis) -> Facts:
    kept = facts_of(part, target.columns)
    columns, rules = basis
    created, crc32 = in_microseconds(part.created), zlib.crc32(data)
    counted = (revision, part.rows, part.size_bytes, created, None, None, None, len(part.replaces))
    facts = Facts(part.name, columns, rules, *counted, crc32, encoded_facts(kept))
    return _with_times(target, facts, kept, basis)


def _with_times(target: ScanTarget, facts: Facts, part: PartFacts, basis: Basis) -> Facts:
    """By the rules of the target."""
    due, told = dues_of(target.definition, part, target.disk.name, target.policy)
    times = [in_microseconds(at) for at in told]
    return facts._replace(
        rules=basis[1],
        due=None if due is None else in_microseconds(due),
        told_first=min(times, default=None),
        told_last=max(times, default=None),
    )


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
