"""Machines that are lost, with or without their bucket, backups made beside processes that write, sets of several
machines, and each kind of object changed in turn: through the command line. Guards I12, I13, P32 and P48 to P51."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backup.format import encoding, names
from backup.format.header import BackupHeader, UnfinishedBackup
from disks.object_disk.pending_deletes import Announcement
from oplog.entry import now
from tests import worm
from tests.backups import TABLE, Machine, events, filled, insert, machine_on, other_bucket
from tests.command_line import Frostline
from tests.crash.site import OTHER
from tests.servers import Server

pytestmark = pytest.mark.in_turn

REPOSITORY = Path(__file__).resolve().parents[2]
not_locked = pytest.mark.skipif(worm.ACTIVE, reason="the store keeps what is younger than its retention")
On = Callable[[Machine], Frostline]


@pytest.fixture
def on(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> On:
    """The command line of a machine."""

    def command(machine: Machine) -> Frostline:
        file = tmp_path / f"{machine.root.name}.yaml"
        file.write_bytes(msgspec.yaml.encode(msgspec.to_builtins(machine.config())))
        file.chmod(0o600)
        monkeypatch.setenv("FROSTLINE_CONFIG", str(file))
        monkeypatch.setenv("FROSTLINE_BACKUP", machine.repository_url)
        return Frostline(capsys)

    return command


@pytest.fixture(params=["directory", "s3"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    server: Server | None = request.getfixturevalue("ministack") if request.param == "s3" else None
    return filled(machine_on(tmp_path, server))


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return filled(machine_on(tmp_path))


class TestWhatIsDestroyed:
    def lose_the_bucket(self, machine: Machine, server: Callable[[], Server]) -> None:
        if machine.bucket.url.startswith("file:"):
            machine.lose_bucket()
            return
        bucket, _, prefix = machine.bucket.url.removeprefix("s3://").partition("/")
        client = server().client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=item["Key"])

    @not_locked
    def test_the_machine_and_its_bucket(
        self, machine: Machine, tmp_path: Path, on: On, request: pytest.FixtureRequest
    ) -> None:
        """`--cold copy`: nothing but the repository is left, and the same bucket is begun anew."""
        rows, digests = machine.rows(), machine.digests()
        on(machine)("backup", "init")
        on(machine)("backup", "create", "one")
        machine.lose_state()
        self.lose_the_bucket(machine, lambda: request.getfixturevalue("ministack"))
        fresh = machine_on(tmp_path, name="fresh", like=machine)
        command = on(fresh)
        restored = command.json("backup", "restore", "latest")
        assert restored["rows"] == len(rows)
        assert (fresh.rows(), fresh.digests()) == (rows, digests)
        command("fsck", "--read-data")
        command("backup", "verify", "one", "--read-data")
        assert command.json("backup", "create", "two")["new_bytes"] == 0, "the same bytes"

    def test_the_machine_alone(self, machine: Machine, tmp_path: Path, on: On) -> None:
        """`--cold pin`: the bucket survives, and shows what lay in it; the backup has what lay on the SSD, too."""
        rows, digests = machine.rows(), machine.digests()
        on(machine)("backup", "init")
        on(machine)("backup", "create", "one", "--cold", "pin")
        machine.lose_state()
        fresh = machine_on(tmp_path, name="fresh", like=machine)
        command = on(fresh)
        command("backup", "restore", "one", "--map-table", f"{TABLE}:demo.beside")
        assert (fresh.rows("demo.beside"), fresh.digests("demo.beside")) == (rows, digests)
        command("backup", "restore", "one", "--drop-existing", "--yes")
        assert (fresh.rows(), fresh.digests()) == (rows, digests)
        command("fsck", "--read-data")
        command("backup", "verify", "one", "--read-data")


@contextmanager
def process(what: str, base: Path) -> Iterator[subprocess.Popen[str]]:
    """It runs until it is killed, in the middle of whatever it does."""
    command = [sys.executable, "-m", "tests.integration.writing_in_order", what, str(base)]
    running = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()


def round_of(running: subprocess.Popen[str]) -> int:
    """Waits for its next round to end."""
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line, "it ended by itself"
    return int(line)


@pytest.mark.slow
def test_no_row_is_there_without_the_one_that_came_before(here: Machine, tmp_path: Path, on: On) -> None:
    """One process inserts into A before B, another merges and moves both, a third makes backups."""
    with here.open() as store:
        store.create_table(events(2, name=OTHER))
    command = on(here)
    command("backup", "init")
    with process("insert", tmp_path) as writer, process("tidy", tmp_path) as tidier:
        for number in range(4):
            round_of(writer)
            round_of(tidier)
            command("backup", "create", f"b{number}")
    command("backup", "verify", "--all", "--read-data")
    for number in range(4):
        renamed = ("--map-table", f"{TABLE}:r{number}.a", "--map-table", f"{OTHER}:r{number}.b")
        command("backup", "restore", f"b{number}", *renamed)
        first = {row[0] for row in here.rows(f"r{number}.a")}
        second = {row[0] for row in here.rows(f"r{number}.b")}
        assert second
        assert second <= first, f"b{number} has rows of B whose rows of A it lacks"
    command("fsck", "--read-data")


class TestSets:
    @pytest.fixture
    def other(self, here: Machine, tmp_path: Path, on: On) -> Machine:
        """A second machine at the same bucket, with rows on its own SSD; both have made the backup `both`."""
        made = machine_on(tmp_path, name="other", like=here)
        with made.open() as store:
            insert(store, 50_000)
        on(here)("backup", "init")
        assert "NOT HELD" in on(here)("backup", "create", "both")
        assert "NOT HELD" in on(made)("backup", "create", "both")
        on(here)("backup", "create", "both", code=1)
        return made

    def elsewhere(self, here: Machine, tmp_path: Path) -> Machine:
        fresh = machine_on(tmp_path, name="fresh", like=here)
        fresh.bucket = other_bucket(here, tmp_path)
        return fresh

    def test_a_set_is_listed_shown_verified_and_restored_as_one(
        self, here: Machine, other: Machine, tmp_path: Path, on: On
    ) -> None:
        everything = sorted({*here.rows(), *other.rows()})
        listed = on(here).json("backup", "list")["backups"]
        assert [item["name"] for item in listed] == ["both", "both"]
        assert len({item["machine"] for item in listed}) == 2
        shown = on(here).json("backup", "show", "both")["backups"]
        assert {item["machine"] for item in shown} == {item["machine"] for item in listed}
        assert len(on(here).json("backup", "verify", "both", "--read-data")["backups"]) == 2
        fresh = self.elsewhere(here, tmp_path)
        restored = on(fresh).json("backup", "restore", "both")
        assert len(restored["backups"]) == 2
        assert not [note for note in restored["notes"] if note.startswith("not held")]
        assert sorted(fresh.rows()) == everything
        on(fresh)("fsck", "--read-data")

    @not_locked
    def test_one_of_them_is_missing(self, here: Machine, other: Machine, tmp_path: Path, on: On) -> None:
        """What the other machine had on its SSD is not there, and that is told; the rest is whole."""
        mine = here.rows()
        listed = on(here).json("backup", "list")["backups"]
        gone = listed[1]
        on(here)("backup", "delete", gone["id"], "--yes")
        assert [item["machine"] for item in on(here).json("backup", "list")["backups"]] == [listed[0]["machine"]]
        fresh = self.elsewhere(here, tmp_path)
        command = on(fresh)
        preview = command.json("backup", "restore", "both", "-n")
        restored = command.json("backup", "restore", "both")
        assert restored["backups"] == [listed[0]["id"]]
        assert [note for note in restored["notes"] if note.startswith("not held")] == preview["notes"] != []
        assert sorted(fresh.rows()) == sorted(mine)
        command("fsck", "--read-data")

    def test_each_by_its_id(self, here: Machine, other: Machine, tmp_path: Path, on: On) -> None:
        expected = {len(here.rows()), len(other.rows())}
        fresh = self.elsewhere(here, tmp_path)
        found = set()
        for item in on(here).json("backup", "list")["backups"]:
            name = f"demo.of_{item['id']}"
            on(fresh)("backup", "restore", item["id"], "--map-table", f"{TABLE}:{name}")
            found.add(len(fresh.rows(name)))
        assert found == expected


def test_each_kind_of_object_that_is_changed_is_named(here: Machine, on: On) -> None:
    """Of every kind that a repository has, a bit at several places, in turn."""
    command = on(here)
    command("backup", "init")
    command("backup", "create", "one")
    command("backup", "verify", "one", "--read-data")
    root = Path(here.repository_url.removeprefix("file://"))
    for path, data in notes(root).items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    kinds: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.relative_to(root).parts[0] not in (".incoming", ".metadata"):
            kinds.setdefault(path.relative_to(root).parts[0], path)
    kinds.pop("damaged", None)  # what it says is its name
    wanted = {"backups", "lists", "packs", "blobs", "unfinished", "claims", "verified", "gc", names.MARKER_KEY}
    assert set(kinds) == wanted
    command("backup", "verify", "--all", "--read-data")
    for kind, path in kinds.items():
        whole = path.read_bytes()
        places = (0, len(whole) // 2, len(whole) - 2)
        for place in places[:1] if kind == "gc" else places:  # an announcement binds for an hour and has no digest
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            said, code = command.any("backup", "verify", "--all", "--read-data")
            assert code == (1 if kind == names.MARKER_KEY else 4), (kind, place, said, command.error)
            assert path.name in said + command.error, (kind, place, said, command.error)
            path.write_bytes(whole)
            for mark in [mark for mark in (root / "damaged").rglob("*") if mark.is_file()]:
                mark.unlink()
    command("backup", "verify", "--all", "--read-data")


def notes(root: Path) -> dict[Path, bytes]:
    """What a backup that is being made and a collection that runs would have put."""
    (path,) = (root / names.BACKUPS_PREFIX / "one").iterdir()
    header: Any = encoding.unsealed(path.read_bytes(), BackupHeader, "")
    claim = msgspec.structs.replace(header, id="ab" * 8, name="next")
    mark = UnfinishedBackup(id=claim.id, name=claim.name, machine=claim.machine, actor="x", started=now())
    announced = msgspec.json.encode(Announcement(time=now(), keys=("blobs/none",)))
    return {
        root / names.unfinished_key(claim.id): encoding.sealed(mark),
        root / names.claim_key(claim.id): encoding.sealed(claim),
        root / "gc" / f"{'cd' * 8}.json": announced,
    }


PAGE = REPOSITORY / "docs" / "backup.md"
_FIGURES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|/\S+|[\d.,:/-]*\d[\d.,:TZ-]*( [KM]i?B| B)?")


def shown(heading: str) -> list[tuple[list[str], list[str]]]:
    """The commands below a heading of the page, and what it shows of each."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n###")[0].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    found: list[tuple[list[str], list[str]]] = []
    for line in lines:
        if line.startswith("$ frostline "):
            found.append((shlex.split(line)[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


def words(line: str) -> str:
    """A line without what differs from store to store."""
    return " ".join(_FIGURES.sub("N", line).split())


@not_locked
@pytest.mark.parametrize(
    ("heading", "lost"),
    [
        ("The machine is destroyed, the bucket is there", ("machine/ssd", "machine/state")),
        ("The SSD is lost", ("machine/ssd",)),
        ("The bucket is lost, or nobody trusts it", ("bucket/store",)),
        ("A table was dropped", ()),
        ("The wrong day was deleted", ()),
    ],
)
def test_the_page_of_each_disaster(
    tmp_path: Path, on: On, monkeypatch: pytest.MonkeyPatch, heading: str, lost: Sequence[str]
) -> None:
    """What the page shows is what happens, but for figures and paths; then all rows are there."""
    command = on(machine_on(tmp_path))
    monkeypatch.chdir(tmp_path)
    columns = ("--column", "at:timestamp", "--column", "bytes:int64", "--order-by", "at", "--partition-by", "day(at)")
    command("table", "create", "web.hits", *columns)
    for day in range(1, 7):
        lines = [f"2026-03-0{day}T00:00:{second:02}Z,{day * second}" for second in range(60)]
        Path("day.csv").write_text("\n".join(["at,bytes", *lines, ""]))
        command("insert", "web.hits", "day.csv")
        if day <= 3:
            command("move", "web.hits", "--partition", f"2026030{day}", "--to-volume", "cold")
    question = 'SELECT count(*) AS n, sum(bytes) AS s, min("at") AS a, max("at") AS z FROM web.hits'
    before = command.json("query", question)["rows"]
    command("backup", "init")
    command("backup", "create", "nightly")
    command("backup", "verify", "nightly", "--read-data")
    for place in lost:
        shutil.rmtree(tmp_path / place)
    if heading == "A table was dropped":
        command("table", "drop", "web.hits", "--yes")
    for arguments, expected in shown(heading):
        said, code = command.any(*arguments)
        fails = bool(expected) and expected[0].startswith("frostline: ")
        assert (code != 0) == fails, (arguments, said, command.error)
        there = {words(line) for line in f"{said}\n{command.error}".splitlines()}
        for line in expected:
            assert words(line) in there, (arguments, words(line), there)
    assert command.json("query", question)["rows"] == before
    command("fsck", "--read-data")
