"""Every disk behaves as the dict of `disks/memory.py`: random transactions, reopenings, lost caches, kills in between.

Guards I2 (all or nothing), I7 (rebuild equals metadata), I8 (links), I14 (a second recovery does nothing).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from disks import effects
from disks.base import Disk, Transaction
from disks.local import LocalDisk
from disks.memory import MemoryDisk
from disks.object_disk import ObjectDisk
from disks.stores.memory import MemoryStore
from oplog.errors import Conflict

NAMES = ["a", "b", "a-", "a0", "é"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
DATA = st.sampled_from([b"", b"1", b"2" * 50, b"3" * 9_000])
OPERATION = st.one_of(
    st.tuples(st.just("create"), PATHS, DATA),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS, st.none()),
)
OPERATIONS = st.lists(OPERATION, min_size=1, max_size=6)


class Killed(BaseException):
    """The process is dead: every later effect raises too."""


class _Kill:
    """Dies at the n-th effect, before or after it takes place."""

    def __init__(self, count: int, when: Literal["before", "after"]) -> None:
        self._left = count
        self._when = when

    def __call__(self, when: Literal["before", "after"], name: str, args: tuple[object, ...]) -> None:
        if self._left <= 0:
            raise Killed
        if when == self._when:
            self._left -= 1
            if self._left == 0:
                raise Killed


def fill(transaction: Transaction, operations: list[tuple[str, str, object]]) -> None:
    for verb, first, second in operations:
        if verb == "create":
            assert isinstance(second, bytes)
            transaction.create(f"{first}/f.json" if len(second) < 50 else f"{first}/f", second)
        elif verb == "remove":
            transaction.remove(first)
        else:
            assert isinstance(second, str)
            getattr(transaction, verb)(first, second)


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


class DiskMachine(RuleBasedStateMachine):
    """One disk beside the dict that says what it must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="frostline-model-"))
        self.model = MemoryDisk()
        self.disk = self.open()

    def open(self) -> Disk:
        raise NotImplementedError

    def teardown(self) -> None:
        effects.set_hook(None)
        self.disk.close()
        shutil.rmtree(self.directory)

    @initialize(operations=OPERATIONS)
    def begin(self, operations: list[tuple[str, str, object]]) -> None:
        self.change(operations)

    @rule(operations=OPERATIONS)
    def change(self, operations: list[tuple[str, str, object]]) -> None:
        outcomes: list[str] = []
        for disk in (self.model, self.disk):
            try:
                with disk.transaction("test") as transaction:
                    fill(transaction, operations)
                    transaction.commit()
                outcomes.append("done")
            except Conflict:
                outcomes.append("conflict")
        assert outcomes[0] == outcomes[1]

    @rule(operations=OPERATIONS)
    def change_while_reading(self, operations: list[tuple[str, str, object]]) -> None:
        with self.disk.read_lease():
            self.change(operations)
            assert content(self.disk) == self.model.files

    @rule(operations=OPERATIONS, count=st.integers(1, 40), when=st.sampled_from(["before", "after"]))
    def kill(self, operations: list[tuple[str, str, object]], count: int, when: Literal["before", "after"]) -> None:
        """The transaction happened as a whole, or not at all; recovery says which, and doing it again says nothing."""
        before = dict(self.model.files)
        acknowledged = False
        try:
            with self.model.transaction("test") as transaction:
                fill(transaction, operations)
                transaction.commit()
            effects.set_hook(_Kill(count, when))
            with self.disk.transaction("test") as transaction:
                fill(transaction, operations)
                transaction.commit()
                acknowledged = True
        except (Killed, Conflict):
            pass
        finally:
            effects.set_hook(None)
        self.reopen()
        self.disk.recover()
        assert self.disk.recover() == []
        assert self.leftovers() == []
        found = content(self.disk)
        assert found in (before, self.model.files)
        assert found == self.model.files or not acknowledged
        self.model.files = found

    def leftovers(self) -> list[Path]:
        """Temporary things on the disk (I14)."""
        return []

    @rule()
    def reopen(self) -> None:
        self.forget_locks()
        self.disk = self.open()

    def forget_locks(self) -> None:
        """What the end of a process does to its locks: the file of a lock is open only while it is held."""
        self.disk.close()
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{entry}").startswith(str(self.directory)):
                    os.close(int(entry))

    @invariant()
    def same_as_the_dict(self) -> None:
        assert content(self.disk) == self.model.files
        for directory in ["", *NAMES]:
            assert self.disk.list(directory) == self.model.list(directory)
            assert self.disk.exists(directory or "a") == self.model.exists(directory or "a")
            found = {path: data for path, data, _ in self.disk.small_files(directory, "f.json")}
            assert found == {path: data for path, data, _ in self.model.small_files(directory, "f.json")}


class LocalMachine(DiskMachine):
    def open(self) -> Disk:
        return LocalDisk("hot", self.directory / "hot")

    def leftovers(self) -> list[Path]:
        return list((self.directory / "hot" / ".frostline").glob("*/*"))


class ObjectMachine(DiskMachine):
    """Also loses its cache, and keeps every revision restorable."""

    def __init__(self) -> None:
        self.store = MemoryStore("model")
        self.caches = 0
        super().__init__()
        self.history: dict[int, dict[str, bytes]] = {0: {}}

    def open(self) -> ObjectDisk:
        return ObjectDisk("s3", self.store, self.directory / str(self.caches), snapshot_every_commits=4)

    def leftovers(self) -> list[Path]:
        return list(self.directory.glob("*/scratch/*"))

    @rule()
    def lose_the_cache(self) -> None:
        self.caches += 1
        self.reopen()

    @invariant()
    def every_revision_can_be_restored(self) -> None:
        assert isinstance(self.disk, ObjectDisk)
        if self.disk.revision not in self.history:
            self.history[self.disk.revision] = dict(self.model.files)
            for revision in list(self.history)[-4:]:
                table = self.disk.table_at(revision)
                assert {row.path for row in table.rows()} == set(self.history[revision])
                table.close()


_settings = settings(
    max_examples=40, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLocal = LocalMachine.TestCase
TestLocal.settings = _settings
TestObject = ObjectMachine.TestCase
TestObject.settings = _settings
