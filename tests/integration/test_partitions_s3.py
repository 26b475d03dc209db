"""A partition is detached, attached, dropped and brought back on a real S3 server: by renames in the log, no object is
copied, and none is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Frostline


@pytest.mark.in_turn
def test_a_partition_goes_and_comes_back_without_a_copy(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/partitions/")
    frostline = Frostline(capsys)
    (tmp_path / "rows.csv").write_text("day,k\n2026-01-01,1\n2026-01-01,2\n2026-02-01,3\n")
    frostline(
        *("table", "create", "d.t", "--column", "day:date", "--column", "k:int64"),
        *("--order-by", "k", "--partition-by", "day(day)"),
    )
    frostline("insert", "d.t", str(tmp_path / "rows.csv"))
    for partition in ("20260101", "20260201"):
        frostline("move", "d.t", "--partition", partition, "--to-volume", "cold")

    def keys() -> list[int]:
        return [row[0] for row in frostline.json("query", "SELECT k FROM d.t ORDER BY k")["rows"]]

    detached = frostline.json("partition", "detach", "d.t", "20260101")["revisions"]["s3"]
    assert keys() == [3]
    (entry,) = frostline.json("log", "s3", "--limit", "1")["entries"]
    assert (entry["revision"], entry["kind"], entry["operations"]) == (detached, "set_aside", 1)
    frostline("partition", "attach", "d.t", "20260101")
    assert keys() == [1, 2, 3]
    dropped = frostline.json("partition", "drop", "d.t", "20260201", "--yes")["revisions"]["s3"]
    assert keys() == [1, 2]
    frostline("undo", "s3", str(dropped), "--yes")
    assert keys() == [1, 2, 3]
    frostline("fsck", "--read-data")
