"""A machine was cloned with its SSD and its state: two homes give the same names to different rows (I1, I16, I18)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from disks.identity import read_file
from tests.homes import Home
from tiering.journal.journal import Journal

Homes = tuple[Home, Home]


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Homes:
    """Rows 1 and 2 were inserted before `b` was made from `a`."""
    a = Home(tmp_path, "a", capsys)
    a.create()
    a.insert(1, 2)
    for name in ("ssd", "state"):
        shutil.copytree(a.path / name, tmp_path / "b" / name)
    return a, Home(tmp_path, "b", capsys)


def to_bucket(home: Home, part: str) -> None:
    home("move", "d.t", "--part", part, "--to-disk", "s3")


def refused(home: Home) -> None:
    """Nothing that could give a name twice is done, and every verb says why."""
    for verb in (("insert", "d.t", str(home.path / "rows.csv")), ("merge", "d.t", "--final"), ("table", "drop", "d.t")):
        home(*verb, code=13)
        assert "the identity of this machine" in home.error
        assert "'frostline disk adopt ssd'" in home.error
    (problem,) = (one for one in home.json("doctor", code=4)["findings"] if one["level"] == "problem")
    assert (problem["subject"], problem["check"]) == ("disk ssd", "identity")
    assert "I16" in {problem["invariant"] for problem in home.json("fsck", code=4)["problems"]}


@pytest.fixture
def both(homes: Homes) -> Homes:
    """Each inserted once more, and `b` has moved what it inserted to the bucket."""
    a, b = homes
    a.insert(3)
    b.insert(30)
    (name,) = {part["part"] for part in b.json("parts")["parts"]} - {"all_1_1_0"}
    to_bucket(b, name)
    return homes


def test_both_homes_see_it(both: Homes) -> None:
    """One by the log; the other by the mark that the first one leaves, though that has committed nothing."""
    for home in both:
        refused(home)


def test_each_gets_an_identity_of_its_own(both: Homes) -> None:
    """A part whose name the other home gave to other rows is set aside, and told with every answer until its file is
    attached. Names that are given from now on do not meet."""
    a, b = both
    refused(a)
    for home in both:
        home("disk", "adopt", "ssd")
    assert len({read_file(home.path / "ssd" / ".frostline") for home in both}) == 2
    journals = [Journal(home.path / "state") for home in both]
    assert len({journal.generation()[0] for journal in journals}) == 2
    for journal in journals:
        journal.close()
    assert (a.keys(), b.keys()) == ([1, 2, 30], [1, 2, 30])
    assert len(a.json("query", "SELECT k FROM d.t")["parts_set_aside"]) == 1
    (file,) = (a.path / "ssd").rglob("detached/unexpected_*/*.parquet")
    a("partition", "attach", "d.t", str(file))
    assert "parts_set_aside" not in a.json("query", "SELECT k FROM d.t")
    b.insert(100)
    given = [max(int(one["part"].split("_")[1]) for one in home.json("parts")["parts"]) for home in both]
    assert min(given) > 1_000_000
    for home in both:
        for name in {part["part"] for part in home.json("parts")["parts"] if part["disk"] == "ssd"} - {"all_1_1_0"}:
            to_bucket(home, name)
    for home in both:
        assert home.keys() == [1, 2, 3, 30, 100]
        assert home.json("doctor")["ok"]


def test_a_part_of_the_clone_is_not_hidden_by_its_name(homes: Homes) -> None:
    """A merge on one home spans the number of a part that the other one has under that name, with other rows."""
    a, b = homes
    a.insert(3)
    b.insert(30)
    (name,) = {part["part"] for part in b.json("parts")["parts"]} & {"all_2_2_0", "all_3_3_0"}
    a("merge", "d.t", "--final")
    to_bucket(b, name)
    a("disk", "adopt", "ssd")
    assert a.keys() == [1, 2, 3, 30]
    (problem,) = a.json("fsck", code=4)["problems"]
    assert problem["invariant"] == "I1"
    assert name in problem["what"]


@pytest.mark.in_turn
@pytest.mark.parametrize("after_the_clone", [(), (30,)])
def test_adoption_of_a_home_with_fewer_writes_ends(homes: Homes, after_the_clone: tuple[int, ...]) -> None:
    """The log has seen more transactions of the other home, so that this one looks like an older copy. Each home adopts
    at most once."""
    a, b = homes
    for key in (3, 4, 5):
        a.insert(key)
    for key in after_the_clone:
        b.insert(key)
    a.to_bucket()
    b("query", "SELECT k FROM d.t", code=5)
    assert "older copy" in b.error
    b("disk", "adopt", "ssd")
    for file in (b.path / "ssd").rglob("detached/unexpected_*/*.parquet"):  # its name is that of other rows in a
        b("partition", "attach", "d.t", str(file))
    a("query", "SELECT k FROM d.t", code=13)
    a("disk", "adopt", "ssd")
    assert len({read_file(home.path / "ssd" / ".frostline") for home in homes}) == 2
    for turn in range(2):
        for home, key in ((a, 6), (b, 60)):
            for number in range(key, key + 3 * (turn + 1)):
                home.insert(10 * turn + number)
            home.to_bucket()
            for other in homes:
                other("query", "SELECT k FROM d.t")
    expected = [*range(1, 6), *after_the_clone, 6, 7, 8, *range(16, 22), 60, 61, 62, *range(70, 76)]
    assert a.keys() == b.keys() == sorted(expected)
    assert all(home.json("fsck")["ok"] and home.json("doctor")["ok"] for home in homes)


def test_both_see_a_clone_that_wrote_less(homes: Homes) -> None:
    """The log has seen a later transaction than the clone shows, which alone may be an older copy. The clone leaves its
    last transaction; the other home has another one of that number, and leaves its own mark."""
    a, b = homes
    b.insert(30)
    a.insert(3)
    a.insert(4)
    a.to_bucket()
    b("insert", "d.t", str(b.path / "rows.csv"), code=5)
    assert "older copy" in b.error
    refused(a)
    refused(b)
    b("disk", "adopt", "ssd")
    a("disk", "adopt", "ssd")
    assert len({read_file(home.path / "ssd" / ".frostline") for home in homes}) == 2
    assert a.keys() == [1, 2, 3, 4]
    assert all(home.json("doctor")["ok"] for home in homes)


@pytest.mark.parametrize("kept", [1, 32])
def test_an_older_copy_is_no_clone(homes: Homes, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last transaction is one of the other home too, as far as that keeps them: that home continues."""
    monkeypatch.setattr("disks.local.stamps._MOST", 2 * kept)
    monkeypatch.setattr("disks.local.stamps._KEPT", kept)
    a, b = homes
    for key in (3, 4, 5):
        a.insert(key)
    a.to_bucket()
    b("insert", "d.t", str(a.path / "rows.csv"), code=5)
    assert "older copy" in b.error
    a.insert(6)
    assert a.keys() == [1, 2, 3, 4, 5, 6]
    assert a.json("doctor")["ok"]
