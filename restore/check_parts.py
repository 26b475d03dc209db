"""Checks of tables and parts that need only a tree of files: the same for an SSD and for a bucket (I1, I2, I7, I15)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from disks.base import FileInfo
from oplog.errors import Damaged, NotFound
from restore.findings import Checked, FileTree, Findings, Problem, is_part_name, locate
from tiering import part as part_format
from tiering import schema
from tiering.part import PART_FILE, DataFile, Part, PartName
from tiering.schema import TABLE_FILE, TableDefinition


@dataclass(frozen=True, slots=True)
class PartCopy:
    """One part directory on one disk; `part` is None when its `part.json` cannot be read."""

    disk: str
    uuid: str
    name: str
    part: Part | None


@dataclass(slots=True)
class Survey:
    """All tables and parts found so far, over the disks looked at."""

    definitions: dict[str, dict[str, TableDefinition]] = field(default_factory=lambda: defaultdict(dict))
    """uuid -> disk -> what that disk's table.json says"""
    copies: list[PartCopy] = field(default_factory=list)
    damaged_definitions: set[tuple[str, str]] = field(default_factory=set)
    """(uuid, disk) whose table.json is there and cannot be read: reported once, as that."""

    def newest(self, uuid: str) -> TableDefinition | None:
        """The definition with the highest version."""
        return max(self.definitions.get(uuid, {}).values(), key=lambda definition: definition.version, default=None)

    def table_name(self, uuid: str) -> str:
        """`db.name`, or the uuid of a table that no disk defines."""
        definition = self.newest(uuid)
        return definition.full_name if definition else uuid


def survey_tables(tree: FileTree, found: Survey, findings: Findings) -> None:
    """Read every `table.json` of a disk. For all disks before any `survey_parts`: problems then name their tables."""
    for path in sorted(tree.files):
        place = locate(path)
        if place is not None and place.part is None and place.file == TABLE_FILE:
            _read_definition(tree, found, findings, place.uuid, path)


def survey_parts(tree: FileTree, found: Survey, findings: Findings, checked: Checked) -> dict[str, DataFile]:
    """Read every `part.json` of a disk and compare it with the files that are there.

    Returns what `part.json` says of each data file that is present, by path: what reading the data has to confirm.
    """
    directories = _part_directories(tree)
    expected: dict[str, DataFile] = {}
    for (uuid, name), files in sorted(directories.items()):
        checked.parts += 1
        copy = PartCopy(tree.disk, uuid, name, _read_part(tree, found, findings, uuid, name, files))
        found.copies.append(copy)
        if copy.part is not None:
            expected.update(_compare_files(tree.disk, found, findings, copy.part, files))
    checked.files += len(tree.files)
    checked.bytes += sum(info.size_bytes for info in tree.files.values())
    return expected


def _part_directories(tree: FileTree) -> dict[tuple[str, str], dict[str, FileInfo]]:
    """(uuid, part) -> file name -> file."""
    directories: dict[tuple[str, str], dict[str, FileInfo]] = defaultdict(dict)
    for path in sorted(tree.files):
        place = locate(path)
        if place is not None and place.part is not None and is_part_name(place.part):
            directories[place.uuid, place.part][place.file] = tree.files[path]
    return directories


def _read_definition(tree: FileTree, found: Survey, findings: Findings, uuid: str, path: str) -> None:
    try:
        definition = schema.decode(tree.read(path), path=f"{tree.disk}:{path}")
        if definition.uuid != uuid:
            raise Damaged(f"{tree.disk}:{path} describes table {definition.uuid}")
    except (Damaged, NotFound) as error:
        found.damaged_definitions.add((uuid, tree.disk))
        findings.add(Problem("I15", error.message, tree.disk, table=uuid, path=path, object=tree.files[path].key))
        return
    found.definitions[uuid][tree.disk] = definition


def _read_part(
    tree: FileTree, found: Survey, findings: Findings, uuid: str, name: str, files: Mapping[str, FileInfo]
) -> Part | None:
    """The part's `part.json`, if it is there, readable and about this part."""
    directory = f"store/{uuid[:3]}/{uuid}/{name}"
    path = f"{directory}/{PART_FILE}"
    table = found.table_name(uuid)
    if PART_FILE not in files:
        what = f"part directory without {PART_FILE}: its files belong to no complete part"
        findings.add(Problem("I2", what, tree.disk, table=table, part=name, path=directory))
        return None
    try:
        part = part_format.decode(tree.read(path), path=f"{tree.disk}:{path}")
        if (part.name, part.table) != (name, uuid):
            raise Damaged(f"{tree.disk}:{path} describes part {part.name} of table {part.table}")
    except (Damaged, NotFound) as error:
        key = files[PART_FILE].key
        findings.add(Problem("I15", error.message, tree.disk, table=table, part=name, path=path, object=key))
        return None
    return part


