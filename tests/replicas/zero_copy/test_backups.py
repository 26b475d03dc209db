"""Backups of a bucket that several machines share: what a pin keeps is named again, and stays for whoever names it
(I3, I4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import worm
from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.sharing import clean, collected
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server

__all__ = ["machine"]

PART = "all_0_0_0"
ROWS = list(range(1000))


@pytest.fixture
def repository(tmp_path: Path, a: Machine) -> str:
    place = (tmp_path / "backups").as_uri()
    a("backup", "init", place)
    return place


@pytest.fixture
def shared(a: Machine, b: Machine) -> Any:
    """A part in the bucket, of both."""
    a.insert(*ROWS)
    with a.serving():
        b.sync()
        a.move(PART)
        b.move(PART)


@pytest.mark.in_turn
@pytest.mark.skipif(worm.ACTIVE, reason="the store keeps what is younger than its retention")
def test_what_a_pin_keeps_is_named_again_where_all_dropped_it(
    shared: Any, a: Machine, b: Machine, bucket: str, s3_environment: Server, repository: str
) -> None:
    """And it stays though its backup is deleted, for the machine that restored it alone names it."""
    a("backup", "create", "one", "--to", repository, "--cold", "pin")
    before = blobs_in(bucket, s3_environment)
    a("partition", "drop", "d.t", "all")
    b.sync()
    assert collected(a) == collected(b) == 0
    assert blobs_in(bucket, s3_environment) == before
    b("backup", "restore", "one", "--to", repository, "--map-table", "d.t:d.back")
    assert blobs_in(bucket, s3_environment) == before
    a("backup", "delete", "one", "--to", repository)
    assert collected(a) == collected(b) == 0
    assert [row[0] for row in b.json("query", "SELECT k FROM d.back ORDER BY k")["rows"]] == ROWS
    b("fsck", "--read-data")
    clean(a, b)
    b("table", "drop", "d.back")
    assert collected(b) == len(before)
    assert blobs_in(bucket, s3_environment) == []


@pytest.mark.in_turn
def test_a_copy_comes_back_with_marks_of_its_own(
    shared: Any, a: Machine, b: Machine, bucket: str, s3_environment: Server, repository: str
) -> None:
    a("backup", "create", "one", "--to", repository)
    a("backup", "restore", "one", "--to", repository, "--map-table", "d.t:d.back")
    assert len(blobs_in(bucket, s3_environment)) == 2
    clean(a, b)
    a("table", "drop", "d.back")
    assert collected(a) == 1
    assert a.keys() == b.keys() == ROWS
    clean(a, b)
