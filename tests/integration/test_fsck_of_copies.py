"""fsck knows the copies that `move --keep-source` leaves, on every machine and without a journal (I1)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.homes import Home


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """B inserted a part, moved it to the bucket, and kept its copy."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a.create()
    b.insert(1, 2)
    keep(b, "s3")
    return a, b


def keep(home: Home, disk: str) -> None:
    home("move", "d.t", "--partition", "all", "--to-disk", disk, "--keep-source")


@pytest.mark.parametrize("is_old", [False, True], ids=["logged", "older than the log"])
def test_no_fault_without_a_journal_that_lists_it(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """fsck goes by the log of the bucket; a copy stays longer than the entry that tells of it."""
    a, b = homes
    if is_old:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__RETENTION_SECONDS", "0")
        for name in ("d.u", "d.v"):
            a.create(name)
            b("snapshot", "s3")
        b("gc", "s3", "--delete", "--guard-interval", "0s", "--allow-short-guard-interval")
        assert "--keep-source" not in b("log", "s3")
        assert len(b.json("log", "s3")["entries"]) < 3
    shutil.rmtree(b.path / "state")
    b("fsck")
    assert b.keys() == [1, 2]
    b("fsck")


def test_no_fault_between_buckets_on_any_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (Home(tmp_path, name, capsys, buckets=("s3", "s4")) for name in "ab")
    a.create()
    a.insert(1)
    a.to_bucket("s3")
    keep(a, "s4")
    for home in (a, b):
        home("fsck")
    keep(a, "ssd")
    shutil.rmtree(a.path / "state")
    for home in (a, b):
        assert home.keys() == [1]
        home("fsck")


def test_a_copy_that_nobody_asked_for_is_a_fault(homes: tuple[Home, Home]) -> None:
    """The log says that the source was to go. The way out leaves one of both."""
    _, b = homes
    b.to_bucket("s3")
    b("fsck")
    b.insert(3)
    shutil.copytree(b.path / "ssd", b.path / "copied")
    b.to_bucket("s3")
    for part in (b.path / "copied").glob("store/*/*/all_*"):
        shutil.copytree(part, b.path / "ssd" / part.relative_to(b.path / "copied"))
    assert "no move is running" in b("fsck", code=4)
    assert "'frostline move' of the part" in b("fsck", code=4)
    b.to_bucket("s3")
    assert b.keys() == [1, 2, 3]
    b("fsck")
