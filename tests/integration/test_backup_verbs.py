"""`frostline backup …`: documents, exit codes, questions, previews, and a kill in the middle. Guards P36 and P51."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from backup.create.sending import Sender
from backup.format import encoding, names, packs
from backup.format.header import Marker
from backup.recover import recover, staging
from backup.storage import Storage
from disks.garbage import collect as garbage
from disks.garbage.rules import GcRules
from oplog import pins
from oplog.entry import now
from oplog.errors import AlreadyExists
from tests.backups import TABLE, Machine, events, filled, insert, machine_on
from tests.command_line import Frostline
from tests.crash.harness import ForkServer
from tests.crash.site import OTHER, rows
from tests.worm import ACTIVE
from tiering.engine.store import Store


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)
    return filled(machine_on(tmp_path))


@pytest.fixture
def frostline(machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Frostline:
    monkeypatch.setenv("FROSTLINE_CONFIG", str(machine.write_config(machine.root.parent / "frostline.yaml")))
    return Frostline(capsys)


def test_the_whole_way(frostline: Frostline, tmp_path: Path) -> None:
    frostline("backup", "list", code=10)
    assert frostline.json("backup", "init", "-n")["dry_run"] is True
    frostline("backup", "list", code=10)
    assert frostline.json("backup", "init")["id"]
    frostline("backup", "init", code=1)
    preview = frostline.json("backup", "create", "one", "-n")
    assert (preview["dry_run"], preview["verified"]) == (True, False)
    made = frostline.json("backup", "create", "one", "--tag", "weekly")
    assert {
        "name",
        "parts",
        "files",
        "bytes",
        "new_bytes",
        "copied_server_side",
        "pinned",
        "seconds",
        "verified",
    } <= set(made)
    assert (made["name"], made["parts"], made["files"], made["verified"]) == ("one", 5, 10, True)
    verified = frostline.json("backup", "verify", "one", "--read-data")
    assert (verified["name"], verified["files"], verified["problems"], verified["ok"]) == ("one", 10, [], True)
    (listed,) = frostline.json("backup", "list")["backups"]
    assert (listed["state"], listed["tags"], listed["verified"]["depth"]) == ("complete", ["weekly"], "data")
    assert "all data: ok" in frostline("backup", "list")
    assert "202601" in frostline("backup", "show", "latest")
    assert frostline.json("backup", "show", "one")["backups"][0]["tables"][0]["table"] == TABLE
    frostline("backup", "restore", "one", "--map-table", f"{TABLE}:demo.copy", "--policy", "nope", code=10)
    assert "No such policy: nope" in frostline.error
    restored = frostline.json("backup", "restore", "one", "--map-table", f"{TABLE}:demo.copy")
    assert restored["tables"][0]["table"] == "demo.copy"
    frostline("backup", "restore", "one", code=1)
    frostline("backup", "restore", "one", "--drop-existing", code=13)
    assert "--yes" in frostline.error
    frostline("backup", "restore", "one", "--drop-existing", "-y")
    frostline("fsck", "--read-data")
    frostline("backup", "delete", "one", code=13)
    assert frostline.json("backup", "delete", "one", "-n")["dry_run"] is True
    frostline("backup", "delete", "one", "-y", code=13 if ACTIVE else 0)
    if ACTIVE:
        assert "keeps 1 of the backups until" in frostline.error
        frostline("backup", "verify", "one")
        return
    frostline("backup", "restore", "one", code=10)
    frostline("backup", "verify", "one", code=10)
    frostline("backup", "list", "--to", (tmp_path / "nowhere").as_uri(), code=10)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("verify",), 2),
        (("verify", "one", "--all"), 2),
        (("verify", "one", "--read-data", "--read-data-subset", "5%"), 2),
        (("verify", "one", "--read-data-subset", "0%"), 2),
        (("verify", "one", "--read-data-subset", "x"), 2),
        (("create", "a/b"), 2),
        (("create", "latest"), 2),
        (("create", "one", "-t", "nope.*"), 10),
        (("create", "one", "--partition", "209901"), 10),
        (("create", "one", "--cold", "melt"), 2),
        (("restore", "latest"), 10),
        (("restore", "one", "--map-table", "x"), 2),
        (("list", "--to", ""), 2),
        (("list", "--to", "ftp://x/y"), 2),
        (("list", "--to", "file:///"), 13),
        (("init", "s3://whole-bucket"), 13),
    ],
)
def test_what_is_refused(frostline: Frostline, arguments: tuple[str, ...], code: int) -> None:
    frostline("backup", "init")
    frostline("backup", *arguments, code=code)


def test_a_repository_of_a_later_version_is_refused_by_name(frostline: Frostline, machine: Machine) -> None:
    """P46"""
    marker = Marker(format=7, minimum_reader=7, id="0123456789abcdef", created=now())
    root = Path(machine.repository_url.removeprefix("file://"))
    root.mkdir()
    (root / names.MARKER_KEY).write_bytes(encoding.sealed(marker))
    frostline("backup", "create", code=2)
    assert "format 7" in frostline.error


def die_before_the_header(machine: Machine) -> None:
    def die(self: Storage, made: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Storage.put_header = die  # type: ignore[method-assign]
    machine.create("one", cold="pin")


@pytest.mark.in_turn
def test_a_killed_backup_is_shown_and_sends_nothing_twice(frostline: Frostline, machine: Machine) -> None:
    """It is never restored."""
    machine.init()
    server = ForkServer()
    try:
        assert server.run(die_before_the_header, machine).kind == "killed"
    finally:
        server.close()
    root = Path(machine.repository_url.removeprefix("file://"))
    sent = {path.name for kind in ("packs", "blobs") for path in (root / kind).rglob("*") if path.is_file()}
    assert sent
    (listed,) = frostline.json("backup", "list")["backups"]
    assert (listed["name"], listed["state"]) == ("one", "incomplete")
    frostline("backup", "restore", "one", code=10)
    assert "never completed" in frostline.error
    with machine.open() as store:
        assert len(pins.list_pins(store.object_disk("s3").store)) == 2, "one with an end, one without"
    again = machine.create("one", cold="pin")
    assert again.new_bytes == 0
    assert {path.name for kind in ("packs", "blobs") for path in (root / kind).rglob("*") if path.is_file()} == sent
    states = [item["state"] for item in frostline.json("backup", "list")["backups"]]
    assert states == ["complete", *["incomplete"] * ACTIVE], "its mark goes, unless a lock keeps it"
    frostline("backup", "restore", "one", "--map-table", f"{TABLE}:demo.copy")
    with machine.open() as store:
        held = [pin for pin in pins.list_pins(store.object_disk("s3").store) if pin.until is None]
        assert [pin.name for pin in held] == [f"backup-{again.id}"], "the killed one's pin is gone"
    attempts = machine.root / "state" / "backup"
    assert list(attempts.rglob("attempt.json")) == []


def test_a_restore_that_is_killed_goes_on(
    frostline: Frostline, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then `fsck` says that parts wait for their table, which is no problem (I7); a day later it is one."""
    machine.init()
    machine.create("one")
    before = machine.rows()
    monkeypatch.setattr(staging, "_BATCH_PARTS", 1)
    original = recover._reveal

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recover, "_reveal", fail)
    with pytest.raises(KeyboardInterrupt):
        machine.restore("one", f"{TABLE}:demo.copy")
    frostline("parts", "demo.copy", code=10)
    assert frostline.json("fsck", "--read-data")["problems"] == []
    assert "a restore of demo.copy has not ended" in frostline.error
    (note,) = (machine.root / "state" / "backup").glob("*/restores/*.json")
    begun = json.loads(note.read_bytes())
    note.write_text(json.dumps({**begun, "begun": "2020-01-01T00:00:00Z"}))
    problems = frostline.json("fsck", code=4)["problems"]
    assert {problem["invariant"] for problem in problems} == {"I7"}
    note.write_text(json.dumps(begun))
    monkeypatch.setattr(recover, "_reveal", original)
    monkeypatch.setattr(staging, "_create", lambda *arguments: pytest.fail("a part was brought twice"))
    machine.restore("one", f"{TABLE}:demo.copy")
    assert machine.rows("demo.copy") == before


