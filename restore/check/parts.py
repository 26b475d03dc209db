"""Checks of tables and parts that need only a tree of files: the same for an SSD and for a bucket (I1, I2, I7, I15).

One pass over a disk's files in path order, one part at a time: memory holds a small record a part.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from restore.check.clickhouse import check_part, is_clickhouse_part
from restore.check.findings import Checked, FileTree, Findings, Problem
from tiering.config.units import counted
from tiering.table import part as part_format
from tiering.table import schema, tombstones
from tiering.table.part import PART_FILE, DataFile, Part, PartName
from tiering.table.paths import directory_of, locate, part_name
from tiering.table.schema import TABLE_FILE, TableDefinition


class PartCopy(NamedTuple):
    """A part directory on a disk, so that sorting brings a part behind those that may cover it."""

    partition: str
    min_block: int
    minus_max_block: int
    minus_level: int
    minus_mutation: int
    disk: str
    readable: bool

    @property
    def name(self) -> PartName:
        return PartName(self.partition, self.min_block, -self.minus_max_block, -self.minus_level, -self.minus_mutation)


def copy_of(name: PartName, disk: str, *, readable: bool = True) -> PartCopy:
    """The record of a part."""
    return PartCopy(name.partition, name.min_block, -name.max_block, -name.level, -name.mutation, disk, readable)


class Survey(msgspec.Struct):
    """All tables and parts found so far, over the disks looked at."""

    definitions: dict[str, dict[str, TableDefinition]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """uuid -> disk -> what that disk's table.json says"""
    copies: dict[str, list[PartCopy]] = msgspec.field(default_factory=lambda: defaultdict(list))
    """uuid -> its part directories"""
    replaces: dict[tuple[str, PartCopy], tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Part directory -> the parts that it names as those it replaces"""
    tombstones: dict[str, dict[str, int]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """uuid -> disk -> the version at which that disk's tombstone says that the table went"""
    holding: dict[str, set[str]] = msgspec.field(default_factory=lambda: defaultdict(set))
    """uuid -> disks with parts of it"""
    held: dict[str, dict[str, tuple[int, int]]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """disk -> uuid -> how many parts of it, and rows in them"""
    unsure: set[str] = msgspec.field(default_factory=set)
    """Tables with a part that cannot be read: how many rows it has nobody knows."""
    damaged_definitions: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """(uuid, disk) whose table.json is there and cannot be read: reported once, as that."""
    digests: dict[str, array[int]] = msgspec.field(default_factory=lambda: defaultdict(partial(array, "Q")))
    """uuid -> the beginnings of the digests of the blocks in all of its parts"""
    schema_versions: dict[str, Counter[int]] = msgspec.field(default_factory=lambda: defaultdict(Counter))
    """uuid -> how many parts have each schema version"""
    set_aside: dict[str, None] = msgspec.field(default_factory=dict)
    """`disk:path` of the directories in `detached/`."""

    def newest(self, uuid: str) -> TableDefinition | None:
        """The definition with the highest version."""
        return max(self.definitions.get(uuid, {}).values(), key=lambda definition: definition.version, default=None)

    def without_nested_ids(self) -> int:
        """How many parts have nested columns and are older than the ids of their fields."""
        return sum(
            count
            for uuid, versions in self.schema_versions.items()
            if (definition := self.newest(uuid)) is not None
            for version, count in versions.items()
            if not definition.files_have_nested_ids(version)
        )

    def is_dropped(self, uuid: str) -> bool:
        """Whether a tombstone is the newest that any disk says of the table; void is one beside a `table.json`."""
        newest, defining = self.newest(uuid), self.definitions.get(uuid, {})
        versions = [version for disk, version in self.tombstones.get(uuid, {}).items() if disk not in defining]
        return bool(versions) and (newest is None or max(versions) >= newest.version)

    def table_name(self, uuid: str) -> str:
        """`db.name`, or the uuid of a table that no disk defines."""
        definition = self.newest(uuid)
        return definition.full_name if definition else uuid


class PartDirectory(msgspec.Struct):
    """One part directory. `uuid` and `name` are None for files outside of parts, each of which comes alone."""

    uuid: str | None
    name: PartName | None
    files: dict[str, FileRow]
    """By name below the directory."""


def directories(rows: Iterator[FileRow]) -> Iterator[PartDirectory]:
    """Files in path order, those of a part together."""
    prefix, table, uuid = "", "", ""
    current: PartDirectory | None = None
    for row in rows:
        path = row.path
        if current is not None:
            if path.startswith(prefix):
                current.files[path[len(prefix) :]] = row
                continue
            yield current
            current = None
        if not table or not path.startswith(table):
            place = locate(path)
            uuid = place.uuid if place is not None else ""
            table = directory_of(uuid, "") if place is not None else ""
        directory, slash, file = path[len(table) :].partition("/")
        name = part_name(directory) if table and slash else None
        if name is None:
            yield PartDirectory(None, None, {path: row})
            continue
        prefix = f"{table}{directory}/"
        current = PartDirectory(uuid, name, {file: row})
    if current is not None:
        yield current


def survey(tree: FileTree, survey: Survey, findings: Findings, checked: Checked) -> None:
    """Read every `table.json` and `part.json` of a disk and compare the parts with the files that are there."""
    for directory in directories(tree.sweep(findings)):
        checked.files += len(directory.files)
        for row in directory.files.values():
            checked.bytes += row.size_bytes
        if directory.uuid is not None and directory.name is not None:
            checked.parts += 1
            if is_clickhouse_part(directory.files):
                check_part(tree, findings, directory.uuid, str(directory.name), directory.files)
                continue
            _survey_part(tree, survey, findings, directory.uuid, directory.name, directory.files)
            continue
        (row,) = directory.files.values()
        if (dropped := tombstones.uuid_of(row.path)) is not None:
            _read_tombstone(tree, survey, findings, dropped, row)
            continue
        located = locate(row.path)
        if located is not None and located.part is None and located.file == TABLE_FILE:
            _read_definition(tree, survey, findings, located.uuid, row)
        elif located is not None and located.part == DETACHED_DIRECTORY and "/" in located.file:
            aside = directory_of(located.uuid, f"{DETACHED_DIRECTORY}/{located.file.partition('/')[0]}")
            survey.set_aside.setdefault(f"{tree.disk}:{aside}")
        elif located is not None and located.part is not None and located.file == PART_FILE:
            message = f"{located.part!r} is no name of a part: queries omit its rows; move the directory away"
            findings.add(Problem("I15", message, tree.disk, table=located.uuid, path=row.path, object=row.key))


def _read_definition(tree: FileTree, survey: Survey, findings: Findings, uuid: str, row: FileRow) -> None:
    try:
        definition = schema.decode(tree.content(row), path=f"{tree.disk}:{row.path}")
        if definition.uuid != uuid:
            raise Damaged(f"{tree.disk}:{row.path} describes table {definition.uuid}")
    except (Damaged, NotFound) as error:
        survey.damaged_definitions.add((uuid, tree.disk))
        findings.add(Problem("I15", error.message, tree.disk, table=uuid, path=row.path, object=row.key))
        return
    survey.definitions[uuid][tree.disk] = definition


def _read_tombstone(tree: FileTree, survey: Survey, findings: Findings, uuid: str, row: FileRow) -> None:
    try:
        tombstone = tombstones.decode(tree.content(row), path=f"{tree.disk}:{row.path}")
    except (Damaged, NotFound) as error:
        findings.add(Problem("I15", error.message, tree.disk, table=uuid, path=row.path, object=row.key))
        return
    survey.tombstones[uuid][tree.disk] = tombstone.version


def _survey_part(
    tree: FileTree, survey: Survey, findings: Findings, uuid: str, name: PartName, files: Mapping[str, FileRow]
) -> None:
    part = _read_part(tree, findings, uuid, str(name), files)
    copy = copy_of(name, tree.disk, readable=part is not None)
    survey.copies[uuid].append(copy)
    if part is None:
        survey.unsure.add(uuid)
    parts, rows = survey.held[tree.disk].get(uuid, (0, 0))
    survey.held[tree.disk][uuid] = parts + 1, rows + (part.rows if part is not None else 0)
    if part is not None:
        survey.schema_versions[uuid][part.schema_version] += 1
        survey.digests[uuid].extend(int(digest[:16], 16) for digest in part.digests)
    if part is not None and part.replaces:
        survey.replaces[uuid, copy] = part.replaces
    survey.holding[uuid].add(tree.disk)
    if part is not None:
        _compare_files(tree.disk, findings, part, files)


def _read_part(tree: FileTree, findings: Findings, uuid: str, name: str, files: Mapping[str, FileRow]) -> Part | None:
    """The part's `part.json`, if it is there, readable and about this part."""
    row = files.get(PART_FILE)
    if row is None:
        what = f"part directory without {PART_FILE}: its files belong to no complete part"
        problem = Problem("I2", what, tree.disk, table=uuid, part=name, path=directory_of(uuid, name))
        findings.add(problem, unusable="incomplete")
        return None
    try:
        return read_part(tree, row, uuid, name)
    except (Damaged, NotFound) as error:
        problem = Problem("I15", error.message, tree.disk, table=uuid, part=name, path=row.path, object=row.key)
        findings.add(problem, unusable="broken")
        return None


def read_part(tree: FileTree, row: FileRow, uuid: str, name: str) -> Part:
    """The part of a `part.json`. Raises `Damaged`, `NotFound`."""
    where = f"{tree.disk}:{row.path}"
    part = part_format.decode(tree.content(row), path=where)
    if part.name != name or part.table != uuid:
        raise Damaged(f"{where} describes part {part.name} of table {part.table}")
    return part


def present_files(part: Part, files: Mapping[str, FileRow]) -> Iterator[tuple[FileRow, DataFile]]:
    """The data files of a part that are there with the size and, where the disk knows it, the digest of part.json."""
    for wanted in part.files:
        row = files.get(wanted.name)
        if row is not None and row.size_bytes == wanted.size_bytes and row.sha256 in ("", wanted.sha256):
            yield row, wanted


def _compare_files(disk: str, findings: Findings, part: Part, files: Mapping[str, FileRow]) -> None:
    """Compare names, sizes and digests that the disk knows with `part.json`."""
    size_bytes = rows = 0
    for wanted in part.files:
        size_bytes += wanted.size_bytes
        rows += wanted.rows
        row = files.get(wanted.name)
        if row is None:
            what, reason = f"file {wanted.name} of part {part.name} is missing", "missing"
        elif row.size_bytes != wanted.size_bytes:
            what, reason = f"file has {row.size_bytes} bytes and {PART_FILE} says {wanted.size_bytes}", "altered"
        elif row.sha256 not in ("", wanted.sha256):
            what, reason = f"the file table's SHA-256 is not that of {PART_FILE}", "altered"
        else:
            continue
        _add(disk, findings, part, wanted.name, what, row, reason)
    if len(files) != len(part.files) + 1:
        listed = {wanted.name for wanted in part.files} | {PART_FILE}
        for name in sorted(set(files) - listed):
            _add(disk, findings, part, name, f"file is not listed in {PART_FILE}", files[name], None)
    if size_bytes != part.size_bytes:
        what = f"{PART_FILE} says {part.size_bytes} bytes and its files sum up to another size"
        _add(disk, findings, part, PART_FILE, what, None, None)
    if rows != part.rows:
        what = f"{PART_FILE} says {counted(part.rows, 'row')} and its files sum up to another count"
        _add(disk, findings, part, PART_FILE, what, None, None)


def _add(
    disk: str, findings: Findings, part: Part, file: str, message: str, row: FileRow | None, unusable: str | None
) -> None:
    path = f"{directory_of(part.table, part.name)}/{file}"
    key = row.key if row is not None else None
    problem = Problem("I1", message, disk, table=part.table, part=part.name, path=path, object=key)
    findings.add(problem, unusable=unusable)


def disks_lacking_definition(survey: Survey, policies: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """uuid -> disks that must hold the table's newest `table.json` and do not: its policy's and those with parts. None
    of a table that was dropped: what a disk still has of it is hidden.

    Disks whose file is there but damaged are left out: they were reported, and a repair must not hide the evidence.
    """
    result: dict[str, list[str]] = {}
    for uuid in sorted({*survey.definitions, *survey.holding}):
        if survey.is_dropped(uuid):
            continue
        newest = survey.newest(uuid)
        needed = set(survey.holding.get(uuid, ()))
        if newest is not None:
            needed.update(policies.get(newest.policy, ()))
        lacking = []
        for disk in sorted(needed):
            there = survey.definitions.get(uuid, {}).get(disk)
            current = there is not None and newest is not None and there.version == newest.version
            if not current and (uuid, disk) not in survey.damaged_definitions:
                lacking.append(disk)
        if lacking:
            result[uuid] = lacking
    return result
