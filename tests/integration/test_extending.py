"""`docs/extending.md`: what the page adds to Frostline works as printed.

Its store and its disk pass the contract suites (`tests/contract`); here is what the suites do not see. Guards I16.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from disks.memory import MemoryDisk
from disks.registry import DISK_TYPES, open_disk
from oplog.errors import UsageError
from oplog.kinds import Inserted
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.reading.scan_planning import plan_scan
from tests.command_line import Frostline
from tests.documented import blocks, configure_every_type, documented
from tiering.plugins import PLUGINS

ROWS = 500
ROOT = Path(__file__).parents[2]


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    pyarrow.parquet.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64())}), tmp_path / "rows.parquet")
    return Frostline(capsys)


def insert(frostline: Frostline) -> None:
    frostline("table", "create", "db.t", "--column", "id:int64", "--order-by", "id")
    frostline("insert", "db.t", "rows.parquet")


def test_every_block_of_the_page_is_run() -> None:
    assert set(blocks()) == {"store", "disk", "wrapper", "verb", "row"}
    assert documented("store") is documented("store")


def test_a_store_by_its_url_moves_checks_and_collects(frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    documented("store")
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"sqlite://{Path.cwd()}/objects.db")
    insert(frostline)
    assert [part["disk"] for part in frostline.json("parts", "db.t")["parts"]] == ["ssd"]
    frostline("move", "db.t", "--partition", "all", "--to-volume", "cold", "--yes")
    assert [part["disk"] for part in frostline.json("parts", "db.t")["parts"]] == ["s3"]
    assert frostline.json("fsck", "--read-data")["problems"] == []
    assert frostline.json("gc", "s3")["orphaned"] == 0
    assert Path("objects.db").stat().st_size > 0
    moves = [entry for entry in frostline.json("log", "s3")["entries"] if entry["kind"] == "move"]
    assert len(moves) == 1


def test_a_scheme_that_nobody_added_is_no_bucket(frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", "tape:///dev/nst0")
    frostline("disks", code=2)
    assert "unknown kind of URL: tape:///dev/nst0" in frostline.error


def test_a_disk_type_by_its_row(tmp_path: Path) -> None:
    page = documented("disk")
    config = page.OneFileConfig(path=str(tmp_path / "one" / "files"), read_only=True)
    assert config.type == "one_file"
    disk = open_disk("one", config, tmp_path / "state")
    assert isinstance(disk, page.OneFileDisk)
    assert (disk.name, disk.kind, disk.read_only) == ("one", "one_file", True)
    assert not (tmp_path / "one").exists()


CONFIGURATION = """
state_path: state
disks:
  ssd: {type: local, path: ssd}
  one: {type: one_file, path: one/files}
policies:
  hot_one:
    volumes:
      - {name: hot, disks: [ssd]}
      - {name: packed, disks: [one]}
