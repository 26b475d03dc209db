"""Tables whose newest definition cannot be read: what is refused before it is written (I23), what every verb says of
such a table, and how it comes back (I15, I17)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from oplog.errors import Refused
from tests.crash.site import events
from tests.homes import Home
from tests.integration.unreadable import begun, spoil
from tests.integration.unreadable import home as home
from tiering.catalog import tables
from tiering.catalog.definitions.unreadable import UnreadableTable
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.table import tombstones


@pytest.fixture
def local(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """The same, whose policy has the SSD alone."""
    return begun(Home(tmp_path, "a", capsys, buckets=()))


def document(home: Home, name: str = "t") -> Path:
    """The table.json on the SSD."""
    paths = (home.path / "ssd").glob("store/*/*/table.json")
    return next(path for path in paths if json.loads(path.read_bytes())["name"] == name)


def change(path: Path, **fields: Any) -> None:
    path.write_bytes(msgspec.json.encode({**json.loads(path.read_bytes()), **fields}))


def damage(path: Path) -> None:
    """Turn one bit over."""
    data = bytearray(path.read_bytes())
    data[data.index(b'"order_by"') + 1] ^= 0x80
    path.write_bytes(data)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "change",
    [
        ("--ttl", "3650000d on ts delete"),
        ("--setting", "deduplication_window=99999999999999999999"),
        ("--setting", f"row_group_rows={'9' * 5000}"),
        ("--setting", "target_file_size_bytes=99999999999P"),
        ("--add-column", "x:float64", "--default", "inf"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused(local: Home, change: tuple[str, ...]) -> None:
    """I23"""
    local("table", "alter", "d.t", "--add-column", "ts:timestamp[us, UTC]")
    local("table", "alter", "d.t", *change, code=2)
    assert "internal" not in local.error
    assert local.json("table", "show", "d.t")["version"] == 3
    if change[0] != "--add-column":
        columns = ("--column", "k:int64", "--column", "ts:timestamp[us, UTC]", "--order-by", "k")
        local("table", "create", "d.v", *columns, *change, code=2)
    assert local.tables() == ["d.t", "d.u"]


def test_a_definition_that_slips_through_is_not_written(local: Home) -> None:
    """I23: the last line behind all bounds."""
    with Store.open(load(local.configuration)) as store, mock.patch.object(tables, "check_change"):
        old = store.definition("d.t")
        settings = msgspec.structs.replace(old.settings, deduplication_window=10**20)
        with pytest.raises(Refused, match="could not be read back"):
            store.alter_table(old, msgspec.structs.replace(old, settings=settings))
    assert local.keys() == [1]


VERBS = (
    ("table", "show", "d.t"),
    ("table", "rename", "d.u", "d.t"),
    ("table", "create", "d.t", "--column", "k:int64", "--order-by", "k"),
    ("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--if-not-exists"),
    ("query", "SELECT count(*) FROM d.t"),
    ("parts", "d.t"),
    ("plan", "d.t"),
    ("merge", "d.t"),
    ("move", "d.t", "--partition", "all", "--to-disk", "ssd"),
    ("explain", "d.t", "all_1_1_0"),
    ("pin", "d.t", "--partition", "all"),
)


@pytest.mark.in_turn
@pytest.mark.parametrize("where", ["home", "local"])
def test_each_verb_names_it_and_the_next_step(where: str, request: pytest.FixtureRequest) -> None:
    """I15: also that others go on."""
    home: Home = request.getfixturevalue(where)
    spoil(home)
    for verb in VERBS:
        home(*verb, code=1)
        assert "table d.t cannot be read" in home.error, verb
        assert "table alter d.t" in home.error, verb
        assert "Traceback" not in home.error, verb
    assert home.keys("d.u") == [2]
    home.insert(3, table="d.u")
    assert home.keys("d.u") == [2, 3]
    listed = home.json("table", "list")
    assert [table["table"] for table in listed["tables"]] == ["d.u"]
    assert [table["table"] for table in listed["unreadable_tables"]] == ["d.t"]
    assert "UNREADABLE     table d.t" in home("status")
    found = home.json("doctor", code=4)
    assert [one["subject"] for one in found["findings"] if one["level"] == "problem"] == ["table d.t"]
    assert "table d.t cannot be read" in home.json("tick", code=1)["problems"][0]
    assert "table d.t cannot be read" in home("top", "--once")
    home("fsck", code=4)


@pytest.mark.parametrize("where", ["home", "local"])
def test_an_alter_goes_on_from_the_definition_before(where: str, request: pytest.FixtureRequest) -> None:
    """I17"""
    home: Home = request.getfixturevalue(where)
    spoil(home)
    home("table", "alter", "d.t", "--add-column", "x:int64")
    shown = home.json("table", "show", "d.t")
    assert (shown["version"], shown["settings"]["deduplication_window"]) == (4, 7)
    assert home.keys() == [1]
    home("fsck")


def test_an_alter_goes_on_from_what_it_means(local: Home) -> None:
    """I17: data of older versions, whose marks hold no definition. Defaults take the place of what is out of bounds."""
    path = document(local, "u")
    late = {"column": "ts", "after_seconds": 10**15, "action": {"action": "delete"}}
    change(path, settings={"deduplication_window": 10**20, "row_group_rows": 9}, ttl=[late])
    local("table", "show", "d.u", code=1)
    assert "values out of bounds" in local.error
    local("table", "alter", "d.u", "--add-column", "x:int64")
    shown = local.json("table", "show", "d.u")
    assert (shown["settings"]["deduplication_window"], shown["settings"]["row_group_rows"]) == (1000, 9)
    assert shown["ttl"] == []
    assert local.keys("d.u") == [2]


def test_a_drop_of_what_it_means_holds(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """I17: no copy can be read, and other machines go by a tombstone that can."""
    other = Home(tmp_path, "b", capsys)
    other.insert(5)
    spoil(home)
    for path in home.path.parent.rglob("altered-*.json"):
        path.write_bytes(b"{}")
    home("table", "drop", "d.t")
    assert home.tables() == other.tables() == ["d.u"]
    home.create()
    home("fsck")


def test_a_drop_that_died_of_such_a_table_goes_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17: the intent hides the table, and the tombstone is worked out without it."""
    spoil(home)
    with monkeypatch.context() as patched:
        patched.setattr(tables, "_drop_everywhere", mock.Mock(side_effect=Refused("stopped", hint="go on")))
        home("table", "drop", "d.t", code=13)
    assert home.tables() == ["d.u"]
    assert "finished a drop table of d.t" in home.error
    home.create()
    home("fsck")


