"""Versioned and locked buckets on real servers: what is deleted is gone, what is locked stays and says until when.

Guards P34 (deletes that only add a marker), P56 and P13 (nothing depends on overwriting), I15 (loud).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.garbage.collect import GcReport, collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.pending_deletes import announced
from disks.registry import open_disk
from disks.stores.base import ObjectStore
from disks.stores.bucket_settings import BucketSettings, ObjectLock
from disks.stores.open import open_store
from disks.stores.s3 import store as s3
from disks.stores.s3.store import PROBE_KEY
from oplog.errors import NotFound, Retained
from tests import worm
from tests.servers import Server
from tiering.cli import main as cli
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.session import Session
from tiering.cli.reports.garbage import print_gc
from tiering.config.reading import load

pytestmark = pytest.mark.skipif(worm.ACTIVE, reason="these buckets have locks of their own")
DATA = b"some bytes"
SERVERS = ["ministack", pytest.param("ceph", marks=pytest.mark.ceph)]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def open_bucket(server: Server, bucket: str, **more: Any) -> ObjectStore:
    config = server.disk(f"s3://{bucket}/some/prefix/", **more)
    return open_store(config)


def put(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        store.put(key, DATA, sha256=hashlib.sha256(DATA).digest())


def versions(server: Server, bucket: str) -> tuple[list[str], list[str]]:
    """Keys of all versions and of all delete markers, seen from behind; the store's own probe is left out."""
    found = server.client().list_object_versions(Bucket=bucket)
    both = [[item["Key"] for item in found.get(kind, [])] for kind in ("Versions", "DeleteMarkers")]
    kept, markers = ([key for key in keys if not key.endswith(PROBE_KEY)] for keys in both)
    return kept, markers


@pytest.fixture
def versioned(server: Server) -> str:
    bucket = server.new_bucket()
    server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


@pytest.fixture
def locked(server: Server) -> Iterator[str]:
    bucket = server.new_bucket(object_lock_days=1)
    yield bucket
    for item in server.client().list_object_versions(Bucket=bucket).get("Versions", []):
        server.client().delete_object(
            Bucket=bucket, Key=item["Key"], VersionId=item["VersionId"], BypassGovernanceRetention=True
        )


def test_a_delete_in_a_versioned_bucket_frees_the_bytes(server: Server, versioned: str) -> None:
    with open_bucket(server, versioned) as store:
        put(store, "a", "b", "c/d")
        assert store.delete(["a", "c/d", "never"]) == {"a": None, "c/d": None, "never": None}
        assert [info.key for info in store.list()] == ["b"]
    assert versions(server, versioned) == (["some/prefix/b"], [])


def test_objects_from_before_versioning_go_too(server: Server) -> None:
    bucket = server.new_bucket()
    with open_bucket(server, bucket) as store:
        put(store, "old")
        server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        assert store.delete(["old"]) == {"old": None}
        with pytest.raises(NotFound):
            store.head("old")
    assert versions(server, bucket) == ([], [])


def test_old_versions_are_shown_when_the_owner_keeps_them(server: Server, versioned: str) -> None:
    with open_bucket(server, versioned, delete_versions=False) as store:
        put(store, "a", "b")
        assert store.delete(["a"]) == {"a": None}
        [version] = [found for found in store.old_versions() if not found.is_marker and found.key != PROBE_KEY]
        assert (version.key, version.size_bytes) == ("a", len(DATA))
        assert [found.key for found in store.old_versions() if found.is_marker] == ["a"]
        assert list(store.old_versions("b")) == []


def test_a_locked_object_stays_visible_and_says_until_when(server: Server, locked: str) -> None:
    with open_bucket(server, locked) as store:
        put(store, "a", "b")
        answers = store.delete(["a", "b", "never"])
        assert answers["never"] is None
        for key in ("a", "b"):
            answer = answers[key]
            assert isinstance(answer, Retained)
            assert answer.until is not None
            assert timedelta(hours=23) < answer.until - datetime.now(UTC) < timedelta(hours=25)
            assert store.get(key) == DATA
        assert [info.key for info in store.list()] == ["a", "b"]
    assert versions(server, locked)[1] == [], "no marker hides what is still there"


def test_a_legal_hold_has_no_end(server: Server, locked: str) -> None:
    client = server.client()
    with open_bucket(server, locked) as store:
        put(store, "held")
        hold = {"Bucket": locked, "Key": "some/prefix/held"}
        client.put_object_legal_hold(**hold, LegalHold={"Status": "ON"})
        answer = store.delete(["held"])["held"]
        client.put_object_legal_hold(**hold, LegalHold={"Status": "OFF"})
        assert isinstance(answer, Retained)
        assert answer.until is None


