"""What every disk promises of its transactions (disks/base.py).

Guards I2 all or nothing, I8 links, P37 to P40, P61 hostile paths.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from disks.base import Disk
from oplog.errors import Conflict, Damaged, Refused
from oplog.kinds import Dropped, Inserted, Merged, OtherKind
from tests.contract.disks import Open, content, put
from tests.contract.disks import disk as disk
from tests.contract.disks import open_again as open_again


def test_files_are_visible_after_the_commit_and_not_before(disk: Disk) -> None:
    with disk.transaction(Inserted(), reason="test") as transaction:
        transaction.create("t/p1/part.json", b"{}")
        transaction.create("t/p1/a.parquet", b"a" * 20_000)
        assert not disk.exists("t/p1")
        assert list(disk.walk()) == []
        transaction.commit()
    assert content(disk) == {"t/p1/part.json": b"{}", "t/p1/a.parquet": b"a" * 20_000}
    assert disk.stat("t/p1/a.parquet").size_bytes == 20_000
    assert disk.exists("t/p1")
    assert disk.exists("t/p1/part.json")
    assert not disk.exists("t/p")


def test_an_abandoned_transaction_leaves_nothing(disk: Disk, open_again: Open) -> None:
    put(disk, {"a": b"1"})
    with disk.transaction(Inserted()) as transaction:
        transaction.create("b", b"2")
        transaction.remove("a")
    with pytest.raises(ZeroDivisionError), disk.transaction(Inserted()) as transaction:
        transaction.create("c", b"3")
        raise ZeroDivisionError
    assert content(disk) == {"a": b"1"}
    assert content(open_again()) == {"a": b"1"}
    assert disk.recover() == []


def test_an_ended_transaction_takes_no_more(disk: Disk) -> None:
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"1")
        transaction.commit()
        with pytest.raises(Refused):
            transaction.create("b", b"2")
        with pytest.raises(Refused):
            transaction.commit()
    assert disk.list() == ["a"]


def test_an_empty_transaction_commits_nothing(disk: Disk) -> None:
    before = disk.revision
    with disk.transaction(OtherKind("nothing")) as transaction:
        assert transaction.commit() is None
    assert disk.revision == before


def test_a_file_in_scratch_is_taken_over(disk: Disk, tmp_path: Path) -> None:
    with disk.transaction(Inserted()) as transaction:
        scratch = transaction.scratch()
        (scratch / "x").write_bytes(b"x" * 9_000)
        info = transaction.create("t/x", scratch / "x")
        transaction.commit()
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept" * 3_000)
    with disk.transaction(Inserted()) as transaction:
        transaction.create("t/y", outside)
        transaction.commit()
    assert info.size_bytes == 9_000
    assert not scratch.exists()
    assert outside.read_bytes() == b"kept" * 3_000
    assert content(disk) == {"t/x": b"x" * 9_000, "t/y": b"kept" * 3_000}


@pytest.mark.in_turn
@pytest.mark.parametrize("size", [10, 20_000])
def test_other_bytes_than_announced_are_refused(disk: Disk, size: int, tmp_path: Path) -> None:
    data = b"d" * size
    wrong = hashlib.sha256(b"other").hexdigest()
    file = tmp_path / "file"
    file.write_bytes(data)
    with disk.transaction(Inserted()) as transaction:
        for payload in (data, file):
            with pytest.raises(Damaged):
                transaction.create("t/a.json", payload, sha256=wrong)
        transaction.create("t/a.json", data, sha256=hashlib.sha256(data).hexdigest())
        transaction.commit()
    assert content(disk) == {"t/a.json": data}


def test_one_transaction_creates_renames_links_removes_in_order(disk: Disk) -> None:
    put(disk, {"t/old1/part.json": b"1", "t/old2/part.json": b"2", "t/keep": b"k"})
    with disk.transaction(Merged()) as transaction:
        transaction.create("tmp/part.json", b"merged")
        transaction.create("tmp/data", b"d")
        transaction.link("tmp/data", "tmp/data2")
        transaction.remove("t/old1")
        transaction.rename("tmp", "t/new")
        transaction.rename("t/old2", "t/old1")
        transaction.create("t/old2/part.json", b"again")
        transaction.link("t/keep", "t/kept")
        transaction.rename("t/keep", "u/keep")
        transaction.remove("t/new/data")
        transaction.commit()
    assert content(disk) == {
        "t/new/part.json": b"merged",
        "t/new/data2": b"d",
        "t/old1/part.json": b"2",
        "t/old2/part.json": b"again",
        "t/kept": b"k",
        "u/keep": b"k",
    }


@pytest.mark.in_turn
def test_a_removed_path_may_be_created_again(disk: Disk) -> None:
    put(disk, {"t/p/a": b"1", "t/p/b": b"1"})
    with disk.read_lease():
        with disk.transaction(OtherKind("replace")) as transaction:
            transaction.remove("t/p")
            transaction.create("t/p/a", b"2")
            transaction.commit()
        assert content(disk) == {"t/p/a": b"2"}
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("t/p/a")
            transaction.commit()
        assert content(disk) == {}
        put(disk, {"t/p/b": b"3"})
    assert content(disk) == {"t/p/b": b"3"}


def test_a_link_outlives_its_source(disk: Disk) -> None:
    put(disk, {"a": b"bytes" * 4_000})
    with disk.transaction(OtherKind("link")) as transaction:
        transaction.link("a", "b/c")
        transaction.commit()
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("a")
        transaction.commit()
    assert content(disk) == {"b/c": b"bytes" * 4_000}


CONFLICTS: dict[str, Callable[..., object]] = {
    "create over a file": lambda t: t.create("t/a", b"new"),
    "create over a directory": lambda t: t.create("t", b"new"),
    "create below a file": lambda t: t.create("t/a/b", b"new"),
    "create twice": lambda t: (t.create("n", b"1"), t.create("n", b"2")),
    "create below a new file": lambda t: (t.create("n", b"1"), t.create("n/m", b"2")),
    "remove what is not there": lambda t: t.remove("t/zz"),
    "remove twice": lambda t: (t.remove("t/a"), t.remove("t/a")),
    "rename what is not there": lambda t: t.rename("zz", "y"),
    "rename over a file": lambda t: t.rename("t/b", "t/a"),
    "rename over a directory": lambda t: t.rename("u", "t"),
    "rename below a file": lambda t: t.rename("u", "t/a/u"),
    "rename after a removal": lambda t: (t.remove("t"), t.rename("t/a", "y")),
    "rename within itself": lambda t: t.rename("t", "t/deeper"),
    "link from a directory": lambda t: t.link("t", "y"),
    "link from nothing": lambda t: t.link("zz", "y"),
    "link over a file": lambda t: t.link("t/a", "t/b"),
    "present file missing": lambda t: (t.require(present=("zz",)), t.create("n", b"")),
    "absent file there": lambda t: (t.require(absent=("t/a",)), t.create("n", b"")),
    "absent directory there": lambda t: (t.require(absent=("t",)), t.create("n", b"")),
    "required after its removal": lambda t: (t.remove("t/a"), t.require(absent=("t/a",))),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("case", CONFLICTS)
def test_conflicts_change_nothing(disk: Disk, open_again: Open, case: str) -> None:
    before = {"t/a": b"1", "t/b": b"2", "u/c": b"3"}
    put(disk, before)
    with pytest.raises(Conflict), disk.transaction(OtherKind("conflict")) as transaction:
        transaction.create("first", b"must not stay")
        CONFLICTS[case](transaction)
        transaction.commit()
    assert content(disk) == before
    assert content(open_again()) == before
    put(disk, {"afterwards": b"fine"})
    assert disk.exists("afterwards")


def test_preconditions_that_hold(disk: Disk) -> None:
    put(disk, {"t/a": b"1"})
    with disk.transaction(Inserted()) as transaction:
        transaction.require(present=("t", "t/a"), absent=("t/b", "u"))
        transaction.create("t/b", b"2")
        transaction.commit()
    assert disk.list("t") == ["a", "b"]


def test_revisions_count_commits(disk: Disk) -> None:
    if disk.revision is None:
        pytest.skip("this disk numbers no revisions")
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"")
        first = transaction.commit()
    with disk.transaction(Inserted()) as transaction:
        transaction.create("b", b"")
        second = transaction.commit()
    assert first is not None
    assert second is not None
    assert (first, second) == (1, 2) if disk.capabilities.dense_revisions else first < second
    assert disk.revision == second
    assert disk.stat("a").revision == first


@pytest.mark.in_turn
def test_creates_from_several_threads(disk: Disk) -> None:
    errors: list[BaseException] = []
    with disk.transaction(Inserted()) as transaction:

        def create(start: int) -> None:
            try:
                for number in range(start, start + 10):
                    transaction.create(f"t/{number:03}", b"%d" % number * 3_000)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=create, args=(start,)) for start in range(0, 40, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        transaction.commit()
    assert errors == []
    assert content(disk) == {f"t/{number:03}": b"%d" % number * 3_000 for number in range(40)}


def test_two_transactions_that_claim_one_path(disk: Disk, open_again: Open) -> None:
    other = open_again()
    with disk.transaction(OtherKind("one")) as first, other.transaction(OtherKind("two")) as second:
        first.create("same", b"first")
        second.create("same", b"second")
        first.commit()
        with pytest.raises(Conflict):
            second.commit()
    other.refresh()
    assert content(disk) == content(other) == {"same": b"first"}


@pytest.mark.in_turn
def test_concurrent_transactions_all_commit(disk: Disk, open_again: Open) -> None:
    """P40: writers race, each makes progress, none loses a commit."""
    errors: list[BaseException] = []

    def write(mine: Disk, writer: int) -> None:
        try:
            for number in range(5):
                put(mine, {f"w{writer}/{number}": b"x"})
        except BaseException as error:
            errors.append(error)

    disks = [disk, disk, open_again()]
    threads = [threading.Thread(target=write, args=(mine, writer)) for writer, mine in enumerate(disks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    expected = {f"w{writer}/{number}": b"x" for writer in range(3) for number in range(5)}
    for one in disks:
        one.refresh()
        assert content(one) == expected
    assert disk.revision in (None, 15) or not disk.capabilities.dense_revisions


@pytest.mark.in_turn
def test_readers_see_all_or_nothing(disk: Disk, open_again: Open) -> None:
    """I2: a reader beside a writer sees a part whole, before or after, never both parts and never none."""
    put(disk, {"t/p0/a": b"", "t/p0/b": b""})
    reader = open_again()
    stop = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append([info.path for info in reader.walk("t")])

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 15):
        with disk.transaction(Merged()) as transaction:
            transaction.create(f"t/p{number}/a", b"")
            transaction.create(f"t/p{number}/b", b"")
            transaction.remove(f"t/p{number - 1}")
            transaction.commit()
    stop.set()
    thread.join()
    assert seen
    allowed = [[f"t/p{number}/a", f"t/p{number}/b"] for number in range(15)]
    assert [paths for paths in seen if paths not in allowed] == []
