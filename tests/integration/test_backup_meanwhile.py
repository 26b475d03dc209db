"""What several machines do with one repository, or one bucket, at the same moment: a backup is deleted and collected
while another machine reads it; one backup is restored to one bucket by two. Guards I3, I4 and I12."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backup.recover import reserved
from disks.effects import set_hook
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore
from disks.stores.open import open_store
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import AlreadyExists, NotFound
from tests import worm
from tests.backups import TABLE, Machine, events, filled, insert, machine_on, other_bucket
from tests.crash.invariants import no_dangling_reference
from tests.integration.pruning import ALL, change, later
from tiering.table.schema import TABLE_FILE

pytestmark = pytest.mark.in_turn

COPY, BESIDE = "demo.copy", "demo.beside"
not_locked = pytest.mark.skipif(worm.ACTIVE, reason="the store keeps what is younger than its retention")


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    made = filled(machine_on(tmp_path))
    made.init()
    return made


class Interrupted(WrappedStore):
    """A repository's store. Before its n-th request that reads, somebody else acts, once."""

    def __init__(self, inner: ObjectStore, turn: Turn) -> None:
        super().__init__(inner)
        self._turn = turn

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self._turn.next()
        return self.inner.get(key, byte_range)

    def head(self, key: str) -> ObjectInfo:
        self._turn.next()
        return self.inner.head(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._turn.next()
        yield from self.inner.list(prefix, start_after=start_after)


class Turn:
    """Counts requests, and lets somebody else act before the n-th."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._left, self._act = number, act
        self._lock = threading.Lock()
        self.taken = False

    def next(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.taken = True
                self._act()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Turn], None]:
    """Who opens a repository is interrupted at that turn; the one who acts then is not."""

    def at(turn: Turn) -> None:
        act = turn._act

        def alone() -> None:
            monkeypatch.setattr("backup.repository.open_store", open_store)
            act()

        turn._act = alone
        monkeypatch.setattr(
            "backup.repository.open_store", lambda *given, **more: Interrupted(open_store(*given, **more), turn)
        )

    return at


def delete_and_collect(machine: Machine, name: str) -> None:
    with machine.repository() as repository, machine.open() as store:
        repository.delete(name, store)
        assert repository.gc(ALL, now=later()).refused is None


def files(machine: Machine) -> list[tuple[str, str]]:
    """What its disks show, but for copies of `table.json`, which an opening brings where they are missing."""
    with machine.open() as store:
        assert sorted(definition.full_name for definition in store.definitions()) == [TABLE]
        shown = [(disk.name, info.path) for disk in store.context.disks.values() for info in disk.walk("store")]
    return sorted((name, path) for name, path in shown if not path.endswith(TABLE_FILE))


def error_of(read: Callable[[Machine], None], reader: Machine) -> NotFound | None:
    try:
        read(reader)
    except NotFound as error:
        return error
    return None


@not_locked
class TestDeletedMeanwhile:
    """The other machine deletes the backup and collects it, before each request of the one that reads it."""

    def at_every_request(
        self, tmp_path: Path, interrupted: Callable[[Turn], None], read: Callable[[Machine], None], cold: str
    ) -> int:
        """At how many of them the reader was told that the backup is no more."""
        here = filled(machine_on(tmp_path / "site"))
        here.init()
        here.create("one", cold=cold)
        change(here, 70_000)
        here.create("two")
        reader = machine_on(tmp_path / "site", name="reader", like=here)
        before, told = files(reader), 0
        shutil.copytree(tmp_path / "site", tmp_path / "kept", symlinks=True)
        for number in range(1, 200):
            turn = Turn(number, partial(delete_and_collect, here, "one"))
            interrupted(turn)
            if (error := error_of(read, reader)) is not None:
                assert "while it was read" in error.message or "No such backup" in error.message, (number, error)
                assert turn.taken
                assert files(reader) == before, number
                told += 1
            if not turn.taken:
                return told
            assert all(result.ok for result in here.verify(None, share=1.0)), number
            with here.open() as store:
                assert list(no_dangling_reference(store)) == [], number
            shutil.rmtree(tmp_path / "site")
            shutil.copytree(tmp_path / "kept", tmp_path / "site", symlinks=True)
        raise AssertionError("it never ended")

    @pytest.mark.parametrize("cold", ["copy", "pin"])
    def test_a_restore(self, tmp_path: Path, interrupted: Callable[[Turn], None], cold: str) -> None:
        rows = filled(machine_on(tmp_path / "like")).rows()

        def restore(reader: Machine) -> None:
            reader.restore("one", f"{TABLE}:{COPY}")
            assert reader.rows(COPY) == rows

        assert self.at_every_request(tmp_path, interrupted, restore, cold) > 5

    @pytest.mark.parametrize("cold", ["copy", "pin"])
    def test_a_verification(self, tmp_path: Path, interrupted: Callable[[Turn], None], cold: str) -> None:
        def verify(reader: Machine) -> None:
            (result,) = reader.verify("one", share=1.0)
            assert result.ok, result.problems

        assert self.at_every_request(tmp_path, interrupted, verify, cold) > 5

    def test_a_verification_of_all(self, tmp_path: Path, interrupted: Callable[[Turn], None]) -> None:
        def verify(reader: Machine) -> None:
            results = reader.verify(None, share=1.0)
            assert "two" in [result.name for result in results]
            assert all(result.ok for result in results), results

        assert self.at_every_request(tmp_path, interrupted, verify, "copy") == 0


class TestRestoredAtOnce:
    """Two machines restore one backup to one bucket: either is held up before each of its effects while the other one
    runs from beginning to end."""

    def lost(self, base: Path) -> tuple[Machine, Machine, Any]:
        """A backup, two machines that have nothing, and a new bucket of both."""
        made = filled(machine_on(base))
        made.init()
        rows = made.rows()
        made.create("one")
        one = machine_on(base, name="one", like=made)
        one.bucket = other_bucket(made, base)
        return one, machine_on(base, name="two", like=one), rows

    def nothing(self, *machines: Machine) -> None:
        """They have nothing again."""
        for machine in machines:
            shutil.rmtree(machine.root, ignore_errors=True)
            shutil.rmtree(machine.bucket.url.removeprefix("file://"), ignore_errors=True)

    def held_up(self, number: int, outer: Callable[[], object], inner: Callable[[], object]) -> bool:
        """Whether the outer one had so many effects in the bucket."""
        seen = 0

        def hook(when: str, name: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if when == "before" and name.startswith("store."):
                seen += 1
                if seen == number:
                    set_hook(None)
                    inner()

        set_hook(hook)
        try:
            outer()
        finally:
            set_hook(None)
        return seen >= number

    def test_under_two_names(self, tmp_path: Path) -> None:
        one, two, rows = self.lost(tmp_path)
        number, again = 0, True
        while again:
            number += 1
            self.nothing(one, two)
            again = self.held_up(number, partial(one.restore, "one"), partial(two.restore, "one", f"{TABLE}:{COPY}"))
            if not again:
                two.restore("one", f"{TABLE}:{COPY}")
            self.both_live(one, two, rows)
        assert number > 4

    def both_live(self, one: Machine, two: Machine, rows: Any) -> None:
        """Two tables, each whole on its own machine; what is done with one leaves the other."""
        with one.open() as store:
            uuids = {definition.full_name: definition.uuid for definition in store.definitions()}
        assert sorted(uuids) == [COPY, TABLE]
        assert len(set(uuids.values())) == 2
        assert (one.rows(), two.rows(COPY)) == (rows, rows)
        with two.open() as store:
            insert(store, 90_000, table=COPY)
            store.drop_table(COPY)
        with one.open() as store:
            assert list(no_dangling_reference(store)) == []
        assert one.rows() == rows

    def test_under_one_name(self, tmp_path: Path) -> None:
        """One of them has it, whole; the other is told, and nothing of its own shows in that table."""
        one, two, rows = self.lost(tmp_path)
        number, again = 0, True
        while again:
            number += 1
            self.nothing(one, two)
            told: list[Machine] = []

            def attempt(machine: Machine, told: list[Machine] = told) -> None:
                with suppress(AlreadyExists):
                    machine.restore("one")
                    return
                told.append(machine)

            again = self.held_up(number, partial(attempt, one), partial(attempt, two))
            if not again:
                attempt(two)
            (loser,) = told
            winner = two if loser is one else one
            assert winner.rows() == rows, number
            seen = loser.rows()
            assert set(seen) < set(rows), "of the other's table this machine has what is in the bucket"
            loser.restore("one", f"{TABLE}:{COPY}")
            assert loser.rows(COPY) == rows
            assert winner.rows() == rows
        assert number > 4

    def test_a_reservation_that_was_killed_is_taken_up_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The bucket says who restores; the process that did ended before this machine wrote that down."""
        one, two, rows = self.lost(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(reserved, "_note", self.stopped_at(2, reserved._note))
            with pytest.raises(KeyboardInterrupt):
                one.restore("one")
        two.restore("one", f"{TABLE}:{COPY}")
        one.restore("one")
        self.both_live(one, two, rows)
        with one.open() as store:
            assert store.definitions()[0].uuid == events().uuid

    def stopped_at(self, number: int, original: Callable[..., None]) -> Callable[..., None]:
        calls = 0

        def stop(*arguments: Any, **options: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            original(*arguments, **options)

        return stop
