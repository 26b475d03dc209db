"""`fsck` and `gc` of buckets that are large enough to be listed by several processes: the same documents as ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disks.config import ObjectDiskConfig
from disks.garbage import listing
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.workers.process_runner import processes
from disks.workers.runner import Runner
from oplog.kinds import Dropped, Inserted
from restore.verbs import integrity
from tests.damage import break_pages
from tests.servers import Server
from tiering.cli.main import run


class Site:
    """A disk with a few files in a bucket, its configuration, and the command line."""

    def __init__(self, server: Server, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        keys = {
            "url": f"s3://{server.new_bucket()}/p/",
            "endpoint_url": server.endpoint_url,
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
        }
        disk = open_disk("s3", ObjectDiskConfig(**keys), home / "state")
        assert isinstance(disk, ObjectDisk)
        self.disk = disk
        self.path = home / "frostline.json"
        disks = {"s3": {"type": "object_disk", **keys}}
        policies = {"cold": {"volumes": [{"name": "cold", "disks": ["s3"]}]}}
        self.path.write_text(json.dumps({"state_path": str(home / "state"), "disks": disks, "policies": policies}))
        self.path.chmod(0o600)
        self.capfd = capfd

    def put(self, *names: str) -> None:
        with self.disk.transaction(Inserted()) as transaction:
            for name in names:
                transaction.create(f"a/{name}", b"some bytes")
            transaction.commit()

    def remove(self, name: str) -> None:
        with self.disk.transaction(Dropped()) as transaction:
            transaction.remove(f"a/{name}")
            transaction.commit()

    def frostline(self, *arguments: str, code: int) -> Any:
        self.capfd.readouterr()
        assert run(["-c", str(self.path), "--json", "--no-progress", *arguments]) == code
        return json.loads(self.capfd.readouterr().out)


@pytest.fixture
def site(ministack: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Site:
    made = Site(ministack, tmp_path, capfd)
    made.put(*(f"f{number:02d}" for number in range(20)))
    return made


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every bucket is large, and a range small. How many processes were asked for, each time."""
    begun: list[int] = []

    def counted(workers: int) -> Runner:
        begun.append(workers)
        return processes(workers)

    monkeypatch.setattr(integrity, "LARGE_FILES", 0)
    monkeypatch.setattr(integrity.os, "cpu_count", lambda: 3)
    monkeypatch.setattr("disks.workers.process_runner.processes", counted)
    monkeypatch.setitem(listing.cut_ranges.__kwdefaults__, "keys", 5)
    return begun


def test_a_check_finds_the_same(site: Site, large: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """I3, I4: an object that is gone, and one that only a retained revision names."""
    for name in ("f03", "f11"):
        key = site.disk.stat(f"a/{name}").key
        assert key is not None
        if name == "f11":
            site.remove(name)
        site.disk.store.delete([key])
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "LARGE_FILES", 1_000)
        expected = site.frostline("fsck", code=4)
    assert large == []
    assert {problem["invariant"] for problem in expected["problems"]} == {"I3", "I4"}
    assert site.frostline("fsck", code=4) == expected
    assert large == [3]


def test_a_collection_reports_and_deletes_the_same(
    site: Site, large: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5."""
    site.disk.transaction(Inserted()).create("a/never", b"abandoned")
    site.remove("f07")
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "LARGE_FILES", 1_000)
        expected = site.frostline("gc", code=0)
    assert (expected["referenced"], expected["pending"]) == (20, 1)
    assert site.frostline("gc", code=0) == expected
    assert site.frostline("gc", "--delete", "--yes", code=0)["deleted"] == 0
    assert large == [3, 3]


@pytest.mark.in_turn
def test_a_cache_that_cannot_be_read_expects_nothing(site: Site, large: list[int]) -> None:
    """I7: it is found to be damaged, and everything else is checked all the same."""
    site.put(*(f"g{number:04d}" for number in range(3_000)))
    site.disk.close()
    assert isinstance(site.disk, ObjectDisk)
    break_pages(site.disk.table_path)
    answer = site.frostline("fsck", code=4)
    assert [problem["invariant"] for problem in answer["problems"]] == ["I7"]
    assert answer["checked"]["objects"] == 3_020


def test_one_processor_lists_by_itself(site: Site, large: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity.os, "cpu_count", lambda: 1)
    assert site.frostline("fsck", code=0)["ok"]
    assert large == []
