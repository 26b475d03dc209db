"""The lists of a backup's tree: one a table, and one a partition of it. Equal lists are one object, whichever backups
name them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Any, Literal

import msgspec

from backup.format import encoding
from backup.format.names import (
    LARGEST_OBJECT_BYTES,
    PLAIN_FORMAT,
    Nonce,
    Ref,
    Sha256,
    is_nonce,
    is_ref,
    is_sha256,
)
from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged, FrostlineError, UsageError
from oplog.paths import is_safe
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.table import schema
from tiering.table.part import PART_FILE, PartName
from tiering.table.schema import TableDefinition

_LAST_RANGE = bounds.LARGEST_COUNT // 1_000_000
"""A range has a million block numbers."""


class InBlob(msgspec.Struct, frozen=True, array_like=True, tag="blob"):
    """The file is an object of its own, named by the file's digest and this nonce."""

    nonce: Nonce


class InPack(msgspec.Struct, frozen=True, array_like=True, tag="pack"):
    """The file is a stretch of a pack, by its place in the list's `packs`; `compressed` with zstd or as it is."""

    pack: int
    offset: int
    length: int
    compressed: bool


class InBucket(msgspec.Struct, frozen=True, array_like=True, tag="disk"):
    """The file stayed where it is: an object in the bucket of a disk, kept there by the backup's pin."""

    disk: str
    key: str


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """One file: what it is, and where its bytes are."""

    name: str
    size_bytes: int
    sha256: Sha256
    at: InBlob | InPack | InBucket


class PartEntry(msgspec.Struct, frozen=True, array_like=True):
    """One part, and the disk that it lay on."""

    name: str
    disk: str
    rows: int
    files: Annotated[tuple[FileEntry, ...], msgspec.Meta(min_length=1)]

    @property
    def size_bytes(self) -> int:
        """Of its data files."""
        return sum(file.size_bytes for file in self.files if file.name != PART_FILE)


