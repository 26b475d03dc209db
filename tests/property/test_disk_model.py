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
from disks.base import Disk, read_each
from disks.local.disk import LocalDisk
from disks.memory import MemoryDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from oplog.errors import Conflict
from oplog.kinds import OtherKind
from tests.property.disk_operations import NAMES, content, draw_operations, fill
from tests.turns import examples


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

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.change(data)

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        operations = draw_operations(data, self.model.files)
        outcomes: list[str] = []
        for disk in (self.model, self.disk):
            try:
                with disk.transaction(OtherKind("test")) as transaction:
                    fill(transaction, operations)
                    transaction.commit()
                outcomes.append("done")
            except Conflict:
                outcomes.append("conflict")
        assert outcomes[0] == outcomes[1]

    @rule(data=st.data(), times=st.integers(1, 3))
    def change_while_reading(self, data: st.DataObject, times: int) -> None:
        with self.disk.read_lease():
            for _ in range(times):
                self.change(data)
                self.same_as_the_dict()

    @rule(data=st.data(), count=st.integers(1, 60), when=st.sampled_from(["before", "after"]), reading=st.booleans())
    def kill(self, data: st.DataObject, count: int, when: Literal["before", "after"], reading: bool) -> None:
        """The transaction happened as a whole, or not at all; recovery says which, and doing it again says nothing."""
        operations = draw_operations(data, self.model.files)
        before = dict(self.model.files)
        acknowledged = False
        try:
            with self.model.transaction(OtherKind("test")) as transaction:
                fill(transaction, operations)
                transaction.commit()
            effects.set_hook(_Kill(count, when))
            lease = self.disk.read_lease() if reading else contextlib.nullcontext()
            with lease, self.disk.transaction(OtherKind("test")) as transaction:
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
        nothing = os.open(os.devnull, os.O_RDONLY)
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                place = os.readlink(f"/proc/self/fd/{entry}")
                if place.startswith(str(self.directory)) and "files.db" not in place:
                    os.dup2(nothing, int(entry))  # the number stays taken until its owner here closes it
        os.close(nothing)

    @invariant()
    def same_as_the_dict(self) -> None:
        assert content(self.disk) == self.model.files
        for directory in ["", *NAMES]:
            assert self.disk.list(directory) == self.model.list(directory)
            assert self.disk.exists(directory or "a") == self.model.exists(directory or "a")
            found = read_each(self.disk, directory, "f.json")
            assert found == read_each(self.model, directory, "f.json")
            assert list(found) == sorted(found)


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


def _settings(most: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples(most), stateful_step_count=10, deadline=None, suppress_health_check=checks)


TestLocal = LocalMachine.TestCase
TestLocal.settings = _settings(12)
TestObject = ObjectMachine.TestCase
TestObject.settings = _settings(20)
