"""`backup prune`, `gc`: which backups go, what goes with them, and what never does. Guards P32, P36, I4, I5 and I12."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from backup.create.create import _Making
from backup.format import names
from backup.retention.collect import ABANDONED
from backup.retention.prune import PruneRequest
from backup.retention.references import named_by
from backup.retention.rules import KeepRules
from backup.storage import Storage
from disks.effects import set_hook
from disks.garbage.report import GcReport
from disks.garbage.rules import GcRules
from disks.stores.base import ObjectInfo
from disks.stores.directory import DirectoryStore
from disks.stores.open import open_store
from disks.stores.wrappers.wrapped import WrappedStore
from oplog import pins
from oplog.errors import Conflict, Damaged, FrostlineError, NotFound, Refused, Retained
from tests import worm
from tests.backups import TABLE, Machine, machine_on
from tests.command_line import Frostline
from tests.crash.harness import ForkServer
from tests.integration.pruning import ALL, change, grown, later
from tests.integration.pruning import machine as machine

Emptied = Callable[[Callable[[int, str], bool]], list[str]]
LAST = PruneRequest(KeepRules(last=1), ALL)
not_locked = pytest.mark.skipif(worm.ACTIVE, reason="the store keeps what is younger than its retention")


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return grown(machine_on(tmp_path))


@pytest.fixture
def frostline(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Frostline:
    file = tmp_path / "frostline.yaml"
    file.write_bytes(msgspec.yaml.encode(msgspec.to_builtins(machine.config())))
    file.chmod(0o600)
    monkeypatch.setenv("FROSTLINE_CONFIG", str(file))
    monkeypatch.setenv("FROSTLINE_BACKUP", machine.repository_url)
    return Frostline(capsys)


def collect(machine: Machine, rules: GcRules = ALL, now: datetime | None = None) -> GcReport:
    with machine.repository() as repository:
        return repository.gc(rules, now=now or later())


def content(machine: Machine) -> dict[str, int]:
    with machine.repository() as repository:
        return {key: item.size_bytes for key, item in repository.storage.holdings().objects.items()}


def all_whole(machine: Machine) -> list[str]:
    """The complete backups, each proved byte for byte."""
    results = machine.verify(share=1.0)
    assert [problem.text for result in results for problem in result.problems] == []
    return [result.name for result in results]


class TestVerbs:
    @pytest.mark.in_turn
    @not_locked
    def test_the_whole_way(self, frostline: Frostline, machine: Machine) -> None:
        frostline("backup", "create", "one")
        change(machine, 2000)
        frostline("backup", "create", "two", "--tag", "keep")
        change(machine, 4000)
        frostline("backup", "create", "three")
        frostline("backup", "drill", "one")  # reads more than a verification, and counts as one
        before = content(machine)
        preview = frostline.json("backup", "prune", "--keep-last", "1", "-n")
        assert [item["name"] for item in preview["dropped"]] == ["two"]
        assert [item["reasons"] for item in preview["kept"]] == [["the newest that verified"], ["among the last 1"]]
        assert preview["dry_run"] is True
        assert 0 < preview["freed_bytes"] < sum(before.values())
        text = frostline("backup", "prune", "--keep-last", "1", "-n")
        assert "not among the last 1" in text
        assert "nothing was changed" in text
        frostline("backup", "prune", "--keep-last", "1", code=13)
        frostline("backup", "prune", "--keep-last", "1", "--keep-tag", "keep", "-y")
        assert len(frostline.json("backup", "list")["backups"]) == 3
        assert content(machine) == before
        done = frostline.json("backup", "prune", "--keep-last", "1", "-y")
        assert [item["name"] for item in done["dropped"]] == ["two"]
        assert (done["gc"]["deleted"], done["gc"]["pending"] > 0) == (0, True), "they are younger than the guard"
        assert [item["name"] for item in frostline.json("backup", "list")["backups"]] == ["one", "three"]
        short = ("--guard-interval", "0s", "--allow-short-guard-interval")
        report = frostline.json("backup", "gc", *short, code=4)
        assert (report["orphaned_bytes"], report["deleted"]) == (preview["freed_bytes"], 0)
        frostline("backup", "gc", "--delete", *short, code=13)
        frostline("backup", "gc", "--delete", "-y", *short, code=13)
        assert "--max-delete-fraction" in frostline.error
        gone = frostline.json("backup", "gc", "--delete", "-y", *short, "--max-delete-fraction", "1")
        assert gone["deleted_bytes"] == preview["freed_bytes"]
        assert "deleted     0 objects" in frostline("backup", "gc", *short)
        assert all_whole(machine) == ["one", "three"]
        frostline("backup", "restore", "one", "--map-table", f"{TABLE}:demo.copy")

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        "arguments",
        [
            ("prune",),
            ("prune", "--keep-last", "0"),
            ("prune", "--keep-daily", "-1"),
            ("prune", "--keep-within", "x"),
            ("prune", "--keep-last", "1", "--max-delete-fraction", "7"),
            ("gc", "--max-delete-bytes", "many"),
        ],
    )
    def test_what_makes_no_sense(self, frostline: Frostline, arguments: tuple[str, ...]) -> None:
        frostline("backup", *arguments, code=2)

    def test_a_guard_of_less_than_an_hour_is_refused(self, frostline: Frostline) -> None:
        frostline("backup", "gc", "--guard-interval", "5m", code=13)


@not_locked
class TestPrune:
    def test_shared_objects_are_counted_once_and_stay(self, here: Machine) -> None:
        for name in ("one", "two", "three"):
            here.create(name)
        with here.repository() as repository:
            preview = repository.prune(PruneRequest(KeepRules(last=1), ALL, dry_run=True))
            assert preview.freed_bytes == 0, "all three name the same"
            done = repository.prune(LAST, now=later())
        assert [choice.backup.name for choice in done.dropped] == ["one", "two"]
        assert done.gc is not None
        assert (done.gc.orphaned, done.gc.refused) == (0, None)
        assert all_whole(here) == ["three"]

    def test_what_only_dropped_backups_named_counts_for_no_cap(self, here: Machine) -> None:
        here.create("one")
        change(here, 2000)
        here.create("two")
        before = content(here)
        rules = GcRules(delete=True)
        with here.repository() as repository:
            done = repository.prune(PruneRequest(KeepRules(last=1), rules), now=later())
        assert done.gc is not None
        assert done.gc.deleted_bytes == done.freed_bytes > 0.1 * sum(before.values())
        assert all_whole(here) == ["two"]

    def test_the_pins_of_what_is_dropped_go(self, here: Machine) -> None:
        here.create("one", cold="pin")
        here.create("two", cold="pin")
        with here.open() as store, here.repository() as repository:
            bucket = store.object_disk("s3").store
            assert len([pin for pin in pins.list_pins(bucket) if pin.until is None]) == 2
            repository.prune(LAST, store, now=later())
            (left,) = [pin for pin in pins.list_pins(bucket) if pin.until is None]
            assert left.name == f"backup-{repository.find('two')[0].id}"
        assert all_whole(here) == ["two"]

    def test_nothing_is_dropped_when_what_others_name_is_not_known(self, here: Machine) -> None:
        here.create("one")
        change(here, 2000)
        made = here.create("two")
        header = next((Path(here.repository_url.removeprefix("file://")) / "backups").rglob(f"*{made.id}.json"))
        whole = header.read_bytes()
        header.write_bytes(whole[:-30])
        with here.repository() as repository:
            with pytest.raises(Refused, match="nothing is dropped"):
                repository.prune(LAST, now=later())
            assert "cannot be read whole" in str(repository.gc(ALL, now=later()).refused)
            repository.delete(made.id)
            assert [item.header.name for item in repository.backups() if item.header] == ["one"]
            assert repository.gc(ALL, now=later()).deleted > 0
        assert all_whole(here) == ["one"]

    def test_a_list_that_is_gone_stops_the_collection(self, here: Machine) -> None:
        here.create("one")
        change(here, 2000)
        here.create("two")
        with here.repository() as repository:
            ref = repository.find("two")[0].tables[0].list
            key = names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)
            (Path(here.repository_url.removeprefix("file://")) / key).unlink()
            repository.delete("one")
        report = collect(here)
        assert report.deleted == 0
        assert "two" in str(report.refused)

    def test_listings_that_disagree_stop_it(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        here.create("one")
        with here.repository() as repository:
            repository.delete("one")
        original, calls = DirectoryStore.list, list[int]()

        def forgets(self: DirectoryStore, *arguments: object, **options: object) -> object:
            found = list(original(self, *arguments, **options))  # type: ignore[arg-type]
            if any(item.key == names.MARKER_KEY for item in found):
                calls.append(1)
                found = found if len(calls) == 1 else [item for item in found if "packs/" not in item.key]
            return iter(found)

        monkeypatch.setattr(DirectoryStore, "list", forgets)
        report = collect(here)
        assert "not in the second" in str(report.refused)
        assert report.deleted == 0

    def test_what_a_lock_keeps_is_told(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """A header that the store keeps stays whole, with all it names; the others go."""
        first = here.create("one")
        change(here, 2000)
        here.create("two")
        change(here, 4000)
        here.create("three")
        original = DirectoryStore.delete

        def locked(self: DirectoryStore, keys: list[str]) -> dict[str, FrostlineError | None]:
            kept: dict[str, FrostlineError | None] = {
                key: Retained(f"{key} is locked", until=None) for key in keys if first.id in key
            }
            return original(self, [key for key in keys if key not in kept]) | kept

        monkeypatch.setattr(DirectoryStore, "delete", locked)
        with here.repository() as repository:
            done = repository.prune(LAST, now=later())
            assert done.locked == {first.id: None}
            with pytest.raises(Retained, match="keeps 1 of the backups"):
                repository.delete("one")
        assert all_whole(here) == ["one", "three"]


class TestLeftovers:
    @pytest.mark.in_turn
    def test_what_a_killed_backup_left_goes_after_the_guard(self, here: Machine) -> None:
        """Its objects after the guard interval; its mark later, and then its header can never be put any more."""
        server = ForkServer()
        try:
            assert server.run(die_before_the_header, here).kind == "killed"
        finally:
            server.close()
        left = content(here)
        assert left
        assert collect(here, now=later(0.5)).deleted == 0
        claimed = collect(here)
        assert claimed.deleted == 0, "it had claimed them: its header may still come"
        report = collect(here, now=later(ABANDONED / timedelta(days=1) + 0.1))
        assert report.refused is None
        assert content(here) == {}
        with here.repository() as repository:
            assert repository.backups() == []
        here.create("one")
        assert all_whole(here) == ["one"]

    @not_locked
    def test_what_failed_before_it_claimed_goes_after_the_guard(
        self, here: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Storage, "claim", lambda self, made: pytest.fail("it dies here"))
        with pytest.raises(pytest.fail.Exception):
            here.create("one")
        assert content(here)
        assert collect(here, now=later(0.5)).deleted == 0
        assert collect(here).deleted > 0
        assert content(here) == {}

    @not_locked
    def test_a_backup_that_is_given_up_cannot_become_complete(
        self, here: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Deleted by somebody while it is held up just before its header."""
        put = Storage.put_header

        def held_up(self: Storage, made: object) -> None:
            with here.repository() as repository:
                repository.delete("one")
                assert repository.gc(ALL, now=later()).deleted > 0
            put(self, made)  # type: ignore[arg-type]

        monkeypatch.setattr(Storage, "put_header", held_up)
        with pytest.raises(Conflict, match="given up"):
            here.create("one", cold="pin")
        monkeypatch.undo()
        with here.open() as store:
            assert [pin for pin in pins.list_pins(store.object_disk("s3").store) if pin.until is None] == []
        here.create("one")
        assert all_whole(here) == ["one"]

    @not_locked
    def test_records_and_marks_of_what_is_gone_go(self, here: Machine) -> None:
        made = here.create("one")
        here.verify("one")
        here.create("two")
        with here.repository() as repository:
            repository.delete("one")
            store = repository.storage.store
            repository.storage.mark_damaged("blobs/00/gone")
            assert collect(here, now=later(0.5)).scratch_deleted == 0
            assert collect(here).scratch_deleted == 2
            assert made.id not in str([item.key for item in store.list()])
            assert list(store.list(names.DAMAGED_PREFIX)) == []
        assert all_whole(here) == ["two"]

    def test_a_stranger_stays(self, here: Machine) -> None:
        path = Path(here.repository_url.removeprefix("file://")) / "mine" / "notes.txt"
        path.parent.mkdir(parents=True)
        path.write_text("keep")
        report = collect(here)
        assert report.foreign == ["mine/notes.txt"]
        assert path.exists()


