"""fsck: every invariant that can be checked at rest, over all disks of a store. Reads only, unless told to repair.

Quick: what the disks say about themselves, compared with what is there (one listing a bucket). With `read_data` every
byte of the parts is read and hashed as well. What cannot be read is a finding with its path; a store that cannot be
reached or refuses us is an error, for then nothing was checked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disks.base import Disk, FileInfo
from disks.local import OWN_DIRECTORY, LocalDisk
from disks.object_disk import ObjectDisk
from disks.stores.base import ByteRange
from oplog.errors import Damaged, UsageError
from restore.check_bucket import check_bucket
from restore.check_data import read_data as check_data
from restore.check_parts import Survey, check_copies, disks_lacking_definition, survey_parts, survey_tables
from restore.findings import CheckResult, FileTree, Findings, Problem, locate
from tiering.schema import TABLE_FILE, encode

__all__ = ["CheckResult", "Problem", "check"]


@dataclass(frozen=True, slots=True)
class _DiskTree:
    """The files of a disk that keeps no log."""

    source: Disk
    files: Mapping[str, FileInfo]

    @property
    def disk(self) -> str:
        return self.source.name

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        return self.source.read(path, byte_range)


def check(
    disks: Mapping[str, Disk],
    *,
    read_data: bool = False,
    subset: float | None = None,
    repair: bool = False,
    moving: Collection[tuple[str, str]] = (),
    policies: Mapping[str, Sequence[str]] | None = None,
    workers: int = 8,
    seed: int | None = None,
) -> CheckResult:
    """Check the disks as one store.

    `subset` (0 to 1) reads that share of the data files, drawn anew each time. `moving` names (table uuid, part) that a
    journal says are under way, so that two copies are no fault. `policies` maps a policy to its disks: each must hold
    `table.json`. `repair` puts right what can be derived again (a bucket's cache, a missing or old `table.json`) and
    nothing else.
    """
    if subset is not None and not 0 < subset <= 1:
        raise UsageError(f"a share of the data between 0 and 1, not {subset}", hint="such as 5%")
    result, findings, found = CheckResult(), Findings(), Survey()
    trees = [_tree(disk, findings, result, repair=repair) for disk in disks.values()]
    for tree in trees:
        survey_tables(tree, found, findings)
    expected = {tree.disk: survey_parts(tree, found, findings, result.checked) for tree in trees}
    check_copies(found, findings, moving=moving)
    _check_definitions(disks, trees, found, findings, policies or {}, repaired=result.repaired if repair else None)
    if read_data or subset is not None:
        for tree in trees:
            data = expected[tree.disk]
            result.checked.bytes_read += check_data(
                tree, data, found, findings, share=subset, workers=workers, seed=seed
            )
    result.problems = [_with_table_name(problem, found) for problem in findings.sorted()]
    return result


def _with_table_name(problem: Problem, found: Survey) -> Problem:
    return replace(problem, table=found.table_name(problem.table)) if problem.table else problem


def _tree(disk: Disk, findings: Findings, result: CheckResult, *, repair: bool) -> FileTree:
    if isinstance(disk, ObjectDisk):
        _check_leftovers(disk.name, disk.state_path / "scratch", findings)
        return check_bucket(disk, findings, result.checked, repair=repair, repaired=result.repaired)
    if isinstance(disk, LocalDisk):
        return _local_tree(disk, findings)
    return _DiskTree(disk, {info.path: info for info in disk.walk()})


def _local_tree(disk: LocalDisk, findings: Findings) -> FileTree:
    try:
        files, strange = disk.inspect()
    except Damaged as error:
        findings.add(Problem("I15", error.message, disk.name))
        return _DiskTree(disk, {})
    for path in strange:
        place = locate(path)
        table, part = (place.uuid, place.part) if place else (None, None)
        what = "neither a file nor a directory: links, devices and pipes do not belong on a disk"
        findings.add(Problem("I15", what, disk.name, table, part, path))
    own = disk.root / OWN_DIRECTORY
    _check_leftovers(disk.name, own / "staging", findings)
    for name in ("committed", "trash"):
        for leftover in sorted((own / name).iterdir()) if (own / name).is_dir() else ():
            what = f"leftover of a crash in {name}: recovery removes it"
            findings.add(Problem("I14", what, disk.name, path=str(leftover)))
    return _DiskTree(disk, {info.path: info for info in files})


def _check_leftovers(disk: str, parent: Path, findings: Findings) -> None:
    """Directories of transactions whose process is gone."""
    if not parent.is_dir():
        return
    for path in sorted(parent.iterdir()):
        if path.is_dir() and not _is_owned(path.with_name(f"{path.name}.owner")):
            what = "leftover of a transaction that never ended: recovery removes it"
            findings.add(Problem("I14", what, disk, path=str(path)))


def _is_owned(owner: Path) -> bool:
    """Whether a living process holds the lock of this file."""
    try:
        descriptor = os.open(owner, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _check_definitions(
    disks: Mapping[str, Disk],
    trees: Sequence[FileTree],
    found: Survey,
    findings: Findings,
    policies: Mapping[str, Sequence[str]],
    *,
    repaired: list[str] | None,
) -> None:
    """Every disk of a table's policy, and every disk with parts of it, holds its newest `table.json`."""
    files = {tree.disk: tree.files for tree in trees}
    for uuid, lacking in disks_lacking_definition(found, policies).items():
        newest = found.newest(uuid)
        path = f"store/{uuid[:3]}/{uuid}/{TABLE_FILE}"
        for name in (name for name in lacking if name in disks):
            there = path in files[name]
            what = f"{TABLE_FILE} is {'older than on another disk' if there else 'missing'}"
            if newest is None or repaired is None or disks[name].read_only:
                findings.add(Problem("I7", what, name, table=uuid, path=path))
                continue
            with disks[name].transaction("repair", reason=f"fsck: {what}") as transaction:
                if there:
                    transaction.remove(path)
                transaction.create(path, encode(newest))
                transaction.commit()
            repaired.append(f"disk {name}: wrote {path} of {newest.full_name} again ({what})")
