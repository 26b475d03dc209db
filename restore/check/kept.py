"""The index of parts, compared with a fresh reading of each part (I7). Opens nothing for writing.

Of a part in a bucket the fingerprint has the SHA-256 of its `part.json`; one on a local disk is read.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from disks.base import Disk, Fingerprint, SmallFile
from disks.contracts.bucket_disk import BucketDisk
from disks.kinds import as_disk
from oplog.errors import Damaged, FrostlineError
from restore.check.findings import CheckResult, Findings, Problem
from restore.check.options import CheckOptions
from tiering.catalog.index import audit
from tiering.catalog.index.audit import Audit, AuditedPart
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import UNSETTLED, DiskTable, decoded_facts, encoded_facts
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, facts_of
from tiering.table.paths import locate
from tiering.table.schema import TABLE_FILE


def check_kept(
    disks: Mapping[str, Disk], path: Path, findings: Findings, result: CheckResult, how: CheckOptions
) -> None:
    """Find what the index has and would be believed, and is not what the part says. A repair throws the index away:
    each part is then read again."""
    problems: list[Problem] = []
    try:
        with audit.opened(path) as kept:
            if kept is not None:
                for table in kept.tables():
                    disk = disks.get(table.disk)
                    if disk is not None and disk.broken is None:
                        with suppress(FrostlineError):  # of the disk, whose own check tells
                            problems += [*_problems_of(kept, table, disk, path.name)]
                kept.check_file()
    except Damaged as error:
        problems.append(Problem("I7", error.message, next(iter(disks), "")))
    if problems and how.repair:
        names = ", ".join(sorted({problem.part for problem in problems if problem.part is not None}))
        verb = "would throw away" if how.dry_run else "threw away"
        what = f", which was wrong about {names}" if names else ""
        result.repaired.append(f"{verb} {path.name}{what}: the parts are read again")
    if problems and how.repair and not how.dry_run:
        PartIndex(path).throw_away()
        return
    for problem in problems:
        findings.add(problem)


def _problems_of(kept: Audit, table: DiskTable, disk: Disk, name: str) -> Iterator[Problem]:
    parts = kept.parts(table)
    wrong = [part for part in _believed(table, parts, disk) if _is_wrong(kept, part, table, disk)]
    located = locate(f"{table.directory}/{TABLE_FILE}")
    uuid = located.uuid if located is not None else None
    for part in wrong:
        what = f"{name} keeps something else of this part than its {PART_FILE} says"
        yield Problem("I7", what, disk.name, table=uuid, part=part.facts.name, path=_path(table, part.facts.name))
    if not wrong and not _is_what_the_disk_shows(table, parts, disk):
        what = f"{name} keeps other parts or sums of the table than {disk.name} shows"
        yield Problem("I7", what, disk.name, table=uuid, path=table.directory)


def _believed(table: DiskTable, parts: Mapping[str, AuditedPart], disk: Disk) -> Iterator[AuditedPart]:
    """Those that would be used: their rows have their checksums, and their files the fingerprints that they had, or
    none had one. In a bucket all."""
    intact = {name: part for name, part in parts.items() if part.facts.crc32(part.state) == part.crc32}
    if as_disk(disk, BucketDisk) is not None:
        yield from intact.values()
        return
    for file in disk.look_over(table.directory, PART_FILE, _fingerprints(table, intact)):
        part = intact.get(file.path.split("/")[-2])
        if part is not None and (file.data is None or part.fingerprint == UNSETTLED):
            yield part


def _is_wrong(kept: Audit, part: AuditedPart, table: DiskTable, disk: Disk) -> bool:
    path, data = _path(table, part.facts.name), kept.document(part)
    try:
        if data is None or zlib.crc32(data) != part.facts.data_crc32:
            return False  # nobody uses it: the file is read
        if as_disk(disk, BucketDisk) is not None:
            is_same = part.fingerprint == UNSETTLED or hashlib.sha256(data).hexdigest() == part.fingerprint[-1]
        else:
            is_same = disk.read(path) == data
    except FrostlineError:  # it is going just now, or the check of the disk tells
        return False
    return not (is_same and _are_of(part, data, path))


def _are_of(part: AuditedPart, data: bytes, path: str) -> bool:
    """Whether the facts are those of the `part.json` with these bytes."""
    try:
        columns = decoded_facts(part.facts.facts).columns
        return encoded_facts(facts_of(part_format.decode(data, path=path), columns)) == part.facts.facts
    except FrostlineError:
        return False


def _is_what_the_disk_shows(table: DiskTable, parts: Mapping[str, AuditedPart], disk: Disk) -> bool:
    """False where the index would be believed, or followed by what was committed since, and did not find what is
    there."""
    if not audit.adds_up(table, parts):
        return False
    before = table.row.state
    with disk.steady():
        state = disk.state_of(table.directory)
        if before is None or state is None:
            return True  # the next scan compares each file
        changed = set() if state == before else disk.changed_between(table.directory, before, state)
        if changed is None:
            return True
        files = disk.look_over(table.directory, PART_FILE, _fingerprints(table, parts))
    changed |= {name for name, _ in table.row.broken}
    same = {file.path.split("/")[-2] for file in files if _is_same(parts, file)}
    names = {*(file.path.split("/")[-2] for file in files), *parts}
    return names - same <= changed


def _is_same(parts: Mapping[str, AuditedPart], file: SmallFile) -> bool:
    part = parts.get(file.path.split("/")[-2])
    return part is not None and (file.data is None or _are_of(part, file.data, file.path))


def _fingerprints(table: DiskTable, parts: Mapping[str, AuditedPart]) -> dict[str, Fingerprint]:
    return {_path(table, name): part.fingerprint for name, part in parts.items() if part.fingerprint != UNSETTLED}


def _path(table: DiskTable, name: str) -> str:
    return f"{table.directory}/{name}/{PART_FILE}"
