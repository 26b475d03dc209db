"""What this machine keeps of parts, compared with a fresh reading of each (I7). Opens nothing for writing.

Of a part in a bucket the mark has the SHA-256 of its `part.json`; one on a local disk is read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from disks.base import Disk, Mark
from oplog.errors import FrostlineError, NotFound
from restore.check.findings import CheckResult, Findings, Problem
from restore.check.options import CheckOptions
from tiering.catalog.stored_parts import facts_are_of
from tiering.journal.kept_parts import Kept, KeptParts, Place, everything
from tiering.table.part import PART_FILE
from tiering.table.places import locate


def check_kept(
    disks: Mapping[str, Disk], path: Path, findings: Findings, result: CheckResult, how: CheckOptions
) -> None:
    """Find what is kept and would be believed, and is not what the part says. A repair throws all of it away: each part
    is then read again."""
    kept, trouble = everything(path)
    problems = [Problem("I7", f"{path.name} cannot be read: {trouble}", next(iter(disks), ""))] if trouble else []
    by_place: dict[Place, list[Kept]] = defaultdict(list)
    for one in kept:
        by_place[one.place].append(one)
    for place, rows in by_place.items():
        if (disk := disks.get(place.disk)) is not None:
            problems += _wrong(disk, place, rows, path.name)
    if problems and how.repair:
        names = ", ".join(sorted({problem.part for problem in problems if problem.part is not None}))
        verb = "would throw away" if how.dry_run else "threw away"
        what = f", which was wrong about {names}" if names else ""
        result.repaired.append(f"{verb} {path.name}{what}: the parts are read again")
    if problems and how.repair and not how.dry_run:
        KeptParts(path).throw_away()
        return
    for problem in problems:
        findings.add(problem)


def _wrong(disk: Disk, place: Place, rows: Iterable[Kept], name: str) -> Iterable[Problem]:
    current = _read_anew(disk, place, {one.path: one.mark for one in rows})
    for one in rows:
        located = locate(one.path)
        if one.path not in current or located is None:  # nobody uses it
            continue
        fresh = current[one.path]
        same = hashlib.sha256(one.data).hexdigest() == fresh if isinstance(fresh, str) else one.data == fresh
        if not same or not facts_are_of(one.facts, one.data, place, path=one.path):
            what = f"{name} keeps something else of this part than its {PART_FILE} says"
            yield Problem("I7", what, disk.name, table=located.uuid, part=one.path.split("/")[-2], path=one.path)


def _read_anew(disk: Disk, place: Place, marks: Mapping[str, Mark]) -> dict[str, bytes | str]:
    """The bytes, or their SHA-256, of the files that have their mark still."""
    if disk.bucket is not None:
        return {path: str(mark[1]) for path, mark in marks.items() if len(mark) == 2}
    found: dict[str, bytes | str] = {}
    try:
        for file in disk.look_over(place.directory, PART_FILE, marks):
            if file.data is None:
                found[file.path] = disk.read(file.path)
    except (NotFound, FrostlineError):  # it is going just now, or the check of the disk itself tells
        return found
    return found
