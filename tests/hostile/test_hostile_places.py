"""Names from outside that other programs could take for more than names: patterns, URLs, quotes, options, markup.

Directories of disks and repositories hold what a shell, a URL, a glob and a SQL statement would read as theirs. Rows go
their whole way there, and nothing beside it is touched. Guards I22, I1.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Frostline
from tiering.engine.store import Store

PLACES = {
    "pattern": "a[1]b*?{x,y}",
    "decoy": "[ab]",
    "URL": "a b%20#c?d=e&f;g+h",
    "quotes": 'it\'s "q" `r` \\x',
    "shell": "$(touch hacked) ;| > hacked",
    "Hive": "year=2026",
    "markup": "[bold]x[/] [link=http://x]y",
    "option": "-rf --yes",
    "letters": "\u00fc\u65e5\U0001f600",
}


@pytest.mark.in_turn
@pytest.mark.parametrize("place", PLACES)
def test_disks_in_a_directory_of_this_name(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / PLACES[place] / "home"
    decoy = tmp_path / "a" / "home"  # what `[ab]` would match
    for directory in (home, decoy, tmp_path / "cwd"):
        directory.mkdir(parents=True)
    monkeypatch.setenv("FROSTLINE_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path / "cwd")
    frostline = Frostline(capsys)
    Path("rows.csv").write_text("n,year\n" + "".join(f"{n},{n + 1}\n" for n in range(100)))
    frostline("table", "create", "d.t", "--column", "n:int64", "--column", "year:int64", "--order-by", "n")
    frostline("insert", "d.t", "rows.csv")
    question = "select count(*), sum(n), sum(year) from d.t"
    assert frostline.json("query", question)["rows"] == [[100, 4950, 5050]]
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    assert frostline.json("query", question)["rows"] == [[100, 4950, 5050]]
    frostline("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    with Store.open() as store:
        rows = store.table("d.t").dataset().to_table()
    assert (rows.num_rows, sum(rows["year"].to_pylist())) == (100, 5050)
    repository = (home.parent / "repository").as_uri()
    frostline("backup", "init", repository)
    frostline("backup", "create", "one", "--to", repository)
    frostline("backup", "verify", "--all", "--to", repository)
    frostline("gc", "--delete", "--yes")
    assert frostline.json("fsck", "--read-data")["ok"]
    assert {path.name for path in tmp_path.iterdir()} - {"user"} == {Path(PLACES[place]).parts[0], "a", "cwd"}
    assert [path.name for path in Path.cwd().iterdir()] == ["rows.csv"]
    assert not any(decoy.rglob("*"))
