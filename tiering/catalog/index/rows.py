"""What the index of parts keeps: parts, the sums of their partitions, and the tables that they are in. No I/O.

Each row has a checksum. Those of the parts add up to the check of their partition, and these to that of the table. So a
row that is lost, that is of another day, or that a page of a power cut brought back is noticed when its partition is
read, and a partition when its table is read.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from disks.base import Fingerprint
from oplog.documents import Document
from tiering.table.part import PartFacts, range_of
from tiering.table.paths import part_name

UNSETTLED: Fingerprint = ()
"""The fingerprint of a file that has none yet. No file has this one, so each scan of all files reads the file again."""
DocumentKey = tuple[int, int]
"""Number and checksum of a `part.json` that is kept."""
NO_DOCUMENT: DocumentKey = (0, 0)
Basis = tuple[int, int]
"""What facts and times are computed with: `columns` and `rules` of `Facts`."""
STATES: tuple[Literal["active", "outdated", "duplicate"], ...] = ("active", "outdated", "duplicate")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
encode = msgspec.msgpack.Encoder().encode
_decode_fingerprint = msgspec.msgpack.Decoder(Fingerprint).decode
_decode_facts = msgspec.msgpack.Decoder(PartFacts).decode
_decode_json_facts = msgspec.json.Decoder(PartFacts).decode


class Facts(NamedTuple):
    """What the index keeps of a part, but for its `part.json`. Times are microseconds since 1970."""

    name: str
    columns: int
    """Tells of which columns the facts have the ranges (`ScanTarget.basis`)."""
    rules: int
    """Tells by which rules, columns and policy the times were computed."""
    revision: int | None
    rows: int
    size_bytes: int
    created: int
    due: int | None
    """Before this no rule acts on the part where it is; None where none ever does."""
    told_first: int | None
    """The first time at which a rule is due that plans only tell of (`tiering.policy.due`)."""
    told_last: int | None
    replaces: int
    """Of how many parts it says that it takes their place."""
    data_crc32: int
    """Of the `part.json`, which is kept beside: of another one, or none, the file on the disk is read."""
    facts: bytes
    """All facts, encoded."""

    @property
    def partition(self) -> str:
        return partition_of(self.name)

    def crc32(self, state: int) -> int:
        return zlib.crc32(encode((*self, state)))


class AddedPart(NamedTuple):
    """A part that goes into the index."""

    facts: Facts
    fingerprint: Fingerprint
    values: tuple[Any, ...]
    """What its rows are partitioned by."""
    data: bytes
    """Its `part.json`."""


class KnownPart(NamedTuple):
    """A part that is in the index, for a comparison with its file: of a million parts nothing more is asked."""

    columns: int
    rules: int
    revision: int | None
    document: DocumentKey
    fingerprint: Fingerprint
    state: int
    crc32: int


class IndexedPart(NamedTuple):
    """A part in the index, for who shows it."""

    name: str
    revision: int | None
    facts: bytes
    document: DocumentKey
    """Its `part.json`."""
    state: int
    """An index of `STATES`."""
    replaces: int


class PartitionTotals(msgspec.Struct, frozen=True, array_like=True):
    """The parts of one partition in a table, together."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0
    inactive: int = 0
    """How many parts are outdated or duplicates."""
    check: int = 0
    """The checksums of the parts, added up."""
    is_settled: bool = False
    """Whether the states of the parts were computed since the last of them came or went."""
    highest: dict[int, int] = {}
    """Range of block numbers -> the highest number that a part here has or had."""
    values: tuple[Any, ...] | None = None
    """What their rows are partitioned by; None where parts have said different things."""

    def with_part(self, part: AddedPart, crc32: int) -> PartitionTotals:
        """With one more part."""
        facts, highest = part.facts, dict(self.highest)
        name = part_name(facts.name)
        assert name is not None
        for block in (name.min_block, name.max_block):
            highest[range_of(block)] = max(highest.get(range_of(block), 0), block)
        return PartitionTotals(
            self.parts + 1,
            self.rows + facts.rows,
            self.bytes + facts.size_bytes,
            self.inactive,
            self.check + crc32,
            False,
            highest,
            part.values if not self.parts or self.values == part.values else None,
        )

    def with_check(self, difference: int) -> PartitionTotals:
        """With other times of some parts."""
        return msgspec.structs.replace(self, check=self.check + difference, is_settled=False)

    def without(self, facts: Facts, state: int, crc32: int) -> PartitionTotals:
        """With one part less."""
        return msgspec.structs.replace(
            self,
            parts=self.parts - 1,
            rows=self.rows - facts.rows,
            bytes=self.bytes - facts.size_bytes,
            inactive=self.inactive - bool(state),
            check=self.check - crc32,
            is_settled=False,
        )