def test_a_tombstone_is_made_before_the_table_is_hidden(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17, I23: a drop that is refused changes nothing."""
    with monkeypatch.context() as patched:
        refused = Refused("this tombstone could not be read back", hint="nothing was changed")
        patched.setattr(tombstones, "encode", mock.Mock(side_effect=refused))
        home("table", "drop", "d.t", code=13)
    assert home.tables() == ["d.t", "d.u"]
    assert home.keys() == [1]


def test_an_undo_takes_the_alter_back(home: Home) -> None:
    """I17"""
    spoil(home)
    home("undo", "s3", str(home.head()), "-n")
    home("undo", "s3", str(home.head()))
    assert home.json("table", "show", "d.t")["version"] == 4
    assert home.keys() == [1]
    home("fsck")


def test_a_restore_brings_it_back(home: Home) -> None:
    """I17: as the version after the one that cannot be read."""
    before = home.head()
    spoil(home)
    home("restore", "s3", "--revision", str(before), "--apply")
    assert home.json("table", "show", "d.t")["version"] == 4
    assert home.keys() == [1]
    home("fsck")


def test_a_drop_holds(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """I17: on another machine, too."""
    other = Home(tmp_path, "b", capsys)
    other.insert(5)
    spoil(home)
    home("table", "drop", "d.t")
    assert home.tables() == other.tables() == ["d.u"]
    home.create()
    home("fsck")


def test_a_damaged_definition_is_taken_from_its_mark(local: Home) -> None:
    """I17: nothing is lost, and the file is written again."""
    path = document(local)
    before = path.read_bytes()
    damage(path)
    assert local.keys() == [1]
    assert "wrote table.json of d.t to ssd" in local.error
    assert path.read_bytes() == before


def test_a_table_without_any_definition_can_be_dropped(local: Home) -> None:
    """I17: it has one version, and one disk."""
    damage(document(local, "u"))
    local("table", "alter", "d.u", "--add-column", "x:int64", code=1)
    assert "table drop d.u" in local.error
    local("table", "drop", "d.u")
    assert local.tables() == ["d.t"]
    assert len(local.on_ssd()) == 1
    local("fsck")


def test_an_older_copy_does_not_take_its_place(home: Home) -> None:
    """I17: the bucket has a definition that can be read, and the SSD a newer one that cannot."""
    change(document(home), version=9, settings={"deduplication_window": -1})
    home("query", "SELECT 1 FROM d.t", code=1)
    home("table", "alter", "d.t", "--setting", "deduplication_window=9")
    assert home.json("table", "show", "d.t")["version"] == 10
    assert home.keys() == [1]


def test_of_copies_that_differ_that_of_the_log_counts(home: Home) -> None:
    """I15, I17: a bit that flipped on the SSD leaves a definition that can be read."""
    path = document(home)
    change(path, settings={"deduplication_window": 5})
    assert home.json("table", "show", "d.t")["settings"]["deduplication_window"] == 7
    assert "wrote table.json of d.t to ssd" in home.error
    assert json.loads(path.read_bytes())["settings"]["deduplication_window"] == 7


def test_one_of_a_later_version_is_left_alone(local: Home) -> None:
    """I17, I23"""
    path = document(local)
    change(path, format=3, version=3)
    before = path.read_bytes()
    for verb in (("table", "show"), ("table", "drop"), ("table", "alter", "--setting", "row_group_rows=9")):
        local(*verb[:2], "d.t", *verb[2:], code=1)
        assert "upgrade frostline" in local.error
    assert local.keys("d.u") == [2]
    assert path.read_bytes() == before


def test_numbers_of_columns_are_not_given_again() -> None:
    """I17: parts tell of columns that the definition before does not have."""
    before = events()
    part = mock.Mock(part=mock.Mock(columns={"9": None, '12."a b"': None}, schema_version=4))
    table = UnreadableTable(before.uuid, before.full_name, (), 7, before, is_newer=False)
    base = table.base([part])
    assert (base.version, base.schema_version, base.last_column_id) == (7, 4, 12)
