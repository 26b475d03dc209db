"""`status` of a store whose tables are backed up: what this machine last saw, and nobody is asked. Guards P48."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from backup.storage import Storage
from backup.verify import last_seen
from tests.backups import TABLE, Machine, filled, insert, machine_on
from tests.command_line import Frostline
from tests.worm import ACTIVE


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)
    made = filled(machine_on(tmp_path))
    made.init()
    monkeypatch.setenv("FROSTLINE_CONFIG", str(made.write_config(tmp_path / "frostline.yaml")))
    return made


@pytest.fixture
def frostline(machine: Machine, capsys: pytest.CaptureFixture[str]) -> Frostline:
    return Frostline(capsys)


def of_table(frostline: Frostline, table: str = TABLE) -> dict[str, Any]:
    document = frostline.json("status")["backups"]
    assert document["as_of"]
    (found,) = [item for item in document["tables"] if item["table"] == table]
    return dict(found)


def test_each_step_is_seen(frostline: Frostline, machine: Machine) -> None:
    assert frostline.json("status")["backups"]["as_of"] is None
    assert "not looked at from here yet" in frostline("status")
    frostline("backup", "list")
    assert of_table(frostline)["backup"] is None
    assert f"{TABLE}: NO BACKUP" in frostline("status")
    frostline("backup", "create", "one")
    assert (of_table(frostline)["backup"], of_table(frostline)["verified"]) == ("one", None)
    frostline("backup", "verify", "one", "--read-data")
    verified = of_table(frostline)["verified"]
    assert (verified["backup"], verified["how"], verified["ok"]) == ("one", "data", True)
    frostline("backup", "drill", "--max-bytes", "4k")
    drilled = of_table(frostline)["drilled"]
    assert (drilled["backup"], drilled["how"], drilled["ok"]) == ("one", "share", True)
    frostline("backup", "create", "part", "--partition", "202601")
    assert of_table(frostline)["backup"] == "one", "a partition is not the table"
    frostline("backup", "create", "two")
    seen = of_table(frostline)
    assert (seen["backup"], seen["verified"]["backup"], seen["drilled"]["backup"]) == ("two", "one", "one")
    assert "verified 20" in frostline("status")
    assert "drilled 20" in frostline("status")
    if not ACTIVE:
        frostline("backup", "delete", "two", "-y")
        assert of_table(frostline)["backup"] == "one"
        frostline("backup", "prune", "--keep-last", "1", "-y")
        assert of_table(frostline)["backup"] == "one"


def test_a_repository_that_is_away_is_not_asked(
    frostline: Frostline, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    frostline("backup", "create", "one")
    before = frostline.json("status")["backups"]
    shutil.rmtree(machine.repository_url.removeprefix("file://"))
    monkeypatch.setattr(Storage, "open", None)
    assert frostline.json("status")["backups"] == before
    for path in (machine.root / "state" / "backup").rglob("last_seen.json"):
        path.write_bytes(b"{")
    assert frostline.json("status")["backups"]["as_of"] is None
    monkeypatch.setenv("FROSTLINE_BACKUP", "ftp://x/y")
    assert "cannot use 'ftp://x/y'" in frostline("status")
    monkeypatch.setenv("FROSTLINE_BACKUP", (machine.root.parent / "another").as_uri())
    assert "not looked at from here yet" in frostline("status")


def test_without_a_repository_nothing_is_said(
    frostline: Frostline, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machine.root.parent / "frostline.yaml"
    file.write_text(file.read_text().partition("backup:")[0])
    assert frostline.json("status")["backups"] is None
    assert "backups" not in frostline("status")


def test_what_cannot_be_written_down_fails_nothing(
    frostline: Frostline, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(last_seen, "replace_file", full)
    frostline("backup", "create", "one")
    frostline("backup", "verify", "one")
    assert frostline.json("status")["backups"]["as_of"] is None
    with machine.open() as store:
        insert(store, 5000)
