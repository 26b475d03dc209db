"""What the command line answers when a backup meets a bad place, a bad clock or a bad disk: an error that names the
thing and the next step, the exit code of the table, and nothing lost or half restored. I3, I12, I14, P32, P46.

| what is wrong | what used to happen |
|---|---|
| a repository within a disk, its bucket under another endpoint | it was made there |
| a backup from the future, after a clock that jumped | `prune --keep-last` dropped newer ones for it |
| a pin that has run out | `verify` said that the objects are kept |
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from backup.create import create as making
from backup.create.sending import Sender
from backup.format import encoding, names
from backup.format.header import BackupHeader
from backup.recover import staging
from oplog import pins
from tests import worm
from tests.backups import TABLE, Machine, filled, insert, machine_on
from tests.command_line import Frostline
from tests.mounts import Mount, mounted
from tests.servers import Server
from tiering.engine.store import make_context

COPY = "demo.copy"
BESIDE = ("--map-table", f"{TABLE}:{COPY}")
YEAR = timedelta(days=365)
not_locked = pytest.mark.skipif(worm.ACTIVE, reason="the store keeps what is younger than its retention")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return filled(machine_on(tmp_path))


Configured = Callable[[Machine, str], Frostline]


@pytest.fixture
def configured(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Configured:
    """The command line of a machine whose backups go to the URL."""

    def made(machine: Machine, url: str) -> Frostline:
        document = msgspec.to_builtins(machine.config())
        document["backup"] = {"repository": url, "endpoint_url": machine.extra.get("endpoint_url")}
        file = tmp_path / f"{machine.root.name}.yaml"
        file.write_bytes(msgspec.yaml.encode(document))
        file.chmod(0o600)
        monkeypatch.setenv("FROSTLINE_CONFIG", str(file))
        return Frostline(capsys)

    return made


@pytest.fixture
def frostline(machine: Machine, configured: Configured) -> Frostline:
    """A machine whose repository is there, and empty."""
    command = configured(machine, machine.repository_url)
    command("backup", "init")
    return command


def environ(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def tables(frostline: Frostline) -> list[str]:
    return [table["table"] for table in frostline.json("table", "list")["tables"]]


def sound(frostline: Frostline, *expected: str) -> None:
    """The store passes its checks and has these tables; every backup is whole."""
    frostline("fsck", "--read-data")
    assert tables(frostline) == sorted(expected)
    frostline("backup", "verify", "--all", "--read-data")


class TestPlaces:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("url", "code", "named"),
        [
            ("", 2, "no backup repository is named"),
            ("   ", 2, "repository"),
            ("nowhere", 2, "nowhere"),
            ("ftp://host/backups", 2, "ftp://host/backups"),
            ("s3://bucket/backups?versionId=1", 2, "versionId"),
            ("file:///", 13, "the root of the file system"),
            ("file:///%2F/..", 13, "the place of disk"),
            ("s3://bucket", 13, "a whole bucket"),
            ("s3://bucket//", 13, "a whole bucket"),
            ("s3:///prefix", 2, "s3:///prefix"),
            ("file://host/backups", 2, "file://host/backups"),
        ],
    )
    def test_no_place(self, machine: Machine, configured: Configured, url: str, code: int, named: str) -> None:
        frostline = configured(machine, machine.repository_url)
        for verb in (("init", url), ("create", "one", "--to", url), ("restore", "latest", "--to", url)):
            frostline("backup", *verb, code=code)
            assert named in frostline.error or "the repository is empty" in frostline.error, frostline.error
            assert "hint" in frostline.error or "\n" in frostline.error.strip(), "a next step"
        assert tables(frostline) == [TABLE]

    @pytest.mark.in_turn
    @pytest.mark.parametrize("where", ["ssd", "bucket/store", "bucket/store/below", "", "bucket"])
    def test_overlapping_through_a_link(
        self, machine: Machine, configured: Configured, tmp_path: Path, where: str
    ) -> None:
        target = machine.root / where if where in ("ssd",) else tmp_path / where
        target.mkdir(parents=True, exist_ok=True)
        link = tmp_path.parent / f"{tmp_path.name}-link"
        link.symlink_to(target)
        try:
            frostline = configured(machine, link.as_uri())
            for verb in ("init", "create", "list"):
                frostline("backup", verb, code=13)
                assert "the place of disk" in frostline.error
            assert list(tmp_path.rglob(names.MARKER_KEY)) == []
        finally:
            link.unlink()

    @pytest.mark.in_turn
    def test_spellings_of_one_url_are_one_repository(
        self, machine: Machine, frostline: Frostline, tmp_path: Path
    ) -> None:
        url = machine.repository_url
        (tmp_path / "link").symlink_to(tmp_path / "repository")
        assert frostline.json("backup", "create", "one", "--to", url)["new_bytes"] > 0
        for number, other in enumerate(
            (f"{url}/", f"{url}//", (tmp_path / "link").as_uri(), f"{tmp_path.as_uri()}/./repository")
        ):
            made = frostline.json("backup", "create", f"more-{number}", "--to", other)
            assert made["new_bytes"] == 0, other
            frostline("backup", "init", other, code=1)
        assert len(frostline.json("backup", "list")["backups"]) == 5
        assert len(list((machine.root / "state" / "backup").iterdir())) == 1
        sound(frostline, TABLE)

    @pytest.mark.in_turn
    def test_two_endpoints_of_one_bucket(
        self, ministack: Server, tmp_path: Path, configured: Configured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the configuration calls two servers is one: the disk's mark in its prefix tells."""
        machine = filled(machine_on(tmp_path, ministack))
        machine.extra["endpoint_url"] = ministack.endpoint_url.replace("127.0.0.1", "localhost")
        disk = machine.bucket.url
        environ(monkeypatch, ministack)
        for inside in (f"{disk}backups", f"{disk}a/b/c"):
            frostline = configured(machine, inside)
            frostline("backup", "init", code=13)
            assert "disk" in frostline.error
            assert disk in frostline.error
        for holding in (disk, disk.removesuffix("store/") + "store"):
            configured(machine, holding)("backup", "init", code=13)
        frostline = configured(machine, machine.repository_url)
        frostline("backup", "init")
        frostline("backup", "create", "one")
        sound(frostline, TABLE)

    def test_a_name_that_exists(self, frostline: Frostline) -> None:
        frostline("backup", "create", "one")
        frostline("backup", "create", "one", code=1)
        assert "named one" in frostline.error
        frostline("backup", "restore", "one", code=1)
        assert f"table {TABLE} exists already" in frostline.error
        assert "--map-table" in frostline.error
        frostline("backup", "restore", "one", *BESIDE)
        frostline("backup", "restore", "one", *BESIDE, code=1)
        sound(frostline, TABLE, COPY)

    def test_a_backup_of_a_later_version(self, machine: Machine, frostline: Frostline) -> None:
        """P46: it is named, keeps what it holds from being collected, and is in nobody's way."""
        frostline("backup", "create", "old")
        root = Path(machine.repository_url.removeprefix("file://"))
        (path,) = (root / names.BACKUPS_PREFIX / "old").iterdir()
        header = encoding.unsealed(path.read_bytes(), BackupHeader, "")
        later = msgspec.structs.replace(header, id="0" * 16, name="later", format=9, minimum_reader=9)
        path = root / later.key
        path.parent.mkdir()
        path.write_bytes(encoding.sealed(later))
        for verb in (("show", "later"), ("verify", "later"), ("restore", "later", *BESIDE)):
            frostline("backup", *verb, code=2)
            assert "format 9" in frostline.error
            assert "newer frostline" in frostline.error
        assert "format 9" in frostline("backup", "list")
        for removing in (("prune", "--keep-last", "1", "-y"), ("gc", "--delete", "-y")):
            frostline("backup", *removing, code=13)
            assert "later" in frostline.error
        frostline("backup", "create", "new")
        frostline("backup", "verify", "new", "--read-data")
        frostline("backup", "restore", "new", *BESIDE)
        assert tables(frostline) == [COPY, TABLE]


