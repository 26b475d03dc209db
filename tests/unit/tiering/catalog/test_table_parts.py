"""Looks that are kept: never another answer than that of the disks, and no part is read that nobody asks for (I1)."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from disks.local.disk import LocalDisk
from disks.object_disk.table_disk import TableDisk
from tests.command_line import Frostline
from tests.crash.invariants import looks_are_as_read
from tests.unit.tiering.catalog.histories import STEPS, TABLE, alter, drop, insert, kept_store
from tiering.catalog.context import Context
from tiering.catalog.stored_parts import PartReader, StoredPart
from tiering.config.settings import Config
from tiering.engine import replicated
from tiering.engine.store import Store
from tiering.journal.kept_looks import PartSums, crc32_of
from tiering.journal.kept_parts import KeptParts
from tiering.move.report import MoveReport
from tiering.policy.plan import Move
from tiering.table.schema import MoveToVolume, TtlRule


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """A rule that nothing is due by is kept with the looks."""
    later = TtlRule(after_seconds=10 * 365 * 86400, column="ts", action=MoveToVolume("cold"))
    with kept_store(tmp_path, later) as config:
        yield config


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The disks on which each file of a directory was looked at, or kept parts were read."""
    seen: list[str] = []
    for disk in (LocalDisk, TableDisk):
        original = disk.look_over

        def look_over(self: LocalDisk | TableDisk, *arguments: object, original: object = original) -> object:
            seen.append(self.name)
            return original(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(disk, "look_over", look_over)
    rows_of = PartReader._rows_of

    def read(self: PartReader, looked: object, partition: str | None = None) -> object:
        seen.append(f"rows of {partition or 'all'}")
        return rows_of(self, looked, partition)  # type: ignore[arg-type]

    monkeypatch.setattr(PartReader, "_rows_of", read)
    return seen


def where(stored: StoredPart) -> tuple[str, str, int | None]:
    return stored.facts.name, stored.disk, stored.revision


def test_after_each_step_of_another_process_the_looks_are_what_the_disks_say(config: Config) -> None:
    """Of who opens now, of who is open all the time, and of who looked at nothing since the begin."""
    with Store.open(config) as acting, Store.open(config, anew=False) as other, Store.open(config) as late:
        for name, step in {"nothing": lambda store: None, **STEPS}.items():
            step(acting)
            other.context.catalog.refresh(anew=False)
            with Store.open(config, anew=False) as new:
                for store in (acting, other, new):
                    assert [*looks_are_as_read(store)] == [], name
                assert [*map(where, new.parts())] == [*map(where, other.parts())], name
                assert len(new.due_moves()) == len(acting.due_moves()), name
            acting.refresh()
        late.context.catalog.refresh(anew=False)
        assert late.definitions() == []


def test_what_shows_no_change_is_neither_looked_into_nor_read(config: Config, looked_into: list[str]) -> None:
    with Store.open(config):
        pass
    looked_into.clear()
    with Store.open(config, anew=False) as store:
        assert store.due_moves() == ()
        assert store.context.catalog.sums(store.definition(TABLE))["ssd"].parts == 3  # type: ignore[index]
        assert looked_into == ["s3"]  # which has no part, so that nothing is kept
        looked_into.clear()
        assert [stored.facts.rows for stored in store.parts(TABLE, partition="202601")] == [1, 1]
        assert looked_into == ["rows of 202601"]
        assert store.tick(only="moves").moves.moved == ()
        assert "ssd" not in looked_into
        insert(store, 4)
        store.context.catalog.refresh(anew=False)
        assert "ssd" in looked_into


def test_a_pass_looks_at_each_part_before_it_moves_one(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(config) as store:
        alter(store)
    with Store.open(config):
        pass
    looked: list[bool] = []
    moved = replicated.moved

    def moving(context: Context, moves: Sequence[Move]) -> MoveReport:
        looked.append(context.catalog.is_anew)
        return moved(context, moves)

    monkeypatch.setattr(replicated, "moved", moving)
    with Store.open(config, anew=False) as store:
        assert not store.context.catalog.is_anew
        assert len(store.tick(only="moves").moves.moved) == 3
        assert looked == [True]
    with Store.open(config, anew=False) as store:
        assert [*looks_are_as_read(store)] == []
        assert store.due_moves() == ()


def test_a_hand_that_takes_a_part_away_or_brings_one_is_seen(config: Config, tmp_path: Path) -> None:
    with Store.open(config) as store:
        directory = tmp_path / "ssd" / store.parts(TABLE)[0].directory
    for begin, end in ((directory, tmp_path / "aside"), (tmp_path / "aside", directory)):
        begin.rename(end)
        with Store.open(config, anew=False) as store:
            assert [*looks_are_as_read(store)] == []
            assert len(store.parts(TABLE)) == (2 if end != directory else 3)


def test_a_copy_of_the_disk_in_its_place_is_looked_into(config: Config, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "ssd", tmp_path / "copy", symlinks=True)
    with Store.open(config) as store:
        drop(store)
    with Store.open(config):
        pass
    shutil.rmtree(tmp_path / "ssd")
    (tmp_path / "copy").rename(tmp_path / "ssd")
    with Store.open(config, anew=False) as store:
        assert [*looks_are_as_read(store)] == []


def test_a_look_that_another_has_replaced_is_made_anew(config: Config) -> None:
    with Store.open(config, anew=False) as early:
        with Store.open(config) as store:
            insert(store, 3)
        with Store.open(config):
            pass
        assert len(early.parts(TABLE, partition="202601")) == 3
        assert len(early.parts(TABLE)) == 4


def test_removed_files_that_readers_hold_are_not_shown(config: Config) -> None:
    with Store.open(config) as store:
        with store.disk("ssd").read_lease():
            drop(store)
            with Store.open(config, anew=False) as other:
                assert [*looks_are_as_read(other)] == []
                assert len(other.parts(TABLE)) == 2
        with Store.open(config, anew=False) as other:
            assert [*looks_are_as_read(other)] == []
            assert len(other.parts(TABLE)) == 2


@pytest.mark.parametrize(
    ("table", "key", "column"),
    [("looks", "id", "state"), ("looks", "id", "sums"), ("looks", "id", "rules"), ("settled", "directory", "looks")],
)
def test_no_flipped_bit_of_a_look_is_believed(config: Config, table: str, key: str, column: str) -> None:
    file = config.state_directory / "catalog.db"
    for bit in range(0, 8 * 40, 61):
        with closing(sqlite3.connect(file)) as connection, connection:
            rows = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
            assert rows
            for number, value in rows:
                data = bytearray(value if isinstance(value, bytes) else value.encode())
                data[bit // 8 % len(data)] ^= 1 << bit % 7
                changed = bytes(data) if isinstance(value, bytes) else data.decode()
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (changed, number))
        with Store.open(config, anew=False) as store:
            assert [*looks_are_as_read(store)] == []
        file.unlink(missing_ok=True)
        with Store.open(config):
            pass


@pytest.mark.parametrize("what", ["sums", "a part too few"])
def test_fsck_names_the_table_of_which_something_else_is_kept(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    frostline = Frostline(capsys)
    assert frostline.json("fsck")["problems"] == []
    kept = KeptParts(config.state_directory / "catalog.db")
    with closing(sqlite3.connect(kept.path)) as connection, connection:
        if what == "sums":
            number, state, rules, sums = connection.execute("SELECT id, state, rules, sums FROM looks").fetchone()
            found = msgspec.msgpack.decode(sums, type=PartSums)
            sums = msgspec.msgpack.encode(msgspec.structs.replace(found, rows=found.rows + 1))
            row = (sums, crc32_of(state, rules, sums), number)
            connection.execute("UPDATE looks SET sums = ?, crc32 = ? WHERE id = ?", row)
        else:
            connection.execute("DELETE FROM parts WHERE path = (SELECT min(path) FROM parts)")
    problems = frostline.json("fsck", code=4)["problems"]
    assert [problem["disk"] for problem in problems] == ["ssd"]
    assert "keeps other parts or sums of the table" in problems[0]["what"]
    assert frostline.json("fsck", "--repair")["problems"] == []
    assert not kept.path.exists()
    assert frostline.json("status")["rows"] == 3
