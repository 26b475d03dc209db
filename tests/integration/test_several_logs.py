"""Machines that share the objects of one prefix and have a log each, from the command line (docs/decisions/0014).

Guards I6 (one writer a log) and I16 (a disk is what its id says)."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.kinds import as_disk
from disks.object_disk.sharing import retiring
from disks.object_disk.sharing.other_log import OtherLog
from tests import worm
from tests.homes import Home
from tiering.engine.store import Store


@pytest.fixture
def machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """Each has its own table d.t with a part in the bucket."""
    found = []
    for number, name in enumerate(("a", "b")):
        home = Home(tmp_path, name, capsys, log=name)
        home.create()
        home.insert(*range(10 * number, 10 * number + 5))
        home.to_bucket()
        found.append(home)
    return found[0], found[1]


def with_log(home: Home, log: str | None, *, below: str = "") -> None:
    document = yaml.safe_load(home.configuration.read_text())
    document["disks"]["s3"]["url"] += below
    document["disks"]["s3"].pop("log", None)
    if log is not None:
        document["disks"]["s3"]["log"] = log
    home.configuration.write_text(yaml.safe_dump(document))


def test_each_machine_has_its_own_tables(machines: tuple[Home, Home], tmp_path: Path) -> None:
    a, b = machines
    assert a.keys() == [0, 1, 2, 3, 4]
    assert b.keys() == [10, 11, 12, 13, 14]
    assert (tmp_path / "s3" / ".SCHEMA_VERSION").read_text() == "3"
    assert {path.name for path in (tmp_path / "s3" / "logs").iterdir()} == {"a", "b"}
    blobs = [path for path in (tmp_path / "s3").iterdir() if "-file-" in path.name]
    assert len(blobs) == 2
    for home in machines:
        home("fsck", "--read-data")


def test_a_machine_that_says_the_name_of_anothers_log(
    machines: tuple[Home, Home], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads what is there, is refused before it writes, and takes the place of the other where somebody says so."""
    a, _ = machines
    c = Home(tmp_path, "c", capsys, log="a")
    assert c.keys() == a.keys()
    c("insert", "d.t", str(a.path / "rows.csv"), code=13)
    assert "is written by another machine" in c.error
    assert "disk adopt s3" in c.error
    assert a.head() == c.head()
    c("disk", "adopt", "s3")
    c.insert(99)
    c.to_bucket()
    assert c.keys() == [0, 1, 2, 3, 4, 99]
    a.insert(98)
    said = a("move", "d.t", "--partition", "all", "--to-disk", "s3", code=13)
    assert "is written by another machine" in said
    assert "disk adopt s3" in said


def test_a_lost_machine_is_rebuilt_from_its_own_log(machines: tuple[Home, Home]) -> None:
    a, b = machines
    shutil.rmtree(a.path / "state")
    assert a.keys() == [0, 1, 2, 3, 4]
    (found,) = (one for one in a.json("doctor", code=4)["findings"] if one["level"] == "problem")
    assert (found["check"], "disk adopt s3" in found["hint"]) == ("writer", True)
    a("disk", "adopt", "s3")
    assert not [one for one in a.json("doctor")["findings"] if one["check"] == "writer"]
    a.insert(5)
    a.to_bucket()
    assert a.keys() == [0, 1, 2, 3, 4, 5]
    assert b.keys() == [10, 11, 12, 13, 14]


def test_a_configuration_says_one_log_or_several_as_it_is(machines: tuple[Home, Home]) -> None:
    a, _ = machines
    shutil.rmtree(a.path / "state")
    with_log(a, None)
    a("log", "s3", code=2)
    assert "several logs" in a.error
    with_log(a, "no/name")
    a("disks", code=2)
    assert "not a name for a log" in a.error
    with_log(a, None, below="logs/a/")
    shutil.rmtree(a.path / "state")
    a("log", "s3", code=2)
    assert "several logs" in a.error


def test_two_logs_of_one_prefix_in_one_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two disks; the same name twice, and a disk with the prefix for itself beside one, are one place twice."""
    home = Home(tmp_path, "a", capsys, buckets=("s3", "cold"), log="x")
    document = yaml.safe_load(home.configuration.read_text())
    url = document["disks"]["s3"]["url"]
    for log, code in (("x", 2), (None, 2), ("y", 0)):
        document["disks"]["cold"] = {"type": "object_disk", "url": url} | ({"log": log} if log else {})
        home.configuration.write_text(yaml.safe_dump(document))
        home("disks", code=code)
    home.create()
    home.insert(1, 2)
    home.to_bucket("s3")
    home.to_bucket("cold")
    home.insert(3)
    home.to_bucket("s3")
    assert home.keys() == [1, 2, 3]
    home("fsck", "--read-data")


def test_a_log_can_be_copied_to_a_disk_of_its_own(
    machines: tuple[Home, Home], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way out: `restore --from` names the log by where it lies."""
    a, b = machines
    c = Home(tmp_path, "c", capsys, buckets=("own",))
    source = f"{(tmp_path / 's3').as_uri()}/logs/b/"
    c("restore", "own", "--from", source, "--apply")
    assert c.keys() == b.keys() != a.keys()
    c("restore", "own", "--from", source.removesuffix("logs/b/"), "--apply", code=2)
    assert "several logs" in c.error


