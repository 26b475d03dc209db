"""Whole parts that a restart of the server left under a temporary name: what an export, and a restore, make of them.

Guards I1, I15: a server deletes `tmp_…` when it starts, with the objects."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from disks.clickhouse.disk import ClickHouseDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from restore.clickhouse.export import export
from restore.clickhouse.findings import losses, sentences
from restore.clickhouse.rebuild import rebuild
from restore.rebuild.request import RebuildRequest
from restore.transfer.transfer import restore_from
from tests.compat.buckets import TABLE, ClickHouse
from tiering.cli import main as cli


def restarted(*, runs: int = 3) -> ClickHouse:
    """Inserts of the same shape in several runs of a server: each overwrites the rename of the one before."""
    server = ClickHouse()
    for number in range(1, runs + 1):
        server.part(f"{TABLE}/tmp_insert_all_1_1_0", "k.bin", f"only{number}.bin")
        server.rename(f"{TABLE}/tmp_insert_all_1_1_0/", f"{TABLE}/all_{number}_{number}_0/")
        server.restart()
    return server


def names(directory: Path) -> set[str]:
    """The directories of parts in an exported tree, with the file that only one run wrote."""
    found = (path.relative_to(directory / TABLE).as_posix() for path in directory.rglob("only*.bin"))
    return set(found)


WHOLE = {
    "all_3_3_0/only3.bin",
    "detached/lost_1_all_1_1_0/only1.bin",
    "detached/lost_2_all_1_1_0/only2.bin",
}


def test_lost_inserts_are_exported_to_detached(tmp_path: Path) -> None:
    disk = ClickHouseDisk("ch", restarted().store(), tmp_path / "state", read_only=True)
    done = export(disk, tmp_path / "out")
    assert names(tmp_path / "out") == WHOLE
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith("tmp_")]
    assert [part.target for part in done.lost_parts] == [
        f"{TABLE}/detached/lost_1_all_1_1_0",
        f"{TABLE}/detached/lost_2_all_1_1_0",
    ]
    again = export(disk, tmp_path / "out")
    assert (again.written, again.unchanged) == (0, done.files)


def test_they_are_so_after_a_restore_into_a_disk_of_ours(tmp_path: Path) -> None:
    """Its table has no findings: what lies under a temporary name is looked at again."""
    disk = ObjectDisk("s3", MemoryStore("ours"), tmp_path / "state")
    result = restore_from(disk, restarted().store(), RebuildRequest(apply=True))
    assert {problem.kind for problem in result.problems} == {"lost_rename"}
    export(disk, tmp_path / "out")
    disk.close()
    assert names(tmp_path / "out") == WHOLE


def test_what_is_not_whole_stays_where_it_is_and_is_named(tmp_path: Path) -> None:
    server = ClickHouse()
    server.part(f"{TABLE}/tmp_merge_all_1_2_1", "k.bin", checksums={"k.bin": 10, "v.bin": 5})
    server.part(f"{TABLE}/tmp_insert_all_3_3_0", "k.bin", checksums={"k.bin": 11})
    server.insert("all_1_1_0")
    done = export(ClickHouseDisk("ch", server.store(), tmp_path / "state", read_only=True), tmp_path / "out")
    assert done.lost_parts == []
    assert done.deleted_at_start == [f"{TABLE}/tmp_insert_all_3_3_0", f"{TABLE}/tmp_merge_all_1_2_1"]


def test_a_name_in_detached_is_not_given_twice(tmp_path: Path) -> None:
    server = restarted(runs=2)
    server.host = "later"
    server.part(f"{TABLE}/detached/lost_1_all_1_1_0", "k.bin")
    done = export(ClickHouseDisk("ch", server.store(), tmp_path / "state", read_only=True), tmp_path / "out")
    assert [part.target for part in done.lost_parts] == [f"{TABLE}/detached/lost_2_all_1_1_0"]


def incomplete() -> ClickHouse:
    server = ClickHouse()
    server.insert("all_1_1_0")
    server.part(f"{TABLE}/all_2_2_0", "k.bin", checksums={"k.bin": 10, "v.bin": 5})
    return server


def test_a_rebuild_says_what_is_not_whole(tmp_path: Path) -> None:
    disk = ClickHouseDisk("ch", incomplete().store(), tmp_path / "state")
    result = rebuild(disk, apply=True)
    disk.close()
    assert [(problem.kind, problem.path) for problem in result.problems] == [
        ("incomplete_part", f"{TABLE}/all_2_2_0/v.bin")
    ]


def test_what_lies_outside_the_scope_is_no_problem_of_a_restore(tmp_path: Path) -> None:
    disk = ObjectDisk("s3", MemoryStore("ours"), tmp_path / "state")
    result = restore_from(disk, incomplete().store(), RebuildRequest(paths=[f"{TABLE}/all_1_1_0"], apply=True))
    disk.close()
    assert result.problems == []


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "frostline.yaml").write_text(
            f"""
state_path: state
disks:
  ch: {{type: object_disk, url: "file://{tmp_path}/bucket/", log_format: 1, read_only: true}}
  s3: {{type: object_disk, url: "file://{tmp_path}/ours/"}}
policies:
  p: {{volumes: [{{name: cold, disks: [s3]}}]}}
"""
        )

    def fill(self, tmp_path: Path, server: ClickHouse) -> None:
        store = DirectoryStore(tmp_path / "bucket")
        for item in server.objects.values():
            store.put(item.key, item.data, sha256=hashlib.sha256(item.data).digest(), metadata=item.metadata)

    def test_lost_parts_come_first_and_end_with_4(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        server = ClickHouse()
        server.part(f"{TABLE}/tmp_insert_all_1_1_0", "k.bin")
        self.fill(tmp_path, server)
        assert cli.run(["clickhouse", "export", "ch", "out"]) == 4
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith(f"LOST NAME  {TABLE}/tmp_insert_all_1_1_0 is a complete part")
        assert "detached/lost_1_all_1_1_0" in first

    def test_a_restore_of_what_is_not_whole_ends_with_4(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.fill(tmp_path, incomplete())
        source = f"file://{tmp_path}/bucket/"
        assert cli.run(["restore", "s3", "--from", source, "--apply", "--yes"]) == 4
        said = capsys.readouterr().out
        assert "NOT WHOLE: 1 loss in the source" in said
        assert f"{TABLE}/all_2_2_0/v.bin" in said
        assert cli.run(["restore", "s3", "--from", source, "--json"]) == 4
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert problem["kind"] == "incomplete_part"


class TestTelling:
    def test_a_loss_is_not_drowned_by_repeated_revisions(self, capsys: pytest.CaptureFixture[str]) -> None:
        from restore.clickhouse.bucket import read_bucket

        server = ClickHouse()
        for host in ("one", "two"):
            server.host = host
            for number in range(50):
                server.file(f"d/{host}{number}")
            server.restart()
        server.host = "three"
        server.part(f"{TABLE}/all_2_2_0", "k.bin", checksums={"k.bin": 10, "v.bin": 5})
        found = read_bucket(server.store()).findings
        assert len(found) == 51
        assert [finding.kind for finding in losses(found)] == ["incomplete_part"]
        told = sentences(found)
        assert "lacks v.bin" in told[0]
        assert told[1].startswith("50 revisions (1 to 50) are borne")
        assert len(told) == 2
