"""A ClickHouse disk from the command line: its bucket read, its metadata taken over, exported, kept by gc and rebuilt.

Guards I7, I8 and ClickHouse's second defect (frozen parts lost after a restore). The capture is a real disk."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from disks.stores.directory import DirectoryStore
from oplog.revision import SCHEMA_VERSION_KEY
from tests.command_line import Frostline
from tests.compat.buckets import captured
from tests.compat.captures import CLICKHOUSE, KEY_PREFIX

LOCAL = CLICKHOUSE / "local"
CONFIG = """
state_path: state
disks:
  ch: {{type: object_disk, url: "{url}", log_format: 1{more}}}
  ssd: {{type: local, path: ssd}}
  s3: {{type: object_disk, url: "file://{place}/ours/"}}
policies:
  p: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
"""


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def links(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_nlink for path in directory.rglob("*") if path.is_file()}


def link_counts() -> dict[str, int]:
    lines = [line.split("\t") for line in (CLICKHOUSE / "local-links.txt").read_text().splitlines()]
    return {path: int(count.removeprefix("nlink=")) for count, _, _, path in lines}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captured bucket as a directory."""
    place = tmp_path_factory.mktemp("captured") / "bucket"
    store = DirectoryStore(place)
    for item in captured():
        store.put(item.key, item.data, sha256=hashlib.sha256(item.data).digest(), metadata=item.metadata)
    return place


@pytest.fixture
def bucket(template: Path, tmp_path: Path) -> DirectoryStore:
    shutil.copytree(template, tmp_path / "bucket")
    return DirectoryStore(tmp_path / "bucket")


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    configure(tmp_path)
    return Frostline(capsys)


def configure(place: Path, *, more: str = "") -> None:
    (place / "frostline.yaml").write_text(CONFIG.format(url=(place / "bucket").as_uri() + "/", place=place, more=more))


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_nobody_imported_is_exported_from_its_log(frostline: Frostline, tmp_path: Path) -> None:
    """Read-only, with no local metadata: what the log tells, which is all but the frozen parts."""
    configure(tmp_path, more=", read_only: true")
    preview = frostline.json("clickhouse", "export", "ch", "out", "--dry-run", "--key-prefix", KEY_PREFIX)
    assert preview["dry_run"] is True
    assert not (tmp_path / "out").exists()
    done = frostline.json("clickhouse", "export", "ch", "out", "--key-prefix", KEY_PREFIX)
    assert (done["metadata_version"], done["files"], done["written"]) == (3, preview["files"], preview["files"])
    local = {path: data for path, data in content(LOCAL).items() if not path.startswith("shadow/")}
    out = content(tmp_path / "out")
    assert out.keys() == local.keys()
    unfrozen = {path for path, data in local.items() if data.endswith(b"\n0\n0\n")}
    assert {path for path in unfrozen if out[path] != local[path]} == set()
    objects = {path: data.split(b"\n")[1:-3] for path, data in local.items()}
    assert {path: data.split(b"\n")[1:-3] for path, data in out.items()} == objects
    assert not (tmp_path / "state" / "disks" / "ch" / "files.db").exists()


@pytest.mark.usefixtures("bucket")
def test_a_servers_metadata_goes_in_and_comes_out_the_same(frostline: Frostline, tmp_path: Path) -> None:
    """Adopt a server's disk: import, and every export gives the directory back byte for byte, links and all."""
    preview = frostline.json("clickhouse", "import", "ch", str(LOCAL))
    assert (preview["applied"], preview["created"], preview["missing_objects"]) == (False, preview["files"], [])
    assert preview["versions"] == {"3": preview["files"] - 1}
    frostline("clickhouse", "export", "ch", "early", "--revision", "9999", code=10)
    assert frostline.json("clickhouse", "import", "ch", str(LOCAL), "--apply", "--dry-run")["applied"] is False
    applied = frostline.json("clickhouse", "import", "ch", str(LOCAL), "--apply")
    assert applied["applied"] is True
    frostline("clickhouse", "export", "ch", "out", "--key-prefix", KEY_PREFIX)
    assert content(tmp_path / "out") == content(LOCAL)
    assert links(tmp_path / "out") == link_counts()
    again = frostline.json("clickhouse", "export", "ch", "out", "--key-prefix", KEY_PREFIX)
    assert (again["written"], again["unchanged"]) == (0, applied["files"])
    assert frostline.json("clickhouse", "import", "ch", "out")["unchanged"] == applied["files"]


@pytest.mark.usefixtures("bucket")
def test_a_rebuild_keeps_what_only_the_table_knows(frostline: Frostline, tmp_path: Path) -> None:
    """The second defect: after a restore nobody knew of the frozen parts, and their objects were deleted."""
    frostline("clickhouse", "import", "ch", str(LOCAL), "--apply")
    preview = frostline.json("restore", "ch")
    assert (preview["created"], preview["removed"], preview["applied"]) == (0, 0, False)
    frostline("restore", "ch", "--apply")
    frostline("clickhouse", "export", "ch", "out", "--key-prefix", KEY_PREFIX)
    assert content(tmp_path / "out") == content(LOCAL)


