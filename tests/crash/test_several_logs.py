"""Logs that share the objects of a prefix, killed at every effect: the first commit of a log, the
commit of another one, a collection of all of them, and a machine that takes another's place.

Guards I2, I4 (what any log names is there), I7 (a rebuild gives what the disk shows), I14.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from disks import effects
from disks.base import Disk
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.sharing.retiring import retire
from disks.object_disk.sharing.writers import retired, take_over
from disks.stores.directory import DirectoryStore
from disks.stores.wrappers.named_log import NamedLogStore
from oplog.errors import Conflict
from oplog.kinds import Dropped, Inserted
from tests.crash.conftest import RecordTally
from tests.crash.disk_effects import Effects, Killed, release_locks
from tests.crash.disk_effects import place as place
from tests.crash.enumeration import Tally

__all__ = ["place"]

LATER = datetime.now(UTC) + timedelta(days=3)
SOON = datetime.now(UTC) + timedelta(hours=20)
LARGE = b"x" * 9_000
Rows = dict[str, dict[str, bytes]]


def open_log(root: Path, name: str, state: str = "state") -> ObjectDisk:
    store = DirectoryStore(root / "bucket")
    store.name = "bucket/"  # the same wherever it is copied to
    return ObjectDisk(name, NamedLogStore(store, name), root / state / name, snapshot_every_commits=3)


def commit(disk: Disk, *paths: str, removed: tuple[str, ...] = ()) -> None:
    with disk.transaction(Dropped() if removed else Inserted()) as transaction:
        for path in removed:
            transaction.remove(path)
        for path in paths:
            transaction.create(path, LARGE)
        transaction.commit()


def adopt(disk: ObjectDisk, source: ObjectDisk, path: str, *more: str) -> None:
    row = source.file_table.get(path)
    assert row is not None
    with disk.transaction(Inserted()) as transaction:
        transaction.adopt(row)
        for one in more:
            transaction.create(one, LARGE)
        transaction.commit()


def start(root: Path) -> None:
    """b has taken over what a has dropped since; a file that nobody names any more lies there, and an orphan."""
    a, b = open_log(root, "a"), open_log(root, "b")
    commit(a, "t/p/x", "t/p/y", "t/p/z")
    commit(b, "t/b")
    adopt(b, a, "t/p/x")
    commit(a, removed=("t/p/x", "t/p/z"))
    transaction = a.transaction(Inserted())
    transaction.create("never", LARGE)
    transaction.abandon()


def first_commit(root: Path) -> None:
    """Of c, which takes over what a has."""
    adopt(open_log(root, "c"), open_log(root, "a"), "t/p/y", "t/c")


def next_commit(root: Path) -> None:
    adopt(open_log(root, "b"), open_log(root, "a"), "t/p/y")


def collection(root: Path, now: datetime = LATER) -> None:
    report = collect(open_log(root, "b"), GcRules(delete=True, max_delete_fraction=1.0), now=now)
    assert report.refused is None


def replacement(root: Path) -> None:
    """Another machine takes the place of a, and goes on."""
    disk = open_log(root, "a", "elsewhere")
    take_over(disk)
    commit(disk, "t/again")


def retirement(root: Path) -> None:
    """The log of a counts no more, a day from now on."""
    retire(open_log(root, "b"), "a")


AFTER: dict[Callable[[Path], None], dict[str, set[str]]] = {
    first_commit: {"c": {"t/p/y", "t/c"}},
    next_commit: {"b": {"t/b", "t/p/x", "t/p/y"}},
    collection: {},
    replacement: {"a": {"t/p/y", "t/again"}},
    retirement: {},
}
BEFORE = {"a": {"t/p/y"}, "b": {"t/b", "t/p/x"}, "c": set[str]()}


def states(root: Path, act: Callable[[Path], None]) -> dict[str, str]:
    return {name: "elsewhere" if act is replacement and name == "a" else "state" for name in BEFORE}


def violations(root: Path, act: Callable[[Path], None], *, done: bool) -> Iterator[str]:
    """What each log shows, of its machine and of one that has the bucket alone; every byte is read."""
    for name, state in states(root, act).items():
        allowed = [AFTER[act].get(name, BEFORE[name])] if done else [BEFORE[name], AFTER[act].get(name, BEFORE[name])]
        shown = []
        for disk in (open_log(root, name, state), open_log(root, name, f"fresh-{done}")):
            disk.recover()
            try:
                shown.append({info.path: disk.read(info.path) for info in disk.walk()})
            except Exception as error:  # what a user would see
                yield f"I4: log {name}: {type(error).__name__}: {error}"
                return
            finally:
                disk.close()
        if shown[0] != shown[1]:
            yield f"I7: log {name} shows {sorted(shown[0])} and a rebuild {sorted(shown[1])}"
        if act is retirement and done and retired(open_log(root, "a").store) is None:
            yield "nothing says that the log was retired"
        if set(shown[0]) not in allowed or set(shown[0].values()) - {LARGE}:
            yield f"I2: log {name} shows {sorted(shown[0])}"


def killed(root: Path, act: Callable[[Path], None], hook: Effects) -> bool:
    effects.set_hook(hook)
    try:
        act(root)
    except Killed:
        return True
    finally:
        effects.set_hook(None)
        gc.collect()  # who died has no connection to a cache any more: the next would wait for its lock
        release_locks(root)
    return False


@pytest.mark.crash
@pytest.mark.parametrize("act", AFTER, ids=lambda act: act.__name__)
def test_killed_at_every_effect(act: Callable[[Path], None], place: Path, record_tally: RecordTally) -> None:
    start(place / "template")
    counting = Effects()
    shutil.copytree(place / "template", place / "counted")
    assert not killed(place / "counted", act, counting)
    assert list(violations(place / "counted", act, done=True)) == []
    points: list[tuple[Literal["before", "after"], int]] = [
        *(("before", at) for at in range(1, counting.count + 1)),  # after one is before the next
        ("after", counting.count),
    ]
    tally = Tally(effects=counting.count)
    for when, at in tally.due(f"several logs: {act.__name__}", points):
        root = place / f"{when}-{at}"
        shutil.copytree(place / "template", root)
        stopped = killed(root, act, Effects(at, when))
        found = list(violations(root, act, done=not stopped))
        with suppress(Conflict):  # it was done
            act(root)
        collection(root, LATER if act is not retirement else SOON)
        found += violations(root, act, done=True)
        tally.add(f"{act.__name__} {when} effect {at}", found)
        shutil.rmtree(root)
    record_tally(tally)
    assert tally.violations == []
