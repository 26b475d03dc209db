"""The local disk: commit point, leftovers, readers, full disks, what does not belong. Guards I2, I14, I15, P36."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disks import effects
from disks.base import Disk
from disks.host.locks import file_lock
from disks.local.disk import LocalDisk
from disks.local.trash import FEW, Trash
from oplog.errors import Damaged, Locked, NoSpace, NotFound, Refused, UsageError
from oplog.kinds import Dropped, Inserted, Moved


def put(disk: Disk, files: dict[str, bytes]) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path, data in files.items():
            transaction.create(path, data)
        transaction.commit()


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return LocalDisk("hot", tmp_path / "hot")


@pytest.fixture
def hook() -> Iterator[None]:
    yield
    effects.set_hook(None)


def leftovers(disk: LocalDisk) -> list[str]:
    return sorted(str(path.relative_to(disk.root)) for path in (disk.root / ".frostline").glob("*/*"))


class Killed(BaseException):
    pass


_DIES = """
import os, sys
from pathlib import Path
from disks import effects
from disks.local.disk import LocalDisk
from oplog.kinds import Inserted
path, stop, skip = sys.argv[1], sys.argv[2], int(sys.argv[3])
def hook(when, name, args):
    global skip
    if when == "before" and name == stop:
        if skip == 0:
            os._exit(9)
        skip -= 1
with LocalDisk("hot", Path(path)).transaction(Inserted()) as transaction:
    transaction.create("t/p2/part.json", b"2")
    transaction.create("t/p2/data", b"2" * 10_000)
    transaction.remove("t/p1")
    effects.set_hook(hook)
    transaction.commit()
    print("acknowledged")