@pytest.mark.usefixtures("bucket")
def test_every_version_goes_in(frostline: Frostline, tmp_path: Path) -> None:
    frostline("clickhouse", "import", "ch", str(LOCAL), "--apply")
    for version in range(1, 6):
        name = f"v{version}"
        frostline("clickhouse", "export", "ch", name, "--metadata-version", str(version), "--key-prefix", KEY_PREFIX)
        found = frostline.json("clickhouse", "import", "ch", name, "--key-prefix", KEY_PREFIX)
        assert (found["created"], found["removed"], found["problems"]) == (0, 0, []), version
    assert "does not begin with" in frostline("clickhouse", "import", "ch", "v5", "--key-prefix", "x/", code=4)
    frostline("clickhouse", "export", "ch", "v6", "--metadata-version", "6", code=2)


def test_what_is_lost_is_named(frostline: Frostline, bucket: DirectoryStore, tmp_path: Path) -> None:
    """I3, I15: objects that are gone are reported and adopted; files that cannot be read stop the import."""
    tree = tmp_path / "tree"
    shutil.copytree(LOCAL, tree)
    victim = next(iter(tree.rglob("count.txt")))
    key = victim.read_bytes().split(b"\n")[2].split(b"\t")[1].decode()
    bucket.delete([key])
    report = frostline.json("clickhouse", "import", "ch", str(tree), code=4)
    assert {lost["object"] for lost in report["missing_objects"]} == {key}
    assert frostline.json("clickhouse", "import", "ch", str(tree), "--apply", code=4)["applied"] is True
    victim.write_bytes(b"")
    out = frostline("clickhouse", "import", "ch", str(tree), code=4)
    assert "UNREADABLE" in out
    assert str(victim) in out
    frostline("clickhouse", "import", "ch", str(tree), "--apply", "--yes", code=13)


@pytest.mark.usefixtures("bucket")
def test_a_smaller_tree_asks_before_files_go(frostline: Frostline, tmp_path: Path) -> None:
    frostline("clickhouse", "import", "ch", str(LOCAL), "--apply")
    tree = tmp_path / "tree"
    shutil.copytree(LOCAL, tree)
    shutil.rmtree(tree / "shadow")
    frostline("clickhouse", "import", "ch", str(tree), "--apply", code=13)
    frostline("clickhouse", "import", "ch", str(tree), "--apply", "--yes")
    assert frostline.json("clickhouse", "import", "ch", str(tree))["removed"] == 0


@pytest.mark.usefixtures("bucket")
def test_a_machine_without_metadata_is_told_what_to_do(frostline: Frostline, tmp_path: Path) -> None:
    frostline("restore", "ch", "--apply")
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "bucket" / SCHEMA_VERSION_KEY).read_bytes()
    frostline("clickhouse", "export", "s3", "out")
    frostline("clickhouse", "export", "ssd", "x", code=2)
    frostline("clickhouse", "import", "s3", str(LOCAL), code=2)
    frostline("restore", "ch", "--time", "2026-01-01T00:00:00Z", code=2)


def test_a_disk_of_ours_is_exported_and_lives(frostline: Frostline, tmp_path: Path) -> None:
    """Tables of ours on a disk with ClickHouse's log: insert, move, lose the metadata, rebuild, query, export."""
    (tmp_path / "frostline.yaml").write_text(
        f"""
state_path: state
disks:
  ssd: {{type: local, path: ssd}}
  ch: {{type: object_disk, url: "file://{tmp_path}/new/", log_format: 1}}
policies:
  p: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [ch]}}]}}
"""
    )
    (tmp_path / "rows.csv").write_text(
        "id,day\n" + "".join(f"{number},2024-01-0{number % 9 + 1}\n" for number in range(90))
    )
    frostline("table", "create", "a.b", "--like", "rows.csv", "--order-by", "id", "--policy", "p")
    frostline("insert", "a.b", "rows.csv")
    frostline("move", "a.b", "--partition", "all", "--to-volume", "cold")
    count = frostline.json("query", "SELECT count(*), sum(id) FROM a.b")["rows"]
    assert count == [[90, sum(range(90))]]
    assert {part["disk"] for part in frostline.json("parts", "a.b")["parts"]} == {"ch"}
    shutil.rmtree(tmp_path / "state" / "disks" / "ch")
    frostline("query", "SELECT 1 FROM a.b", code=13)
    assert "frostline restore ch" in frostline.error
    restored = frostline.json("restore", "ch", "--apply")
    assert (restored["applied"], restored["missing_objects"]) == (True, [])
    assert frostline.json("query", "SELECT count(*), sum(id) FROM a.b")["rows"] == count
    frostline("clickhouse", "export", "ch", "out")
    assert frostline.json("clickhouse", "import", "ch", "out")["unchanged"] == restored["files"]
    frostline("log", "ch", code=2)
    assert "has ClickHouse's log" in frostline.error
