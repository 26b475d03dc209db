"""Replicas whose buckets differ: whole parts go between them, and those with a bucket in common share its objects
(I4, I9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.config.settings import KeeperConfig

__all__ = ["machine"]

PART = "all_0_0_0"
ROWS = list(range(1000))


@pytest.mark.in_turn
def test_whole_between_buckets_and_shared_within_one(
    a: Machine,
    settings: KeeperConfig,
    bucket: str,
    s3_environment: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """a's part is cold in its bucket; c, with another one, gets it whole out of there; d, with c's, without a byte."""
    other = s3_environment.new_bucket()
    c, d = (Machine(tmp_path, name, settings, capsys, f"s3://{other}/cold/", log=name) for name in ("c", "d"))
    a.insert(*ROWS)
    a.move(PART)
    c.join("--policy", "cold")
    with a.serving():
        synced = c.sync()
    assert (synced["fetched"], synced["adopted"]) == ([PART], [])
    (why,) = synced["whole"]
    assert "another store" in json.dumps(why) or "none of" in json.dumps(why)
    c.move(PART)
    assert (len(blobs_in(bucket, s3_environment)), len(blobs_in(other, s3_environment))) == (1, 1)
    d.join("--policy", "cold")
    with a.serving(), c.serving():
        assert d.sync()["adopted"] == [PART]
    assert len(blobs_in(other, s3_environment)) == 1
    a("table", "drop", "d.t")
    for one in (c, d):
        assert one.disks() == {PART: "s3"}
        assert one.keys() == ROWS
        one("fsck", "--read-data")
        assert one.json("replica", "audit")["audits"][0]["clean"]
