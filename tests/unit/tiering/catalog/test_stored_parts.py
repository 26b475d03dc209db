"""What is kept of parts: never another answer than that of the disks, and each part is read once. Guards I1, I15."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from disks.file_table.views import TableReader
from tests.command_line import Frostline
from tests.crash.as_read import catalog_is_as_read
from tests.unit.tiering.catalog.histories import STEPS, TABLE, alter, cached_store, move
from tiering.catalog.index import database
from tiering.catalog.index.rows import (
    Facts,
    decoded_disk_table,
    decoded_sums,
    encode,
    encoded_disk_table,
    encoded_sums,
    partition_of,
)
from tiering.catalog.stored import LazyPart
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table import part as part_format
from tiering.table.part import PartFacts


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    with cached_store(tmp_path) as config:
        yield config


@pytest.mark.in_turn
def test_each_step_of_one_process_is_what_the_others_see(config: Config) -> None:
    """The one that acts, one that is open all the time, and one that opens now: all show what the disks say."""
    with Store.open(config) as acting, Store.open(config) as other:
        for name, step in STEPS.items():
            step(acting)
            other.refresh()
            with Store.open(config) as new:
                for store in (acting, other, new):
                    assert [*catalog_is_as_read(store)] == [], name
            acting.refresh()


def test_a_part_is_read_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(config) as store:
        whole = {stored.facts.name: stored.part for stored in store.parts(TABLE)}
        decoded: list[str] = []
        original = part_format.decode

        def decode(data: bytes, *, path: str) -> part_format.Part:
            decoded.append(path)
            return original(data, path=path)

        monkeypatch.setattr(part_format, "decode", decode)
        store.refresh()
        with Store.open(config) as other:
            assert [stored.facts.rows for stored in other.parts(TABLE)] == [1, 1, 1]
            assert other.plan().moves == ()
            assert decoded == []
            assert {stored.facts.name: stored.part for stored in other.parts(TABLE)} == whole
            assert len(decoded) == 3


def test_a_plan_goes_through_no_names_of_cold_parts(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which there may be a million: it looks for the marks of other machines among what is called so."""
    with Store.open(config) as store:
        move(store, "cold")
    listed: list[tuple[str, str]] = []
    original = TableReader.children

    def children(self: TableReader, directory: str, begin: str = "") -> list[str]:
        listed.append((directory, begin))
        return original(self, directory, begin)

    with Store.open(config) as store:
        monkeypatch.setattr(TableReader, "children", children)
        store.plan(rest="next")
        assert {begin for directory, begin in listed if directory == store.definition(TABLE).directory} == {"blocks-"}


def test_a_file_that_was_changed_by_hand_is_read_again(config: Config, tmp_path: Path) -> None:
    """To one of the same size, with the time of the last change that it had."""
    with Store.open(config) as store:
        stored = store.parts(TABLE)[0]
        file = tmp_path / "ssd" / stored.path("part.json")
        before = file.stat()
        file.write_bytes(file.read_bytes().replace(b'"rows":1', b'"rows":7'))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        store.refresh()
        assert store.parts(TABLE)[0].facts.rows == 7
        file.write_bytes(b"")
        store.refresh()
        assert [broken.path for broken in store.context.catalog.broken] == [stored.path("part.json")]
    with Store.open(config) as store:
        assert [broken.path for broken in store.context.catalog.broken] == [stored.path("part.json")]


def test_a_disk_that_goes_away_and_comes_back(config: Config, tmp_path: Path) -> None:
    """What was kept of it is not shown meanwhile, and not thrown away."""
    with Store.open(config) as store:
        assert len(store.parts(TABLE)) == 3
        (tmp_path / "ssd").rename(tmp_path / "elsewhere")
        store.refresh()
        assert [fault.disk for fault in store.faults()] == ["ssd"]
        assert store.context.catalog.tables() == [] or store.parts(TABLE) == []
        (tmp_path / "elsewhere").rename(tmp_path / "ssd")
        store.refresh()
        assert [*catalog_is_as_read(store)] == []
        assert len(store.parts(TABLE)) == 3


def test_a_rule_about_another_column_is_followed(config: Config) -> None:
    with Store.open(config) as store, Store.open(config) as other:
        alter(store)
        assert len(store.plan().moves) == 3
        other.refresh()
        assert other.plan().moves == store.plan(at=other.plan().now).moves
        with Store.open(config) as new:
            assert len(new.plan().moves) == 3