"""
SUM = "SELECT count(*) AS n, sum(id) AS total FROM db.t WHERE id >= 250"
SUMS = [250, sum(range(250, ROWS))]


@pytest.fixture
def with_one(frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> Frostline:
    """A store with a table whose rows are on the disk of the page."""
    documented("disk")
    configure_every_type(monkeypatch)
    Path("frostline.yaml").write_text(CONFIGURATION)
    frostline("config", "validate")
    insert(frostline)
    frostline("move", "db.t", "--partition", "all", "--to-volume", "packed", "--yes")
    return frostline


def answer(frostline: Frostline) -> list[int]:
    [values] = frostline("query", SUM, "--output-format", "csv").split()[1:]
    return [int(value) for value in values.split(",")]


def test_a_disk_type_on_the_command_line(with_one: Frostline) -> None:
    assert [part["disk"] for part in with_one.json("parts", "db.t")["parts"]] == ["one"]
    assert answer(with_one) == SUMS
    assert with_one.json("fsck", "--read-data")["problems"] == []
    with_one("insert", "db.t", "rows.parquet", "--dedup-by", "none")
    with_one("move", "db.t", "--partition", "all", "--to-volume", "packed", "--yes")
    with_one("merge", "db.t", "--final")
    with_one("move", "db.t", "--partition", "all", "--to-volume", "hot", "--yes")
    assert {part["disk"] for part in with_one.json("parts", "db.t")["parts"]} == {"ssd"}
    assert answer(with_one) == [2 * value for value in SUMS]
    assert with_one.json("fsck", "--read-data")["problems"] == []


def test_a_directory_that_is_gone_is_no_empty_disk(with_one: Frostline) -> None:
    Path("one").rename("away")
    with_one("query", SUM, code=5)
    assert "disk one is missing" in with_one.error
    with_one("insert", "db.t", "rows.parquet", code=5)
    assert not Path("one").exists()


def test_parts_that_a_disk_of_the_right_id_lacks(with_one: Frostline) -> None:
    """Any disk that is no bucket: its files may be older than its id."""
    with_one("parts", "db.t")
    Path("one/files").unlink()
    with_one("query", SUM, code=5)
    assert "disk one" in with_one.error
    assert "db.t" in with_one.error


def test_parts_there_are_backed_up_and_restored(with_one: Frostline) -> None:
    repository = f"file://{Path.cwd()}/backups/"
    with_one("backup", "init", repository)
    with_one("backup", "create", "first", "--to", repository, "--yes")
    with_one("table", "drop", "db.t", "--yes")
    with_one("backup", "restore", "first", "--to", repository, "--yes")
    assert answer(with_one) == SUMS
    assert [part["disk"] for part in with_one.json("parts", "db.t")["parts"]] == ["one"]
    assert not list(Path("state").glob("**/copies"))


def test_what_recovery_did_names_each_disk_once(with_one: Frostline) -> None:
    for own in (Path("ssd/.frostline"), Path("one/files.id")):
        (own / "staging" / "0123456789abcdef").mkdir(parents=True)
    with_one("parts", "db.t")
    said = [line for line in with_one.error.splitlines() if "recovered" in line]
    assert [line.count("disk ") for line in said] == [1, 1]
    assert {disk for disk in ("ssd", "one") for line in said if f"disk {disk}: removed" in line} == {"ssd", "one"}


def test_spark_says_that_it_does_not_read_them(with_one: Frostline) -> None:
    options = ReadOptions("db.t", Path("frostline.yaml"), local_disks="shared")
    with pytest.raises(UsageError, match=r"one:.* in no directory"):
        plan_scan(options)


def test_disks_of_one_path_and_without_one_are_refused(with_one: Frostline) -> None:
    Path("frostline.yaml").write_text(CONFIGURATION.replace("one/files", "ssd/files"))
    with_one("config", "validate", code=2)
    assert "overlaps the place of disks.ssd" in with_one.error
    Path("frostline.yaml").write_text(CONFIGURATION.replace("one/files", "''"))
    with_one("config", "validate", code=2)
    assert "disks.one: a disk of type one_file" in with_one.error


def test_a_disk_without_an_id_holds_no_parts(with_one: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = DISK_TYPES["one_file"]
    unknown = msgspec.structs.replace(entry, open=lambda opening, config: MemoryDisk(opening.name))
    monkeypatch.setitem(DISK_TYPES, "one_file", unknown)
    with_one("query", SUM, code=2)
    assert "disk one is memory" in with_one.error
    assert "remove one from the configuration" in with_one.error


def test_a_disk_type_needs_no_database_and_no_log() -> None:
    """What a new disk type imports: the contract, and nothing of the disks that are there."""
    program = "from tests.documented import documented\ndocumented('disk')\nimport sys\nprint(*sys.modules, sep='\\n')"
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(shown.stdout.split())
    assert "disks.base" in loaded
    assert not loaded & {"sqlite3", "oplog.log", "oplog.entry"}
    assert not [name for name in loaded if name.startswith(("disks.file_table", "disks.object_disk", "disks.wrappers"))]


def test_a_wrapper_counts_what_passes_through_it() -> None:
    disk = documented("wrapper").CountingDisk(MemoryDisk())
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"1")
        transaction.commit()
    assert disk.read("a") == b"1"
    assert disk.reads == 1


def test_a_verb_is_in_the_help_and_answers(frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    table = PLUGINS["verbs"]
    monkeypatch.setitem(PLUGINS, "verbs", table._replace(modules=dict(table.modules)))
    monkeypatch.setitem(sys.modules, "tiering.cli.commands.largest", documented("verb"))
    exec(blocks()["row"], {})
    insert(frostline)
    found = frostline.json("largest", "db.t", "--count", "1")
    [part] = frostline.json("parts", "db.t")["parts"]
    assert found == {"table": "db.t", "parts": [{"part": part["part"], "disk": "ssd", "bytes": part["bytes"]}]}
    assert part["part"] in frostline("largest", "db.t")
    assert "The largest parts of a table" in frostline("--help")
    frostline("largest", "db.none", code=10)
