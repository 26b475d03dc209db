"""What a repository's bytes mean: round trips, and hostile bytes that are refused by name and never unpacked. Guards
P46 and P47."""

from __future__ import annotations

import hashlib
import random
import re
from datetime import UTC, datetime

import msgspec
import pytest
import zstandard

from backup.format import encoding, header, lists, names, packs
from backup.format.encoding import UnknownBackupFormat
from backup.format.header import BackupHeader, Marker, PinnedDisk, TableEntry, TreeEntry, VerificationRecord
from backup.format.lists import (
    BlockRange,
    FileEntry,
    InBlob,
    InBucket,
    InPack,
    KeptPolicy,
    KeptVolume,
    PartEntry,
    PartitionEntry,
    PartitionList,
    PinnedPart,
    TableList,
    TreeList,
)
from backup.format.names import Ref
from oplog.errors import Damaged, UsageError
from tests.crash.site import events
from tests.damage import unchecked_documents
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.table import schema

REF = Ref("ab" * 32, "0123456789abcdef", 100)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
FILES = (
    FileEntry("data-0000.parquet", 7, "cd" * 32, InBlob("0123456789abcdef")),
    FileEntry("data-0001.parquet", 7, "ce" * 32, InBucket("s3", "r01-file-abc")),
    FileEntry("part.json", 9, "ef" * 32, InPack(0, 10, 20, True)),
)
PARTITION = PartitionList(partition="202601", packs=(REF,), parts=(PartEntry("202601_1_1_0", "ssd", 3, FILES),))
TABLE = TableList(
    definition=schema.encode(events()).decode(),
    pins=(PinnedPart("partition", "202601", "hot", "me"),),
    pauses=("moves",),
    ranges=(BlockRange(0, "me", True),),
    partitions=(PartitionEntry("202601", REF, 1, 3, 3, 14),),
)
HEADER = BackupHeader(
    id="0123456789abcdef",
    name="one",
    machine="host-abc123",
    host="host",
    actor="me@host",
    tool="0.1.0",
    taken=NOW,
    completed=NOW,
    tables=(TableEntry(name="demo.events", uuid="u", list=REF, partitions=1, parts=1, rows=3, files=3, size_bytes=14),),
    pinned=(PinnedDisk(disk="s3", url="s3://b/p/", endpoint_url=None, revision=7, pin="backup-1"),),
)


def test_documents_are_read_as_they_were_written() -> None:
    assert lists.read_partition(encoding.packed_list(PARTITION), "x") == PARTITION
    assert lists.read_table(encoding.packed_list(TABLE), "x") == TABLE
    assert header.read_header(encoding.sealed(HEADER), HEADER.key, "x") == HEADER
    record = VerificationRecord(backup="0123456789abcdef", time=NOW, actor="me", depth="quick", files=3, size_bytes=14)
    assert encoding.unsealed(encoding.sealed(record), VerificationRecord, "x") == record


def test_equal_lists_are_equal_bytes() -> None:
    assert encoding.packed_list(PARTITION) == encoding.packed_list(msgspec.structs.replace(PARTITION))


