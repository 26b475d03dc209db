"""Backups of what ClickHouse wrote: an adopted disk, and a tree that was brought to a disk of ours. The capture is that
of a real server. Guards P48."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from backup import Repository
from disks.stores.directory import DirectoryStore
from tests.backups import events, insert
from tests.command_line import Frostline
from tests.compat.buckets import captured
from tests.compat.captures import CLICKHOUSE
from tests.worm import ACTIVE
from tiering.config.reading import load
from tiering.engine.store import Store

LOCAL = CLICKHOUSE / "local"
CONFIG = """
state_path: {state}
disks:
  ch: {{type: object_disk, url: "file://{bucket}/", log_format: 1}}
  ssd: {{type: local, path: {state}-ssd}}
  s3: {{type: object_disk, url: "file://{bucket}-ours/"}}
policies:
  hot_cold: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
backup: {{repository: "file://{place}/repository"}}
"""


def configure(place: Path, *, bucket: str, state: str) -> None:
    text = CONFIG.format(bucket=place / bucket, state=place / state, place=place)
    (place / "frostline.yaml").write_text(text)


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    """The captured disk, adopted; and an empty repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    store = DirectoryStore(tmp_path / "bucket")
    for item in captured():
        store.put(item.key, item.data, sha256=hashlib.sha256(item.data).digest(), metadata=item.metadata)
    configure(tmp_path, bucket="bucket", state="state")
    found = Frostline(capsys)
    found("clickhouse", "import", "ch", str(LOCAL), "--apply")
    found("backup", "init")
    return found


def digests(disk: str = "ch") -> dict[str, str]:
    """Path -> SHA-256 of every file of the disk."""
    with Store.open(load()) as store:
        read = store.disk(disk).read
        return {info.path: hashlib.sha256(read(info.path)).hexdigest() for info in store.disk(disk).walk()}


@pytest.mark.in_turn
def test_an_adopted_disk_comes_back_byte_for_byte(frostline: Frostline, tmp_path: Path) -> None:
    before = digests()
    assert len(before) > 100
    preview = frostline.json("backup", "create", "one", "-n")
    made = frostline.json("backup", "create", "one")
    assert (made["files"], made["parts"]) == (len(before), preview["parts"])
    assert preview["new_bytes"] > 0
    header = next(path for path in (tmp_path / "repository" / "backups").rglob("*.json")).read_bytes()
    assert b'"minimum_reader":2' in header, "who knows no trees would collect what they name"
    (listed,) = frostline.json("backup", "list")["backups"]
    assert {f"store/{name[:3]}/{name}" for name in listed["clickhouse"] if name != "shadow"} <= {
        path.rpartition(f"/{path.split('/')[3]}")[0] for path in before if path.startswith("store/")
    }
    assert "ClickHouse's: ch:store/" in frostline("backup", "show", "one")
    assert frostline.json("backup", "verify", "one", "--read-data")["files"] == len(before)
    assert frostline.json("backup", "drill")["ok"]
    shutil.rmtree(tmp_path / "state")
    shutil.rmtree(tmp_path / "bucket")
    configure(tmp_path, bucket="new", state="fresh")
    shown = frostline.json("backup", "restore", "one", "-n")
    assert (shown["files"], shown["dry_run"]) == (len(before), True)
    assert not digests()
    restored = frostline.json("backup", "restore", "one")
    assert restored["files"] == len(before)
    assert digests() == before
    found = frostline.json("clickhouse", "inspect", f"file://{tmp_path}/new/")
    assert (found["kind"], found["problems"], found["ok"]) == ("send_metadata", [], True)
    assert frostline.json("fsck", "--read-data")["problems"] == []
    frostline("backup", "restore", "one", code=1)
    assert "already" in frostline.error
    frostline("clickhouse", "export", "ch", "out")


