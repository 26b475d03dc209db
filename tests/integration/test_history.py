"""log, diff, blame and undo from the command line, on a real S3 server and in a directory.

Guards I1, I2 and I7 as a user meets them, P42 with gc at work, and P33: an undo and a collection on one bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from disks.garbage import collect as garbage
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from restore.history.undo import preview
from tests.servers import Server, ministack
from tiering.cli import main as cli
from tiering.config.reading import load
from tiering.engine.store import Store

PARTS = ["202601_1_1_0", "202602_1_1_0"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ministack() as running:
        yield running


class Frostline:
    """Runs command lines in this process and gives back what they printed."""

    def __init__(self, configuration: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.configuration = configuration
        self._capsys = capsys
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        actual = cli.run(["-c", str(self.configuration), *arguments])
        captured = self._capsys.readouterr()
        self.error = captured.err
        assert actual == code, f"exit {actual}: {captured.out}\n{captured.err}"
        return captured.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def rows(self) -> int:
        count: int = self.json("query", "SELECT count(*) FROM db.t")["rows"][0][0]
        return count

    def head(self) -> int:
        revision: int = self.json("log", "s3", "--limit", "1")["entries"][0]["revision"]
        return revision


@pytest.fixture(params=["directory", "s3"])
def frostline(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Frostline:
    """A table with a cold and a hot volume; nothing keeps parts on the cold one from being merged."""
    monkeypatch.chdir(tmp_path)
    bucket: dict[str, object] = {"type": "object_disk", "url": (tmp_path / "bucket").as_uri() + "/"}
    if request.param == "s3":
        server: Server = request.getfixturevalue("server")
        bucket = {
            "type": "object_disk",
            "url": f"s3://{server.new_bucket()}/prefix/",
            "endpoint_url": server.endpoint_url,
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
            "region": "us-east-1",
        }
    configuration = tmp_path / "frostline.yaml"
    configuration.write_text(
        yaml.safe_dump(
            {
                "state_path": str(tmp_path / "state"),
                "disks": {"ssd": {"type": "local", "path": str(tmp_path / "ssd")}, "s3": bucket},
                "policies": {
                    "hot_cold": {"volumes": [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]}
                },
            }
        )
    )
    configuration.chmod(0o600)
    run = Frostline(configuration, capsys)
    run(
        *("table", "create", "db.t", "--column", "ts:timestamp[us, UTC]", "--column", "id:int64"),
        *("--order-by", "id", "--partition-by", "month(ts)"),
    )
    insert(run, tmp_path, 0)
    return run


def insert(frostline: Frostline, tmp_path: Path, first: int) -> None:
    """A hundred rows in January and a hundred in February."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(days=31 * (number // 100), minutes=number) for number in range(200)]
    lines = [f"{moment:%Y-%m-%dT%H:%M:%SZ},{first + number}" for number, moment in enumerate(moments)]
    path = tmp_path / f"{first}.csv"
    path.write_text("\n".join(["ts,id", *lines]))
    frostline("insert", "db.t", str(path))


def to_bucket(frostline: Frostline, partition: str = "202601") -> int:
    frostline("move", "db.t", "--partition", partition, "--to-disk", "s3")
    return frostline.head()


@pytest.mark.in_turn
def test_who_did_this_and_how_do_i_take_it_back(frostline: Frostline, tmp_path: Path) -> None:
    first = to_bucket(frostline)
    insert(frostline, tmp_path, 1000)
    second = to_bucket(frostline)
    frostline("merge", "db.t", "--final")
    merge = frostline.head()
    assert merge == second + 1
    rows = frostline.rows()

    entries = frostline.json("log", "db.t", "--limit", "2")["entries"]
    assert [(entry["revision"], entry["kind"]) for entry in entries] == [(second, "move"), (merge, "merge")]
    assert frostline.json("log", "s3", "--since", str(first), "--until", str(second))["entries"][0] == entries[0]
    assert len(frostline.json("log", "s3")["entries"]) == merge
    assert frostline.json("log", "s3", "--limit", "0")["entries"] == []

    changed = frostline.json("diff", "s3", str(first), str(merge))
    assert {(part["change"], part["part"]) for part in changed["parts"]} == {
        ("added", "202601_1_2_1"),
        ("removed", "202601_1_1_0"),
    }
    assert changed["parts"][0]["commit"]["kind"] == "merge"
    assert changed["parts"][0]["rows"] == 200
    text = frostline("diff", "s3", str(first), str(merge))
    assert "+ 202601_1_2_1  merged from 202601_1_1_0, 202601_2_2_0" in text
    assert "- 202601_1_1_0  merged into 202601_1_2_1" in text

    blamed = frostline.json("blame", "db.t", "202601_1_2_1")
    assert [deed["revision"] for deed in blamed["deeds"] if deed["source"] == "log"] == [first, second, *[merge] * 3]
    assert "moved in from ssd" in frostline("blame", "db.t", "202601_1_1_0")

    frostline("undo", "s3", str(merge), code=13)
    assert "--yes" in frostline.error
    planned = frostline.json("undo", "s3", str(merge), "--dry-run")
    assert (planned["applied"], planned["dry_run"]) == (False, True)
    assert [part["part"] for part in planned["parts_removed"]] == ["202601_1_2_1"]
    assert sorted(part["part"] for part in planned["parts_back"]) == ["202601_1_1_0", "202601_2_2_0"]
    assert frostline.head() == merge
    done = frostline.json("undo", "s3", str(merge), "--yes")
    assert (done["applied"], done["commit"]) == (True, merge + 1)
    assert frostline.rows() == rows
    on_s3 = {part["part"] for part in frostline.json("parts", "db.t", "--all", "--disk", "s3")["parts"]}
    assert on_s3 == {"202601_1_1_0", "202601_2_2_0"}
    frostline("undo", "s3", str(merge), "--yes")
    assert f"is undone already, by revision {merge + 1}" in frostline.error
    frostline("undo", "s3", str(merge), "--yes", "--error-on-nothing", code=9)
    assert frostline.json("undo", "s3", str(merge), "--yes")["done"]

    frostline("undo", "s3", str(merge + 1), "--yes")
    assert {part["part"] for part in frostline.json("parts", "db.t", "--disk", "s3")["parts"]} == {"202601_1_2_1"}
    assert frostline.rows() == rows
    assert frostline.json("fsck", "--read-data")["ok"] is True


