"""A machine was cloned with its SSD and its state: two homes give the same names to different rows (I1, I16, I18)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.homes import Home

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
