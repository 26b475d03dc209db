"""Copies of headers, records and lists on this machine: many are read once, and nothing that differs is believed.

Guards P47."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backup import copies, records
from backup.copies import WORTH_KEEPING, RepositoryCopies
from backup.create.known import known_content
from backup.format import encoding, names
from backup.format.header import BackupHeader, TableEntry, VerificationRecord
from backup.format.lists import PartitionEntry, PartitionList, TableList
from backup.storage import Storage
from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from disks.stores.wrappers.metered import MeteredStore
from tests.backups import events, filled, machine_on
from tests.worm import ACTIVE
from tiering.table import schema

TAKEN = datetime(2026, 1, 1, tzinfo=UTC)
MANY = WORTH_KEEPING + 3


@pytest.fixture
def store(tmp_path: Path) -> MeteredStore:
    opened = open_store(ObjectDiskConfig(url=f"file://{tmp_path}/repository/"))
    Storage.init(opened)
    return opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "copies.sqlite"


def reopened(store: MeteredStore, path: Path) -> Storage:
    """As another process opens it."""
    storage = Storage.open(store)
    storage.copies = RepositoryCopies(path)
    return storage


def header(number: int, tables: tuple[TableEntry, ...] = ()) -> BackupHeader:
    taken = TAKEN + timedelta(hours=number)
    return BackupHeader(
        id=names.fresh_nonce(),
        name=f"b{number}",
        machine="m-000000",
        host="h",
        actor="a",
        tool="0.1",
        taken=taken,
        completed=taken,
        tables=tables,
    )


def fill(store: MeteredStore, count: int) -> list[BackupHeader]:
    storage = Storage.open(store)
    made = [header(number) for number in range(count)]
    for one in made:
        storage.put_header(one)
        records.put(
            storage, VerificationRecord(backup=one.id, time=one.taken, actor="a", depth="quick", files=0, size_bytes=0)
        )
    return made


def gets(store: MeteredStore, storage: Storage) -> tuple[int, list[BackupHeader]]:
    """How many objects a listing of the backups read, and what it showed."""
    before = store.counts()["GET"]
    headers, broken = storage.headers(remembered=True)
    assert not broken
    return store.counts()["GET"] - before, headers


def test_headers_and_records_are_read_once(store: MeteredStore, path: Path) -> None:
    made = fill(store, MANY)
    assert gets(store, reopened(store, path)) == (MANY, made)
    storage = reopened(store, path)
    assert gets(store, storage) == (0, made)
    listed = [items[-1] for items in records.keys(storage).values()]
    first = records.read(storage, listed, VerificationRecord)
    before = store.counts()["GET"]
    assert records.read(reopened(store, path), listed, VerificationRecord) == first
    assert store.counts()["GET"] - before <= 1, "the mark alone"
    assert gets(store, reopened(store, path)) == (0, made), "records took the place of headers"


def test_few_are_not_kept(store: MeteredStore, path: Path) -> None:
    made = fill(store, WORTH_KEEPING - 1)
    assert gets(store, reopened(store, path)) == (WORTH_KEEPING - 1, made)
    assert not path.exists()


def test_who_proves_reads_the_headers_themselves(store: MeteredStore, path: Path) -> None:
    fill(store, MANY)
    gets(store, reopened(store, path))
    before = store.counts()["GET"]
    reopened(store, path).headers()
    assert store.counts()["GET"] - before >= MANY


def test_a_header_that_was_changed_since_is_read_again(store: MeteredStore, path: Path, tmp_path: Path) -> None:
    made = fill(store, MANY)
    gets(store, reopened(store, path))
    changed = tmp_path / "repository" / made[3].key
    data = bytearray(changed.read_bytes())
    data[40] ^= 1
    changed.write_bytes(bytes(data))
    os.utime(changed, ns=(1, 1))
    headers, broken = reopened(store, path).headers(remembered=True)
    assert [item.key for item in broken] == [made[3].key]
    assert len(headers) == MANY - 1


def test_copies_that_are_damaged_are_not_believed(store: MeteredStore, path: Path) -> None:
    made = fill(store, MANY)
    gets(store, reopened(store, path))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE copies SET data = zeroblob(size) WHERE key = ?", (made[0].key,))
    connection.commit()
    connection.close()
    assert gets(store, reopened(store, path)) == (1, made)
    path.write_bytes(b"no database at all, and longer than a page of one" * 200)
    assert gets(store, reopened(store, path)) == (MANY, made)
    assert gets(store, reopened(store, path)) == (0, made), "the file that was none took the place of copies"


@pytest.mark.skipif(ACTIVE, reason="a store that keeps everything deletes no header")
def test_copies_of_deleted_backups_go(store: MeteredStore, path: Path) -> None:
    made = fill(store, MANY)
    gets(store, reopened(store, path))
    storage = reopened(store, path)
    storage.remove([one.key for one in made])
    fill(store, MANY)
    gets(store, storage)
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM copies").fetchone()
    connection.close()
    assert count == MANY


def test_lists_of_many_backups_are_read_once(store: MeteredStore, path: Path) -> None:
    storage = Storage.open(store)
    definition = events()
    for number in range(MANY):
        part = storage.put_content(names.LISTS_PREFIX, encoding.packed_list(PartitionList(partition=str(number))))
        table = TableList(
            definition=schema.encode(definition).decode(), partitions=(PartitionEntry(str(number), part, 0, 0, 0, 0),)
        )
        ref = storage.put_content(names.LISTS_PREFIX, encoding.packed_list(table))
        entry = TableEntry(
            name=definition.full_name,
            uuid=definition.uuid,
            list=ref,
            partitions=1,
            parts=0,
            rows=0,
            files=0,
            size_bytes=0,
        )
        storage.put_header(header(number, (entry,)))
    headers = storage.headers()[0]

    def known() -> tuple[set[str], int]:
        opened = reopened(store, path)
        before = store.counts()["GET"]
        found = known_content(opened, headers, {definition.uuid}, datetime.now(UTC))
        return set(found.lists), store.counts()["GET"] - before

    first, read = known()
    assert read == 2 * MANY
    assert known() == (first, 0)
    assert len(first) == 2 * MANY


def test_no_backup_names_a_damaged_list_with_a_whole_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "WORTH_KEEPING", 1)
    machine = filled(machine_on(tmp_path))
    machine.init()
    machine.create("one")
    machine.create("two")
    assert list((machine.root / "state" / "backup").glob("*/copies.sqlite")), "nothing was copied"
    for damaged in (tmp_path / "repository" / "lists").rglob("*-*"):
        before, data = damaged.stat(), bytearray(damaged.read_bytes())
        data[-1] ^= 1
        damaged.chmod(0o644)
        damaged.write_bytes(bytes(data))
        os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    machine.create("three")
    assert [found.ok for name in ("one", "three") for found in machine.verify(name)] == [False, True]
