"""`fsck` misses a pin that a backup counts on (I12), as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from oplog import pins
from tests.command_line import Frostline
from tests.worm import ACTIVE
from tiering.config.reading import load
from tiering.engine.store import Store


@pytest.fixture
def frostline(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Frostline:
    """A machine with a row in its bucket and a backup that pins it."""
    configuration = tmp_path / "frostline.yaml"
    disks = {
        "ssd": {"type": "local", "path": str(tmp_path / "ssd")},
        "s3": {"type": "object_disk", "url": f"{(tmp_path / 'bucket').as_uri()}/"},
    }
    volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
    repository = {"repository": (tmp_path / "repository").as_uri()}
    configuration.write_text(
        yaml.safe_dump(
            {
                "state_path": str(tmp_path / "state"),
                "disks": disks,
                "policies": {"hot_cold": {"volumes": volumes}},
                "backup": repository,
            }
        )
    )
    monkeypatch.setenv("FROSTLINE_CONFIG", str(configuration))
    monkeypatch.chdir(tmp_path)
    run = Frostline(capsys)
    rows = tmp_path / "rows.csv"
    rows.write_text("k\n1\n")
    run("table", "create", "d.t", "--column", "k:int64", "--order-by", "k")
    run("insert", "d.t", str(rows))
    run("move", "d.t", "--partition", "all", "--to-disk", "s3")
    run("backup", "init")
    run("backup", "create", "monday", "--cold", "pin")
    return run


def test_a_pin_that_is_gone_is_missed(frostline: Frostline, tmp_path: Path) -> None:
    assert frostline.json("fsck")["problems"] == []
    with Store.open(load(tmp_path / "frostline.yaml")) as store:
        bucket = store.object_disk("s3").store
        (pin,) = pins.list_pins(bucket)
        pins.release(bucket, pin.name)
    (problem,) = frostline.json("fsck", code=4)["problems"]
    assert (problem["invariant"], problem["disk"], problem["object"]) == ("I12", "s3", f"pins/{pin.name}.json")
    assert "backup monday counts on it" in problem["what"]


def test_a_deleted_backup_counts_on_nothing(frostline: Frostline) -> None:
    frostline("backup", "delete", "monday", "--yes", code=13 if ACTIVE else 0)
    assert frostline.json("fsck")["problems"] == []
    left = [item["name"] for item in frostline.json("backup", "list")["backups"]]
    assert left == (["monday"] if ACTIVE else []), "what a lock keeps is a backup still, pins and all"


def test_a_repository_that_cannot_be_read_is_told(
    frostline: Frostline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "repository").rename(tmp_path / "elsewhere")
    assert frostline.json("fsck")["problems"] == []
    assert "pins of backups" in frostline.error + caplog.text