@pytest.mark.parametrize("restored_since", [False, True])
def test_a_killed_restore_that_nobody_goes_on_with_is_swept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, restored_since: bool
) -> None:
    """A day later, by whoever opens the store: on the SSD and in the bucket; never what a table has."""
    machine.init()
    machine.create("one")
    before = machine.rows()
    with machine.open() as store:
        kept = {name: set(disk.list("store")) for name, disk in store.context.disks.items()}
        files = {name: sum(1 for _ in disk.walk("store")) for name, disk in store.context.disks.items()}
    with monkeypatch.context() as patch:
        patch.setattr(recover, "_reveal", lambda *arguments: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            machine.restore("one", f"{TABLE}:demo.copy")
    with machine.open() as store:
        assert all(sum(1 for _ in disk.walk("store")) > files[name] for name, disk in store.context.disks.items())
        assert not [line for line in store.recovered if "went on" in line], "it may be gone on with"
    if restored_since:
        machine.restore("one", f"{TABLE}:demo.copy")
    with Store.open(machine.config(), clock=lambda: now() + timedelta(days=2)) as store:
        assert [line for line in store.recovered if "demo.copy" in line] == (
            [] if restored_since else ["removed the files of an abandoned restore of demo.copy"]
        )
    if restored_since:
        assert machine.rows("demo.copy") == before
        return
    with machine.open() as store:
        assert {name: set(disk.list("store")) for name, disk in store.context.disks.items()} == kept
        assert {name: sum(1 for _ in disk.walk("store")) for name, disk in store.context.disks.items()} == files
    assert list((machine.root / "state" / "backup").rglob("restores/*.json")) == []
    machine.restore("one", f"{TABLE}:demo.copy")
    assert machine.rows("demo.copy") == before == machine.rows()


def test_what_another_machine_brought_to_the_bucket_stays(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in a shared bucket is swept only where its log says that this restore brought it."""
    machine.init()
    machine.create("one")
    with monkeypatch.context() as patch:
        patch.setattr(recover, "_reveal", lambda *arguments: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            machine.restore("one", f"{TABLE}:demo.copy")
    (record,) = (machine.root / "state" / "backup").rglob("restores/*.json")
    record.write_text(record.read_text().replace('"actor":"test"', '"actor":"somebody else"'))
    with Store.open(machine.config(), clock=lambda: now() + timedelta(days=2)) as store:
        assert not [line for line in store.recovered if "went on" in line]
    assert record.exists()


def test_a_backup_outlives_a_collection_while_it_is_made(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped and collected meanwhile is in the backup: the pin came before the reading."""
    machine.init()
    before = machine.rows()
    send = Sender.send

    def collect_first(self: Sender, *arguments: object, **options: object) -> object:
        with machine.open() as store:
            store.drop_table(TABLE)
            rules = GcRules(
                guard=timedelta(hours=1),
                delete=True,
                max_delete_fraction=1.0,
                retention=timedelta(0),
                allow_short_guard=True,
            )
            later = store.context.clock() + timedelta(hours=3)
            report = garbage.collect(store.object_disk("s3"), rules, now=later)
            assert report.refused is None
        return send(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Sender, "send", collect_first)
    machine.create("one")
    monkeypatch.undo()
    machine.restore("one")
    assert machine.rows() == before


def test_an_insert_while_a_backup_is_sent_is_not_in_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.init()
    before = machine.rows()
    send = Sender.send

    def insert_first(self: Sender, *arguments: object, **options: object) -> object:
        with machine.open() as store:
            insert(store, 60_000)
        return send(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Sender, "send", insert_first)
    machine.create("one")
    machine.restore("one", f"{TABLE}:demo.copy")
    assert machine.rows("demo.copy") == before


def test_the_same_name_and_size_and_other_bytes_are_sent(machine: Machine) -> None:
    """P49: files of equal name and size, and other bytes; each comes back as it was."""
    machine.init()
    with machine.open() as store:
        store.create_table(events(2, name=OTHER))
        for key in range(1, 9):
            store.table(OTHER).insert([rows(key, months=(2,), count=1)])
    with machine.open() as store:
        sizes = [stored.part.size_bytes for stored in store.parts(OTHER)]
    assert len(set(sizes)) < len(sizes), "the test needs two parts of one size"
    before = machine.rows(TABLE), machine.rows(OTHER)
    machine.create("one")
    assert all(result.ok for result in machine.verify("one", share=1.0))
    machine.restore("one", "demo.*:again.*")
    assert (machine.rows("again.events"), machine.rows("again.other")) == before


def test_a_description_that_is_too_long_for_a_pack(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `part.json` of a megabyte and more, that of a part of many inserts, is an object of its own. Here a smaller
    one is: 64 bytes are too long for a pack."""
    monkeypatch.setattr(packs, "PACKED_FILE_BYTES", 64)
    machine.init()
    before = machine.rows()
    machine.create("one")
    with machine.repository() as repository:
        assert list(repository.storage.store.list(names.PACKS_PREFIX)) == []
    assert all(result.ok for result in machine.verify("one", share=1.0))
    machine.restore("one", f"{TABLE}:demo.copy")
    assert machine.rows("demo.copy") == before
    assert machine.create("two", tables=[TABLE]).new_bytes == 0


def test_a_restore_that_is_killed_after_its_commit_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.init()
    machine.create("one")
    with monkeypatch.context() as patch:
        patch.setattr(recover, "remove_file", lambda *arguments, **options: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            machine.restore("one", f"{TABLE}:demo.copy")
    machine.restore("one", f"{TABLE}:demo.copy")
    assert machine.rows("demo.copy") == machine.rows()
    with pytest.raises(AlreadyExists):
        machine.restore("one", f"{TABLE}:demo.copy")


def test_a_machine_without_a_store_keeps_what_a_restore_writes(frostline: Frostline, machine: Machine) -> None:
    """Its journal, too: the ranges of block numbers are this machine's, and it is not told to begin with a table."""
    machine.init()
    machine.create("one")
    before = machine.rows()
    machine.lose_state()
    machine.lose_bucket()
    frostline("backup", "restore", "one", "-n")
    assert "there is no store" not in frostline.error
    assert not machine.root.exists()
    frostline("backup", "restore", "one", "--to", (machine.root.parent / "nowhere").as_uri(), code=10)
    assert not machine.root.exists()
    frostline("backup", "restore", "one")
    assert "there is no store" not in frostline.error
    assert machine.rows() == before
    with machine.open() as store:
        definition = store.definition(TABLE)
        assert store.context.journal.block_ranges(definition.uuid) == {0}
