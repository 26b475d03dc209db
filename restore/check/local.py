"""What a disk lists: its files, what does not belong among them (I15), and what a crash left beside them (I14)."""

from __future__ import annotations

from disks.base import Disk
from oplog.errors import Damaged
from oplog.replay import FileRow
from restore.check.findings import Findings, ListedTree, Problem
from tiering.table.places import locate


def listed_tree(disk: Disk, findings: Findings) -> ListedTree:
    """The files as the disk lists them."""
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
    report_leftovers(disk, findings)
    rows = (FileRow(info.path, info.size_bytes, info.sha256 or "", info.key, None, None, 0) for info in files)
    return ListedTree(disk.name, rows, disk.read)


def report_leftovers(disk: Disk, findings: Findings) -> None:
    """What a crash left of the disk on this machine."""
    for leftover in disk.leftovers():
        findings.add(Problem("I14", leftover.what, disk.name, path=str(leftover.path)))
