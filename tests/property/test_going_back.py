"""A disk's past by way of its present is the one that the log gives, whatever was done (I7, P38)."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import permutations
from pathlib import Path

import pytest

from disks.base import Fingerprint
from disks.file_table import gone_rows, views
from disks.file_table.table import FileTable
from disks.object_disk.disk import DiskAsOf, ObjectDisk
from disks.stores.memory import MemoryStore
from oplog.errors import FrostlineError
from oplog.kinds import Moved
from oplog.replay import FileRow

pytestmark = pytest.mark.in_turn

DIRECTORIES = ("t", "t/a", "t/b", "t/b-", "u", "é")


def work(disk: ObjectDisk, dice: random.Random, number: int) -> None:
    """One commit of some operations; none where they do not fit."""
    paths = [info.path for info in disk.walk()]
    there = sorted({*paths, *(path.rpartition("/")[0] for path in paths)} - {""}) or ["t"]
    with suppress(FrostlineError), disk.transaction(Moved()) as transaction:
        for turn in range(dice.randint(1, 4)):
            new = f"{dice.choice(DIRECTORIES)}/{dice.randrange(4)}"
            match dice.randrange(6):
                case 0:
                    transaction.remove(dice.choice(there))
                case 1:
                    transaction.rename(dice.choice(there), new)
                case 2 if paths:
                    transaction.link(dice.choice(paths), f"{new}/linked.json")
                case _:
                    transaction.create(f"{new}/f.json", f"{number} {turn}".encode())
        transaction.commit()


def rows(disk: ObjectDisk, revision: int) -> list[FileRow]:
    with closing(disk.table_at(revision)) as table:
        return list(table.rows())


def shown(table: FileTable) -> dict[str, object]:
    """What a table tells, by other questions than for all of its rows."""
    with table.read() as view:
        return {
            "children": [(directory, view.children(directory)) for directory in ("", *DIRECTORIES)],
            "named": [[*view.named(directory, "f.json")] for directory in ("", *DIRECTORIES)],
            "versions": [[*view.versions("t", "f.json")], [*view.versions("t", "f.json", ["1", "b", "3"])]],
            "sums": (view.count(), view.used_bytes(), sorted(view.blobs())),
            "head": view.head(),
        }


def check(disk: ObjectDisk, first: int) -> None:
    """From the revision `first` on each leads back, and all of them are as the log has them."""
    for revision in range(1, disk.revision + 1):
        past = disk.cache.past_table(revision)
        assert (past is not None) == (revision >= first), revision
        with closing(disk.at(revision, briefly=True)) as then, closing(disk.table_at(revision)) as replayed:
            assert list(then.file_table.rows()) == list(replayed.rows()), revision
            assert shown(then.file_table) == shown(replayed), revision
            assert all(then.file_table.get(row.path) == row for row in replayed.rows())
        if past is not None:
            past.close()


def history(disk: ObjectDisk, seed: int, commits: int = 14) -> None:
    dice = random.Random(seed)
    for number in range(commits):
        work(disk, dice, number)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ObjectDisk]:
    with closing(ObjectDisk("s3", MemoryStore("m"), tmp_path / "state", snapshot_every_commits=4)) as disk:
        yield disk


@pytest.mark.parametrize("seed", range(6))
def test_each_revision_is_that_of_the_log(disk: ObjectDisk, seed: int) -> None:
    history(disk, seed)
    assert disk.revision > 5
    check(disk, first=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_table_that_was_lost_leads_back_to_where_it_was_begun(disk: ObjectDisk, seed: int, tmp_path: Path) -> None:
    history(disk, seed, 6)
    with closing(ObjectDisk("s3", disk.store, tmp_path / "anew", snapshot_every_commits=4)) as anew:
        begun = anew.revision
        history(anew, seed + 10, 6)
        with anew.file_table.read() as view:
            assert int(view.state()[views.SINCE]) <= begun
        check(anew, first=int(_state(anew)[views.SINCE]))


def test_of_many_rows_the_last_lead_back(disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_GONE", 8)
    monkeypatch.setattr(views, "_LOOKED_AT_EVERY", 1)
    history(disk, 1, 24)
    assert len(_gone(disk)) <= 8
    first = int(_state(disk)[views.SINCE])
    assert 1 < first < disk.revision
    check(disk, first)


def test_a_table_of_an_older_layout_leads_to_its_next_commit(disk: ObjectDisk, tmp_path: Path) -> None:
    history(disk, 2, 8)
    disk.close()
    with closing(sqlite3.connect(tmp_path / "state" / "files.db")) as table:
        table.executescript(
            "DROP INDEX gone_until; DROP TABLE gone; DROP INDEX file_revisions; PRAGMA user_version = 3"
        )
        table.execute("DELETE FROM state WHERE name = ?", (views.SINCE,))
        table.commit()
    with closing(ObjectDisk("s3", disk.store, tmp_path / "state")) as later:
        before = later.revision
        check(later, first=before + 1)
        history(later, 3, 6)
        check(later, first=before + 1)


@pytest.mark.parametrize(
    "harm", ["DELETE FROM gone", "UPDATE gone SET until = until + 1", "UPDATE gone SET sha256 = X'00'"]
)
def test_rows_that_do_not_lead_to_the_log_s_state_are_not_used(disk: ObjectDisk, harm: str, tmp_path: Path) -> None:
    history(disk, 4)
    wanted = {revision: rows(disk, revision) for revision in range(1, disk.revision + 1)}
    with closing(sqlite3.connect(tmp_path / "state" / "files.db")) as table:
        assert table.execute(harm).rowcount > 0
        table.commit()
    passed_over = 0
    for revision, known in wanted.items():
        with closing(disk.at(revision, briefly=True)) as past:
            assert list(past.file_table.rows()) == known
        passed_over += disk.cache.past_table(revision) is None
    assert passed_over > 0


def test_a_commit_that_fails_leaves_no_row_behind(disk: ObjectDisk) -> None:
    history(disk, 5)
    before = _gone(disk)
    with pytest.raises(RuntimeError), disk.file_table.write() as view:
        assert view.remove("t") + view.remove("u") > 0
        assert view.connection.execute("SELECT count(*) FROM gone").fetchone()[0] > len(before)
        raise RuntimeError
    assert _gone(disk) == before


def test_what_is_committed_meanwhile_does_not_change_the_past(
    disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where what leads back is forgotten."""
    history(disk, 6)
    monkeypatch.setattr(views, "MOST_GONE", 0)
    monkeypatch.setattr(views, "_LOOKED_AT_EVERY", 1)
    revision = disk.revision - 1
    wanted = rows(disk, revision)
    with closing(disk.at(revision, briefly=True)) as past:
        history(disk, 7)
        assert disk.cache.past_table(revision) is None
        assert list(past.file_table.rows()) == wanted