@pytest.mark.in_turn
@pytest.mark.parametrize("damage", ["shredded", "cut off", "emptied", "gone", "other rows"])
def test_a_damaged_file_is_made_anew(config: Config, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)  # one that was emptied is taken for busy, at each question
    file = config.state_directory / "catalog.db"
    assert file.exists()
    with Store.open(config) as open_meanwhile:
        match damage:
            case "shredded":
                file.write_bytes(os.urandom(file.stat().st_size))
            case "cut off":
                os.truncate(file, file.stat().st_size // 2)
            case "emptied":
                os.truncate(file, 0)
            case "gone":
                file.unlink()
            case _:
                with sqlite3.connect(file) as connection:
                    connection.execute("UPDATE parts SET fingerprint = x'c0', facts = x'ff'")
        for _ in range(2):
            with Store.open(config) as store:
                assert [*catalog_is_as_read(store)] == []
        open_meanwhile.refresh()
        assert [*catalog_is_as_read(open_meanwhile)] == []


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("table", "key", "column"),
    [("parts", "name", "facts"), ("parts", "name", "fingerprint"), ("documents", "id", "data")],
)
def test_no_flipped_bit_is_believed(config: Config, table: str, key: str, column: str) -> None:
    for bit in range(0, 8 * 64, 61):
        with closing(sqlite3.connect(config.state_directory / "catalog.db")) as connection, connection:
            rows = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
            assert len(rows) == 3
            for name, data in rows:
                changed = bytearray(data)
                changed[bit // 8 % len(data)] ^= 1 << bit % 8
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (bytes(changed), name))
        with Store.open(config) as store:
            assert [*catalog_is_as_read(store)] == []
        (config.state_directory / "catalog.db").unlink(missing_ok=True)
        with Store.open(config):
            pass