class TestStores:
    @pytest.mark.in_turn
    def test_without_conditional_writes(
        self, rclone: Server, tmp_path: Path, configured: Configured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = filled(machine_on(tmp_path))
        machine.extra["endpoint_url"] = rclone.endpoint_url
        environ(monkeypatch, rclone)
        frostline = configured(machine, f"s3://{rclone.new_bucket()}/backups")
        before = machine.rows()
        frostline("backup", "init")
        frostline("backup", "init", code=1)
        frostline("backup", "create", "one")
        with machine.open() as store:
            insert(store, 7000)
        assert frostline.json("backup", "create", "two")["new_bytes"] > 0
        frostline("backup", "create", "two", code=1)
        assert frostline.json("backup", "verify", "--all", "--read-data")["ok"] is True
        frostline("backup", "restore", "one", *BESIDE)
        assert machine.rows(COPY) == before
        frostline("backup", "prune", "--keep-last", "1", "-y", code=13 if worm.ACTIVE else 0)
        sound(frostline, TABLE, COPY)


class TestDisks:
    @pytest.fixture
    def ssd(self, tmp_path: Path) -> Iterator[Mount]:
        """The SSD of another machine: a file system of its own."""
        with mounted(tmp_path / "fresh" / "ssd", size="4m") as mount:
            yield mount

    def other(self, machine: Machine, tmp_path: Path, configured: Configured) -> tuple[Machine, Frostline]:
        fresh = machine_on(tmp_path, name="fresh", like=machine)
        fresh.bucket = msgspec.structs.replace(machine.bucket, url=(tmp_path / "new" / "store").as_uri() + "/")
        return fresh, configured(fresh, machine.repository_url)

    def test_no_room_for_a_restore(
        self, machine: Machine, frostline: Frostline, tmp_path: Path, ssd: Mount, configured: Configured
    ) -> None:
        frostline("backup", "create", "one")
        fresh, command = self.other(machine, tmp_path, configured)
        ssd.fill(leaving_bytes=4096)
        command("backup", "restore", "one", code=1)
        assert "disk ssd has" in command.error
        assert "-t, --partition" in command.error
        assert tables(command) == []
        ssd.free()
        command("backup", "restore", "one")
        assert fresh.rows() == machine.rows()
        sound(command, TABLE)

    def test_the_disk_is_full_in_the_middle(
        self,
        machine: Machine,
        frostline: Frostline,
        tmp_path: Path,
        ssd: Mount,
        configured: Configured,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        frostline("backup", "create", "one")
        fresh, command = self.other(machine, tmp_path, configured)
        original = staging._create

        def filled_up(*arguments: object) -> None:
            ssd.fill()
            original(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(staging, "_create", filled_up)
            command("backup", "restore", "one", code=1)
        assert str(ssd.path) in command.error or "ssd" in command.error
        assert tables(command) == []
        ssd.free()
        assert tables(command) == []
        command("backup", "restore", "one")
        assert fresh.rows() == machine.rows()
        sound(command, TABLE)

    def directory(self, machine: Machine) -> Path:
        """Where a part lies on the SSD."""
        with machine.open() as store:
            stored = next(stored for stored in store.parts() if stored.disk == "ssd")
            return machine.root / "ssd" / stored.directory

    @pytest.mark.in_turn
    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("kind", ["a link", "a FIFO"])
    @pytest.mark.parametrize("which", ["strange", "data.parquet", "part.json"])
    def test_what_is_no_file_in_a_part(self, machine: Machine, frostline: Frostline, kind: str, which: str) -> None:
        """Nothing waits for it; the part is named, no backup is made, and the one before is as it was."""
        frostline("backup", "create", "one")
        directory = self.directory(machine)
        path = directory / which
        found = path if path.exists() else next(directory.glob("*.parquet"))
        path = found if which == "data.parquet" else path
        kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        if kind == "a FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to("/etc/passwd")
        _, code = frostline.any("backup", "create", "two")
        assert code == 1, frostline.error
        assert directory.name in frostline.error
        assert frostline.error.strip().count("\n") <= 4, "no traceback"
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
        frostline("backup", "create", "three")
        sound(frostline, TABLE)
        listed = frostline.json("backup", "list")["backups"]
        assert [item["name"] for item in listed if item["state"] == "complete"] == ["one", "three"]

    def test_a_part_that_is_deleted_while_it_is_read(
        self, machine: Machine, frostline: Frostline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind everybody's back: from the SSD, whose files have second names, and from the bucket."""
        directory, send = self.directory(machine), Sender.send
        blob = max(self.blobs(machine), key=lambda path: path.stat().st_size)
        kept = {path: path.read_bytes() for path in (*directory.iterdir(), blob)}

        def without(self: Sender, *arguments: object) -> object:
            for path in kept:
                path.unlink()
            return send(self, *arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(Sender, "send", without)
            frostline("backup", "create", "one", code=10)
        assert "gone from the bucket" in frostline.error
        assert "fsck" in frostline.error
        for path, data in kept.items():
            path.write_bytes(data)
        frostline("backup", "create", "one")
        sound(frostline, TABLE)

    def test_second_names_that_are_gone(
        self, machine: Machine, frostline: Frostline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clock that jumped by weeks lets another process take them away."""
        send = Sender.send

        def without(self: Sender, *arguments: object) -> object:
            shutil.rmtree(machine.root / "ssd" / ".frostline" / "readers")
            return send(self, *arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(Sender, "send", without)
            frostline("backup", "create", "one", code=10)
        assert "second name" in frostline.error
        assert "run it again" in frostline.error
        frostline("backup", "create", "one")
        sound(frostline, TABLE)

    def blobs(self, machine: Machine) -> list[Path]:
        root = Path(machine.bucket.url.removeprefix("file://"))
        with machine.open() as store:
            return [root / info.key for info in store.disk("s3").walk("store") if info.key is not None]


class TestClocks:
    @pytest.fixture
    def jumped(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
        """The clock of this machine, so far off."""

        def jump(by: timedelta) -> None:
            def moment() -> datetime:
                return datetime.now(UTC) + by

            monkeypatch.setattr("backup.create.request.now", moment)
            monkeypatch.setattr(making, "now", moment)
            monkeypatch.setattr(
                "tiering.engine.store.make_context",
                lambda *given, **more: make_context(*given, **{**more, "clock": moment}),
            )

        return jump

    @pytest.mark.in_turn
    @not_locked
    @pytest.mark.parametrize("by", [YEAR, -YEAR])
    def test_that_jumped_when_a_backup_was_made(
        self, machine: Machine, frostline: Frostline, jumped: Callable[[timedelta], None], by: timedelta
    ) -> None:
        frostline("backup", "create", "before")
        jumped(by)
        frostline("backup", "create", "jumped")
        jumped(timedelta(0))
        with machine.open() as store:
            insert(store, 8000)
        frostline("backup", "create", "after")
        done = frostline.json("backup", "prune", "--keep-last", "1", "-y")
        kept = {item["name"]: item["reasons"] for item in done["kept"]}
        assert "after" in kept, "the newest never goes for one that was not"
        if by > timedelta(0):
            assert "future" in kept["jumped"][0]
        sound(frostline, TABLE)
        frostline("backup", "restore", "after", *BESIDE)
        assert machine.rows(COPY) == machine.rows()


class TestPins:
    def test_one_that_has_run_out(self, machine: Machine, frostline: Frostline) -> None:
        """Somebody gave the pin an end: nothing keeps the objects any more."""
        before = machine.rows()
        frostline("backup", "create", "one", "--cold", "pin")
        frostline("backup", "verify", "one", "--read-data")
        (path,) = Path(machine.bucket.url.removeprefix("file://"), "pins").glob("backup-*.json")
        pin = msgspec.json.decode(path.read_bytes(), type=pins.Pin)
        ended = msgspec.structs.replace(pin, until=datetime.now(UTC) - timedelta(days=1))
        path.write_bytes(msgspec.json.encode(ended))
        frostline("backup", "verify", "one", code=4)
        assert "ran out" in frostline("backup", "verify", "one", code=4)
        (problem,) = frostline.json("fsck", code=4)["problems"]
        assert (problem["invariant"], problem["object"]) == ("I12", f"pins/{path.name}")
        assert "ran out" in problem["what"]
        assert "backup one" in problem["what"]
        frostline("backup", "restore", "one", *BESIDE)
        assert machine.rows(COPY) == before
        with machine.open() as store:
            keys = [info.key for info in store.disk("s3").walk("store") if info.key is not None]
        assert len(keys) == len(set(keys)), "nothing is taken over that nothing keeps"