"""


@pytest.mark.parametrize(("stop", "skip"), [("fs.fsync", 0), ("fs.rename", 0), ("fs.rename", 1), ("fs.rename", 2)])
def test_a_dead_process_leaves_all_or_nothing(disk: LocalDisk, stop: str, skip: int) -> None:
    put(disk, {"t/p1/part.json": b"1"})
    died = subprocess.run(
        [sys.executable, "-c", _DIES, str(disk.root), stop, str(skip)], capture_output=True, text=True
    )
    assert died.returncode == 9, died.stderr
    before, after = {"t/p1/part.json": b"1"}, {"t/p2/part.json": b"2", "t/p2/data": b"2" * 10_000}
    committed = (stop, skip) in {("fs.rename", 1), ("fs.rename", 2)}
    again = LocalDisk("hot", disk.root)
    assert content(again) == (after if committed else before)  # a reader need not wait for recover()
    assert len(again.recover()) >= 1
    assert again.recover() == []
    assert leftovers(again) == []
    assert content(disk) == (after if committed else before)


@pytest.mark.usefixtures("hook")
def test_many_files_are_made_durable_together_before_the_record(disk: LocalDisk, tmp_path: Path) -> None:
    """Staged bytes, copies and scratch files alike: every one, once, and before the commit is on its way."""
    put(disk, {"a": b"1"})
    synced: list[list[str]] = []

    def note(when: str, name: str, args: tuple[object, ...]) -> None:
        if when == "after" and name == "fs.fsync":
            synced.append([Path(str(path)).name for path in args])

    (tmp_path / "copied").write_bytes(b"2")
    with disk.transaction(Inserted()) as transaction:
        effects.set_hook(note)
        (transaction.scratch() / "made").write_bytes(b"3")
        transaction.create("t/made", transaction.scratch() / "made")
        transaction.create("t/copied", tmp_path / "copied")
        for number in range(298):
            transaction.create(f"t/{number}", b"x")
        transaction.commit()
    assert [len(group) for group in synced[:3]] == [128, 128, 44]
    assert sorted(name for group in synced[:3] for name in group) == sorted(map(str, range(1, 301)))
    assert synced[3] == ["record.json"]


@pytest.mark.usefixtures("hook")
def test_a_file_that_could_not_be_made_durable_ends_all(disk: LocalDisk) -> None:
    """It is never synced once more: the kernel says of a failed write only once that it failed.
    It ends the transaction."""
    put(disk, {"a": b"1"})

    def fail(when: str, name: str, args: tuple[object, ...]) -> None:
        if when == "before" and name == "fs.fsync":
            effects.set_hook(None)
            raise OSError(errno.EIO, "Input/output error")

    with disk.transaction(Inserted()) as transaction:
        transaction.create("t/b", b"2")
        effects.set_hook(fail)
        with pytest.raises(OSError, match="Input/output error"):
            transaction.commit()
        with pytest.raises(Refused):
            transaction.commit()
    assert content(disk) == {"a": b"1"}
    assert leftovers(disk) == []


def test_recovery_leaves_the_staging_of_live_transactions(disk: LocalDisk) -> None:
    """P36: every temporary thing has an owner."""
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"1")
        other = LocalDisk("hot", disk.root)
        assert other.recover() == []
        transaction.commit()
    assert disk.list() == ["a"]
    assert leftovers(disk) == []


def test_readers_keep_their_files_and_writers_do_not_wait(disk: LocalDisk) -> None:
    put(disk, {"t/p1/x": b"1" * 9_000, "t/p2/x": b"2"})
    path = Path(disk.location("t/p1/x").url.removeprefix("file://"))
    other = LocalDisk("hot", disk.root)
    with disk.read_lease():
        with other.transaction(Dropped()) as transaction:
            transaction.remove("t/p1")
            transaction.commit()
        for one in (disk, other):
            assert one.list("t") == ["p2/"]
            assert not one.exists("t/p1")
            with pytest.raises(NotFound):
                one.read("t/p1/x")
        assert other.recover() == []
        assert path.read_bytes() == b"1" * 9_000
    assert not path.exists()
    assert not path.parent.exists()
    assert leftovers(disk) == []


def test_a_renamed_directory_with_only_hidden_files_is_known(disk: LocalDisk) -> None:
    """`old` was removed but is still read: to the plan its directory is empty, and yet the new files moved with it."""
    with disk.transaction(Inserted()) as transaction:
        transaction.create("old/file", b"old")
        transaction.create("new/file", b"new")
        transaction.commit()
    with disk.read_lease():
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("old")
            transaction.commit()
        with disk.transaction(Moved()) as transaction:
            transaction.rename("new", "old/new")
            transaction.rename("old", "at/last")
            transaction.rename("at", "in/the/end")
            transaction.commit()
        assert [info.path for info in disk.walk()] == ["in/the/end/last/new/file"]
        assert disk.read("in/the/end/last/new/file") == b"new"


def test_a_reader_that_died_holds_nothing(disk: LocalDisk) -> None:
    put(disk, {"t/p1/x": b"1"})
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from disks.local.disk import LocalDisk\n"
            "with LocalDisk('hot', Path(sys.argv[1])).read_lease(): print('reading', flush=True); time.sleep(60)",
            str(disk.root),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("t/p1")
        transaction.commit()
    assert (disk.root / "t/p1/x").exists()
    reader.kill()
    reader.wait()
    reader.stdout.close()
    (sentence,) = disk.recover()
    assert f"disk {disk.name}" not in sentence  # the caller names it
    assert disk.recover() == []
    assert not (disk.root / "t").exists()


@pytest.mark.usefixtures("hook")
@pytest.mark.parametrize("effect", ["fs.create", "fs.write", "fs.fsync", "fs.mkdir"])
def test_a_full_disk_changes_nothing(disk: LocalDisk, effect: str) -> None:
    put(disk, {"a": b"1"})

    def full(when: str, name: str, args: tuple[object, ...]) -> None:
        if name == effect and when == "before":
            effects.set_hook(None)
            raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))

    with pytest.raises((NoSpace, OSError)), disk.transaction(Inserted()) as transaction:
        effects.set_hook(full)
        transaction.create("b/c", b"2" * 10_000)
        transaction.create("b/d", b"2" * 10_000)
        transaction.commit()
    effects.set_hook(None)
    assert content(disk) == {"a": b"1"}
    assert leftovers(disk) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_kernel_saying_enospc_becomes_no_space(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="no space"), effects.op("fs.write", tmp_path):
        descriptor = os.open("/dev/full", os.O_WRONLY)
        try:
            os.write(descriptor, b"x")
        finally:
            os.close(descriptor)


def test_space_that_is_kept_free_and_a_quota(tmp_path: Path) -> None:
    plain = LocalDisk("a", tmp_path / "a").usage()
    kept = LocalDisk("b", tmp_path / "b", keep_free_space_bytes=1 << 30).usage()
    assert plain.total_bytes is not None
    assert kept.total_bytes == max(plain.total_bytes - (1 << 30), 0)
    quota = LocalDisk("c", tmp_path / "c", max_size_bytes=50_000)
    put(quota, {"x": b"x" * 20_000})
    usage = quota.usage()
    assert (usage.total_bytes, usage.free_bytes, usage.used_bytes) == (50_000, 30_000, 20_000)
    both = LocalDisk("c", tmp_path / "c", max_size_bytes=50_000, keep_free_space_bytes=45_000).usage()
    assert (both.total_bytes, both.free_bytes) == (5_000, 0)


@pytest.mark.parametrize("what", ["symlink", "directory symlink", "fifo", "dangling"])
def test_what_does_not_belong_is_named(disk: LocalDisk, what: str, tmp_path: Path) -> None:
    put(disk, {"t/p/x": b"1"})
    strange = disk.root / "t/p/strange"
    match what:
        case "symlink":
            strange.symlink_to("/etc/hostname")
        case "directory symlink":
            strange.symlink_to(tmp_path)
        case "dangling":
            strange.symlink_to("nowhere")
        case _:
            os.mkfifo(strange)
    with pytest.raises(Damaged, match="t/p/strange"):
        list(disk.walk())
    with pytest.raises((Damaged, OSError)):
        disk.read("t/p/strange")
    with pytest.raises(Damaged, match="t/p/strange"):
        disk.list("t/p")


def test_a_strange_source_is_refused(disk: LocalDisk, tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_bytes(b"s")
    link = tmp_path / "link"
    link.symlink_to(target)
    with disk.transaction(Inserted()) as transaction, pytest.raises((Damaged, OSError)):
        transaction.create("x", link)
    assert leftovers(disk) == []


def test_only_paths_within_the_root(disk: LocalDisk) -> None:
    for path in ("../etc", "/etc", ".frostline"):
        with pytest.raises(UsageError):
            disk.list(path)
        with pytest.raises(UsageError):
            disk.look_over(path, "x", {})


def test_a_held_commit_lock_is_said_after_the_timeout(tmp_path: Path) -> None:
    disk = LocalDisk("hot", tmp_path / "hot", lock_timeout_seconds=0.05)
    put(disk, {"a": b"1"})
    with file_lock(disk.root / ".frostline" / "commit.lock"), pytest.raises(Locked, match=r"commit\.lock"):
        put(disk, {"b": b"1"})
    assert content(disk) == {"a": b"1"}
    assert leftovers(disk) == []
    put(disk, {"b": b"1"})


_WRITER = """
import sys
from pathlib import Path
from disks.local.disk import LocalDisk
from oplog.kinds import Inserted
path, name = sys.argv[1:]
disk = LocalDisk("hot", Path(path))
for count in range(12):
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{name}/p{count}/part.json", name.encode())
        if count:
            transaction.remove(f"{name}/p{count - 1}")
        transaction.commit()
