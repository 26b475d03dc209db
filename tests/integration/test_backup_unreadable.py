"""Backups of stores with a table that cannot be read: each says what it lacks, and the last one that has it stays.
I12, I15."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.homes import Home
from tests.integration.unreadable import begun, spoil


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    """With backup one of d.t and d.u, and two, which lacks d.t."""
    monkeypatch.setenv("FROSTLINE_BACKUP", (tmp_path / "backups").as_uri())
    home = begun(Home(tmp_path, "a", capsys))
    home("backup", "init")
    home("backup", "create", "one")
    spoil(home)
    home("backup", "create", "two", code=3)
    assert "backup two lacks d.t" in home.error
    return home


def test_a_backup_says_what_it_lacks(home: Home) -> None:
    preview = home.json("backup", "create", "-n", code=3)
    made = home.json("backup", "create", "three", code=3)
    for document in (preview, made):
        assert [table["table"] for table in document["left_out"]] == ["d.t"]
        assert document["tables"] == 1
    listed = home.json("backup", "list")["backups"]
    assert [[table["table"] for table in item["left_out"]] for item in listed] == [[], ["d.t"], ["d.t"]]
    assert "LACKS" in home("backup", "list")
    assert "LACKS: d.t: table d.t cannot be read" in home("backup", "show", "two")
    assert home.json("backup", "show", "two")["backups"][0]["left_out"][0]["table"] == "d.t"


def test_nothing_is_made_of_it_alone(home: Home) -> None:
    home("backup", "create", "-t", "d.t", code=1)
    assert "table d.t cannot be read" in home.error
    home("backup", "create", "-t", "d.u")
    assert len(home.json("backup", "list")["backups"]) == 3


def test_a_restore_says_what_it_lacks(home: Home) -> None:
    restored = home.json("backup", "restore", "two", "-t", "d.*", "--map-table", "d.u:d.v")
    assert "lacks d.t" in restored["notes"][0]
    home("backup", "restore", "two", "-t", "d.t", code=10)
    assert "lacks d.t" in home.error
    for chosen in ((), ("-t", "d.t")):
        home("backup", "restore", "two", *chosen, "--map-table", "d.t:d.w", code=10)
        assert "lacks d.t" in home.error
    home("backup", "restore", "one", "-t", "d.t", code=1)
    assert "table drop d.t" in home.error
    home("backup", "restore", "one", "-t", "d.t", "--map-table", "d.t:d.w")
    assert home.keys("d.w") == [1]


def test_what_is_mapped_is_restored_alone(home: Home) -> None:
    """Other tables of the backup exist already, and are not asked for."""
    home("backup", "restore", "one", "--map-table", "d.u:d.x")
    assert home.tables() == ["d.u", "d.x"]
    home("backup", "restore", "one", "-t", "d.*", "--map-table", "d.t:d.y", code=1)


def test_the_last_backup_that_has_it_stays(home: Home) -> None:
    home("backup", "create", "three", code=3)
    found = home.json("backup", "prune", "--keep-last", "1")
    assert [item["name"] for item in found["kept"]] == ["one", "three"]
    assert "d.t" in found["kept"][0]["reasons"][0]
    home("table", "drop", "d.t")
    home("backup", "restore", "one", "-t", "d.t")
    home("backup", "create", "four")
    found = home.json("backup", "prune", "--keep-last", "1")
    assert [item["name"] for item in found["kept"]] == ["four"]


def test_next_steps_of_damage_in_a_repository_lead_out_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I15: of its own document, which is gone or damaged, and of a header: each step that is shown is taken."""
    home = Home(tmp_path, "a", capsys)
    home("table", "create", "d.t", "--column", "k:int64", "--order-by", "k")
    (tmp_path / "rows.csv").write_text("k\n1\n")
    home("insert", "d.t", str(tmp_path / "rows.csv"))
    there, empty = tmp_path / "repository", tmp_path / "empty"
    to = ("--to", there.as_uri())
    home("backup", "init", there.as_uri())
    for name in ("one", "two"):
        home("backup", "create", name, *to)
    marker = there / ".frostline-backup"
    marker.chmod(0o644)
    marker.write_bytes(marker.read_bytes().replace(b"created", b"creatad"))
    home("backup", "list", *to, code=1)
    assert f"and move the {marker.name} from there" in home.error
    marker.unlink()
    home("backup", "list", *to, code=10)
    assert "backup init" in home.error
    home("backup", "init", there.as_uri(), code=13)
    assert f"its {marker.name} is gone" in home.error
    assert f"move the {marker.name} from there" in home.error
    home("backup", "init", empty.as_uri())
    (empty / marker.name).rename(marker)
    home("backup", "verify", "--all", "--read-data", *to)
    (header,) = there.glob("backups/one/*.json")
    header.chmod(0o644)
    header.write_bytes(header.read_bytes()[:-9])
    home("backup", "delete", "one", *to, code=1)
    (command,) = re.findall(r"'frostline (backup delete [^']+)'", home.error)
    home(*command.split(), *to)
    assert [one["name"] for one in home.json("backup", "list", *to)["backups"]] == ["two"]
    home("backup", "gc", *to)
