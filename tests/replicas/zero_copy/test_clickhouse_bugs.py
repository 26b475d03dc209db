"""What has cost users of ClickHouse's zero-copy replication their data, made here: nothing is lost, and nothing stays
for ever. The scenario of a bug has its number; each fails under a mistake of ours, which `sharing_bugs_mistakes` of
`tests.crash` makes:

| bug | what happened there | mistake of ours |
|---|---|---|
| 22864 | several S3 volumes: a part was looked for in the wrong one | stores are told apart by nothing |
| 33642, 57314 | every replica moved its own copy | nobody claims a move |
| 35348 | a fetch while the source drops the part | the source's own mark is not asked for |
| 39560 | a part with links was fetched by who does not know that it shares blobs | links are not marked |
| 40189 | a move to another shard: the blobs went with the old table | renames are not marked |
| 47274 | the parent node was missing, and the blobs were deleted | gc asks no other log |
| 49211 | mark and metadata were not one | marks come after the commit |
| 54193 | REPLACE, MOVE PARTITION: blobs went with what was replaced | a mark goes with its first file |
| 54426, 54550 | orphaned objects, orphaned marks | whatever has a set stays |
| 54859 | an uncommitted mutated part took the blobs of its source away | what is unknown counts as nothing |
| 71845 | the mark was set after the move | bytes before marks |
| 72933 | no node of the lock: taken for "nobody uses it" | gc believes a Keeper that lost its data |
| 95597 | files counted in a directory that was just renamed | the probe looks at one object alone |
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.collect import GcReport, collect
from disks.garbage.rules import GcRules
from disks.kinds import as_disk
from disks.object_disk import transaction as transactions
from oplog.errors import OutcomeUnknown
from oplog.log import OperationsLog
from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.marking import Marked, disk_transaction, listed, marked
from tests.replicas.zero_copy.marking import home as home
from tests.replicas.zero_copy.sharing import clean, cold_on_a, fetched, held
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.keeper.client import Keeper
from zerocopy.marks.nodes import ROOT, StoreNodes
from zerocopy.replica import sharing

__all__ = ["home", "machine"]

FIRST = "all_0_0_0"
LATER = timedelta(days=3)


class Died(BaseException):
    """As a kill would end it."""


def gc(one: Machine | Marked) -> GcReport:
    """As `gc --delete` in three days."""
    with Store.open(one.configuration) as store:
        disk = store.disk("s3")
        assert as_disk(disk, LoggedDisk) is not None
        marks = auditing.references(store.context, as_disk(disk, LoggedDisk))
        rules = GcRules(delete=True, max_delete_fraction=1.0)
        return collect(disk, rules, now=datetime.now(UTC) + LATER, references=marks)


def all_collect(*machines: Machine) -> None:
    """Each audits and collects what it may, in three days."""
    for one in machines:
        one.json("replica", "audit", "--repair")
    for one in machines:
        gc(one)


def both_have_it(a: Machine, b: Machine) -> None:
    a.insert(1, 2)
    with a.serving():
        b.sync()
        a.move(FIRST)
        b.move(FIRST)


def in_the_bucket(root: Path) -> set[str]:
    return {path.name for path in (root / "s3").iterdir() if "-file-" in path.name}


def test_22864_the_store_of_another_volume(
    a: Machine, tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], bucket: str
) -> None:
    a.insert(1, 2)
    a.move(FIRST)
    b = Machine(tmp_path, "b", settings, capsys, f"s3://{bucket}/other/", log="b")
    b.join("--policy", "cold")
    assert "which is another store" in fetched(a, b)


def test_33642_57314_every_replica_moves(
    a: Machine, b: Machine, machine: Any, bucket: str, s3_environment: Server
) -> None:
    both_have_it(a, b)
    assert len(blobs_in(bucket, s3_environment)) == 1
    clean(a, b)


def test_35348_a_fetch_while_the_source_drops_the_part(
    a: Machine, machine: Any, monkeypatch: pytest.MonkeyPatch, bucket: str, s3_environment: Server
) -> None:
    """It goes right after the objects were looked at."""
    b = cold_on_a(a, machine)
    original = sharing.probe

    def probe(*arguments: Any) -> Any:
        found = original(*arguments)
        a.move(FIRST, "ssd")
        return found

    monkeypatch.setattr(sharing, "probe", probe)
    assert "own mark is gone" in fetched(a, b)
    all_collect(a, b)
    assert blobs_in(bucket, s3_environment) == []
    assert (a.keys(), b.keys()) == ([1, 2], [1, 2])


def test_39560_a_part_with_links(home: Marked, keeper: Keeper, tmp_path: Path) -> None:
    """What it was made of goes; the links hold the objects."""
    with Store.open(home.configuration) as store:
        with disk_transaction(store) as transaction:
            transaction.create("x/p/one", b"bytes")
            transaction.commit()
        with disk_transaction(store) as transaction:
            transaction.link("x/p/one", "x/p_1/one")
            transaction.commit()
        with disk_transaction(store) as transaction:
            transaction.remove("x/p")
            transaction.commit()
    assert list(marked(keeper).values()) == [{"x/p_1"}]
    home.json("replica", "audit")
    assert gc(home).deleted == 0
    with Store.open(home.configuration) as store:
        assert store.disk("s3").read("x/p_1/one") == b"bytes"


def test_40189_a_part_goes_to_another_table(home: Marked, keeper: Keeper) -> None:
    """Marks follow the objects, not the table."""
    with Store.open(home.configuration) as store:
        with disk_transaction(store) as transaction:
            transaction.create("x/p/one", b"bytes")
            transaction.commit()
        with disk_transaction(store) as transaction:
            transaction.rename("x/p", "y/p")
            transaction.commit()
    assert list(marked(keeper).values()) == [{"y/p"}]
    home.json("replica", "audit")
    assert gc(home).deleted == 0
    with Store.open(home.configuration) as store:
        assert store.disk("s3").read("y/p/one") == b"bytes"


def test_47274_the_sets_node_is_missing(
    a: Machine, b: Machine, keeper: Keeper, bucket: str, s3_environment: Server
) -> None:
    """Keeper says nothing of the set any more, one replica has dropped it, and the other one's log names it."""
    both_have_it(a, b)
    for one in (a, b):
        one.json("replica", "audit")
    (store,) = keeper.children(ROOT)
    (name,) = held(keeper)
    keeper.delete_tree(StoreNodes(store).blob_set(name))
    a.move(FIRST, "ssd")
    gc(a)
    assert len(blobs_in(bucket, s3_environment)) == 1
    b("fsck", "--read-data")
    assert b.keys() == [1, 2]


