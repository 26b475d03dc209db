"""I16: a disk, a bucket or the state is set back to an older copy, and a disk is adopted that is not the older one, or
not the only one. Until each older disk is adopted no query answers with rows missing."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pytest

from disks.local import stamps
from tests.command_line import Frostline

_COLUMNS = ("--column", "k:int64", "--column", "g:string", "--order-by", "k", "--partition-by", "identity(g)")
_PLACES = {"ssd": "ssd", "s3": "bucket", "": "state"}
"""By the name of the disk: what lies below the home. The state is no disk."""
_OLDER = [names for size in (1, 2) for names in combinations(_PLACES, size)]
"""Where all three are as old as each other, nobody can notice it."""
_CONFIG = """\
disks:
  ssd: {{type: local, path: {home}/ssd}}
  s3: {{type: object_disk, url: 'file://{home}/bucket/store/'}}
policies:
  hot_cold: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
  near: {{volumes: [{{name: hot, disks: [ssd]}}]}}
"""


def insert(frostline: Frostline, table: str, partition: str, *keys: int) -> None:
    Path("rows.csv").write_text("k,g\n" + "".join(f"{key},{partition}\n" for key in keys))
    frostline("insert", table, "rows.csv")


def set_back(frostline: Frostline, home: Path, older: tuple[str, ...]) -> list[int]:
    """A store of which these are older than the rest. The rows that were inserted."""
    Path("frostline.yaml").write_text(_CONFIG.format(home=home))
    frostline("table", "create", "d.t", *_COLUMNS, "--policy", "hot_cold")
    frostline("table", "create", "d.near", *_COLUMNS, "--policy", "near")
    insert(frostline, "d.t", "mon", 1, 2)
    insert(frostline, "d.t", "tue", 3)
    frostline("move", "d.t", "--partition", "mon", "--to-disk", "s3")
    shutil.copytree(home, home.with_name("older"), symlinks=True)
    insert(frostline, "d.t", "wed", 4)
    frostline("move", "d.t", "--partition", "tue", "--to-disk", "s3")
    for name in older:
        shutil.rmtree(home / _PLACES[name])
        shutil.copytree(home.with_name("older") / _PLACES[name], home / _PLACES[name], symlinks=True)
    if "s3" in older:
        frostline.any("restore", "s3", "--apply", "-y")
    return [1, 2, 3, 4]


def answers_whole_or_not(frostline: Frostline, rows: list[int]) -> None:
    out, code = frostline.any("query", "select k from d.t order by k", "--output-format", "csv")
    assert code != 0 or [int(k) for k in out.split()[1:]] == rows, f"exit {code}: {out}\n{frostline.error}"


@pytest.mark.in_turn
@pytest.mark.parametrize("adopted", ["ssd", "s3"])
@pytest.mark.parametrize("older", _OLDER, ids=lambda names: "+".join(_PLACES[name] for name in names))
def test_the_finding_of_another_disk_stays(
    home: Path, frostline: Frostline, older: tuple[str, ...], adopted: str
) -> None:
    """Where bucket and SSD are as old as each other, only the state knew the bucket, and `restore` accepted that."""
    rows = set_back(frostline, home, older)
    answers_whole_or_not(frostline, rows)
    accepted = {"", adopted} | ({"s3"} if older == ("ssd", "s3") else set())
    for _ in range(2):
        frostline.any("disk", "adopt", adopted, "-y")
        for name in {*older} - accepted:
            assert f"not adopted: disk {name} was set back" in frostline.error
            answers_whole_or_not(frostline, rows)
            frostline("query", "select k from d.t", code=5)
            assert f"disk {name} was set back" in frostline.error
    for name in {*older} - {""}:
        frostline.any("disk", "adopt", name, "-y")
    frostline("query", "select k from d.t")
    frostline("fsck")


@pytest.mark.in_turn
@pytest.mark.parametrize("state", ["as it is", "lost"])
def test_inserts_elsewhere_do_not_end_a_finding(
    home: Path, frostline: Frostline, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Each transaction of the SSD says how far the bucket was seen, and only those of the newest are kept."""
    monkeypatch.setattr(stamps, "_MOST", 2)
    monkeypatch.setattr(stamps, "_KEPT", 1)
    rows = set_back(frostline, home, ("s3",))
    if state == "lost":
        shutil.rmtree(home / "state")
    for key in range(4):
        insert(frostline, "d.near", "mon", key)
        answers_whole_or_not(frostline, rows)
    frostline("query", "select k from d.t", code=5)
    assert "disk s3 was set back" in frostline.error
    frostline("disk", "adopt", "s3", "-y")
    frostline("query", "select k from d.t")