def die_before_the_header(machine: Machine) -> None:
    Storage.put_header = lambda self, made: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]
    machine.create("one")


@not_locked
class TestBesideABackup:
    """A backup and a collection in every order of their effects: one is held up before its n-th effect while the other
    runs from beginning to end."""

    def backed_up(self, here: Machine, tmp_path: Path) -> Callable[[], None]:
        here.create("old")
        site = [here.root, tmp_path / "bucket", Path(here.repository_url.removeprefix("file://"))]
        for path in site:
            shutil.copytree(path, tmp_path / "kept" / path.name, symlinks=True)

        def again() -> None:
            for path in site:
                shutil.rmtree(path)
                shutil.copytree(tmp_path / "kept" / path.name, path, symlinks=True)

        return again

    def make(self, here: Machine) -> None:
        here.create("new")

    def take_away(self, here: Machine) -> None:
        with here.repository() as repository:
            repository.delete("old")
            assert repository.gc(ALL, now=later()).refused is None

    def test_a_backup_held_up_while_all_is_collected(self, here: Machine, tmp_path: Path) -> None:
        assert self.every_point(here, tmp_path, self.make, self.take_away) > 5

    @pytest.mark.in_turn
    def test_a_collection_held_up_while_a_backup_is_made(self, here: Machine, tmp_path: Path) -> None:
        assert self.every_point(here, tmp_path, self.take_away, self.make) > 5

    def every_point(
        self,
        here: Machine,
        tmp_path: Path,
        outer: Callable[[Machine], None],
        inner: Callable[[Machine], None],
    ) -> int:
        """Returns at how many points the outer one was held up."""
        again = self.backed_up(here, tmp_path)
        for point in range(1, 200):
            held_up = self.held_up_at(here, point, outer, inner)
            all_whole(here)
            here.create("after")
            assert "after" in all_whole(here)
            if not held_up:
                return point - 1
            again()
        raise AssertionError("it never ended")

    def held_up_at(
        self, here: Machine, point: int, outer: Callable[[Machine], None], inner: Callable[[Machine], None]
    ) -> bool:
        seen, failed = list[str](), list[FrostlineError]()

        def hook(when: str, name: str, arguments: tuple[object, ...]) -> None:
            if when == "before" and name in ("store.put", "store.delete"):
                seen.append(name)
                if len(seen) == point:
                    set_hook(None)
                    attempt(inner)

        def attempt(act: Callable[[Machine], None]) -> None:
            try:
                act(here)
            except (Damaged, Conflict, NotFound) as error:
                failed.append(error)

        set_hook(hook)
        try:
            attempt(outer)
        finally:
            set_hook(None)
        for error in failed:
            assert "is not" in error.message or "not completed" in error.message or "given up" in error.message, error
        return len(seen) >= point

    def test_what_is_announced_is_not_counted_on(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """A collection is held up just before it deletes, for as long as a backup takes."""
        here.create("old")
        with here.repository() as repository:
            repository.delete("old")
        original = DirectoryStore.delete
        made: list[str] = []

        def held_up(self: DirectoryStore, keys: list[str]) -> object:
            if not made and any(key.startswith(names.PACKS_PREFIX) for key in keys):
                made.append("new")
                here.create("new")
            return original(self, keys)

        monkeypatch.setattr(DirectoryStore, "delete", held_up)
        assert collect(here).deleted > 0
        monkeypatch.undo()
        assert made
        assert all_whole(here) == ["new"]

    def test_what_was_counted_on_and_is_claimed_stays(self, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """The whole collection runs between the last look of a backup and its header."""
        here.create("old")
        probe = _Making._probe

        def then_collect(self: _Making, *arguments: object) -> None:
            probe(self, *arguments)  # type: ignore[arg-type]
            with here.repository() as repository:
                repository.delete("old")
            assert collect(here).deleted == 0

        monkeypatch.setattr(_Making, "_probe", then_collect)
        assert here.create("new").new_bytes == 0
        monkeypatch.undo()
        assert all_whole(here) == ["new"]


def test_a_collection_of_a_repository_that_is_in_use_by_two(tmp_path: Path) -> None:
    """Each machine's series is pruned by itself, and both count on the same objects."""
    here = grown(machine_on(tmp_path))
    there = machine_on(tmp_path, name="other", like=here)
    here.create("one")
    with there.open() as store:
        assert store.definitions()
    there.create("one")
    with here.repository() as repository:
        preview = repository.prune(PruneRequest(KeepRules(last=1), ALL, dry_run=True))
    assert preview.dropped == []


class TestContradictions:
    """Listings that contradict each other within one run delete nothing (I4, I12)."""

    @pytest.fixture
    def emptied(self, monkeypatch: pytest.MonkeyPatch) -> Emptied:
        """From now on listings of the repository are empty where the function says so, of their number and prefix; the
        prefixes that were asked for."""

        def at(is_empty: Callable[[int, str], bool]) -> list[str]:
            asked: list[str] = []

            class Forgetful(WrappedStore):
                def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
                    asked.append(prefix)
                    if is_empty(len(asked), prefix):
                        return iter(())
                    return self.inner.list(prefix, start_after=start_after)

            monkeypatch.setattr("backup.repository.open_store", lambda *a, **b: Forgetful(open_store(*a, **b)))
            return asked

        return at

    def test_headers_that_one_listing_shows_and_another_does_not(self, here: Machine, emptied: Emptied) -> None:
        here.create("one")
        before = content(here)
        emptied(lambda number, prefix: prefix == names.BACKUPS_PREFIX)
        report = collect(here)
        assert "is there, and a listing" in str(report.refused)
        assert report.deleted == 0
        emptied(lambda number, prefix: False)
        assert content(here) == before

    @pytest.mark.in_turn
    @pytest.mark.parametrize("forever", [False, True], ids=["one listing", "all from one on"])
    def test_no_empty_listing_makes_garbage(self, here: Machine, emptied: Emptied, forever: bool) -> None:
        """For each of the listings that a collection with all limits widened asks for."""
        here.create("one")
        change(here, 5000)
        here.create("two")
        with here.repository() as repository:
            repository.delete("one")
        kept = {key for key in content(here) if key in named(here)}
        for strike in range(1, 60):
            asked = emptied(lambda number, prefix, strike=strike: number == strike or (forever and number > strike))  # type: ignore[misc]
            with suppress(FrostlineError):
                collect(here)
            count = len(asked)
            emptied(lambda number, prefix: False)
            assert kept <= content(here).keys(), f"listing {strike} was believed"
            if count < strike:
                assert all_whole(here) == ["two"]
                return
        pytest.fail("a collection asks for more listings than are tried")


def named(machine: Machine) -> set[str]:
    """What the complete backups name."""
    with machine.repository() as repository:
        return set(named_by(repository.storage, repository.storage.headers()[0]).sizes)