@pytest.fixture
def frostline(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Frostline:
    """The command line of the store of `config`."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    return Frostline(capsys)


@pytest.mark.in_turn
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("what", ["facts", "document"])
def test_fsck_names_the_part_of_which_something_else_is_kept(
    config: Config,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    cold: bool,
) -> None:
    """With the checksums of what is there: nothing else would notice. A repair throws it away."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    frostline = Frostline(capsys)
    if cold:
        with Store.open(config) as store:
            move(store, "cold")
        with Store.open(config):
            pass
    assert frostline.json("fsck")["problems"] == []
    kept = config.state_directory / "catalog.db"
    with closing(sqlite3.connect(kept)) as connection, connection:
        columns = ", ".join(Facts._fields)
        *row, number, data = connection.execute(
            f"SELECT {columns}, document, documents.data FROM parts JOIN documents ON documents.id = document "
            "JOIN disk_tables ON disk_tables.id = disk_table WHERE disk = ?",
            ("s3" if cold else "ssd",),
        ).fetchone()
        kept_row = Facts._make(row)
        if what == "facts":
            facts = msgspec.msgpack.decode(kept_row.facts, type=PartFacts)
            kept_row = kept_row._replace(facts=encode(msgspec.structs.replace(facts, rows=7)))
        else:
            data = data.replace(b'"rows":1', b'"rows":7')
            kept_row = kept_row._replace(data_crc32=zlib.crc32(data))
        values = (kept_row.facts, kept_row.data_crc32, kept_row.crc32(0), number)
        connection.execute("UPDATE parts SET facts = ?, data_crc32 = ?, crc32 = ? WHERE document = ?", values)
        connection.execute("UPDATE documents SET data = ? WHERE id = ?", (data, number))
        add_up(connection)
    (problem,) = frostline.json("fsck", code=4)["problems"]
    assert (problem["disk"], problem["part"]) == ("s3" if cold else "ssd", kept_row.name)
    assert "something else of this part" in problem["what"]
    assert frostline.json("fsck", "--repair")["problems"] == []
    assert not kept.exists()
    with Store.open(config) as store:
        assert [*catalog_is_as_read(store)] == []


def add_up(connection: sqlite3.Connection) -> None:
    """Make the sums those of the rows."""
    for table, disk, directory, data, crc32 in connection.execute("SELECT * FROM disk_tables").fetchall():
        row = decoded_disk_table(table, f"{disk}:{directory}", data, crc32)
        checks: Counter[str] = Counter()
        for name, check in connection.execute("SELECT name, crc32 FROM parts WHERE disk_table = ?", (table,)):
            checks[partition_of(name)] += check
        for partition, *columns in connection.execute(
            "SELECT partition, data, crc32 FROM sums WHERE disk_table = ?", (table,)
        ).fetchall():
            totals = replace(decoded_sums(table, partition, *columns), check=checks[partition])
            values = (*encoded_sums(table, partition, totals), table, partition)
            connection.execute("UPDATE sums SET data = ?, crc32 = ? WHERE disk_table = ? AND partition = ?", values)
        values = (*encoded_disk_table(table, f"{disk}:{directory}", replace(row, check=checks.total())), table)
        connection.execute("UPDATE disk_tables SET data = ?, crc32 = ? WHERE id = ?", values)


def test_fsck_changes_nothing_of_a_catalog_that_cannot_be_read(config: Config, frostline: Frostline) -> None:
    kept = config.state_directory / "catalog.db"
    for suffix in ("-wal", "-shm"):
        kept.with_name(kept.name + suffix).unlink(missing_ok=True)
    kept.write_bytes(b"no database at all" * 100)
    (problem,) = frostline.json("fsck", code=4)["problems"]
    assert "catalog.db cannot be read" in problem["what"]
    assert kept.read_bytes().startswith(b"no database")
    assert frostline.json("fsck", "--repair")["problems"] == []


def test_what_is_not_kept_any_more_comes_from_the_disk(config: Config) -> None:
    with Store.open(config) as store:
        with sqlite3.connect(config.state_directory / "catalog.db") as connection:
            connection.execute("DELETE FROM documents")
        assert [*catalog_is_as_read(store)] == []


def test_what_many_parts_say_is_what_each_does(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiering.catalog.stored._DOCUMENTS_AT_ONCE", 2)
    with Store.open(config) as store:
        parts = [stored.described for stored in store.parts(TABLE)]
        kept = [part for part in parts if isinstance(part, LazyPart)]
        assert len(kept) == 3
        with sqlite3.connect(config.state_directory / "catalog.db") as connection:  # one is kept no more
            connection.execute("DELETE FROM documents WHERE id = ?", (kept[1].number[0],))
        found = list(LazyPart.documents(kept))
    assert [part_format.decode(data, path="") for data, _ in found] == [part.part() for part in kept]
    files = [[(file.name, file.size_bytes, file.sha256) for file in said.files] for _, said in found]
    assert files == [[(file.name, file.size_bytes, file.sha256) for file in part.part().files] for part in kept]


def test_the_document_of_another_part_is_not_this_ones(config: Config) -> None:
    with Store.open(config) as store:
        one, other, _ = [stored.described for stored in store.parts(TABLE)]
        assert isinstance(one, LazyPart)
        assert isinstance(other, LazyPart)
        (mine,), (others,) = LazyPart.documents([one]), LazyPart.documents([other])
        assert one.document(others[0]) == mine != others


def test_who_looked_before_a_merge_can_read_what_it_took(config: Config) -> None:
    with Store.open(config) as store, Store.open(config) as other:
        before = other.parts(TABLE)
        store.merge(TABLE, MergeRequest(partition="202601", final=True))
        with Store.open(config):
            pass
        assert [stored.part.rows for stored in before] == [1, 1, 1]


def test_a_catalog_with_a_cut_log_is_rebuilt_while_it_is_open(config: Config) -> None:
    """SQLite calls it trouble with the device, for as long as somebody has the file open: nothing would be kept.
    Others have it open."""
    kept = config.state_directory / "catalog.db"
    with closing(sqlite3.connect(kept)) as other:
        other.execute("UPDATE parts SET revision = 7")
        other.execute("UPDATE documents SET gone = NULL, data = x'00'")
        other.commit()
        os.truncate(kept.with_name(f"{kept.name}-wal"), 100)
        with closing(sqlite3.connect(kept)) as new, pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            new.execute("SELECT * FROM parts, documents, sums").fetchall()
        for _ in range(2):
            with Store.open(config) as store:
                assert len(store.parts(TABLE)) == 3
                assert [*catalog_is_as_read(store)] == []
        with closing(sqlite3.connect(kept)) as new:
            query = "SELECT count(*) FROM parts JOIN documents ON documents.id = document WHERE data != x'00'"
            assert new.execute(query).fetchone() == (3,)