def _compare_files(
    disk: str, found: Survey, findings: Findings, part: Part, files: Mapping[str, FileInfo]
) -> dict[str, DataFile]:
    """Compare names, sizes and digests that the disk knows with `part.json`. Returns those present with their size."""
    table = found.table_name(part.table)
    directory = f"store/{part.table[:3]}/{part.table}/{part.name}"

    def problem(what: str, name: str, key: str | None = None) -> None:
        findings.add(Problem("I1", what, disk, table=table, part=part.name, path=f"{directory}/{name}", object=key))

    present: dict[str, DataFile] = {}
    for wanted in part.files:
        info = files.get(wanted.name)
        if info is None:
            problem(f"file {wanted.name} of part {part.name} is missing", wanted.name)
        elif info.size_bytes != wanted.size_bytes:
            what = f"file has {info.size_bytes} bytes and {PART_FILE} says {wanted.size_bytes}"
            problem(what, wanted.name, info.key)
        elif info.sha256 is not None and info.sha256 != wanted.sha256:
            what = f"the file table's SHA-256 is not that of {PART_FILE}"
            problem(what, wanted.name, info.key)
        else:
            present[f"{directory}/{wanted.name}"] = wanted
    listed = {wanted.name for wanted in part.files} | {PART_FILE}
    for name in sorted(set(files) - listed):
        problem(f"file is not listed in {PART_FILE}", name, files[name].key)
    if sum(wanted.size_bytes for wanted in part.files) != part.size_bytes:
        problem(f"{PART_FILE} says {part.size_bytes} bytes and its files sum up to another size", PART_FILE)
    if sum(wanted.rows for wanted in part.files) != part.rows:
        problem(f"{PART_FILE} says {part.rows} rows and its files sum up to another count", PART_FILE)
    return present


def check_copies(found: Survey, findings: Findings, *, moving: Collection[tuple[str, str]] = ()) -> None:
    """No part on two disks unless it is being moved (I1), and no two active parts of a table that overlap (I2)."""
    tables: dict[str, dict[PartName, list[str]]] = defaultdict(lambda: defaultdict(list))
    for copy in found.copies:
        tables[copy.uuid][PartName.parse(copy.name)].append(copy.disk)
    under_way = set(moving)
    for uuid, parts in tables.items():
        table = found.table_name(uuid)
        for name, disks in parts.items():
            if len(disks) > 1 and (uuid, str(name)) not in under_way:
                what = f"part {name} is on {' and '.join(disks)}, and no move is under way"
                findings.add(Problem("I1", what, disks[0], table=table, part=str(name)))
        _check_covered(uuid, table, found, findings)
        for one, other in overlaps(part_format.active(list(parts))):
            what = f"active parts {one} and {other} overlap: their rows would count twice"
            findings.add(Problem("I2", what, parts[other][0], table=table, part=str(other)))


def _check_covered(uuid: str, table: str, found: Survey, findings: Findings) -> None:
    """No part is hidden by one that was not made from it: its rows would be in no answer (I1)."""
    copies = {PartName.parse(copy.name): copy for copy in found.copies if copy.uuid == uuid and copy.part is not None}
    active = part_format.active(list(copies))
    definition = found.newest(uuid)
    window = definition.settings.deduplication_window if definition is not None else 0
    for name in sorted(set(copies) - active):
        cover = next((other for other in sorted(active) if other.covers(name)), None)
        hidden, hiding = copies[name].part, copies[cover].part if cover is not None else None
        if hidden is None or hiding is None or hiding.may_hold(hidden, window=window):
            continue
        what = f"part {name} is hidden by {cover}, which was not made from it: its rows are in no answer"
        findings.add(Problem("I1", what, copies[name].disk, table=table, part=str(name)))


def overlaps(active: Iterable[PartName]) -> list[tuple[PartName, PartName]]:
    """Pairs of active parts with common blocks; each part is paired with the one that reaches furthest before it."""
    result = []
    furthest: PartName | None = None
    for name in sorted(active):
        if furthest is None or furthest.partition != name.partition:
            furthest = name
            continue
        if name.min_block <= furthest.max_block:
            result.append((furthest, name))
        if name.max_block > furthest.max_block:
            furthest = name
    return result


def disks_lacking_definition(found: Survey, policies: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """uuid -> disks that must hold the table's newest `table.json` and do not: its policy's and those with parts.

    Disks whose file is there but damaged are left out: they were reported, and a repair must not hide the evidence.
    """
    holding: dict[str, set[str]] = defaultdict(set)
    for copy in found.copies:
        holding[copy.uuid].add(copy.disk)
    result: dict[str, list[str]] = {}
    for uuid in sorted({*found.definitions, *holding}):
        newest = found.newest(uuid)
        needed = set(holding[uuid])
        if newest is not None:
            needed.update(policies.get(newest.policy, ()))
        lacking = []
        for disk in sorted(needed):
            there = found.definitions.get(uuid, {}).get(disk)
            current = there is not None and newest is not None and there.version == newest.version
            if not current and (uuid, disk) not in found.damaged_definitions:
                lacking.append(disk)
        if lacking:
            result[uuid] = lacking
    return result
