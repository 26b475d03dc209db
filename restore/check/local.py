"""What only a local disk can have: leftovers of a crash, and things in its tree that are no files (I14, I15)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from disks.local.disk import LocalDisk
from disks.local.tree import OWN_DIRECTORY
from oplog.errors import Damaged
from oplog.replay import FileRow
from restore.check.findings import Findings, ListedTree, Problem
from tiering.table.places import locate


def local_tree(disk: LocalDisk, findings: Findings) -> ListedTree:
    """The files of a local disk."""
    try:
        files, strange = disk.inspect()
    except Damaged as error:
        findings.add(Problem("I15", error.message, disk.name))
        return ListedTree(disk.name, (), disk.read)
    for path in strange:
        place = locate(path)
        table, part = (place.uuid, place.part) if place else (None, None)
        what = "neither a file nor a directory: links, devices and pipes do not belong on a disk"
        findings.add(Problem("I15", what, disk.name, table, part, path))
    own = disk.root / OWN_DIRECTORY
    check_leftovers(disk.name, own / "staging", findings)
    for name in ("committed", "trash"):
        for leftover in sorted((own / name).iterdir()) if (own / name).is_dir() else ():
            what = f"leftover of a crash in {name}: recovery removes it"
            findings.add(Problem("I14", what, disk.name, path=str(leftover)))
    rows = (FileRow(info.path, info.size_bytes, "", None, None, None, 0) for info in files)
    return ListedTree(disk.name, rows, disk.read)


def check_leftovers(disk: str, parent: Path, findings: Findings) -> None:
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