def test_a_second_backup_reads_and_sends_nothing(
    frostline: Frostline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frostline("backup", "create", "one")
    reads: list[str] = []
    get: Callable[..., bytes] = DirectoryStore.get

    def counted(self: DirectoryStore, key: str, *more: object) -> bytes:
        if self.name.endswith("/bucket/"):
            reads.append(key)
        return get(self, key, *more)

    monkeypatch.setattr(DirectoryStore, "get", counted)
    made = frostline.json("backup", "create", "two")
    assert (made["new_bytes"], reads) == (0, [])
    with Repository.open((tmp_path / "repository").as_uri(), config=load()) as repository:
        (one,), (two,) = repository.find("one"), repository.find("two")
    assert one.trees == two.trees, "the same lists"
    assert frostline.json("backup", "create", "three", "-n")["new_bytes"] == 0


@pytest.mark.in_turn
def test_some_of_it(frostline: Frostline, tmp_path: Path) -> None:
    before = digests()
    uuid = next(path.split("/")[2] for path in before if path.startswith("store/"))
    with Store.open(load()) as store:
        store.create_table(events())
        insert(store, 0)
    made = frostline.json("backup", "create", "one", "-t", uuid)
    assert made["files"] == sum(path.split("/")[:3][-1] == uuid for path in before)
    frostline("backup", "create", "two", "-t", "nothing.*", code=10)
    assert frostline.json("backup", "create", "ours", "-t", "demo.*")["tables"] == 1
    assert frostline.json("backup", "create", "both")["files"] > len(before)
    frostline("backup", "create", "pinned", "--cold", "pin", code=13)
    assert "ClickHouse" in frostline.error
    shutil.rmtree(tmp_path / "state")
    shutil.rmtree(tmp_path / "state-ssd")
    configure(tmp_path, bucket="new", state="fresh")
    restored = frostline.json("backup", "restore", "both", "--schema-only")
    assert [table["table"] for table in restored["tables"]] == ["demo.events"]
    assert any("left out" in note for note in restored["notes"])
    frostline("backup", "restore", "both", "-t", uuid)
    assert digests() == {path: digest for path, digest in before.items() if path.split("/")[:3][-1] == uuid}
    file = tmp_path / "frostline.yaml"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith("  ch:")))
    frostline("backup", "restore", "both", "-t", uuid, code=10)
    assert "disk ch" in frostline.error


def test_a_damaged_object_is_named_and_gc_takes_a_deleted_backup(frostline: Frostline, tmp_path: Path) -> None:
    frostline("backup", "create", "one")
    pack = next(path for path in (tmp_path / "repository" / "packs").rglob("*") if path.is_file())
    whole = pack.read_bytes()
    pack.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    found = frostline.json("backup", "verify", "one", "--read-data", code=4)
    assert all(problem["file"] and problem["object"].endswith(pack.name) for problem in found["problems"])
    assert frostline.json("backup", "drill", code=4)["problems"]
    pack.write_bytes(whole)
    at_once = ("--guard-interval", "0s", "--allow-short-guard-interval")
    assert frostline.json("backup", "gc", *at_once)["orphaned"] == 0
    if ACTIVE:
        return
    frostline("backup", "delete", "one", "-y")
    left = frostline.json("backup", "gc", "--delete", "-y", *at_once, "--max-delete-fraction", "1")
    assert left["deleted"] > 0
    assert not [path for path in (tmp_path / "repository" / "packs").rglob("*") if path.is_file()]


@pytest.mark.in_turn
def test_a_tree_that_was_brought_to_a_disk_of_ours(frostline: Frostline, tmp_path: Path) -> None:
    frostline("restore", "s3", "--from", f"file://{tmp_path}/bucket/", "--apply")
    before = digests("s3")
    assert len(before) > 100
    made = frostline.json("backup", "create", "one")
    assert made["files"] == len(before) + len(digests())
    shutil.rmtree(tmp_path / "state")
    configure(tmp_path, bucket="new", state="fresh")
    frostline("backup", "restore", "one")
    assert digests("s3") == before
    assert frostline.json("fsck", "--read-data")["problems"] == []