def test_49211_a_kill_between_mark_and_commit(
    a: Machine, machine: Any, monkeypatch: pytest.MonkeyPatch, keeper: Keeper
) -> None:
    """Right after the entry is in the log, whatever comes next: what the log names is marked."""
    b = cold_on_a(a, machine)
    original = OperationsLog.append

    def append(log: OperationsLog, commit: Any) -> str:
        original(log, commit)
        if commit.reason.startswith("shared with"):
            raise Died
        return ""

    with monkeypatch.context() as killing:
        killing.setattr(OperationsLog, "append", append)
        with a.serving(), pytest.raises(Died):
            b.sync()
    assert [sorted(one.log for one in holders) for holders in held(keeper).values()] == [["a", "b"]]
    a.move(FIRST, "ssd")
    all_collect(a)
    with a.serving():
        b.sync()
    assert b.disks() == {FIRST: "s3"}
    b("fsck", "--read-data")


def test_54193_a_partition_is_replaced(home: Marked, keeper: Keeper) -> None:
    """In one commit the old part goes and one of links comes; then one of its two files goes."""
    with Store.open(home.configuration) as store:
        with disk_transaction(store) as transaction:
            transaction.reserve({"x/p/one": 5, "x/p/two": 5})
            transaction.create("x/p/one", b"bytes")
            transaction.create("x/p/two", b"bytes")
            transaction.commit()
        with disk_transaction(store) as transaction:
            for name in ("one", "two"):
                transaction.link(f"x/p/{name}", f"y/p/{name}")
            transaction.remove("x/p")
            transaction.commit()
        with disk_transaction(store) as transaction:
            transaction.remove("y/p/two")
            transaction.commit()
    assert list(marked(keeper).values()) == [{"y/p"}]
    home.json("replica", "audit")
    gc(home)
    with Store.open(home.configuration) as store:
        assert store.disk("s3").read("y/p/one") == b"bytes"


