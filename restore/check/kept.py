"""What this machine keeps of parts, compared with a fresh reading of each (I7). Opens nothing for writing.

Of a part in a bucket the mark has the SHA-256 of its `part.json`; one on a local disk is read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from disks.base import Disk, Mark, SmallFile
from oplog.errors import Damaged, FrostlineError
from restore.check.findings import CheckResult, Findings, Problem
from restore.check.options import CheckOptions
from tiering.journal.kept_parts import UNSETTLED, Kept, KeptParts, PartsPlace, everything, looks
from tiering.policy import part_sums
from tiering.table import kept_facts
from tiering.table.part import PART_FILE
from tiering.table.paths import locate
from tiering.table.schema import TABLE_FILE


def check_kept(
    disks: Mapping[str, Disk], path: Path, findings: Findings, result: CheckResult, how: CheckOptions
) -> None:
    """Find what is kept and would be believed, and is not what the part says. A repair throws all of it away: each part
    is then read again."""
    problems: list[Problem] = []
    try:
        marks: dict[PartsPlace, dict[str, Mark]] = defaultdict(dict)
        for kept in everything(path):
            marks[kept.location][kept.path] = kept.mark
        current = {place: _current(disks[place.disk], place, marks[place]) for place in marks if place.disk in disks}
        wrong = [
            (kept.location, _problem(kept, path.name))
            for kept in everything(path)
            if _is_wrong(kept, disks, current.get(kept.location, frozenset()))
        ]
        problems += [problem for _, problem in wrong]
        told = {place for place, _ in wrong}
        problems += [_problem_of_look(place, path.name) for place in _wrong_looks(disks, path) if place not in told]
    except Damaged as error:
        problems.append(Problem("I7", error.message, next(iter(disks), "")))
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


def _problem(kept: Kept, name: str) -> Problem:
    located = locate(kept.path)
    what = f"{name} keeps something else of this part than its {PART_FILE} says"
    table = located.uuid if located is not None else None
    return Problem("I7", what, kept.location.disk, table=table, part=kept.path.split("/")[-2], path=kept.path)


def _problem_of_look(location: PartsPlace, name: str) -> Problem:
    located = locate(f"{location.directory}/{TABLE_FILE}")
    message = f"{name} keeps other parts or sums of the table than {location.disk} shows"
    return Problem(
        "I7", message, location.disk, table=located.uuid if located is not None else None, path=location.directory
    )


def _wrong_looks(disks: Mapping[str, Disk], path: Path) -> Iterator[PartsPlace]:
    """Those that would be believed, or followed by what was committed since, and did not find what is there."""
    for place, look, kept in looks(path):
        disk = disks.get(place.disk)
        if disk is None or disk.broken is not None:
            continue
        with disk.steady():
            state = disk.state_of(place.directory)
            changed = disk.changed_between(place.directory, look.state, state) if state is not None else None
            if state != look.state and changed is None:
                continue
            found = disk.look_over(place.directory, PART_FILE, {file: mark for file, (mark, _) in kept.items()})
        facts = [kept_facts.decoded(data) for _, data in kept.values()]
        if not part_sums.are_of(look.sums, filter(None, facts)) or any(
            file.split("/")[-2] not in (changed or ()) for file in _differing(place, found, kept)
        ):
            yield place


def _differing(location: PartsPlace, files: Sequence[SmallFile], kept: Mapping[str, tuple[Mark, bytes]]) -> set[str]:
    """The paths of files that are kept and not there, there and not kept, or kept otherwise than they are."""
    same = {
        file.path
        for file in files
        if file.path in kept
        and (
            file.data is None
            or kept_facts.are_of(kept[file.path][1], file.data, location.columns, path=f"{location.disk}:{file.path}")
        )
    }
    return {*(file.path for file in files), *kept} - same


def _current(disk: Disk, location: PartsPlace, marks: Mapping[str, Mark]) -> Collection[str]:
    """The paths of which what is kept would be used: their files have their mark still, or had none. In a bucket
    all."""
    if disk.bucket is not None:
        return marks.keys()
    files = disk.look_over(location.directory, PART_FILE, marks)
    return {file.path for file in files if file.data is None or marks.get(file.path) == UNSETTLED}


def _is_wrong(kept: Kept, disks: Mapping[str, Disk], current: Collection[str]) -> bool:
    if kept.path not in current:  # nobody uses it
        return False
    disk = disks[kept.location.disk]
    try:
        if disk.bucket is not None:
            same = hashlib.sha256(kept.data).hexdigest() == kept.mark[-1]
        else:
            same = disk.read(kept.path) == kept.data
    except FrostlineError:  # it is going just now, or the check of the disk tells
        return False
    return not (same and kept_facts.are_of(kept.facts, kept.data, kept.location.columns, path=kept.path))