def test_a_collection_heeds_every_log(machines: tuple[Home, Home], tmp_path: Path) -> None:
    """Guards I4: whoever collects, what the others have stays; a log that cannot be read stops it."""
    a, b = machines
    assert a.json("gc", "s3", "--delete")["orphaned"] == 0
    a("fsck")
    assert b.keys() == [10, 11, 12, 13, 14]
    entry = min((tmp_path / "s3" / "logs" / "b" / "operations").iterdir())
    whole = entry.read_bytes()
    entry.chmod(0o644)
    entry.write_bytes(b"{not json")
    for path in (tmp_path / "s3" / "logs" / "b" / "snapshots").iterdir():
        path.unlink()
    shutil.rmtree(a.path / "state" / "disks" / "s3" / "logs")
    a("gc", "s3", "--delete", code=13)
    assert "/logs/b/" in a.error
    entry.write_bytes(whole)
    a("gc", "s3", "--delete")


@pytest.mark.in_turn
def test_with_keeper_nothing_goes_that_marks_may_hold(machines: tuple[Home, Home]) -> None:
    """Guards I4, P11: replicas may hold objects by marks, and this is not the version that reads them."""
    a, _ = machines
    document = yaml.safe_load(a.configuration.read_text())
    document["keeper"] = {"hosts": ["127.0.0.1:1"]}
    a.configuration.write_text(yaml.safe_dump(document))
    a("gc", "s3", "--delete", code=13)


def test_a_backup_pins_its_own_log(machines: tuple[Home, Home], tmp_path: Path) -> None:
    """Guards I4, I12: the pin lies in the log, is found there by its URL, and every machine's collection heeds it."""
    a, b = machines
    document = yaml.safe_load(a.configuration.read_text())
    document["backup"] = {"repository": (tmp_path / "backups").as_uri()}
    a.configuration.write_text(yaml.safe_dump(document))
    a("backup", "init")
    a("backup", "create", "one", "--cold", "pin")
    pins = list((tmp_path / "s3" / "logs" / "a" / "pins").iterdir())
    assert pins if worm.ACTIVE else len(pins) == 1
    assert not (tmp_path / "s3" / "pins").exists()
    a("backup", "verify", "one")
    a("table", "drop", "d.t")
    assert b.json("gc", "s3", "--delete")["deleted"] == 0
    a("backup", "restore", "one")
    assert a.keys() == [0, 1, 2, 3, 4]


def age(root: Path, log: str, hours: int) -> None:
    """As if all that the log's machine wrote had been written so long ago, and all objects two days ago."""
    now = datetime.now(UTC)
    for path in (root / "s3" / "logs" / log).rglob("*"):
        if path.is_file():
            os.utime(path, times=((now - timedelta(hours=hours)).timestamp(),) * 2)
    for path in (root / "s3").glob("*-file-*"):
        os.utime(path, times=((now - timedelta(days=2)).timestamp(),) * 2)


def blobs(root: Path) -> int:
    return sum("-file-" in path.name for path in (root / "s3").iterdir())


def gc(home: Home, *, days: int) -> int:
    rules = GcRules(delete=True, max_delete_fraction=1.0)
    with Store.open(home.configuration) as store:
        report = collect(store.disk("s3"), rules, now=datetime.now(UTC) + timedelta(days=days))
    assert report.refused is None
    return report.deleted