def test_54426_54550_what_a_dead_mover_left(home: Marked, keeper: Keeper, tmp_path: Path) -> None:
    """Its object and its set go, those of others stay."""
    home.insert(1, 2)
    home.to_bucket()
    before = in_the_bucket(tmp_path)
    with Store.open(home.configuration) as store:
        transaction: Any = disk_transaction(store)
        transaction.create("x/p/one", b"bytes")
        transaction.abandon()
    assert len(in_the_bucket(tmp_path)) == len(before) + 1
    home.json("replica", "audit")
    assert gc(home).deleted == 1
    assert in_the_bucket(tmp_path) == before
    assert len(marked(keeper)) == 1
    assert listed(keeper) == before
    assert home.keys() == [1, 2]


def test_54859_a_link_that_may_not_have_been_committed(
    home: Marked, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it gives up, and takes nothing away: it may be in the log."""
    original = OperationsLog.append

    def append(log: OperationsLog, commit: Any) -> str:
        original(log, commit)
        raise OutcomeUnknown("the answer was lost")

    with Store.open(home.configuration) as store:
        with disk_transaction(store) as transaction:
            transaction.create("x/p/one", b"bytes")
            transaction.commit()
        with disk_transaction(store) as transaction:
            transaction.link("x/p/one", "x/p_1/one")
            transaction.create("x/p_1/two", b"others")
            with monkeypatch.context() as lost:
                lost.setattr(OperationsLog, "append", append)
                with pytest.raises(OutcomeUnknown):
                    transaction.commit()
    directories = [directory for found in marked(keeper).values() for directory in found]
    assert sorted(directories) == ["x/p", "x/p_1", "x/p_1"]


def test_71845_the_mark_comes_before_the_first_byte(
    a: Machine, machine: Any, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.insert(1, 2)
    original = transactions.put_blob
    seen: list[bool] = []

    def put_blob(*arguments: Any, **named: Any) -> Any:
        seen.append(keeper.exists(ROOT) and named["key"] in listed(keeper) and bool(held(keeper)))
        return original(*arguments, **named)

    monkeypatch.setattr(transactions, "put_blob", put_blob)
    assert a.move(FIRST)["moved"]
    assert seen == [True]


def test_72933_no_node_says_nothing(
    a: Machine, b: Machine, keeper: Keeper, bucket: str, s3_environment: Server
) -> None:
    """Keeper knows nothing of any mark: nothing goes, also what no log names any more."""
    both_have_it(a, b)
    for one in (a, b):
        one.json("replica", "audit")
        one.move(FIRST, "ssd")
    keeper.delete_tree(ROOT)
    for one in (a, b):
        assert "lost its data" in str(gc(one).refused)
    assert len(blobs_in(bucket, s3_environment)) == 1
    all_collect(a, b)
    assert blobs_in(bucket, s3_environment) == []
    assert (a.keys(), b.keys()) == ([1, 2], [1, 2])


def test_95597_every_file_is_counted(home: Marked, keeper: Keeper, tmp_path: Path) -> None:
    """A directory is renamed while a link to one of its files comes: each file is looked at by its own row."""
    with Store.open(home.configuration) as store:
        logged = as_disk(store.disk("s3"), LoggedDisk)
        assert logged is not None
        with disk_transaction(store) as transaction:
            transaction.reserve({"x/p/one": 5, "x/p/two": 6})
            transaction.create("x/p/one", b"bytes")
            transaction.create("x/p/two", b"others")
            transaction.commit()
        with disk_transaction(store) as transaction:
            transaction.rename("x/p", "x/q")
            transaction.commit()
        rows = [store.disk("s3").file_table.get(f"x/q/{name}") for name in ("one", "two")]  # type: ignore[attr-defined]
        assert sharing.probe(logged, {"p": rows}) == {}
        for row in rows:
            kept = tmp_path / "s3" / row.key
            data = kept.read_bytes()
            kept.unlink()
            assert "is not there" in sharing.probe(logged, {"p": rows}).get("p", "")
            kept.write_bytes(data)