def test_the_past_of_a_damaged_present_is_read_from_the_log(disk: ObjectDisk) -> None:
    history(disk, 8)
    revision = disk.revision - 1
    wanted = rows(disk, revision)
    with closing(disk.at(revision, briefly=True)) as past:
        past.file_table._writer.execute("DROP VIEW temp.files")
        past.file_table._writer.execute("CREATE TEMP VIEW files AS SELECT * FROM no_such_table")
        assert past.list("") == sorted({f"{row.path.partition('/')[0]}/" for row in wanted})
        assert list(past.file_table.rows()) == wanted
    assert disk.cache.path.exists()


def _looked(disk: ObjectDisk | DiskAsOf, directory: str) -> tuple[Fingerprint | None, dict[str, object]]:
    found = disk.look_over(directory, "f.json", {})
    return disk.state_of(directory), {
        file.path.split("/")[-2]: (file.path, file.fingerprint, file.data) for file in found
    }


@pytest.mark.parametrize("seed", range(4))
def test_what_is_another_at_two_revisions_is_among_what_changed(disk: ObjectDisk, seed: int) -> None:
    history(disk, seed, 10)
    looks = {}
    for revision in range(1, disk.revision + 1):
        with closing(disk.at(revision, briefly=True)) as past:
            looks[revision] = {directory: _looked(past, directory) for directory in ("t", "u")}
    told = 0
    for one, other in permutations(looks, 2):
        with closing(disk.at(other, briefly=True)) as past:
            for directory in ("t", "u"):
                (before, left), (after, right) = looks[one][directory], looks[other][directory]
                assert before is not None
                assert after is not None
                changed = past.changed_between(directory, before, after)
                assert changed is not None
                assert {name for name in {*left, *right} if left.get(name) != right.get(name)} <= changed
                told += len(changed)
                assert past.changed_between(directory, (before[0], f"{before[0]} {'0' * 64}"), after) is None
                assert disk.changed_between(directory, before, after) is None or other == disk.revision
    assert told > 0


def test_of_too_much_nobody_is_told_what_changed(disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    history(disk, 1, 10)
    with closing(disk.at(1, briefly=True)) as past:
        before = past.state_of("t")
    now = disk.state_of("t")
    assert before is not None
    assert now is not None
    assert disk.changed_between("t", before, now)
    monkeypatch.setattr(gone_rows, "MOST_CHANGED", 2)
    assert disk.changed_between("t", before, now) is None


def _gone(disk: ObjectDisk) -> list[tuple[object, ...]]:
    with disk.file_table.read() as view:
        return view.connection.execute("SELECT * FROM gone ORDER BY path, revision").fetchall()


def _state(disk: ObjectDisk) -> dict[str, str]:
    with disk.file_table.read() as view:
        return view.state()