class PartitionList(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one partition, by name."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    partition: str
    packs: tuple[Ref, ...] = ()
    parts: tuple[PartEntry, ...] = ()


class PartitionEntry(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a table: its list, and what is in it."""

    partition: str
    list: Ref
    parts: int
    rows: int
    files: int
    size_bytes: int


class TreeList(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a directory that ClickHouse wrote: of each part with its projections, and those beside the parts,
    whose part is "". A file's name is its path in the directory."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    directory: str
    packs: tuple[Ref, ...] = ()
    parts: tuple[PartEntry, ...] = ()
    sources: tuple[tuple[Sha256, Sha256, int], ...] = ()
    """Of files whose digest the disk does not know: the digest of the names of their objects, which are never used
    again, then that of the content, and its size. So the next backup does not read them."""

    @property
    def partition(self) -> str:
        return ""


FileList = PartitionList | TreeList


class BlockRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of block numbers, and who took it. `own`: the machine that made the backup."""

    index: int
    owner: str
    own: bool


class PinnedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part or partition that somebody pinned to its place."""

    scope: Literal["partition", "part"]
    name: str
    volume: str | None = None
    actor: str = ""


class KeptVolume(VolumeConfig, frozen=True, kw_only=True, forbid_unknown_fields=False, omit_defaults=True):
    """A volume as a backup keeps it: a later version's keys are passed over."""


class KeptPolicy(PolicyConfig, frozen=True, kw_only=True, forbid_unknown_fields=False, omit_defaults=True):
    """A policy as a backup keeps it."""

    volumes: tuple[KeptVolume, ...]

    @classmethod
    def of(cls, policy: PolicyConfig) -> KeptPolicy:
        """The policy of a configuration, all of it."""
        return msgspec.convert(msgspec.to_builtins(policy), cls)


class TableList(msgspec.Struct, frozen=True, kw_only=True):
    """One table: its definition as it was, and its partitions."""

    format: int = PLAIN_FORMAT
    minimum_reader: int = 1
    definition: str
    """The bytes of `table.json`."""
    policy: KeptPolicy | None = None
    """The policy that it followed, so that the tiers can be told apart elsewhere."""
    pins: tuple[PinnedPart, ...] = ()
    pauses: tuple[str, ...] = ()
    """What automatic work has to leave alone."""
    ranges: tuple[BlockRange, ...] = ()
    partitions: tuple[PartitionEntry, ...] = ()

    @property
    def table(self) -> TableDefinition:
        return schema.decode(self.definition.encode(), path="table.json of the backup")


def read_partition(data: bytes, where: str) -> PartitionList:
    """The list. Raises `Damaged` for one that names what no backup would."""
    found = encoding.unpacked_list(data, PartitionList, where)
    _check(all(map(is_ref, found.packs)), where, "a pack")
    _check(len({part.name for part in found.parts}) == len(found.parts), where, "a part twice")
    safe = {name for name in {file.name for part in found.parts for file in part.files} if _is_file_name(name)}
    for part in found.parts:  # of a hundred thousand files: what is wrong is put into words when something is
        if (fault := _fault_in_part(part, found, safe)) is not None:
            _check(False, where, fault)
    return found


def _fault_in_part(part: PartEntry, partition_list: PartitionList, safe: Container[str]) -> str | None:
    if _partition_of(part.name) != partition_list.partition or not _is_count(part.rows):
        return f"the part {part.name!r}"
    names = [file.name for file in part.files]
    if len(set(names)) != len(names) or PART_FILE not in names:
        return f"the files of {part.name}"
    for file in part.files:
        if file.name not in safe or not _is_placed(file, partition_list.packs):
            return f"the file {file.name!r} of {part.name}"
        if file.name == PART_FILE and file.size_bytes > bounds.LARGEST_DOCUMENT_BYTES:  # it is read into memory
            return f"{PART_FILE} of {part.name}"
    return None


def read_tree(data: bytes, where: str) -> TreeList:
    """The list. Raises `Damaged` for one that names what no backup would."""
    found = encoding.unpacked_list(data, TreeList, where)
    _check(is_safe(found.directory), where, "its directory")
    _check(all(map(is_ref, found.packs)), where, "a pack")
    names = [file.name for part in found.parts for file in part.files]
    _check(len(set(names)) == len(names), where, "a file twice")
    for part in found.parts:
        for file in part.files:
            inside = is_safe(file.name) and file.name.startswith(part.name)
            _check(inside and _is_placed(file, found.packs), where, f"the file {file.name!r}")
            _check(not isinstance(file.at, InBucket), where, f"the place of {file.name!r}")
    for source, content, size_bytes in found.sources:
        _check(is_sha256(source) and is_sha256(content) and _is_count(size_bytes), where, "a source")
    return found


def read_table(data: bytes, where: str) -> TableList:
    """The list. Raises `Damaged` for one that names what no backup would."""
    found = encoding.unpacked_list(data, TableList, where)
    try:
        definition = found.table
        schema.split_table_name(definition.full_name)
        _check(is_safe(definition.directory) and definition.directory.count("/") == 2, where, "the table's uuid")
    except FrostlineError as error:
        raise Damaged(f"{where}: {error.message}") from error
    for entry in found.partitions:
        _check(is_ref(entry.list), where, f"the list of partition {entry.partition!r}")
        counts = (entry.parts, entry.rows, entry.files, entry.size_bytes)
        _check(all(map(_is_count, counts)), where, f"the counts of partition {entry.partition!r}")
    for listed in found.ranges:
        _check(0 <= listed.index <= _LAST_RANGE, where, f"the block range {listed.index}")
    _check(len({entry.partition for entry in found.partitions}) == len(found.partitions), where, "a partition twice")
    return found


def _is_file_name(name: str) -> bool:
    return "/" not in name and is_safe(name)


def _is_placed(file: FileEntry, packs: Sequence[Ref]) -> bool:
    if not is_sha256(file.sha256):
        return False
    if not 0 <= file.size_bytes <= bounds.LARGEST_FILE_BYTES:
        return False
    match file.at:
        case InBlob(nonce):
            return is_nonce(nonce)
        case InBucket(_, key):
            return bounds.fault_in_key(file.name, key) is None
        case InPack(pack, offset, length, _):
            inside = 0 <= pack < len(packs) and min(offset, length) >= 0 and offset + length <= packs[pack].size_bytes
            return inside and file.size_bytes <= LARGEST_OBJECT_BYTES  # whatever it grows to is read into memory


def _is_count(count: int) -> bool:
    return 0 <= count <= bounds.LARGEST_COUNT


def _partition_of(name: str) -> str | None:
    try:
        return PartName.parse(name).partition
    except UsageError:
        return None


def _check(fine: bool, where: str, detail: str) -> None:
    if not fine:
        raise Damaged(
            f"{where} is no list of a backup: {detail} cannot be", hint="'frostline backup verify' shows more"
        )


_DOCUMENTS: dict[type, Document[Any]] = {
    PartitionList: Document(
        "list of a partition in a backup",
        PartitionList,
        write=encoding.packed_list,
        read=lambda data: read_partition(data, "it"),
    ),
    TreeList: Document(
        "list of a directory in a backup", TreeList, write=encoding.packed_list, read=lambda data: read_tree(data, "it")
    ),
    TableList: Document(
        "list of a table in a backup", TableList, write=encoding.packed_list, read=lambda data: read_table(data, "it")
    ),
}


def packed(file_list: PartitionList | TableList | TreeList) -> bytes:
    """The bytes of a list. Raises `Refused` for one that could not be read back."""
    return _DOCUMENTS[type(file_list)].encode(file_list)