@pytest.mark.parametrize("document", [Marker(id="0123456789abcdef", created=NOW), HEADER])
def test_each_changed_or_missing_byte_of_a_seal_is_seen(document: msgspec.Struct) -> None:
    """In a sealed document."""
    data = encoding.sealed(document)
    for place in range(len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(Damaged):
            encoding.unsealed(bytes(changed), type(document), "there")
    for length in range(0, len(data) - 1, 7):
        with pytest.raises(Damaged):
            encoding.unsealed(data[:length], type(document), "there")


def test_a_later_format_is_refused_by_name() -> None:
    later = msgspec.structs.replace(HEADER, format=9, minimum_reader=3)
    with pytest.raises(UnknownBackupFormat, match=r"format 9, which .* format 3"):
        header.read_header(encoding.sealed(later), later.key, "there")
    listed = msgspec.structs.replace(PARTITION, format=3, minimum_reader=3)
    with pytest.raises(UnknownBackupFormat):
        lists.read_partition(encoding.packed_list(listed), "there")
    newer = msgspec.structs.replace(HEADER, format=2)  # a later writer that this reader still understands
    assert header.read_header(encoding.sealed(newer), newer.key, "there").format == 2


def test_a_policy_of_a_later_version_is_read_as_far_as_known() -> None:
    """A table's list keeps the policy to tell the tiers apart: more keys of it are no damage, and no key is lost."""
    volumes = (KeptVolume(name="hot", disks=("ssd",), prefer_not_to_merge=True), KeptVolume(name="cold", disks=("s3",)))
    listed = msgspec.structs.replace(TABLE, policy=KeptPolicy(volumes=volumes, move_factor=0.3))
    assert lists.read_table(encoding.packed_list(listed), "x") == listed
    document = msgspec.to_builtins(listed)
    document["policy"]["warm_up"] = True
    document["policy"]["volumes"][0]["spin_down_seconds"] = 7
    document["later"] = {"x": 1}
    assert lists.read_table(zstandard.compress(msgspec.json.encode(document)), "x") == listed
    config = PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("ssd",), volume_priority=1),), move_factor=0.2)
    kept = KeptPolicy.of(config)
    assert msgspec.to_builtins(kept) == msgspec.to_builtins(config)


