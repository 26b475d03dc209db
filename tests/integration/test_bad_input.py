"""Bad input and bad surroundings through the command line: a clear error, the right exit code, nothing lost (I15, P55).

Every command runs in this process through the same entry as the real one. None may show a traceback; after each failure
the store answers as before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks import effects
from oplog.errors import NoSpace
from tests.integration.bad_inputs import FEBRUARY, GOOD, HEADER, JANUARY, TABLE, Cli, create, csv
from tests.integration.bad_inputs import cli as cli
from tiering.daemon.lock import daemon_lock
from tiering.parquet.part_files import write_part_files
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table

pytestmark = pytest.mark.in_turn


@pytest.fixture
def unharmed(cli: Cli) -> Iterator[None]:
    """After the test the store shows what it showed before, and is sound."""
    parts = cli.parts()
    yield
    assert cli.parts() == parts
    assert cli.rows() == len(GOOD)
    cli.is_sound()


# Data


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    ("lines", "header", "says"),
    [
        (["2026-01-05T00:00:00Z,many,x"], HEADER, ("bad.csv", "line 2", "many")),
        (["yesterday,7,x"], HEADER, ("bad.csv", "row 1", "yesterday")),
        ([*GOOD[:3], "2026-01-05T00:00:00Z,7"], HEADER, ("bad.csv", "line 5")),
        (["2026-01-05T00:00:00Z,x"], "ts,text", ("key",)),
        (["2026-01-05T00:00:00Z,7,x,9"], f"{HEADER},surplus", ("surplus",)),
    ],
    ids=["wrong type", "wrong time", "broken line", "missing sort column", "unknown column"],
)
def test_csv_that_does_not_fit(cli: Cli, tmp_path: Path, lines: list[str], header: str, says: tuple[str, ...]) -> None:
    cli.fails(2, "insert", TABLE, csv(tmp_path / "bad.csv", *lines, header=header), says=says)


@pytest.mark.usefixtures("unharmed")
def test_parquet_of_other_types(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"ts": [datetime(2026, 1, 5, tzinfo=UTC)], "key": ["seven"], "text": ["x"]}), path)
    cli.fails(2, "insert", TABLE, path, says=("key",))


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("name", ["bad.parquet", "bad.arrow", "bad.json"])
def test_a_file_of_another_format(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x00\x01 this is nothing of the kind")
    cli.fails(2, "insert", TABLE, path, says=(name,))


@pytest.mark.usefixtures("unharmed")
def test_a_truncated_parquet_file_as_input(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    pq.write_table(pa.table({"ts": [datetime(2026, 1, 5, tzinfo=UTC)], "key": [7], "text": ["x"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    cli.fails(2, "insert", TABLE, path, says=("short.parquet",))


@pytest.mark.usefixtures("unharmed")
def test_a_file_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    cli.fails(10, "insert", TABLE, tmp_path / "missing.csv", says=("missing.csv",))


@pytest.mark.usefixtures("unharmed")
def test_a_file_that_may_not_be_read(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv(tmp_path / "secret.csv", *GOOD)
    path.chmod(0)
    if os.geteuid() == 0:  # nothing is closed to root: let the library say what it says to others

        def refuse(name: Any, *arguments: Any, **more: Any) -> Any:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))

        monkeypatch.setattr(pa, "OSFile", refuse)
    cli.fails(2, "insert", TABLE, path, says=("secret.csv", "permission"))


@pytest.mark.usefixtures("unharmed")
def test_a_directory_as_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    answer = cli("insert", TABLE, tmp_path / "folder.csv")
    assert answer.code in (2, 10), answer
    assert "folder.csv" in answer.err


# Configuration


@pytest.mark.usefixtures("unharmed")
def test_a_configuration_with_an_unknown_key(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "frostline.yaml"
    config.write_text(f"state_path: {tmp_path / 'state'}\ndisks:\n  ssd: {{type: local, pathh: /x}}\npolicies: {{}}\n")
    cli.fails(2, "-c", config, "parts", says=("frostline.yaml", "pathh", "path"))
    answer = cli.fails(2, "-c", config, "--json", "parts", says=("pathh",))
    assert answer.error["kind"] == "usage"
    assert answer.error["exit_code"] == 2
    assert answer.out == ""
    config.unlink()


@pytest.mark.usefixtures("unharmed")
def test_a_configuration_that_is_no_yaml(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "broken.yaml"
    config.write_text("disks: [ssd: {")
    cli.fails(2, "-c", config, "parts", says=("broken.yaml",))


# A full disk


def _fill(where: Path, name: str, path_part: str) -> effects.Hook:
    """ENOSPC from the first effect of this name whose path has this part."""

    def hook(phase: str, effect: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and effect == name and str(where) in str(arguments[0]) and path_part in str(arguments[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    return hook


@contextlib.contextmanager
def _hooked(hook: effects.Hook) -> Iterator[None]:
    effects.set_hook(hook)
    try:
        yield
    finally:
        effects.set_hook(None)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("effect", ["fs.create", "fs.write", "fs.mkdir"])
@pytest.mark.parametrize("verb", ["insert", "merge", "move"])
def test_a_full_ssd(cli: Cli, tmp_path: Path, verb: str, effect: str) -> None:
    """The disk is full while a part is written: the verb fails, its leftovers go, and it works once there is room."""
    more = csv(tmp_path / "more.csv", "2026-02-20T00:00:00Z,900,late")
    command: tuple[str | Path, ...] = {
        "insert": ("insert", TABLE, more),
        "merge": ("merge", TABLE, "--partition", FEBRUARY, "--final"),
        "move": ("move", TABLE, "--partition", JANUARY, "--to-volume", "hot"),
    }[verb]  # type: ignore[assignment]
    if verb == "merge":
        cli.ok("insert", TABLE, more)
    with _hooked(_fill(cli.home / "ssd", effect, "staging")):
        answer = cli(*command)
    assert answer.code in (1, 3), answer
    assert "no space left" in answer.err + answer.out
    assert cli.rows() == len(GOOD) + (verb == "merge")
    cli.is_sound()
    staging = cli.home / "ssd" / ".frostline" / "staging"
    assert [entry.name for entry in staging.iterdir()] == []
    cli.ok(*command)
    cli.is_sound()
    # back to what the fixture wants to see
    shutil.rmtree(cli.home)
    create(cli)
    cli.ok("insert", TABLE, tmp_path / "good.csv")
    cli.ok("move", TABLE, "--partition", JANUARY, "--to-volume", "cold")


@pytest.fixture
def small_ssd(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mount)], check=False)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_really_full_ssd(cli: Cli, tmp_path: Path, small_ssd: Path) -> None:
    """Incompressible rows fill a small file system: what the library that writes Parquet says arrives as our error."""
    config = tmp_path / "small.yaml"
    config.write_text(
        f"state_path: {tmp_path / 'state'}\ndisks:\n  ssd: {{type: local, path: {small_ssd}}}\n"
        "policies:\n  hot_cold:\n    volumes:\n      - {name: hot, disks: [ssd]}\n"
    )
    small = Cli(cli.home, cli.capture)
    columns = ("--column", "key:int64", "--column", "text:string")
    small.ok("-c", config, "table", "create", "demo.noise", *columns, "--order-by", "key")
    few, many = tmp_path / "few.parquet", tmp_path / "many.parquet"
    for path, count in ((few, 10), (many, 3000)):
        noise = [os.urandom(1000).hex() for _ in range(count)]
        pq.write_table(pa.table({"key": list(range(count)), "text": noise}), path)
    small.ok("-c", config, "insert", "demo.noise", few)
    answer = small.fails(1, "-c", config, "--json", "insert", "demo.noise", many, says=("no_space",))
    assert answer.error["kind"] == "no_space"
    count = small.ok("-c", config, "--json", "query", "select count(*) from demo.noise").document["rows"]
    assert count == [[10]]
    small.ok("-c", config, "insert", "demo.noise", few)
    assert small("-c", config, "fsck", "--read-data").code == 0


def test_a_write_that_failed_gives_its_space_back_at_once(small_ssd: Path) -> None:
    """Its error is still held here, as it may be by whoever reports it, and with it all that the writer held."""
    definition = define_table("demo.noise", columns=["key:int64", "text:string"], order_by="key", policy="p")
    noise = [os.urandom(1000).hex() for _ in range(3000)]
    rows = pa.table({"key": list(range(3000)), "text": noise}, arrow_schema(definition))
    with pytest.raises(NoSpace) as held:
        write_part_files([rows], definition, small_ssd)
    for path in small_ssd.iterdir():
        path.unlink()
    space = os.statvfs(small_ssd)
    assert space.f_bavail == space.f_blocks, held.value


# Damage behind our back


def _files(directory: Path, name: str) -> list[Path]:
    return sorted(path for path in directory.rglob(name) if ".frostline" not in path.parts)


def _february(cli: Cli) -> Path:
    (path,) = _files(cli.home / "ssd", "data-*.parquet")
    return path


def _january_object(cli: Cli) -> Path:
    (path,) = (cli.home / "bucket" / "store").glob("r*-file-*")
    return path


def _says_and_keeps(cli: Cli, *words: str, code: int = 1) -> None:
    """A query of the damaged rows fails loudly, fsck names what is wrong, and the healthy rows are still there."""
    answer = cli("query", f"select sum(key) from {TABLE}")
    assert answer.code == code, answer
    for word in words:
        assert word in answer.err, answer.err
    found = cli("--json", "fsck", "--read-data")
    assert found.code == 4, found
    assert not found.document["ok"]


def test_a_truncated_parquet_file(cli: Cli) -> None:
    path = _february(cli)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    _says_and_keeps(cli, path.name)
    answer = cli("move", TABLE, "--partition", FEBRUARY, "--to-volume", "cold")
    assert answer.code in (1, 3), answer
    assert cli.parts()[f"{FEBRUARY}_1_1_0"] == "ssd", "a damaged part must stay where it is"
    path.write_bytes(whole)
    assert cli.rows() == len(GOOD)
    cli.is_sound()


def test_a_part_directory_with_a_symlink(cli: Cli, tmp_path: Path) -> None:
    path = _february(cli)
    elsewhere = tmp_path / "elsewhere.parquet"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    _says_and_keeps(cli, path.name)
    assert cli("move", TABLE, "--partition", FEBRUARY, "--to-volume", "cold").code in (1, 3)
    assert elsewhere.exists()
    path.unlink()
    elsewhere.rename(path)
    assert cli.rows() == len(GOOD)
    cli.is_sound()


def test_a_zero_byte_part_json(cli: Cli) -> None:
    """The part cannot be read; it is reported and kept, never dropped, and the others answer."""
    (path,) = _files(cli.home / "ssd", "part.json")
    whole = path.read_bytes()
    path.write_bytes(b"")
    (cli.home / "state/catalog.db").unlink()  # what was known of it
    answer = cli("query", f"select count(*) from {TABLE}")
    assert "part.json" in answer.err, "the query says nothing of the part it left out"
    found = cli("--json", "fsck")
    assert found.code == 4
    assert any("part.json" in (problem.get("path") or "") + problem["what"] for problem in found.document["problems"])
    assert cli("merge", TABLE, "--final").code in (0, 1, 3)
    assert path.exists()
    path.write_bytes(whole)
    assert cli.rows() == len(GOOD)
    cli.is_sound()


def test_a_part_directory_whose_name_is_no_part_s(cli: Cli) -> None:
    """A copy that somebody made, its name in digits that only look like a part's: in no answer, and found."""
    (path,) = _files(cli.home / "ssd", "part.json")
    copy = path.parent.with_name("202602_\u0661_\u0661_0")
    shutil.copytree(path.parent, copy)
    answer = cli("--json", "query", f"select count(*) from {TABLE}")
    assert (answer.code, answer.document["rows"]) == (3, [[len(GOOD)]])
    found = cli("--json", "fsck")
    assert found.code == 4
    assert [problem["path"].split("/")[-2] for problem in found.document["problems"]] == [copy.name]
    shutil.rmtree(copy)
    cli.is_sound()


