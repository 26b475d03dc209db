"""I13, I18, I19: a bucket that several machines write to is set back to an older copy of itself. No block range is
given twice, no row vanishes from any machine's answers, and no merge takes the older row of a key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Frostline

ROWS = "select k, v from d.t order by k, v"


class Machine:
    """A machine with a directory of its own, beside others on one bucket."""

    def __init__(self, root: Path, name: str, frostline: Frostline) -> None:
        self.home = root / name
        self.home.mkdir(parents=True)
        self.file = root / f"{name}.yaml"
        self._frostline = frostline
        self._inserts = 0
        self.configure("s3")

    def configure(self, *buckets: str) -> None:
        disks: dict[str, Any] = {"ssd": {"type": "local", "path": f"{self.home}/ssd"}}
        for bucket in buckets:
            disks[bucket] = {"type": "object_disk", "url": f"file://{self.home.parent}/{bucket}/"}
        volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": list(buckets)}]
        policies = {"p": {"volumes": volumes}}
        self.file.write_text(json.dumps({"state_path": f"{self.home}/state", "disks": disks, "policies": policies}))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        return self._frostline("-c", str(self.file), "-y", *arguments, code=code)

    @property
    def error(self) -> str:
        return self._frostline.error

    @property
    def rows(self) -> list[list[int]]:
        rows: list[list[int]] = json.loads(self("query", ROWS, "--json"))["rows"]
        return rows

    @property
    def parts(self) -> dict[str, str]:
        return {part["part"]: part["disk"] for part in json.loads(self("parts", "--json"))["parts"]}

    def insert(self, *rows: tuple[int, int], cold: bool = False) -> None:
        self._inserts += 1
        source = self.home / f"{self._inserts}.csv"
        source.write_text("k,v\n" + "".join(f"{k},{v}\n" for k, v in rows))
        self("insert", "d.t", str(source))
        if cold:
            self("move", "d.t", "--partition", "all", "--to-volume", "cold")

    def create(self, merge_mode: str = "ordinary") -> None:
        columns = ("--column", "k:int64", "--column", "v:int64", "--order-by", "k", "--merge-mode", merge_mode)
        self("table", "create", "d.t", *columns)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "machines"


def take_copy(root: Path, bucket: str = "s3") -> None:
    shutil.copytree(root / bucket, root / f"older-{bucket}")


def set_back(root: Path, bucket: str = "s3") -> None:
    shutil.rmtree(root / bucket)
    shutil.copytree(root / f"older-{bucket}", root / bucket)


def test_a_range_is_not_given_twice(root: Path, frostline: Frostline, home: Path) -> None:
    """The bucket lost the mark of B's range: adopting it writes the mark again, and C takes another range."""
    a, b, c = (Machine(root, name, frostline) for name in "abc")
    a.create()
    a.insert((9, 1), cold=True)
    take_copy(root)
    b.insert((1, 1))
    set_back(root)
    b("query", ROWS, code=1)
    b("restore", "s3", "--apply")
    b("disk", "adopt", "s3")
    c.insert((2, 2), (3, 2), cold=True)
    assert len(b.parts) == 3
    assert b.rows == [[1, 1], [2, 2], [3, 2], [9, 1]]
    b("fsck")
    b.insert((4, 4), cold=True)
    assert b.rows == c.rows == a.rows == [[1, 1], [2, 2], [3, 2], [4, 4], [9, 1]]
    assert "recovered" not in b.error


def test_a_range_that_another_machine_took_is_its_own(root: Path, frostline: Frostline, home: Path) -> None:
    """C took B's range before B came back. Both parts of one name answer on B, also after each is adopted, and B gives
    no more numbers of the range; where its journal is lost, too."""
    a, b, c = (Machine(root, name, frostline) for name in "abc")
    a.create()
    a.insert((9, 1), cold=True)
    take_copy(root)
    b.insert((1, 1))
    set_back(root)
    c.insert((2, 2), (3, 2), cold=True)
    everything = [[1, 1], [2, 2], [3, 2], [9, 1]]
    b("restore", "s3", "--apply")
    assert b.rows == everything
    assert "another machine's" in b.error
    b("disk", "adopt", "s3")
    assert b.rows == everything
    assert c.rows == everything[1:]
    assert "two parts have the name all_1000001_1000001_0" in b("fsck", code=4)
    before = set(b.parts)
    b.insert((4, 4))
    (new,) = set(b.parts) - before
    assert int(new.split("_")[1]) > 2_000_000
    b("merge", "d.t", "--final")
    shutil.rmtree(b.home / "state")
    assert b.rows == sorted([*everything, [4, 4]])
    b("disk", "adopt", "ssd")
    assert b.rows == [[2, 2], [3, 2], [4, 4], [9, 1]]
    assert "set aside" in b.error
    (aside,) = b.home.glob("ssd/store/*/*/detached/unexpected_*/data-0000.parquet")
    b("partition", "attach", "d.t", str(aside))
    assert b.rows == sorted([*everything, [4, 4]])
    assert "set aside" not in b.error
    b("move", "d.t", "--partition", "all", "--to-volume", "cold")
    assert c.rows == sorted([*everything, [4, 4]])
    b("fsck")


@pytest.mark.in_turn
@pytest.mark.parametrize("which", [["s3"], ["s3", "far"]], ids=["one bucket", "the second of two"])
def test_a_revision_of_the_lost_log_orders_nothing(
    root: Path, frostline: Frostline, home: Path, which: list[str]
) -> None:
    """A's mark names a revision that the bucket lost. What B put there since has a lower one, and is newer."""
    a, x, b = (Machine(root, name, frostline) for name in "axb")
    for machine in (a, x, b):
        machine.configure(*which)
    bucket = which[-1]
    to_bucket = ("move", "d.t", "--partition", "all", "--to-disk", bucket)
    a.create("replacing")
    a.insert((9, 1))
    a(*to_bucket)
    take_copy(root, bucket)
    for number in (8, 7, 6, 5):
        x.insert((number, 1))
        x(*to_bucket)
    shutil.rmtree(a.home / "state")
    a.insert((1, 1))
    set_back(root, bucket)
    shutil.rmtree(x.home)
    a("restore", bucket, "--apply")
    a("disk", "adopt", bucket)
    if len(which) > 1:  # the log of the other bucket says it to every machine
        b("query", ROWS, code=5)
        b("disk", "adopt", bucket)
    b.insert((1, 2))
    b(*to_bucket)
    a("merge", "d.t", "--adopt", code=13)
    assert "unknown whether" in a.error
    assert [1, 2] in a.rows
    a("move", "d.t", "--partition", "all", "--to-disk", bucket)
    a("merge", "d.t", "--adopt", "--cold", "--final", "--adopt-as", "newer")
    assert [row for row in a.rows if row[0] == 1] == [[1, 2]]


def test_each_bucket_knows_the_order_of_its_rows(root: Path, frostline: Frostline, home: Path) -> None:
    """Without a set-back a lost machine's rows in a second bucket are older than what came after them."""
    a, b = (Machine(root, name, frostline) for name in "ab")
    for machine in (a, b):
        machine.configure("s3", "far")
    a.create("replacing")
    a.insert((1, 1))
    a("move", "d.t", "--partition", "all", "--to-disk", "far")
    shutil.rmtree(a.home)
    b.insert((1, 2))
    b("move", "d.t", "--partition", "all", "--to-disk", "far")
    b("merge", "d.t", "--adopt", "--cold", "--final")
    assert b.rows == [[1, 2]]
