"""Backups end to end: repositories in a directory and on a real S3 server, machines that are lost. Guards I12,
P32 and P48 to P51."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backup.create import request as requests
from backup.create.instant import Instant, PartDocument
from backup.create.sending import Sender
from backup.format import names
from backup.recover import staging
from backup.repository import Repository
from backup.storage import Storage
from disks.garbage import collect as garbage
from disks.garbage.rules import GcRules
from disks.local import disk as local_disk
from disks.local.disk import LocalDisk
from oplog import pins
from oplog.errors import AlreadyExists, Damaged, NotFound, Refused, Retained, UsageError
from tests.backups import TABLE, Machine, events, filled, insert, machine_on, move, other_bucket, with_ssd
from tests.crash.invariants import no_dangling_reference
from tests.crash.site import OTHER, rows
from tests.keeping import keeping
from tests.servers import Server
from tests.worm import ACTIVE
from tiering.catalog import tables
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.part import PART_FILE


@pytest.fixture(params=["directory", "s3"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    server: Server | None = request.getfixturevalue("ministack") if request.param == "s3" else None
    made = filled(machine_on(tmp_path, server))
    made.init()
    return made


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    made = filled(machine_on(tmp_path))
    made.init()
    return made


def objects(machine: Machine, prefix: str) -> dict[str, int]:
    with machine.repository() as repository:
        return {item.key: item.size_bytes for item in repository.storage.store.list(prefix)}


def content(machine: Machine) -> dict[str, int]:
    return objects(machine, names.BLOBS_PREFIX) | objects(machine, names.PACKS_PREFIX)


class TestDisasters:
    def test_a_machine_that_lost_everything_comes_back(self, machine: Machine, tmp_path: Path) -> None:
        before, digests = machine.rows(), machine.digests()
        made = machine.create("one")
        assert made.parts == 5
        assert made.verified
        machine.lose_state()
        fresh = machine_on(tmp_path, name="fresh", like=machine)
        fresh.bucket = other_bucket(machine, tmp_path)  # the primary bucket is gone with it
        restored = fresh.restore("one")
        assert [table.rows for table in restored.tables] == [len(before)]
        assert fresh.rows() == before
        assert fresh.digests() == digests
        with fresh.open() as store:
            assert {stored.disk for stored in store.parts(TABLE)} == {"ssd", "s3"}
            again = store.table(TABLE).insert([rows(2000)])
            assert again.rows == 0, "an insert from before the disaster is still recognised"
            insert(store, 9000)
        assert len(fresh.rows()) == len(before) + 80

    def test_beside_the_living_table_and_under_another_name(self, machine: Machine) -> None:
        machine.create("one")
        with machine.open() as store:
            insert(store, 7000)
        machine.restore("latest", f"{TABLE}:demo.copy")
        assert len(machine.rows("demo.copy")) == len(machine.rows()) - 80
        with pytest.raises(AlreadyExists, match="exists already"):
            machine.restore("one")
        with machine.open() as store:
            insert(store, 8000, table="demo.copy")
            store.merge("demo.copy", MergeRequest(final=True))

    def test_in_the_place_of_the_living_table(self, machine: Machine) -> None:
        before = machine.rows()
        machine.create("one")
        with machine.open() as store:
            insert(store, 7000)
        machine.restore("one", drop_existing=True)
        assert machine.rows() == before
        machine.restore("one", drop_existing=True)
        assert machine.rows() == before
        with machine.open() as store:
            assert [table.full_name for table in store.definitions()] == [TABLE]

    def test_one_partition_and_the_schema_alone(self, here: Machine) -> None:
        here.create("one")
        here.restore("one", f"{TABLE}:demo.january", partitions=["202601"])
        assert {row[1].month for row in here.rows("demo.january")} == {1}  # type: ignore[attr-defined]
        here.restore("one", "demo.*:other.*", schema_only=True)
        assert here.rows("other.events") == ()
        with pytest.raises(NotFound, match="No such partition"):
            here.restore("one", f"{TABLE}:demo.x", partitions=["209901"])

    def test_onto_other_disks(self, here: Machine, tmp_path: Path) -> None:
        before = here.rows()
        here.create("one")
        here.lose_state()
        fresh = with_ssd(machine_on(tmp_path, name="fresh", like=here), "nvme")
        fresh.bucket = other_bucket(here, tmp_path)
        restored = fresh.restore("one")
        (note,) = restored.notes
        assert "disk ssd" in note
        assert note.endswith("go to nvme")
        assert fresh.rows() == before

    def test_a_preview_changes_nothing(self, here: Machine) -> None:
        shown = here.create("one", dry_run=True)
        assert shown.new_bytes > 0
        assert content(here) == {}
        here.create("one")
        preview = here.restore("one", f"{TABLE}:demo.copy", dry_run=True)
        assert preview.tables[0].rows == len(here.rows())
        with here.open() as store:
            assert [table.full_name for table in store.definitions()] == [TABLE]


class TestIncrements:
    def test_only_what_is_new_is_sent(self, machine: Machine) -> None:
        machine.create("one")
        first = content(machine)
        again = machine.create("two")
        assert again.new_bytes == 0
        assert content(machine) == first
        lists = objects(machine, names.LISTS_PREFIX)
        with machine.open() as store:
            insert(store, 5000, months=(2,))
        machine.create("three")
        assert len(content(machine)) == len(first) + 1, "one pack"
        assert len(objects(machine, names.LISTS_PREFIX)) == len(lists) + 2, "January's list is shared"

    def test_what_is_there_is_neither_held_nor_read(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Second names are for what is to be sent; a `part.json` that a look has read is not read again: a second
        name of it would make it one that was changed, for every later command."""
        with keeping():
            self._check_neither_held_nor_read(here, monkeypatch)

    def _check_neither_held_nor_read(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        here.create("one")
        held: list[str] = []
        read: list[str] = []
        hold, read_small = local_disk.hold_files, LocalDisk.read

        def holding(own: Path, files: Sequence[Path], **options: object) -> list[Path]:
            held.extend(str(file.relative_to(own.parent)) for file in files)
            return hold(own, files, **options)  # type: ignore[arg-type]

        def reading(self: LocalDisk, path: str, *more: object) -> bytes:
            read.append(path)
            return read_small(self, path, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(local_disk, "hold_files", holding)
        monkeypatch.setattr(LocalDisk, "read", reading)
        assert here.create("two").new_bytes == 0
        assert not held
        assert not [path for path in read if path.endswith(PART_FILE)]
        with here.open() as store:
            insert(store, 900_000, months=(2,))
        assert here.create("three").new_bytes > 0
        assert [path.rpartition("/")[2] for path in held] == ["data-0000.parquet"]

    def test_two_of_one_second_have_two_names(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(requests, "now", lambda: datetime(2026, 3, 1, tzinfo=UTC))
        with here.open() as store, here.repository() as repository:
            found = [repository.create(store).name for _ in range(3)]
        assert found == ["2026-03-01T00-00-00Z", "2026-03-01T00-00-00Z-2", "2026-03-01T00-00-00Z-3"]

    def test_a_part_that_moved_is_not_new(self, machine: Machine) -> None:
        machine.create("one")
        with machine.open() as store:
            move(store, "cold")
        before = content(machine)
        moved = machine.create("two")
        assert moved.new_bytes == 0
        assert content(machine) == before

    def test_a_lost_object_is_sent_again_and_never_counted_on(self, machine: Machine) -> None:
        machine.create("one")
        with machine.repository() as repository:
            store = repository.storage.store
            to_delete = sorted(content(machine))
            assert all(error is None or ACTIVE for error in store.delete(to_delete).values())
        if ACTIVE:
            return
        again = machine.create("two")
        assert again.new_bytes > 0
        assert all(result.ok for result in machine.verify("two", share=1.0))
        assert not machine.verify("one")[0].ok

    def test_what_goes_away_while_a_backup_is_made_fails_it(
        self, here: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here.create("one")
        original = Storage.put_content
        with here.open() as store:
            insert(store, 5000)

        def put(self: Storage, prefix: str, data: bytes) -> names.Ref:
            for key in content(here):
                (Path(here.repository_url.removeprefix("file://")) / key).unlink(missing_ok=True)
            return original(self, prefix, data)

        monkeypatch.setattr(Storage, "put_content", put)
        with pytest.raises(Damaged, match="while the backup was made"):
            here.create("two")
        with here.repository() as repository, pytest.raises(NotFound):
            repository.find("two")

    def test_the_same_size_and_other_bytes_are_another_file(self, here: Machine) -> None:
        """P49: a part of the same name and size in another table of the same name."""
        here.create("one")
        with here.open() as store:
            store.drop_table(TABLE)
            store.create_table(events(7))
            insert(store, 0)
            insert(store, 3000, months=(1,))
        made = here.create("two", allow_empty=True)
        assert made.new_bytes > 0
        assert all(result.ok for result in here.verify(None, share=1.0))


class TestRefusals:
    def test_names(self, here: Machine) -> None:
        here.create("one")
        with pytest.raises(AlreadyExists):
            here.create("one")
        with pytest.raises(UsageError):
            here.create("latest")
        with pytest.raises(NotFound):
            here.restore("nope", f"{TABLE}:a.b")
        with pytest.raises(NotFound, match="No such table"):
            here.create("two", tables=["nope.*"])

    @pytest.mark.parametrize("where", ["ssd", "ssd/below", "..", "bucket/../../bucket/store/backups"])
    def test_a_repository_within_a_disk_or_round_it(self, here: Machine, where: str) -> None:
        url = (here.root / where).as_uri() if "bucket" not in where else here.bucket.url + "backups"
        with pytest.raises(Refused, match="the place of disk"):
            Repository.init(url, config=here.config())

    @pytest.mark.parametrize(
        ("url", "error"),
        [
            ("file:///", Refused),
            ("s3://bucket", Refused),
            ("s3://bucket/", Refused),
            ("", UsageError),
            ("x", UsageError),
        ],
    )
    def test_no_place_for_a_repository(self, here: Machine, url: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            Repository.init(url, config=here.config())

    def test_a_place_with_other_things_and_one_with_nothing(self, here: Machine, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(Refused, match=r"holds thesis\.txt"):
            Repository.init((tmp_path / "mine").as_uri(), config=here.config())
        with pytest.raises(NotFound, match="is no backup repository") as refused:
            Repository.open((tmp_path / "nothing").as_uri(), config=here.config())
        assert "backup init" in refused.value.hint
        assert not (tmp_path / "nothing").exists()
        with pytest.raises(AlreadyExists):
            here.init()

    def test_a_damaged_part_fails_the_backup_and_is_named(self, here: Machine) -> None:
        with here.open() as store:
            stored = next(part for part in store.parts(TABLE) if part.disk == "ssd")
            path = here.root / "ssd" / stored.path(stored.part.files[0].name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(Damaged, match=f"part {stored.part.name} of {TABLE} is damaged"):
            here.create("one")
        with here.repository() as repository:
            assert [item for item in repository.backups() if item.header] == []

    def test_a_table_that_lost_its_parts(self, here: Machine) -> None:
        """P50: what had rows and has none is no backup, unless somebody says so."""
        here.create("one")
        with here.open() as store:
            tables.drop_parts(store.context, store.parts(TABLE), reason="test")
        with pytest.raises(Refused, match="has no parts"):
            here.create("two")
        assert here.create("two", allow_empty=True).parts == 0

    def test_a_strange_file_in_a_part(self, here: Machine) -> None:
        with here.open() as store:
            stored = next(part for part in store.parts(TABLE) if part.disk == "ssd")
        (here.root / "ssd" / stored.directory / "link").symlink_to("/etc/passwd")
        with pytest.raises(Damaged, match="link"):
            here.create("one")


class TestVerification:
    def test_every_kind_of_object_that_is_changed_is_named(self, here: Machine, tmp_path: Path) -> None:
        here.create("one")
        here.create("two")
        root = Path(here.repository_url.removeprefix("file://"))
        kinds = {
            prefix: next(path for path in sorted(root.rglob("*")) if path.is_file() and prefix in str(path))
            for prefix in ("/backups/one", "/blobs/", "/packs/", "/lists/")
        }
        for path in kinds.values():
            whole = path.read_bytes()
            for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 2):
                changed = bytearray(whole)
                changed[place] ^= 4
                path.write_bytes(bytes(changed))
                results = here.verify(None, share=1.0)
                told = "\n".join(problem.text for result in results for problem in result.problems)
                assert path.name in told, f"{path} at {place}: {told}"
                path.write_bytes(whole)
                for mark in root.glob("damaged/**/*"):
                    if mark.is_file():
                        mark.unlink()
        assert all(result.ok for result in here.verify(None, share=1.0))

    def test_a_flaw_names_part_and_file_and_who_else_has_it(self, here: Machine) -> None:
        here.create("one")
        here.create("two")
        root = Path(here.repository_url.removeprefix("file://"))
        blob = next(path for path in sorted((root / "blobs").rglob("*")) if path.is_file())
        data = bytearray(blob.read_bytes())
        data[10] ^= 1
        blob.write_bytes(bytes(data))
        assert here.verify("one")[0].ok, "a quick look sees no bytes"
        result = here.verify("one", share=1.0)[0]
        (problem,) = result.problems
        assert (problem.table, problem.file) == (TABLE, "data-0000.parquet")
        assert problem.part.startswith("202601_")
        assert problem.also_in == ["two"]
        with pytest.raises(Damaged):
            here.restore("one", f"{TABLE}:demo.copy")
        with here.open() as store:
            assert [table.full_name for table in store.definitions()] == [TABLE], "nothing of it is shown"
        assert not here.verify("two")[0].ok, "now a quick look knows"
        here.create("three")
        assert here.verify("three", share=1.0)[0].ok, "what was found damaged is not counted on again"
        with here.repository() as repository:
            shown = {item.header.name: item.verified for item in repository.backups() if item.header}
        assert shown["one"] is not None
        assert shown["one"].problem_count == 1

    def test_shares_cover_everything(self, here: Machine) -> None:
        here.create("one")
        everything = sum(content(here).values())
        read = [here.verify("one", share=0.25)[0] for _ in range(4)]
        assert sorted(result.slice for result in read) == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
        assert sum(result.read_bytes for result in read) == everything

    def test_what_is_gone_is_found_quickly(self, machine: Machine) -> None:
        machine.create("one")
        if ACTIVE:
            return
        with machine.repository() as repository:
            repository.storage.store.delete([sorted(content(machine))[0]])
        (result,) = machine.verify("one")
        assert not result.ok
        assert "is gone" in result.problems[0].text


class TestPinned:
    def test_nothing_moves_and_the_bucket_keeps_it(self, machine: Machine) -> None:
        before = machine.rows()
        made = machine.create("one", cold="pin")
        assert made.pinned > 0
        assert objects(machine, names.BLOBS_PREFIX) == {}
        assert machine.verify("one", share=1.0)[0].ok
        with machine.open() as store:
            disk = store.object_disk("s3")
            assert [pin.holder.split()[:2] for pin in pins.list_pins(disk.store)] == [["backup", "one"]]
            store.drop_table(TABLE)
            puts = disk.store.counts()["PUT"]  # type: ignore[attr-defined]
            assert puts >= 0
        machine.restore("one")
        assert machine.rows() == before

    def test_a_pin_that_is_gone_is_told(self, machine: Machine) -> None:
        machine.create("one", cold="pin")
        with machine.open() as store:
            disk = store.object_disk("s3")
            for pin in pins.list_pins(disk.store):
                pins.release(disk.store, pin.name)
        (result,) = machine.verify("one")
        assert "nothing keeps the objects" in result.problems[0].text

    def test_deleting_the_backup_lets_the_revision_go(self, machine: Machine) -> None:
        machine.create("one", cold="pin")
        with machine.open() as store, machine.repository() as repository:
            if ACTIVE:
                with pytest.raises(Retained):
                    repository.delete("one", store)
                assert len(pins.list_pins(store.object_disk("s3").store)) == 1, "the backup is there still, whole"
                assert machine.verify("one")[0].ok
                return
            repository.delete("one", store)
            assert pins.list_pins(store.object_disk("s3").store) == []
            with pytest.raises(NotFound):
                repository.find("one")


class TestOneInstant:
    def test_a_row_is_never_there_without_the_one_that_came_before(self, here: Machine) -> None:
        """A writer inserts into one table, then into the other: no backup has the second without the first."""
        with here.open() as store:
            store.create_table(events(2, name=OTHER))
        stop = threading.Event()

        def write() -> None:
            with here.open() as store:
                number = 0
                while not stop.is_set():
                    number += 1
                    insert(store, 100_000 + number * 100, months=(2,))
                    insert(store, 100_000 + number * 100, months=(2,), table=OTHER)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(3):
                here.create(f"b{number}")
        finally:
            stop.set()
            writer.join()
        for number in range(3):
            here.restore(f"b{number}", f"{TABLE}:r{number}.a", f"{OTHER}:r{number}.b")
            first = {row[0] for row in here.rows(f"r{number}.a")}
            second = {row[0] for row in here.rows(f"r{number}.b")}
            assert second <= first

    def test_parts_that_go_away_meanwhile_are_in_it(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Sender.send
        before = here.rows()

        def send(self: Sender, *arguments: object, **options: object) -> object:
            with here.open() as store:
                store.merge(TABLE, MergeRequest(final=True))
                store.drop_table(TABLE)
            return original(self, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Sender, "send", send)
        here.create("one")
        here.restore("one")
        assert here.rows() == before
        assert list((here.root / "ssd" / ".frostline" / "readers").glob("*")) == [], "second names are let go"

    def test_what_left_the_bucket_after_the_instant_is_read_as_then(
        self, here: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process moves it back to the SSD before a file of it is read."""
        original = Instant.document
        before = here.rows()
        moved: list[bool] = []

        def document(self: Instant, stored: StoredPart) -> PartDocument:
            if not moved:
                moved.append(True)
                with here.open() as store:
                    move(store, "hot", "202601")
            return original(self, stored)

        monkeypatch.setattr(Instant, "document", document)
        with here.open() as store:
            assert "s3" in {stored.disk for stored in store.parts(TABLE) if stored.name.partition == "202601"}
        here.create("one")
        assert moved
        here.restore("one", f"{TABLE}:r.a")
        assert here.rows("r.a") == before


class TestMachines:
    def test_a_backup_says_what_it_does_not_hold_and_a_set_is_one(self, here: Machine, tmp_path: Path) -> None:
        other = machine_on(tmp_path, name="other", like=here)
        with other.open() as store:
            insert(store, 50_000)
        everything = sorted({*here.rows(), *other.rows()})
        mine = here.create("both")
        assert [held.table for held in mine.not_held] == [TABLE]
        other.create("both")
        fresh = machine_on(tmp_path, name="fresh", like=here)
        fresh.bucket = other_bucket(here, tmp_path)
        fresh.restore("both")
        assert sorted(fresh.rows()) == everything


@pytest.fixture(autouse=True)
def _no_repository_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)


class TestPinsThatWent:
    def collected(self, machine: Machine) -> None:
        """The table is dropped, and what it had in the bucket goes."""
        with machine.open() as store:
            store.drop_table(TABLE)
            rules = GcRules(
                guard=timedelta(hours=1), delete=True, max_delete_fraction=1.0, retention=timedelta(0),
                allow_short_guard=True,
            )  # fmt: skip
            report = garbage.collect(store.object_disk("s3"), rules, now=store.context.clock() + timedelta(hours=3))
            assert report.refused is None

    def release(self, machine: Machine) -> None:
        with machine.open() as store:
            disk = store.object_disk("s3")
            for pin in pins.list_pins(disk.store):
                pins.release(disk.store, pin.name)

    def test_what_went_with_its_pin_is_no_table(self, here: Machine) -> None:
        """I3: a restore in place takes over no object that is not there."""
        here.create("one", cold="pin")
        self.release(here)
        self.collected(here)
        with pytest.raises(NotFound):
            here.restore("one")
        with here.open() as store:
            assert store.definitions() == []
            assert check_store(store)

    def test_what_is_still_there_without_its_pin_is_copied(self, here: Machine) -> None:
        """Nothing keeps such an object from a collection that runs at this moment."""
        before = here.rows()
        here.create("one", cold="pin")
        self.release(here)
        here.restore("one", f"{TABLE}:demo.copy")
        assert here.rows("demo.copy") == before
        with here.open() as store:
            keys = [info.key for info in store.disk("s3").walk("store") if info.key is not None]
        assert len(keys) == len(set(keys)), "no object of two tables"

    def test_a_pin_that_goes_meanwhile_stops_the_restore(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        here.create("one", cold="pin")
        before = here.rows()

        def release_then(context: Context, *arguments: Any) -> None:
            staging.bring(context, *arguments)
            self.release(here)

        with monkeypatch.context() as patch:
            patch.setattr("backup.recover.recover.bring", release_then)
            with pytest.raises(Refused, match="let go"):
                here.restore("one", f"{TABLE}:demo.copy")
        with here.open() as store:
            assert [table.full_name for table in store.definitions()] == [TABLE]
        here.restore("one", f"{TABLE}:demo.copy")
        assert here.rows("demo.copy") == before
        with here.open() as store:
            keys = [info.key for info in store.disk("s3").walk("store") if info.key is not None]
        assert len(keys) == len(set(keys)), "what was taken over before the pin went is copied, too"


def check_store(store: Store) -> bool:
    """No file names an object that is not there."""
    return list(no_dangling_reference(store)) == []