def test_a_careless_umask_opens_no_file_to_others(cli: Cli, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cli.ok("insert", TABLE, csv(tmp_path / "more.csv", "2026-02-07T00:00:00Z,7,more"))
        cli.ok("merge", TABLE, "--final")
        cli.ok("move", TABLE, "--partition", JANUARY, "--to-volume", "hot")
    finally:
        os.umask(before)
    written = [path for path in cli.home.rglob("*") if not path.is_symlink()]
    assert any(path.suffix == ".parquet" for path in written)
    assert [path for path in written if path.stat().st_mode & 0o022] == []


def test_an_object_deleted_behind_our_back(cli: Cli) -> None:
    path = _january_object(cli)
    whole = path.read_bytes()
    path.unlink()
    _says_and_keeps(cli, path.name)
    answer = cli("--json", "move", TABLE, "--partition", JANUARY, "--to-volume", "hot")
    assert answer.code in (1, 3), answer
    assert cli.parts()[f"{JANUARY}_1_1_0"] == "s3"
    preview = cli("--json", "restore", "s3")
    assert path.name in json.dumps(preview.document["missing_objects"]), preview
    path.write_bytes(whole)
    assert cli.rows() == len(GOOD)
    cli.is_sound()


def test_a_log_entry_deleted_behind_our_back(cli: Cli) -> None:
    """The snapshot stands in for the first entry; when that is gone too, a rebuild fails and changes nothing."""
    entries = sorted((cli.home / "bucket" / "store" / "operations").iterdir())
    snapshots = cli.home / "bucket" / "store" / "snapshots"
    assert len(entries) >= 2
    whole = entries[0].read_bytes()
    entries[0].unlink()
    shutil.rmtree(cli.home / "state" / "disks" / "s3")
    assert cli.rows() == len(GOOD)
    shutil.rmtree(cli.home / "state" / "disks" / "s3")
    shutil.move(snapshots, cli.home / "saved")
    answer = cli("parts")
    assert answer.code != 0, "a store whose log has a hole must not look empty"
    shutil.move(cli.home / "saved", snapshots)
    entries[0].write_bytes(whole)
    assert cli.rows() == len(GOOD)
    cli.is_sound()


# The clock


@pytest.mark.parametrize("year", [1970, 2005, 2090])
def test_objects_with_a_wrong_clock_are_never_collected(cli: Cli, year: int) -> None:
    """P23: an orphan whose time cannot be believed stays, and gc says so."""
    january = _january_object(cli)
    orphan = january.with_name(january.name[:-32] + "z" * 32)
    shutil.copyfile(january, orphan)
    moment = datetime(year, 1, 2, tzinfo=UTC).timestamp()
    os.utime(orphan, (moment, moment))
    answer = cli("--json", "-y", "gc", "s3", "--delete", "--max-delete-fraction", "1")
    assert answer.code in (0, 4), answer
    assert answer.document["deleted"] == 0
    assert orphan.exists()
    assert cli.rows() == len(GOOD)


def test_a_machine_whose_clock_runs_ahead_collects_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """P23: by our clock everything is old; the store's clock disagrees, so nothing goes."""
    from disks.garbage import collect as garbage

    january = _january_object(cli)
    orphan = january.with_name(january.name[:-32] + "z" * 32)
    shutil.copyfile(january, orphan)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(datetime.now(UTC).timestamp() + 400 * 86400, UTC)

    monkeypatch.setattr(garbage, "datetime", Ahead)
    answer = cli("--json", "-y", "gc", "s3", "--delete", "--max-delete-fraction", "1")
    monkeypatch.undo()
    assert orphan.exists()
    assert answer.code != 0, answer
    assert "clock" in answer.out + answer.err


# A second daemon


@pytest.mark.usefixtures("unharmed")
def test_a_second_daemon(cli: Cli) -> None:
    with daemon_lock(cli.home / "state"):
        answer = cli.fails(11, "daemon", "run", says=("daemon",))
        assert str(os.getpid()) in answer.err
