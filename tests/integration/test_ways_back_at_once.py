"""Two ways back at once: each is worked out from one state of the disk, and committed to that state or worked out anew.
L7 of the design; I2, I7."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disks.base import Disk, Transaction
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from oplog.errors import Refused
from oplog.kinds import Dropped, Inserted, OtherKind
from restore.check.check import CheckOptions, check
from restore.history import undo as undo_module
from restore.rebuild import rebuild
from restore.rebuild.request import RebuildRequest
from tests.integration.two_machines import insert, keys, machine, move_all
from tiering.catalog import tables
from tiering.engine.store import Store
from tiering.table.definitions import define_table


def put(disk: Disk, path: str) -> int:
    with disk.transaction(Inserted()) as transaction:
        transaction.create(path, path.encode() * 100)
        revision = transaction.commit()
    assert revision is not None
    return revision


def remove(disk: Disk, path: str) -> None:
    with disk.transaction(Dropped()) as transaction:
        transaction.remove(path)
        transaction.commit()


def files(disk: Disk) -> list[str]:
    disk.refresh()
    return [info.path for info in disk.walk()]


def once_before(monkeypatch: pytest.MonkeyPatch, disk: Disk, others: Callable[[], object]) -> None:
    """Let others work right before this disk's next transaction begins: what it does was worked out by then."""
    original = disk.transaction

    def late(*arguments: Any, **options: Any) -> Transaction:
        monkeypatch.undo()
        others()
        return original(*arguments, **options)

    monkeypatch.setattr(disk, "transaction", late)


def test_two_restores_at_once_end_in_one_of_the_two_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of {1} and {2}, both applied, nothing was left: each took away what the other brought."""
    store = MemoryStore("s3")
    a, b = ObjectDisk("s3", store, tmp_path / "a"), ObjectDisk("s3", store, tmp_path / "b")
    first = put(a, "t/1.json")
    remove(a, "t/1.json")
    second = put(a, "t/2.json")
    put(a, "t/1.json")
    others = RebuildRequest(revision=second, apply=True)
    once_before(monkeypatch, a, lambda: rebuild.restore(b, others))
    result = rebuild.restore(a, RebuildRequest(revision=first, apply=True))
    assert result.applied
    assert files(a) == files(b) == ["t/1.json"], "the later one"


def test_restoring_one_table_does_not_wait_for_other_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For commits to other tables."""
    store = MemoryStore("s3")
    a, b = ObjectDisk("s3", store, tmp_path / "a"), ObjectDisk("s3", store, tmp_path / "b")
    first = put(a, "t/1")
    remove(a, "t/1")
    compared: list[str] = []
    once_before(monkeypatch, a, lambda: (put(b, "u/1"), compared.append("once")))
    rebuild.restore(a, RebuildRequest(revision=first, paths=("t",), apply=True))
    assert files(a) == ["t/1", "u/1"]
    assert compared == ["once"]


def test_an_undo_is_worked_out_anew_when_the_table_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine inserts the same rows again between plan and commit: undo refuses to double them."""
    with Store.open(machine(tmp_path, "a")) as a, Store.open(machine(tmp_path, "b")) as b:
        a.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        insert(a, 1)
        move_all(a)
        tables.drop_parts(a.context, a.parts(), reason="a test")
        disk = a.object_disk("s3")
        revision = disk.revision

        def again() -> None:
            b.refresh()
            insert(b, 1)
            move_all(b)

        once_before(monkeypatch, disk, again)
        with pytest.raises(Refused, match="inserted again"):
            undo_module.undo(a.context, disk, revision)
        assert keys(b) == [1]


def test_a_part_that_came_back_during_its_check_is_not_set_aside(tmp_path: Path) -> None:
    with Store.open(machine(tmp_path, "a")) as a, Store.open(machine(tmp_path, "b")) as b:
        a.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        insert(a, 1)
        move_all(a)
        disk, theirs = a.object_disk("s3"), b.object_disk("s3")
        (lost,) = [info for info in disk.walk() if info.key is not None]
        data = disk.store.get(str(lost.key))
        disk.store.delete([str(lost.key)])

        def mended(uuid: str, parts: list[str], why: str) -> Any:
            """Somebody brings the file back, as another object, before the part is renamed."""
            theirs.refresh()
            with theirs.transaction(OtherKind("mend")) as transaction:
                transaction.remove(lost.path)
                transaction.create(lost.path, data)
                transaction.commit()
            return a.context.journal.claim(uuid, parts, why)

        result = check({"s3": disk}, CheckOptions(repair=True), claim=mended)
        assert any("could not be set aside" in sentence for sentence in result.repaired)
        assert disk.exists(lost.path)
        assert keys(b) == [1]
