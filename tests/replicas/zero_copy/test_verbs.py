"""Marks are what the log names, after every verb: none of them knows of marks, transactions set them.

A verb that is new belongs into `VERBS`. Guards I4, I9 (P1, P3, P7)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disks import effects
from disks.kinds import with_commits
from disks.object_disk.history import TableAsOf
from disks.object_disk.sharing.prefix import log_in
from disks.stores.directory import DirectoryStore
from disks.stores.wrappers.named_log import NamedLogStore
from oplog.errors import Conflict, OutcomeUnknown
from oplog.log import OperationsLog
from tests.replicas.zero_copy.marking import Marked, disk_transaction, listed, marked
from tests.replicas.zero_copy.marking import home as home
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.keeper.client import Keeper
from zerocopy.marks import census
from zerocopy.marks.nodes import ROOT, StoreNodes
from zerocopy.replica import sharing

ALL = ("--partition", "all")


def insert(home: Marked) -> None:
    home.insert(1, 2, 3)


def two_in_the_bucket(home: Marked) -> None:
    for keys in ((1, 2, 3), (2, 4)):
        home.insert(*keys)
    home.to_bucket()


def move_back(home: Marked) -> None:
    home.to_bucket("ssd")


def cold_merge(home: Marked) -> None:
    home("merge", "d.t", "--cold")


def detach(home: Marked) -> None:
    home("partition", "detach", "d.t", "all")


def attach(home: Marked) -> None:
    detach(home)
    home("partition", "attach", "d.t", "all")


def drop_partition(home: Marked) -> None:
    home("partition", "drop", "d.t", "all")


def drop_table(home: Marked) -> None:
    home("table", "drop", "d.t")


def undo_of_a_drop(home: Marked) -> None:
    drop_partition(home)
    home("undo", "s3", str(home.head()))


def restore(home: Marked) -> None:
    head = home.head()
    drop_partition(home)
    home("restore", "s3", "--revision", str(head), "--apply")


def rebuild(home: Marked) -> None:
    shutil.rmtree(home.path / "state" / "disks" / "s3")
    home("disk", "adopt", "s3")
    home("restore", "s3", "--apply")


def move_more(home: Marked) -> None:
    home.insert(7)
    home.to_bucket()


def replace_partitions(home: Marked) -> None:
    source = home.path / "rows.csv"
    source.write_text("k\n8\n9\n")
    home("insert", "d.t", str(source), "--replace-partitions")


def rename_table(home: Marked) -> None:
    home("table", "rename", "d.t", "d.other")


def merge(home: Marked) -> None:
    home("merge", "d.t", "--final")


VERBS: tuple[Callable[[Marked], None], ...] = (
    move_more, move_back, cold_merge, detach, attach, drop_partition, drop_table, undo_of_a_drop, restore, rebuild,
    replace_partitions, rename_table, merge,
)  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_marks_are_what_the_log_names(verb: Callable[[Marked], None], home: Marked, keeper: Keeper) -> None:
    two_in_the_bucket(home)
    assert marked(keeper) == home.named()
    assert len(marked(keeper)) == 2
    verb(home)
    assert marked(keeper) == home.named()
    (found,) = home.json("replica", "audit", "--dry-run")["audits"]
    assert (found["differences"], found["marks"]) == ([], sum(found["logs"].values()))


class Watch:
    """Looks before and after every effect, as a kill there would leave it: what the log names is marked, and what goes
    up is listed by a set that is."""

    def __init__(self, root: Path, keeper: Keeper, *, uploads: bool) -> None:
        self.root, self.keeper, self.uploads = root / "s3", keeper, uploads
        self.before = self.blobs()
        self.looks = 0
        self.lacking: list[str] = []
        self._seen: tuple[frozenset[str], frozenset[str]] | None = None
        self._busy = False

    def blobs(self) -> frozenset[str]:
        return frozenset(path.name for path in self.root.iterdir() if "-file-" in path.name)

    def __call__(self, moment: str, name: str, arguments: tuple[object, ...]) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            self.look(name, moment)
        finally:
            self._busy = False

    def look(self, name: str, moment: str) -> None:
        entries = frozenset(path.name for path in (self.root / "logs" / "a" / "operations").iterdir())
        there = (entries, self.blobs())
        if there == self._seen and name != "keeper.change":
            return
        self._seen, self.looks = there, self.looks + 1
        marks = marked(self.keeper)
        past = TableAsOf(log_in(NamedLogStore(DirectoryStore(self.root, read_only=True), "a")))
        past.advance()
        for row in past.rows():
            if row.blob_set is not None and row.path.rpartition("/")[0] not in marks.get(row.blob_set, ()):
                self.lacking.append(f"{moment} {name}: no mark of {row.path}")
        past.close()
        if self.uploads:
            new = there[1] - self.before - listed(self.keeper)
            self.lacking += [f"{moment} {name}: {key} went up before its mark" for key in new]


@pytest.mark.in_turn
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_wherever_it_is_killed_no_mark_is_missing(
    verb: Callable[[Marked], None], home: Marked, keeper: Keeper, tmp_path: Path
) -> None:
    """What writes of data frames and cold merges upload is marked before the commit looks at it; all else before its
    first byte."""
    two_in_the_bucket(home)
    watch = Watch(tmp_path, keeper, uploads=verb not in (cold_merge, replace_partitions))
    effects.set_hook(watch)
    try:
        verb(home)
    finally:
        effects.set_hook(None)
    assert watch.looks
    assert watch.lacking == []


def nobody(home: Marked, settings: KeeperConfig) -> None:
    """From now on Keeper does not answer."""
    silent = msgspec.structs.replace(settings, hosts=("127.0.0.1:9",))
    home.know(silent, request_timeout_seconds=1, session_timeout_seconds=5)


@pytest.mark.in_turn
def test_without_keeper_nothing_goes_up(home: Marked, keeper: Keeper, settings: KeeperConfig, tmp_path: Path) -> None:
    home.insert(1, 2)
    nobody(home, settings)
    (failed,) = home.json("move", "d.t", *ALL, "--to-disk", "s3", code=5)["failed"]
    assert "Keeper" in failed["error"]
    assert not [path for path in (tmp_path / "s3").iterdir() if "-file-" in path.name]
    assert home.keys() == [1, 2]


@pytest.mark.in_turn
def test_without_keeper_a_drop_leaves_the_mark(home: Marked, keeper: Keeper, settings: KeeperConfig) -> None:
    """The audit finds it."""
    two_in_the_bucket(home)
    before = marked(keeper)
    nobody(home, settings)
    drop_partition(home)
    assert home.keys() == []
    assert marked(keeper) == before


def test_a_set_that_is_gone_is_not_made_by_the_way(home: Marked, keeper: Keeper) -> None:
    """P3: neither a rename nor an undo makes it; the audit does, of what logs name."""
    two_in_the_bucket(home)
    named = home.named()
    (store,) = keeper.children(ROOT)
    for one in census.sets(keeper, StoreNodes(store)):  # these alone: what is above them says which Keeper it is
        keeper.delete_tree(StoreNodes(store).blob_set(one.name))
    home("partition", "detach", "d.t", "all", code=10)
    assert "replica audit --repair" in home.error
    assert home.named() == named
    assert marked(keeper) == {}
    home.json("replica", "audit", "--repair")
    assert marked(keeper) == named
    detach(home)
    assert marked(keeper) == home.named()


def test_a_store_without_checksums_is_asked_once_a_file(home: Marked, keeper: Keeper, tmp_path: Path) -> None:
    """Of each part one object is read, which tells that it is there, how large it is and whose bytes it has."""
    parts = {f"p{number}": {"large": b"l" * 90, "small": b"s" * (number + 1)} for number in range(4)}
    with Store.open(home.configuration) as store:
        logged = with_commits(store.disk("s3"))
        sizes = {f"x/{part}/{name}": len(data) for part, files in parts.items() for name, data in files.items()}
        with disk_transaction(store) as transaction:
            transaction.reserve(sizes)
            for part, files in parts.items():
                for name, data in files.items():
                    transaction.create(f"x/{part}/{name}", data)
            transaction.commit()
        rows = {part: list(logged.file_table.rows(f"x/{part}")) for part in parts}  # type: ignore[attr-defined]
        before = logged.store.counts()  # type: ignore[attr-defined]
        assert sharing.probe(logged, rows) == {}
        spent = {verb: count - before[verb] for verb, count in logged.store.counts().items()}  # type: ignore[attr-defined]
        assert (spent["GET"], spent["HEAD"]) == (4, 4)
        for row in (row for of_part in rows.values() for row in of_part):
            place = tmp_path / "s3" / str(row.key)
            data = place.read_bytes()
            part, name = row.path.split("/")[1:]
            for wrong, why in ((None, "is not there"), (data + b"!", "object"), (data[:-1], "object")):
                place.unlink() if wrong is None else place.write_bytes(wrong)
                assert why in sharing.probe(logged, rows)[part]
                assert list(sharing.probe(logged, rows)) == [part]
            if name == "small":
                place.write_bytes(b"x" * len(data))
                assert "does not have the bytes" in sharing.probe(logged, rows)[part]
            place.write_bytes(data)


def test_what_was_abandoned_is_not_marked(home: Marked, keeper: Keeper) -> None:
    with Store.open(home.configuration) as store:
        with disk_transaction(store) as transaction:
            transaction.reserve({"x/p/one": 5, "x/p/two": 5, "x/q/one": 5, "x/p/small.json": 5})
            transaction.create("x/p/one", b"bytes")
            assert sorted(map(sorted, marked(keeper).values())) == [["x/p"], ["x/q"]]
            assert len(listed(keeper)) == 3
            transaction.create("x/r/unforeseen", b"bytes")
            assert sorted(map(sorted, marked(keeper).values())) == [["x/p"], ["x/q"], ["x/r"]]
        assert marked(keeper) == {}
        with disk_transaction(store) as transaction:
            transaction.reserve({"x/p/one": 5, "x/q/one": 5})
            transaction.create("x/p/one", b"bytes")
            transaction.commit()
    assert list(marked(keeper).values()) == [{"x/p"}]


def test_a_file_of_a_set_that_stays_keeps_its_mark(home: Marked, keeper: Keeper) -> None:
    with Store.open(home.configuration) as store:
        with disk_transaction(store) as transaction:
            transaction.reserve({"x/p/one": 5, "x/p/two": 5})
            transaction.create("x/p/one", b"bytes")
            transaction.create("x/p/two", b"bytes")
            transaction.commit()
        for step, directories in (
            (lambda one: one.link("x/p/one", "x/q/one"), {"x/p", "x/q"}),
            (lambda one: one.remove("x/p/one"), {"x/p", "x/q"}),
            (lambda one: one.rename("x/p", "x/r"), {"x/q", "x/r"}),
            (lambda one: one.remove("x/r"), {"x/q"}),
            (lambda one: one.remove("x/q"), set()),
        ):
            with disk_transaction(store) as transaction:
                step(transaction)
                transaction.commit()
            assert set().union(*marked(keeper).values()) == directories


def test_a_commit_that_is_refused_takes_back_what_it_made(home: Marked, keeper: Keeper) -> None:
    with Store.open(home.configuration) as store, disk_transaction(store) as transaction:
        transaction.require(present=("nothing/like/it",))
        transaction.create("x/p/one", b"bytes")
        with pytest.raises(Conflict):
            transaction.commit()
        transaction.abandon()
        assert marked(keeper) == {}


def test_a_commit_of_which_nobody_knows_leaves_its_marks(
    home: Marked, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(home.configuration) as store:
        original = OperationsLog.append

        def append(log: OperationsLog, commit: Any) -> str:
            original(log, commit)
            raise OutcomeUnknown("the answer was lost")

        with disk_transaction(store) as transaction:
            transaction.create("x/p/one", b"bytes")
            monkeypatch.setattr(OperationsLog, "append", append)
            with pytest.raises(OutcomeUnknown):
                transaction.commit()
    assert list(marked(keeper).values()) == [{"x/p"}]