"""


def test_processes_commit_in_turn_and_readers_see_one_part(disk: LocalDisk) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(disk.root), name]) for name in ("a", "b")]
    seen: set[int] = set()
    while any(writer.poll() is None for writer in writers):
        with disk.read_lease():
            seen.update(len(list(disk.walk(name))) for name in ("a", "b"))
        threading.Event().wait(0.002)
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen <= {0, 1}
    assert [info.path for info in disk.walk()] == ["a/p11/part.json", "b/p11/part.json"]
    assert disk.recover() == []
    disk.close()
    assert leftovers(disk) == []


def test_a_read_only_disk_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "hot"
    put(LocalDisk("hot", root), {"a": b"1"})
    disk = LocalDisk("hot", root, read_only=True)
    assert content(disk) == {"a": b"1"}
    with pytest.raises(Refused):
        disk.transaction(Inserted())
    bare = LocalDisk("bare", tmp_path / "bare", read_only=True)
    assert bare.list() == []
    assert bare.recover() == []
    assert not (tmp_path / "bare").exists()


def test_a_torn_record_is_named_and_nothing_is_guessed(disk: LocalDisk) -> None:
    put(disk, {"a": b"1"})
    committed = disk.root / ".frostline/committed/torn"
    committed.mkdir()
    (committed / "record.json").write_bytes(b"")
    with pytest.raises(Damaged, match=r"torn/record\.json"):
        disk.list()


def test_what_many_removals_leave_is_deleted_aside_and_awaited(tmp_path: Path) -> None:
    """Usage, closing and the next opening see nothing of it; the parts are out of the tree at once."""
    disk = LocalDisk("ssd", tmp_path / "ssd")
    put_parts(disk, 3 * FEW)
    put(disk, {"t/stays/data": b"y"})
    with disk.transaction(Dropped()) as transaction:
        for number in range(3 * FEW):
            transaction.remove(f"t/{number}")
        transaction.commit()
    assert disk.list("t") == ["stays/"]
    disk.usage()
    assert list((tmp_path / "ssd/.frostline/trash").iterdir()) == []
    disk.close()
    assert LocalDisk("ssd", tmp_path / "ssd").recover() == []


_REMOVES_AND_ENDS = """
import sys, time
from pathlib import Path
from disks import effects
from disks.local.disk import LocalDisk
from oplog.kinds import Dropped