def test_the_log_of_a_machine_that_is_gone(machines: tuple[Home, Home], tmp_path: Path) -> None:
    """P5, P13: nobody's objects go by a word alone: the log must be quiet for a day, what it alone has is named, gc
    heeds it for another day, and only then takes it."""
    a, b = machines
    a("disk", "retire-log", "s3", "b", code=13)
    assert "lives" in a.error
    age(tmp_path, "b", 25)
    with Store.open(a.configuration) as store:  # a collection's fences in the log are no sign of life
        logged = as_disk(store.disk("s3"), LoggedDisk)
        assert logged is not None
        with closing(OtherLog(logged, "b")) as log:
            log.fence("gc/some.json")
    found = a.json("disk", "retire-log", "s3", "b", "--dry-run")
    assert [(one["table"], len(one["parts"]), one["rows"]) for one in found["alone"]] == [("d.t", 1, 5)]
    assert (found["objects"], found["changed"], found["dry_run"]) == (1, False, True)
    assert "1 part with 5 rows" in found["refused"]
    a("disk", "retire-log", "s3", "b", code=13)
    assert "1 part with 5 rows" in a.error
    assert "--give-up" in a.error
    assert b.keys() == [10, 11, 12, 13, 14]
    assert a.json("disk", "retire-log", "s3", "b", "--give-up")["changed"]
    assert not a.json("disk", "retire-log", "s3", "b")["changed"]
    assert gc(a, days=0) == 0
    assert blobs(tmp_path) == 2
    b.insert(15)
    assert "was retired by" in b("move", "d.t", "--partition", "all", "--to-disk", "s3", code=13)
    assert gc(a, days=3) == 2, "and what was sent for that move"
    assert blobs(tmp_path) == 1
    assert a.keys() == [0, 1, 2, 3, 4]
    a("fsck", "--read-data")


def test_fsck_and_status_say_that_the_log_was_retired(machines: tuple[Home, Home], tmp_path: Path) -> None:
    """I6: a machine that only reads would not hear of it before its objects are collected."""
    a, b = machines
    age(tmp_path, "b", 25)
    for home in machines:
        assert home.json("status")["not_written"] == []
    a("disk", "retire-log", "s3", "b", "--give-up")
    assert "disk adopt s3" in b("status")
    (refused,) = b.json("status")["not_written"]
    assert (refused["disk"], "was retired by" in refused["what"]) == ("s3", True)
    (problem,) = b.json("fsck", code=4)["problems"]
    assert (problem["invariant"], problem["disk"]) == ("I6", "s3")
    assert "was retired by" in problem["what"]
    assert "disk adopt s3" in problem["what"]
    a("fsck")
    b("disk", "adopt", "s3")
    b("fsck")
    assert b.json("status")["not_written"] == []
    next(iter((tmp_path / "s3" / "logs" / "b" / "writers").iterdir())).parent.joinpath("9999999999.json").write_text(
        "?"
    )
    assert "cannot be read" in b("status")
    assert "cannot be read" in b("fsck", code=4)


def test_a_machine_that_was_only_quiet_takes_its_log_back(machines: tuple[Home, Home], tmp_path: Path) -> None:
    """I4: within twelve hours; gc of others never heeded it less. Later it is refused, whatever is left."""
    a, b = machines
    age(tmp_path, "b", 25)
    a("disk", "retire-log", "s3", "b", "--give-up")
    b("disk", "adopt", "s3")
    b.insert(15)
    b.to_bucket()
    assert gc(a, days=3) == 0
    assert b.keys() == [10, 11, 12, 13, 14, 15]
    age(tmp_path, "b", 25)
    a("disk", "retire-log", "s3", "b", "--give-up")
    age(tmp_path, "b", 13)
    b("disk", "adopt", "s3", code=13)
    assert "was retired by" in b.error
    assert "too late to take it back" in b.error


def test_a_log_that_comes_back_while_a_collection_runs(
    machines: tuple[Home, Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left out is asked for again before anything goes."""
    a, _ = machines
    age(tmp_path, "b", 25)
    a("disk", "retire-log", "s3", "b", "--give-up")
    answers = iter((True,))
    monkeypatch.setattr(retiring, "is_over", lambda found, now: next(answers, False))
    with Store.open(a.configuration) as store:
        rules = GcRules(delete=True, max_delete_fraction=1.0)
        report = collect(store.disk("s3"), rules, now=datetime.now(UTC) + timedelta(days=3))
    assert "taken back" in (report.refused or "")
    assert blobs(tmp_path) == 2


def test_which_logs_are_none_to_retire(machines: tuple[Home, Home], tmp_path: Path) -> None:
    a, _ = machines
    a("disk", "retire-log", "s3", "a", code=13)
    a("disk", "retire-log", "s3", "x", code=10)
    assert "b" in a.error
    a("disk", "retire-log", "ssd", "b", code=2)
    age(tmp_path, "b", 25)
    entry = next((tmp_path / "s3" / "logs" / "b" / "operations").iterdir())
    entry.write_bytes(b"nonsense")
    age(tmp_path, "b", 25)
    a("disk", "retire-log", "s3", "b", code=13)
    assert "no other log does: unknown" in a.error
    a("disk", "retire-log", "s3", "b", "--give-up")
    assert gc(a, days=3) == 1
