"""A final merge reduces a partition of one part, too: equal keys of one insert are in it (I13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.homes import Home

MODES = {"replacing": [[1, 3], [2, 1]], "summing:v": [[1, 5], [2, 1]], "ordinary": [[1, 2], [1, 3], [2, 1]]}


@pytest.mark.in_turn
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_part_alone_is_reduced_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, cold: bool
) -> None:
    home = Home(tmp_path, "a", capsys)
    columns = ("--column", "k:int64", "--column", "v:int64", "--order-by", "k")
    home("table", "create", "d.t", *columns, *(() if mode == "ordinary" else ("--merge-mode", mode)))
    (tmp_path / "rows.csv").write_text("k,v\n1,2\n1,3\n2,1\n")
    home("insert", "d.t", str(tmp_path / "rows.csv"))
    if cold:
        home("move", "d.t", "--partition", "all", "--to-disk", "s3")
    final = ("merge", "d.t", "--final", *(("--cold",) if cold else ()))
    home(*final)
    rows = home.json("query", "SELECT k, v FROM d.t ORDER BY ALL")["rows"]
    assert rows == MODES[mode]
    before = home.json("parts", "d.t")["parts"]
    assert home.json(*final)["merges"] == []
    assert home.json("parts", "d.t")["parts"] == before