disk = LocalDisk("ssd", Path(sys.argv[1]))
effects.set_hook(lambda when, name, _: time.sleep(0.002) if name == "fs.rmdir" else None)
with disk.transaction(Dropped()) as transaction:
    for name in disk.list("t"):
        transaction.remove("t/" + name.rstrip("/"))
    transaction.commit()
"""


def put_parts(disk: LocalDisk, count: int) -> None:
    put(disk, {f"t/{number}/data": b"x" for number in range(count)})


def test_a_process_that_ends_leaves_no_trash_behind(tmp_path: Path) -> None:
    """Also one that closes nothing: an ending is no crash."""
    disk = LocalDisk("ssd", tmp_path / "ssd")
    put_parts(disk, 3 * FEW)
    subprocess.run([sys.executable, "-c", _REMOVES_AND_ENDS, str(disk.root)], check=True)
    assert disk.recover() == []
    assert content(disk) == {}
    assert leftovers(disk) == []


def test_what_is_being_deleted_is_no_leftover_of_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the thread runs, not while it does."""
    disk = LocalDisk("ssd", tmp_path / "ssd")
    put_parts(disk, 3 * FEW)
    late: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
    with disk.transaction(Dropped()) as transaction:
        for number in range(3 * FEW):
            transaction.remove(f"t/{number}")
        transaction.commit()
    monkeypatch.undo()
    assert leftovers(disk)
    assert LocalDisk("ssd", tmp_path / "ssd").recover() == []
    for thread in late:
        thread.start()
    disk.close()
    assert leftovers(disk) == []


def test_several_may_empty_one_trash(tmp_path: Path) -> None:
    """Threads and processes that delete the same directories do not trip over one another."""
    for number in range(200):
        (tmp_path / "trash" / str(number)).mkdir(parents=True)
        (tmp_path / "trash" / str(number) / "file").write_bytes(b"x")
    bins = [Trash(tmp_path / "trash") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Trash.empty_soon, bins))
    for one in bins:
        one.wait()
    assert list((tmp_path / "trash").iterdir()) == []


def test_a_trash_that_cannot_be_emptied_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trash").mkdir()
    for number in range(2 * FEW):
        (tmp_path / "trash" / str(number)).mkdir()

    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("disks.local.trash.remove_tree", refuse)
    held = Trash(tmp_path / "trash")
    held.empty_soon()
    held.wait()
    monkeypatch.undo()
    held.empty_soon()
    held.wait()
    assert list((tmp_path / "trash").iterdir()) == []