def test_settings_are_read(server: Server, versioned: str, locked: str) -> None:
    plain = server.new_bucket()
    expected = {
        plain: BucketSettings("off", (), ObjectLock(enabled=False)),
        versioned: BucketSettings("on", (), ObjectLock(enabled=False)),
        locked: BucketSettings("on", (), ObjectLock(True, "GOVERNANCE", 1)),
    }
    for bucket, wanted in expected.items():
        with open_bucket(server, bucket) as store:
            assert store.bucket_settings() == wanted


def test_the_clock_of_the_store_is_read(server: Server) -> None:
    with open_bucket(server, server.new_bucket()) as store:
        skew = store.clock_skew()
        assert skew is not None
        assert abs(skew) < timedelta(seconds=3)


class TestFromTheCommandLine:
    """Insert, move, merge, drop, restore, gc and the daemon on a bucket with Object Lock (P13, P56): nothing fails
    because nothing can be deleted, and gc says until when."""

    @pytest.fixture
    def frostline(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Callable[..., Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(s3, "_probed", {})
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
        bucket = server.new_bucket(object_lock_days=1)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__RETENTION_SECONDS", "0")
        (tmp_path / "rows.csv").write_text("k,v\n" + "".join(f"{number},{number % 7}\n" for number in range(1000)))

        def run(*arguments: str, code: int = 0) -> Any:
            capsys.readouterr()
            actual = cli.run([*arguments, "--json"])
            captured = capsys.readouterr()
            assert actual == code, f"{arguments}: exit {actual}\n{captured.out}\n{captured.err}"
            return json.loads(captured.out) if captured.out else None

        return run

    @pytest.mark.in_turn
    def test_a_life_under_lock(self, frostline: Callable[..., Any], tmp_path: Path) -> None:
        count = "SELECT count(*) FROM d.t"
        frostline("table", "create", "d.t", "--like", "rows.csv", "--order-by", "k")
        frostline("insert", "d.t", "rows.csv")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        (tmp_path / "more.csv").write_text("k,v\n5000,1\n")
        frostline("insert", "d.t", "more.csv")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        assert frostline("query", count)["rows"] == [[1001]]
        before = frostline("parts", "d.t")["parts"]
        frostline("snapshot", "s3")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "ssd")
        frostline("merge", "d.t", "--final")
        assert len(frostline("parts", "d.t")["parts"]) == 1
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        frostline("table", "drop", "d.t", "--yes")
        revision = max(part["revision"] for part in before)
        frostline("restore", "s3", "--revision", str(revision), "--apply", "--yes")
        assert frostline("query", count)["rows"] == [[1001]]
        frostline("table", "drop", "d.t", "--yes")
        last = frostline("log", "s3", "--limit", "1")["entries"][0]["revision"]
        frostline("undo", "s3", str(last), "--yes")
        assert frostline("query", count)["rows"] == [[1001]]
        shutil.rmtree(tmp_path / "home" / "state" / "disks")
        frostline("restore", "s3", "--apply", "--yes")
        assert frostline("query", count)["rows"] == [[1001]]
        frostline("tick")
        frostline("daemon", "run", "--once")
        frostline("fsck")
        assert frostline("doctor", "s3")["ok"]

    @pytest.mark.in_turn
    def test_gc_reports_what_the_lock_keeps(
        self, frostline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frostline("table", "create", "d.t", "--like", "rows.csv", "--order-by", "k")
        frostline("insert", "d.t", "rows.csv")
        frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
        frostline("table", "drop", "d.t", "--yes")
        config = load()
        disk = open_disk("s3", config.disks["s3"], config.state_directory)
        assert isinstance(disk, ObjectDisk)
        later = datetime.now(UTC) + timedelta(hours=2)
        try:
            head = disk.revision  # collections commit fences behind it
            for _ in range(2):  # as often as one likes
                report = collect(
                    disk, GcRules(guard=timedelta(hours=1), delete=True, max_delete_fraction=1.0), now=later
                )
                assert (report.deleted, report.failed, report.refused) == (0, {}, None)
                assert report.orphaned == 1
                until = report.kept[report.orphans[0]]
                assert until is not None
                assert timedelta(hours=23) < until - datetime.now(UTC) < timedelta(hours=25)
            assert announced(disk, now=later) == set()
        finally:
            disk.close()
        assert frostline("restore", "s3", "--revision", str(head - 1), "--apply", "--yes")["applied"]
        assert frostline("query", "SELECT count(*) FROM d.t")["rows"] == [[1000]]


def test_the_report_of_a_collection_says_until_when(capsys: pytest.CaptureFixture[str]) -> None:
    report = GcReport("s3", delete=True)
    report.kept = {"a": datetime(2026, 11, 22, 6, 26, tzinfo=UTC), "b": None}
    print_gc(Session(GlobalOptions()), report)
    assert "that the store keeps, until 2026-11-22 06:26Z" in capsys.readouterr().out