def test_what_a_reader_must_know_raises_the_least_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that knows no trees would collect what they name: it is told to leave the repository alone."""
    tree = TreeEntry(disk="ch", directory="store/abc/abc", list=REF, parts=1, files=1, size_bytes=1)
    made = HEADER.with_trees([tree])
    assert (made.format, made.minimum_reader) == (2, 2)
    assert (HEADER.format, HEADER.minimum_reader) == (1, 1), "older readers go on with everything else"
    monkeypatch.setattr(encoding, "FORMAT", 1)
    with pytest.raises(UnknownBackupFormat):
        header.read_header(encoding.sealed(made), made.key, "there")
    assert header.read_header(encoding.sealed(HEADER), HEADER.key, "there") == HEADER


def _file(**changes: object) -> PartitionList:
    entry = msgspec.structs.replace(FILES[2], **changes)
    return msgspec.structs.replace(PARTITION, parts=(PartEntry("202601_1_1_0", "ssd", 3, (*FILES[:2], entry)),))


@pytest.mark.parametrize(
    "hostile",
    [
        _file(name="../../etc/passwd"),
        _file(name="part.json/x"),
        _file(name=""),
        _file(sha256="zz"),
        _file(size_bytes=-1),
        _file(at=InPack(1, 0, 1, False)),
        _file(at=InPack(0, 90, 11, False)),
        _file(at=InPack(0, -1, 1, False)),
        _file(at=InBlob("../x")),
        _file(at=InBucket("s3", "../../x")),
        msgspec.structs.replace(PARTITION, partition="202602"),
        msgspec.structs.replace(PARTITION, parts=PARTITION.parts * 2),
        msgspec.structs.replace(PARTITION, parts=(PartEntry("../x", "ssd", 3, FILES),)),
        msgspec.structs.replace(PARTITION, parts=(PartEntry("202601_1_1_0", "ssd", 3, FILES[:2]),)),
        msgspec.structs.replace(PARTITION, packs=(Ref("x", "y", 1),)),
    ],
)
def test_a_list_that_no_backup_would_write(hostile: PartitionList) -> None:
    with pytest.raises(Damaged, match="no list of a backup"):
        lists.read_partition(encoding.packed_list(hostile), "there")


def test_a_table_with_a_hostile_uuid() -> None:
    definition = msgspec.structs.replace(events(), uuid="../../../etc")
    with unchecked_documents():
        hostile = msgspec.structs.replace(TABLE, definition=schema.encode(definition).decode())
    with pytest.raises(Damaged):
        lists.read_table(encoding.packed_list(hostile), "there")


def test_a_list_that_would_grow_without_bound_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(b"[" + b" " * (encoding.LIST_LIMIT_BYTES + 1))
    assert len(bomb) < 1 << 20
    with pytest.raises(Damaged, match="at most"):
        lists.read_partition(bomb, "there")
    unsized = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(b"{}")
    with pytest.raises(Damaged):
        lists.read_partition(unsized, "there")
    for data in (b"", b"nothing", encoding.packed_list(PARTITION)[:-3]):
        with pytest.raises(Damaged):
            lists.read_partition(data, "there")


def test_any_changed_byte_of_a_list_is_damage_or_another_list() -> None:
    """The digest in its name tells them apart; nothing else may be raised."""
    data = encoding.packed_list(PARTITION)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            lists.read_partition(bytes(changed), "there")
        except (Damaged, UnknownBackupFormat):
            continue


def test_packs() -> None:
    random.seed(1)
    files = [b"", b"x" * 5000, b"PAR1" + random.randbytes(3000), random.randbytes(10)]
    data, entries = packs.build(files)
    assert [entry.compressed for entry in entries] == [False, True, False, False]
    for file, entry in zip(files, entries, strict=True):
        stored = data[entry.offset : entry.offset + entry.length]
        assert packs.content(stored, compressed=entry.compressed, size_bytes=len(file), where="x") == file
        assert entry.sha256 == hashlib.sha256(file).hexdigest()
    length = packs.index_length(data[-packs.TAIL_BYTES :], "x")
    index = data[-packs.TAIL_BYTES - length : -packs.TAIL_BYTES]
    assert packs.read_index(index, len(data), "x") == entries
    with pytest.raises(Damaged):
        packs.read_index(index, 100, "x")
    with pytest.raises(Damaged):
        packs.index_length(b"12345678", "x")
    with pytest.raises(Damaged):
        packs.content(b"ab", compressed=False, size_bytes=3, where="x")


def test_many_small_files_cost_at_most_a_request_a_mebibyte() -> None:
    """P59"""
    groups = packs.group([250_000] * 2_000)
    assert len(groups) <= 2_000 * 250_000 >> 20
    assert [number for group in groups for number in group] == list(range(2_000))
    assert packs.group([]) == []


def test_names() -> None:
    key = names.content_key(names.BLOBS_PREFIX, REF.sha256, REF.nonce)
    assert names.parse_content_key(key) == (REF.sha256, REF.nonce)
    assert names.parse_content_key(key.replace("/ab/", "/cd/")) is None
    assert names.parse_header_key(HEADER.key) == ("one", "host-abc123", "0123456789abcdef")
    for wrong in ("", "latest", "../x", "a/b", "-x", "x" * 101, "a b"):
        with pytest.raises(UsageError):
            names.check_name(wrong)
    assert names.check_name(names.name_at(NOW)) == "2026-03-01T00-00-00Z"
    assert re.fullmatch(r"[a-z0-9-]{1,80}", names.machine_word("Höst.example.ORG", "/x"))


@pytest.mark.parametrize(
    ("directory", "part", "name"),
    [
        ("../x", "", "a"),
        ("store/abc/abc", "", "../a"),
        ("store/abc/abc", "", "/etc/passwd"),
        ("store/abc/abc", "p", "q/a"),
        ("store/abc/abc", "", ""),
    ],
)
def test_a_hostile_list_of_what_clickhouse_wrote_is_refused(directory: str, part: str, name: str) -> None:
    file = FileEntry(name, 1, "0" * 64, InBlob("0" * 16))
    listed = TreeList(directory=directory, parts=(PartEntry(part, "ch", 0, (file,)),))
    with pytest.raises(Damaged, match="cannot be"):
        lists.read_tree(encoding.packed_list(listed), "there")
    whole = TreeList(directory="store/abc/abc", parts=(PartEntry("", "ch", 0, (file,)),))
    if name == "a":
        assert lists.read_tree(encoding.packed_list(whole), "there") == whole
