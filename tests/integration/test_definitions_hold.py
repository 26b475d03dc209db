"""What one machine drops, alters or restores holds on every other one: definitions have one authority (I17, P40)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.homes import Home
from tiering.catalog import tables
from tiering.catalog.definitions import table_names
from tiering.config.reading import load
from tiering.engine.store import Store


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """Two machines; the first has created d.t."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a.create()
    return a, b


def test_a_drop_holds_on_a_machine_that_has_the_table_on_its_ssd(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    b.insert(2)
    a("table", "drop", "d.t")
    assert b.tables() == []
    assert "dropped" in b.error
    assert b.on_ssd() == set()
    assert a.tables() == []
    b.create()
    b.insert(3)
    a.insert(4)
    assert (a.keys(), b.keys()) == ([4], [3])
    a("fsck")
    b("fsck")


def test_a_drop_holds_though_the_name_is_taken_again_at_once(homes: tuple[Home, Home]) -> None:
    a, b = homes
    b.insert(2)
    a("table", "drop", "d.t")
    a.create()
    a.insert(1)
    assert (a.keys(), b.keys()) == ([1], [])


def test_a_drop_that_was_undone_is_none_anywhere(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    a.to_bucket()
    b.insert(2)
    a("table", "drop", "d.t")
    a("undo", "s3", str(a.head()))
    assert a.keys() == [1]
    assert b.keys() == [1, 2]  # it did not look meanwhile
    a("fsck")
    b("fsck")


def test_a_drop_takes_a_table_that_was_altered_elsewhere(homes: tuple[Home, Home]) -> None:
    """Another machine altered it meanwhile."""
    a, b = homes
    a.insert(1)
    b.insert(2)
    with Store.open(load(a.configuration)) as stale:
        b("table", "alter", "d.t", "--add-column", "x:int64")
        stale.drop_table("d.t")
    assert a.tables() == b.tables() == []
    assert (a.on_ssd(), b.on_ssd()) == (set(), set())
    a("fsck")
    b("fsck")


def test_a_drop_that_died_before_another_s_alter_is_given_up(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = homes
    a.insert(1)
    b.insert(2)
    with Store.open(load(a.configuration)) as dying, monkeypatch.context() as patch:
        patch.setattr(tables, "_drop_from", _dies)
        with pytest.raises(_Died):
            dying.drop_table("d.t")
    b("table", "alter", "d.t", "--add-column", "x:int64")
    assert a.keys() == [1]
    assert "gave up a drop table of d.t" in a.error
    assert b.keys() == [2]
    a("fsck")
    b("fsck")


class _Died(BaseException):
    pass


def _dies(*_: object, **__: object) -> None:
    raise _Died


def test_a_restore_to_before_a_table_keeps_what_only_an_ssd_has(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.create("d.first")
    before = a.head()
    a.create("d.late")
    a.insert(1, table="d.late")
    b.insert(2, table="d.late")
    a("restore", "s3", "--revision", str(before), "--apply")
    for home in (a, b):
        assert home.tables() == ["d.first", "d.t"]
        assert "d.late" in home.error
        home("fsck")
    assert (len(a.on_ssd()), len(b.on_ssd())) == (3, 3)
    a("undo", "s3", str(a.head()))
    assert (a.keys("d.late"), b.keys("d.late")) == ([1], [2])


def test_a_restore_brings_a_dropped_table_back_on_every_machine(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    a.to_bucket()
    b("tick")
    there = a.head()
    a("table", "drop", "d.t")
    assert b.tables() == []
    a("restore", "s3", "--revision", str(there), "--table", "d.t", "--apply")
    assert (a.keys(), b.keys()) == ([1], [1])
    with pytest.raises(AssertionError, match="exists already"):
        b.create()


def test_a_restore_across_an_alter_brings_the_schema_back(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    before = a.head()
    a("table", "alter", "d.t", "--add-column", "late:int64")
    b("tick")
    a("restore", "s3", "--revision", str(before), "--apply")
    for home in (a, b, a):
        assert [column["name"] for column in home.json("table", "show", "d.t")["columns"]] == ["k"]
        assert home.keys() == ([1] if home is a else [])
    a("table", "alter", "d.t", "--add-column", "other:string")
    columns = b.json("table", "show", "d.t")["columns"]
    assert [(column["id"], column["name"]) for column in columns] == [(1, "k"), (3, "other")]
    a("fsck")
    b("fsck")


def test_a_restore_over_a_name_taken_again_leaves_one_table(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    a.to_bucket()
    there = a.head()
    a("table", "drop", "d.t")
    a.create()
    a.insert(2)
    a("restore", "s3", "--revision", str(there), "--apply")
    assert (a.keys(), b.keys()) == ([1], [1])
    a.insert(3)
    assert a.keys() == [1, 3]
    a("fsck")


def test_a_table_dropped_on_two_object_disks_comes_back_on_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Home(tmp_path, "two", capsys, buckets=("s3", "far"))
    a.create()
    a.insert(1)
    a.to_bucket("s3")
    a.insert(2)
    a.to_bucket("far", part="all_2_2_0")
    near, far = a.head("s3"), a.head("far")
    a("table", "drop", "d.t")
    a("undo", "s3", str(near + 1))
    assert a.keys() == [1]
    a("undo", "far", str(far + 1))
    assert a.keys() == [1, 2]
    a("fsck")


@pytest.fixture
def back_on_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """Two machines on two buckets; d.t was dropped on both, and came back on the second one."""
    a, b = (Home(tmp_path, name, capsys, buckets=("s3", "far")) for name in "ab")
    a.create()
    far = a.head("far")
    a("table", "drop", "d.t")
    a("undo", "far", str(far + 1))
    return a, b


def test_a_table_back_on_one_object_disk_has_its_name_again(back_on_one: tuple[Home, Home]) -> None:
    a, _ = back_on_one
    with Store.open(load(a.configuration)) as store:
        assert table_names.owner_of(store.disk("s3"), "d.t") == store.definition("d.t").uuid
    a("fsck")


def test_two_machines_that_bring_a_definition_at_once_succeed(
    back_on_one: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They bring it to one disk."""
    a, b = back_on_one
    write, others = tables.write_definition, iter((b,))

    def after_another_one(*arguments: Any, **options: Any) -> None:
        for other in others:
            assert other.tables() == ["d.t"]
        write(*arguments, **options)

    monkeypatch.setattr(tables, "write_definition", after_another_one)
    assert a.tables() == ["d.t"]
    assert next(others, None) is None
    a.insert(1)
    b("fsck")


def test_fsck_finds_nothing_after_another_s_create_or_alter(homes: tuple[Home, Home]) -> None:
    """Its own copies of the definitions are behind then, until the next command.
    Another machine made or altered a table a moment ago."""
    a, b = homes
    b.insert(1)
    a("table", "alter", "d.t", "--add-column", "n:int64")
    b("fsck")
    a.create("d.u")
    b("fsck")
    before = a.head()
    a("table", "drop", "d.u")
    a("restore", "s3", "--revision", str(before), "--apply")
    b("fsck")
    a("undo", "s3", str(a.head()))
    a("fsck")
    b("fsck")
