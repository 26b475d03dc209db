"""`disk drain`: everything leaves a disk, nothing comes to it, and no row is lost or in two places (I1, I2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disks.local.transaction import LocalTransaction
from disks.object_disk.transaction import ObjectTransaction
from tests.command_line import Frostline

ROWS = list(range(6))


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROSTLINE_CONFIG", str(tmp_path / "frostline.yaml"))
    configure(tmp_path, hot=["ssd", "hdd"], cold=["s3"])
    return Frostline(capsys)


def configure(place: Path, **volumes: Any) -> None:
    """Volumes in this order, hottest first, each with its disks, or with its whole document."""
    documents = [
        {"name": name, **(disks if isinstance(disks, dict) else {"disks": disks})} for name, disks in volumes.items()
    ]
    names = sorted({name for document in documents for name in document["disks"]})
    disks = {name: {"type": "local", "path": str(place / name)} for name in names if name != "s3"}
    disks |= {"s3": {"type": "object_disk", "url": f"file://{place}/bucket/"}} if "s3" in names else {}
    plain = {"state_path": str(place / "state"), "disks": disks, "policies": {"p": {"volumes": documents}}}
    (place / "frostline.yaml").write_text(yaml.safe_dump(plain))


def filled(frostline: Frostline, *rules: str) -> None:
    """A table of six parts, whose rows are old."""
    ttl = [word for rule in rules for word in ("--ttl", rule)]
    frostline("table", "create", "d.t", "--column", "k:int64", "--column", "ts:timestamp", "--order-by", "k",
              "--partition-by", "k", "--policy", "p", *ttl)  # fmt: skip
    for key in (0, 2, 4):
        insert(frostline, key, key + 1)


def insert(frostline: Frostline, *keys: int) -> None:
    source = Path("rows.csv")
    source.write_text("\n".join(["k,ts", *(f"{key},2020-01-01T00:00:00" for key in keys)]))
    frostline("insert", "d.t", str(source))


def disks(frostline: Frostline) -> list[str]:
    return sorted({part["disk"] for part in frostline.json("parts", "d.t")["parts"]})


def keys(frostline: Frostline) -> list[int]:
    return [row[0] for row in frostline.json("query", "SELECT k FROM d.t ORDER BY k")["rows"]]


def on(frostline: Frostline, disk: str) -> int:
    found = {item["name"]: item for item in frostline.json("disks")["disks"]}
    return int(found[disk]["parts"])


@pytest.mark.in_turn
def test_parts_go_within_the_volume_and_none_come_until_stopped(frostline: Frostline) -> None:
    filled(frostline)
    assert disks(frostline) == ["hdd", "ssd"]
    there = on(frostline, "ssd")
    dry = frostline.json("disk", "drain", "ssd", "--dry-run")
    assert (len(dry["moved"]), dry["dry_run"], dry["drained"], dry["empty"]) == (there, True, False, False)
    assert "would move; nothing was changed" in frostline("disk", "drain", "ssd", "--dry-run")
    assert on(frostline, "ssd") == there
    done = frostline.json("disk", "drain", "ssd")
    assert [(move["part"], move["to"]) for move in done["moved"]] == [(move["part"], "hdd") for move in dry["moved"]]
    assert (done["failed"], done["skipped"], done["left"], done["empty"]) == ([], [], [], True)
    assert disks(frostline) == ["hdd"]
    assert keys(frostline) == ROWS
    insert(frostline, 6, 7)
    insert(frostline, 8, 9)
    assert disks(frostline) == ["hdd"]
    assert {item["name"]: item["drained"] for item in frostline.json("disks")["disks"]}["ssd"]
    frostline("move", "d.t", "--partition", "8", "--to-disk", "ssd", code=13)
    assert "frostline disk drain ssd --stop" in frostline.error
    assert "frostline disk drain ssd --stop" in frostline("disk", "drain", "ssd")  # again: nothing to do
    assert frostline.json("disk", "drain", "ssd", "--stop")["drained"] is False
    frostline("move", "d.t", "--partition", "8", "--to-disk", "ssd")
    assert disks(frostline) == ["hdd", "ssd"]
    assert "is not drained" in "".join([frostline("disk", "drain", "ssd", "--stop"), frostline.error])


@pytest.mark.in_turn
def test_a_bucket_is_drained_and_no_rule_fills_it_again(frostline: Frostline) -> None:
    filled(frostline, "1d on ts to volume cold")
    frostline("tick", "--only", "moves")
    assert disks(frostline) == ["s3"]
    said = frostline("disk", "drain", "s3")
    assert "6 parts moved" in said
    assert "gc s3 --delete" in said
    assert disks(frostline) == ["hdd", "ssd"]
    planned = frostline.json("plan")
    assert (planned["moves"], planned["stays"]) == ([], 6)
    assert "disk s3 is drained" in frostline("explain", "d.t", frostline.json("parts", "d.t")["parts"][0]["part"])
    frostline("tick")
    assert disks(frostline) == ["hdd", "ssd"]
    frostline("disk", "drain", "s3", "--stop")
    frostline("tick", "--only", "moves")
    assert disks(frostline) == ["s3"]
    assert keys(frostline) == ROWS


@pytest.mark.in_turn
def test_what_is_drained_is_not_merged_there(frostline: Frostline) -> None:
    frostline("table", "create", "d.t", "--column", "k:int64", "--column", "ts:timestamp", "--order-by", "k",
              "--policy", "p")  # fmt: skip
    for key in range(4):
        insert(frostline, key)
    frostline("disk", "drain", "ssd")
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("disk", "drain", "s3", "--dry-run")
    frostline("disk", "drain", "hdd")
    frostline("merge", "d.t", "--final")
    assert disks(frostline) == ["s3"]
    assert keys(frostline) == [0, 1, 2, 3]


def test_no_room_is_refused_with_a_way_out_and_changes_nothing(frostline: Frostline, tmp_path: Path) -> None:
    filled(frostline)
    frostline("move", "d.t", "--partition", "0", "--to-disk", "s3")
    before = [(part["part"], part["disk"]) for part in frostline.json("parts", "d.t")["parts"]]
    configure(tmp_path, hot=["ssd", "hdd"], cold=["s3"])
    document = yaml.safe_load((tmp_path / "frostline.yaml").read_text())
    for disk in ("ssd", "hdd"):
        document["disks"][disk]["keep_free_space_bytes"] = 1 << 60
    (tmp_path / "frostline.yaml").write_text(yaml.safe_dump(document))
    frostline("disk", "drain", "s3", code=13)
    assert "disk s3 cannot be drained: 1 part of d.t" in frostline.error
    assert "has 0 B free" in frostline.error
    assert "give policy p another disk" in frostline.error
    assert [(part["part"], part["disk"]) for part in frostline.json("parts", "d.t")["parts"]] == before
    assert not any(item["drained"] for item in frostline.json("disks")["disks"])
    frostline("disk", "drain", "nowhere", code=10)
    assert "the disks are: hdd, s3, ssd" in frostline.error


def test_the_only_disk_of_a_policy(frostline: Frostline, tmp_path: Path) -> None:
    configure(tmp_path, hot=["ssd"])
    filled(frostline)
    frostline("disk", "drain", "ssd", code=13)
    assert "6 parts of d.t" in frostline.error
    assert "it has no other disk" in frostline.error


@pytest.mark.in_turn
def test_what_is_detached_goes_too_and_can_be_attached(frostline: Frostline, tmp_path: Path) -> None:
    filled(frostline)
    frostline("move", "d.t", "--partition", "2", "--to-disk", "s3")
    for partition in ("2", "4"):
        frostline("partition", "detach", "d.t", partition)
    aside = next(tmp_path.glob("[sh][sd]d/store/*/*/detached"))
    (aside / "broken_5_1_1_0").mkdir()
    (aside / "broken_5_1_1_0" / "part.json").write_text("{")
    dry = frostline.json("disk", "drain", "s3", "--dry-run")
    assert [one["part"] for one in dry["detached"]] == ["2_2_2_0"]
    done = frostline.json("disk", "drain", "s3")
    assert ([one["part"] for one in done["detached"]], done["empty"]) == (["2_2_2_0"], True)
    local = aside.relative_to(tmp_path).parts[0]
    left = frostline.json("disk", "drain", local, code=3)
    assert [item["what"] for item in left["left"]] == ["detached/broken_5_1_1_0"]
    assert "4_3_3_0" in [one["part"] for one in left["detached"]]
    (aside / "broken_5_1_1_0" / "part.json").unlink()
    for partition in ("2", "4"):
        frostline("partition", "attach", "d.t", partition)
    assert keys(frostline) == ROWS
    frostline("fsck", "--read-data")


@pytest.mark.in_turn
@pytest.mark.parametrize("disk", ["s3", "ssd"], ids=["before the target has it", "before the source lost it"])
def test_what_is_detached_is_never_in_no_place(
    frostline: Frostline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    """Broken off at either of the two commits, it lies somewhere whole, and the next drain does the rest."""
    configure(tmp_path, hot=["ssd"], cold=["s3"])
    filled(frostline)
    frostline("partition", "detach", "d.t", "0")
    kind = ObjectTransaction if disk == "s3" else LocalTransaction
    with monkeypatch.context() as broken:
        broken.setattr(kind, "commit", _broken_off)
        left = frostline.json("disk", "drain", "ssd", code=1)
        assert [item["what"] for item in left["left"] if "broken off" in item["why"]] == ["detached/0_1_1_0"]
    assert frostline.json("disk", "drain", "ssd")["empty"]
    frostline("partition", "attach", "d.t", "0")
    assert keys(frostline) == ROWS
    assert disks(frostline) == ["s3"]


def _broken_off(self: object) -> None:
    raise OSError("broken off")


def test_a_drained_disk_is_given_up(frostline: Frostline, tmp_path: Path) -> None:
    """What a person does next: out of the configuration, forgotten; by the same name a new one is not drained."""
    filled(frostline)
    frostline("disk", "drain", "hdd")
    configure(tmp_path, hot=["ssd"], cold=["s3"])
    assert keys(frostline) == ROWS
    said = frostline("--yes", "disk", "forget", "hdd")
    assert "and it was written to since" not in said
    assert "d.t" not in said
    configure(tmp_path, hot=["ssd", "hdd"], cold=["s3"])
    assert not any(item["drained"] for item in frostline.json("disks")["disks"])
    frostline("fsck", "--read-data")