@pytest.mark.in_turn
def test_what_it_refuses(frostline: Frostline, tmp_path: Path) -> None:
    moved = to_bucket(frostline)
    error = refusal(frostline, "undo", "s3", str(moved), "--yes")
    assert "it would be nowhere" in error["message"]
    assert "--to-disk ssd" in error["hint"]
    insert(frostline, tmp_path, 1000)
    to_bucket(frostline)
    frostline("merge", "db.t", "--final")
    error = refusal(frostline, "undo", "s3", str(moved), "--dry-run")
    assert "merged into 202601_1_2_1 since" in error["message"]
    frostline("move", "db.t", "--partition", "202601", "--to-disk", "ssd")
    error = refusal(frostline, "undo", "s3", str(frostline.head()), "--yes")
    assert "are on ssd since" in error["message"]
    head = frostline.head()
    frostline("undo", "s3", "99", code=10)
    assert f"revisions that can be restored: 0 to {head}" in frostline.error
    frostline("undo", "ssd", "1", code=2)
    frostline("diff", "ssd", "1", "2", code=2)
    frostline("diff", "s3", "1", "99", code=10)
    frostline("diff", "s3", "2", "1", code=2)
    frostline("blame", "db.t", "202601_9_9_0", code=10)
    frostline("blame", "db.none", "202601_1_1_0", code=10)
    frostline("log", "db.none", code=10)


def refusal(frostline: Frostline, *arguments: str) -> Any:
    frostline(*arguments, "--json", code=13)
    return json.loads(frostline.error)["error"]


@pytest.mark.in_turn
def test_a_dropped_table(frostline: Frostline) -> None:
    """P42: its history can be read, it comes back by an undo, and gc keeps what the retention promises."""
    to_bucket(frostline)
    to_bucket(frostline, "202602")
    rows = frostline.rows()
    frostline("table", "drop", "db.t", "--yes")
    dropped = frostline.head()
    listed = frostline.json("log", "db.t")["entries"]
    assert [entry["kind"] for entry in listed][-1] == "drop"
    assert "was dropped" in frostline.error
    assert "dropped" in frostline("blame", "db.t", PARTS[0])
    assert "- table db.t dropped" in frostline("diff", "s3", str(dropped - 1), str(dropped))
    frostline("gc", "--delete", "--yes")
    planned = frostline("undo", "s3", str(dropped), "--dry-run")
    assert "brings back   table db.t" in planned
    assert "brings back   part 202601_1_1_0 of db.t (100 rows" in planned
    frostline("undo", "s3", str(dropped), "--yes")
    assert frostline.rows() == rows
    assert frostline.json("fsck", "--read-data")["ok"] is True


def later(frostline: Frostline, days: int) -> None:
    """gc, that many days from now."""
    config = load(frostline.configuration)
    disk = open_disk("s3", config.disks["s3"], config.state_directory)
    assert isinstance(disk, ObjectDisk)
    now = datetime.now(UTC) + timedelta(days=days)
    report = garbage.collect(disk, GcRules(delete=True, max_delete_fraction=1.0, compact_after_commits=1), now=now)
    assert not report.refused
    disk.close()


@pytest.mark.in_turn
def test_after_the_retention(frostline: Frostline, tmp_path: Path) -> None:
    """I15, P44: what gc has taken is said to be gone; what is left answers."""
    to_bucket(frostline)
    frostline("table", "drop", "db.t", "--yes")
    dropped = frostline.head()
    for name in ("db.u", "db.v"):
        frostline("table", "create", name, "--column", "id:int64", "--order-by", "id")
        frostline("snapshot", "s3")
    later(frostline, 3)
    frostline("undo", "s3", str(dropped), "--yes", code=10)
    assert "not kept" in frostline.error
    frostline("diff", "s3", "1", str(dropped), code=10)
    frostline("blame", "db.t", PARTS[0], code=10)
    entries = [(entry["revision"], entry["kind"]) for entry in frostline.json("log", "s3")["entries"]]
    assert entries == [(dropped + 1, "create_table"), (dropped + 2, "create_table"), (dropped + 3, "fence")]
    assert frostline.json("diff", "s3", str(dropped + 1), str(dropped + 2))["tables"][0]["change"] == "created"


@pytest.mark.in_turn
def test_gc_between_the_preview_and_the_undo(frostline: Frostline) -> None:
    """P33: the blobs go after somebody looked; the undo looks again and names nothing that is gone."""
    to_bucket(frostline)
    frostline("table", "drop", "db.t", "--yes")
    dropped = frostline.head()
    with Store.open(load(frostline.configuration)) as store:
        disk = store.object_disk("s3")
        assert not preview(store.context, disk, dropped).objections
        blobs = [item.key for item in disk.store.list() if "-file-" in item.key]
        disk.store.delete(blobs)
    error = refusal(frostline, "undo", "s3", str(dropped), "--yes")
    assert "are gone from the bucket" in error["message"]
    assert frostline.head() == dropped
