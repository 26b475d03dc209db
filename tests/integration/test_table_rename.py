"""`table rename`: another name on every machine, the old one free, and nobody gets a name that somebody has."""

from __future__ import annotations

from pathlib import Path

import pytest

from oplog.errors import AlreadyExists
from tests.homes import Home
from tiering.catalog.definitions import table_names
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.table.definitions import rename_table


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """Two machines; the first has created d.t."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a.create()
    return a, b


@pytest.mark.in_turn
def test_a_table_with_rows_everywhere_gets_another_name(homes: tuple[Home, Home]) -> None:
    """On both machines and in the bucket."""
    a, b = homes
    a.insert(1)
    a.to_bucket()
    a.insert(2)
    b.insert(3)
    a("pin", "d.t", "--partition", "all")
    assert "would have renamed table d.t to e.u" in a("table", "rename", "d.t", "e.u", "--dry-run")
    assert a.tables() == ["d.t"]
    assert a.json("table", "rename", "d.t", "e.u")["table"] == "e.u"
    assert (a.tables(), b.tables()) == (["e.u"], ["e.u"])
    assert (a.keys("e.u"), b.keys("e.u")) == ([1, 2], [1, 3])
    a("query", "SELECT * FROM d.t", code=10)
    assert [pin["table"] for pin in a.json("status")["pins"]] == ["e.u"]
    b.create()  # the old name is free
    b.insert(9)
    assert (a.tables(), a.keys("d.t"), b.keys("d.t")) == (["d.t", "e.u"], [], [9])
    for home in homes:
        home("fsck")


def test_a_name_that_somebody_has_is_refused(homes: tuple[Home, Home]) -> None:
    a, b = homes
    b.create("d.other")
    for options in ((), ("--dry-run",)):
        a("table", "rename", "d.t", "d.other", *options, code=a_name_is_taken(a))
    assert "table d.other exists already" in a.error
    a("table", "rename", "d.t", "d.t", code=2)
    a("table", "rename", "d.t", "nothing", code=2)
    a("table", "rename", "d.none", "d.u", code=10)
    assert a.tables() == ["d.other", "d.t"]


def a_name_is_taken(home: Home) -> int:
    """The exit code of a table that exists already."""
    return AlreadyExists("").exit_code


def test_the_second_machine_to_give_a_name_changes_nothing(homes: tuple[Home, Home]) -> None:
    """Two give one name at the same time."""
    a, b = homes
    a.create("d.mine")
    with Store.open(load(a.configuration)) as stale:
        old = stale.definition("d.mine")
        b("table", "rename", "d.t", "d.wanted")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stale.context.catalog, "refresh", lambda *_, **__: None)  # it looked a moment before
            with pytest.raises(AlreadyExists):
                stale.alter_table(old, rename_table(old, "d.wanted"))
    assert (a.tables(), b.tables()) == (["d.mine", "d.wanted"], ["d.mine", "d.wanted"])
    a("fsck")


def test_a_rename_is_taken_back_unless_the_old_name_is_taken(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    a("table", "rename", "d.t", "d.u")
    renamed = a.head()
    a("undo", "s3", str(renamed))
    assert (a.tables(), b.tables(), a.keys()) == (["d.t"], ["d.t"], [1])
    with Store.open(load(a.configuration)) as store:
        disk, table = store.disk("s3"), store.definition("d.t")
        assert table_names.owner_of(disk, "d.t") == table.uuid
        assert table_names.owner_of(disk, "d.u") is None
    a("table", "rename", "d.t", "d.u")
    renamed = a.head()
    b.create()
    a("undo", "s3", str(renamed), code=a_name_is_taken(a))
    assert a.tables() == ["d.t", "d.u"]


def test_a_bucket_put_back_to_before_has_the_old_name(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    a.to_bucket()
    before = a.head()
    a("table", "rename", "d.t", "d.u")
    a("restore", "s3", "--revision", str(before), "--apply")
    assert (a.tables(), b.tables(), a.keys(), b.keys()) == (["d.t"], ["d.t"], [1], [1])
    a.create("d.u")
    a("fsck")
    b("fsck")