class DiskTableRow(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a table's directory on a disk, but for its partitions."""

    generation: int = 0
    """A random number. Another one after each change of a part or a state; the same one, the same parts."""
    state: Fingerprint | None = None
    """The state of the directory (`Disk.state_of`) in which the parts are these. None: only a scan can tell."""
    basis: Basis = (0, 0)
    """That of all parts."""
    parts: int = 0
    check: int = 0
    broken: tuple[tuple[str, str], ...] = ()
    """The names of parts that cannot be read, with the reason."""


class DiskTable(msgspec.Struct, frozen=True):
    """A table's directory on a disk, as the index has it at one moment."""

    id: int
    disk: str
    directory: str
    row: DiskTableRow
    partitions: dict[str, PartitionTotals]

    @property
    def parts(self) -> int:
        return self.row.parts

    @property
    def rows(self) -> int:
        return sum(sums.rows for sums in self.partitions.values())

    @property
    def bytes(self) -> int:
        return sum(sums.bytes for sums in self.partitions.values())

    def without_empty(self) -> DiskTable:
        """The same, without partitions that are empty by now."""
        if all(sums.parts for sums in self.partitions.values()):
            return self
        left = {name: sums for name, sums in self.partitions.items() if sums.parts}
        return msgspec.structs.replace(self, partitions=left)

    def adds_up(self) -> bool:
        """Whether no partition is lost, and none is of another day."""
        sums = self.partitions.values()
        return (self.row.parts, self.row.check) == (sum(one.parts for one in sums), sum(one.check for one in sums))


class IndexChange(msgspec.Struct):
    """What a scan found to differ from the index, and what all that it found adds up to."""

    new: list[AddedPart] = []
    gone: list[str] = []
    fingerprints: dict[str, Fingerprint] = {}
    """Other fingerprints of files whose bytes are those that are kept."""
    times: list[tuple[Facts, Facts]] = []
    """Parts that are kept, before and with times by other rules."""
    broken: list[tuple[str, str]] = []
    parts: int = 0
    check: int = 0

    def is_empty(self) -> bool:
        """Whether the index has all of it."""
        return not (self.new or self.gone or self.fingerprints or self.times)


_sums = Document("sums of a partition in the index", PartitionTotals)  # as JSON: sums may be larger than 64 bits
_table = Document("table in the index", DiskTableRow)


def encoded_sums(table: int, partition: str, sums: PartitionTotals) -> tuple[bytes, int]:
    """The row's last columns."""
    data = _sums.encode(sums)
    return data, _crc32(table, partition, data)


def decoded_sums(table: int, partition: str, data: bytes, crc32: int) -> PartitionTotals:
    """Raises `ValueError` for a row without its checksum."""
    _check(_crc32(table, partition, data), crc32)
    return _sums.decode(data)


def encoded_disk_table(table: int, where: str, row: DiskTableRow) -> tuple[bytes, int]:
    """The row's last columns."""
    data = _table.encode(row)
    return data, _crc32(table, where, data)


def decoded_disk_table(table: int, where: str, data: bytes, crc32: int) -> DiskTableRow:
    """Raises `ValueError` for a row without its checksum."""
    _check(_crc32(table, where, data), crc32)
    return _table.decode(data)


def encoded_facts(facts: PartFacts) -> bytes:
    """The encoded facts: JSON where a number is too large for msgpack."""
    try:
        return encode(facts)
    except OverflowError:
        return msgspec.json.encode(facts)


def decoded_facts(data: bytes) -> PartFacts:
    """Raises `msgspec.MsgspecError` for other bytes."""
    return _decode_json_facts(data) if data.startswith(b"[") else _decode_facts(data)


def encoded_fingerprint(fingerprint: Fingerprint) -> bytes:
    data = encode(fingerprint)
    return data + zlib.crc32(data).to_bytes(4, "big")


def decoded_fingerprint(data: bytes) -> Fingerprint:
    """The fingerprint; that of no file where it is not what was written."""
    if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        return UNSETTLED
    return _decode_fingerprint(data[:-4])


def partition_of(name: str) -> str:
    """The partition of the part with this name."""
    return name.partition("_")[0]


def range_in(partition: str) -> tuple[str, str]:
    """The names of the parts of a partition are from the first on and below the second: no partition has a `_`."""
    return f"{partition}_", f"{partition}`"


def in_microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def moment_of(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


def _crc32(table: int, name: str, data: bytes) -> int:
    return zlib.crc32(b"%d %s " % (table, name.encode()) + data)


def _check(computed: int, kept: int) -> None:
    if computed != kept:
        raise ValueError("a row of the index does not have its checksum")
