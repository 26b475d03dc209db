"""What is killed: operations of two replicas on one machine, run in children of the fork server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.revision import BLOBS_PREFIX, is_blob_key
from tests.crash.harness import Failpoints, Mode, hooked
from tests.replicas.zero_copy import damaged_marks
from tiering.catalog.copies import copying
from tiering.config.settings import Config, InterserverConfig, KeeperConfig, LimitsConfig, PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table import definitions
from tiering.table.schema import Column, PartitionField, TableDefinition
from zerocopy.execution import auditing, following, moving, queue, work
from zerocopy.execution.steps import Done
from zerocopy.replica import lifecycle
from zerocopy.replica.bringing.landing import GroupCommit
from zerocopy.replica.connections import connections
from zerocopy.replica.inserts.staged_parts import ARRIVING
from zerocopy.replica.replica import Replica

TABLE = "d.t"
BEFORE = [(1, 10), (2, 20)]
NEW = [(1, 11), (2, 21)]
"""A block of two partitions."""
COLUMN = "added"
ONE = [(1, 12)]
"""Of the partition that is dropped, on one replica alone."""
LATER = [(1, 13)]
_RESERVE_BYTES = 16 * 1024
_PATIENCE_SECONDS = 60
_MARKED = ("take_over", "audit")
"""What goes on where replicas share objects by marks."""
_HOT = VolumeConfig(name="hot", disks=("ssd",))
_COLD = VolumeConfig(name="cold", disks=("s3",))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two replicas below a directory."""

    root: Path
    keeper: KeeperConfig

    def config(self, name: str) -> Config:
        home = self.root / name
        return Config(
            state_path=str(home / "state"),
            disks={
                "ssd": LocalDiskConfig(path=str(home / "ssd"), reserve_bytes=_RESERVE_BYTES),
                "s3": ObjectDiskConfig(url=f"{(self.root / 'bucket').as_uri()}/"),
                "own": ObjectDiskConfig(url=f"{(self.root / 'marked').as_uri()}/", log=name),
            },
            policies={
                "local": PolicyConfig(volumes=(_HOT,)),
                "cold": PolicyConfig(volumes=(_HOT, _COLD)),
                "marked": PolicyConfig(volumes=(_HOT, VolumeConfig(name="own", disks=("own",)))),
            },
            limits=LimitsConfig(state_reserve_bytes=_RESERVE_BYTES),
            keeper=self.keeper,
            interserver=InterserverConfig(port=0, secret="a-secret-of-the-tests"),
            macros={"shard": "01", "replica": name},
        )

    @contextmanager
    def open(self, name: str) -> Iterator[Store]:
        """The replica, its parts given to the other one."""
        with Store.open(self.config(name), actor="test", workers=1) as store:
            if any(definition.is_replicated for definition in store.definitions()):
                following.serve(store.context)
            yield store


def definition() -> TableDefinition:
    return TableDefinition(
        uuid="00000001-0000-4000-8000-000000000000",
        database="d",
        name="t",
        columns=(Column(id=1, name="p", type="int64"), Column(id=2, name="k", type="int64")),
        order_by=("k",),
        partition_by=(PartitionField(transform="identity", column="p"),),
        policy="local",
        last_column_id=2,
    )


def insert(store: Store, rows: Sequence[tuple[int, int]]) -> None:
    columns = {"p": pa.array([p for p, _ in rows]), "k": pa.array([k for _, k in rows])}
    store.table(TABLE).insert(pa.table(columns).to_batches())


def sync(store: Store) -> Done:
    return work.sync(store.context, store.definition(TABLE))


def rows(store: Store) -> list[tuple[int, int]]:
    found = store.table(TABLE).scan().read_all().to_pydict()
    return sorted(zip(found["p"], found["k"], strict=True))


def _insert(a: Store, b: Store) -> None:
    insert(a, NEW)


def _fetch(a: Store, b: Store) -> None:
    done = sync(b)
    assert not done.postponed, done.postponed


def _fetch_together(a: Store, b: Store) -> None:
    """All four parts by one commit: whoever lands first waits for the others."""
    original = GroupCommit._next

    def gathered(self: GroupCommit[Any]) -> list[Any]:
        end = time.monotonic() + _PATIENCE_SECONDS
        while 0 < len(self._waiting) < len(BEFORE + NEW) and time.monotonic() < end:
            time.sleep(0)  # the others are fetching
        return original(self)

    b.context.workers = len(BEFORE + NEW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupCommit, "_next", gathered)
        _fetch(a, b)


def _merge(a: Store, b: Store) -> None:
    a.merge(TABLE, MergeRequest(final=True))


def _fetch_merged(a: Store, b: Store) -> None:
    _fetch(a, b)


def _move(a: Store, b: Store) -> None:
    """Both partitions, until they are there; the other replica frees its disk."""
    a.refresh()
    hot = [stored.part.name for stored in a.parts(TABLE) if stored.disk == "ssd"]
    report = a.apply([move for part in hot for move in a.plan_manual_move(TABLE, part=part, to_disk="s3")])
    assert not report.failed, report.failed
    assert not report.skipped, report.skipped
    sync(b)


def _prepare_taken(a: Store, b: Store) -> None:
    """Four parts in the bucket of one replica, of which the other one has heard nothing."""
    _prepare_new(a, b)
    for partition in sorted({stored.name.partition for stored in a.parts(TABLE)}):
        assert not a.apply(a.plan_manual_move(TABLE, partition=partition, to_disk="own")).failed
    sync(a)


def _prepare_damaged(a: Store, b: Store) -> None:
    """Both name the same objects, and Keeper has lost marks of them."""
    _prepare_taken(a, b)
    _fetch(a, b)
    damaged_marks.damage(a)


def _audit(a: Store, b: Store) -> None:
    damaged_marks.repair(a)


def _drop(a: Store, b: Store) -> None:
    """The first partition, of which all is dropped already when this is repeated."""
    table = a.definition(TABLE)
    work.drop_partition(a.context, table, _first_partition(a), "drop it")
    done = sync(b)
    assert not done.postponed, done.postponed


def _delete(a: Store, b: Store) -> None:
    """The first partition's parts, of which a TTL rule says so."""
    first = _first_partition(a)
    due = {stored.part.name: "past its time" for stored in a.parts(TABLE) if stored.name.partition == first}
    work.delete_due(a.context, a.definition(TABLE), due)
    done = sync(b)
    assert not done.postponed, done.postponed


def _alter(a: Store, b: Store) -> None:
    """A column more, unless it is there already."""
    old = a.definition(TABLE)
    if COLUMN not in [column.name for column in old.columns]:
        a.alter_table(old, definitions.add_column(old, f"{COLUMN}:int64", default="7"))
    for store in (a, b):
        done = sync(store)
        assert not done.postponed, done.postponed


def _first_partition(store: Store) -> str:
    store.refresh()
    return min(stored.name.partition for stored in store.parts(TABLE))


def _prepare_cold(a: Store, b: Store) -> None:
    """A part in the bucket."""
    _prepare_merged_on_both(a, b)
    a.refresh()
    cold = next(stored.part.name for stored in a.parts(TABLE) if stored.name.partition == _first_partition(a))
    assert a.apply(a.plan_manual_move(TABLE, part=cold, to_disk="s3")).moved
    sync(b)


def _prepare_drop(a: Store, b: Store) -> None:
    """A part in the bucket, and one that one replica has alone."""
    _prepare_cold(a, b)
    insert(a, ONE)


def _recover(a: Store, b: Store) -> None:
    done = sync(b)
    assert not done.postponed, done.postponed


def _prepare_lost(a: Store, b: Store) -> None:
    """The other replica has yesterday's parts, and was given up."""
    _prepare_merged(a, b)
    replica = Replica.open(b.context, b.definition(TABLE))
    replica.keeper.set(replica.own.is_lost, b"1")


def _prepare_insert(a: Store, b: Store) -> None:
    insert(a, BEFORE)
    sync(b)


def _rebuild(a: Store, b: Store) -> None:
    """Both say what they have; the second one makes the table whole."""
    for store in (a, b):
        work.restore(store.context, store.definition(TABLE))


def _prepare_wiped(a: Store, b: Store) -> None:
    """One has merged, each has a part alone, and Keeper is empty."""
    insert(a, BEFORE)
    sync(b)
    insert(a, NEW)
    a.merge(TABLE, MergeRequest(final=True))
    insert(b, ONE)
    queue.pull(Replica.open(a.context, a.definition(TABLE)))  # it has heard of the other one
    connections(a.context).keeper.delete_tree("/tables")


def _prepare_new(a: Store, b: Store) -> None:
    insert(a, BEFORE)
    insert(a, NEW)


def _prepare_merged(a: Store, b: Store) -> None:
    insert(a, BEFORE)
    sync(b)
    insert(a, NEW)
    a.merge(TABLE, MergeRequest(final=True))


def _prepare_merged_on_both(a: Store, b: Store) -> None:
    _prepare_merged(a, b)
    sync(b)


OPERATIONS: Mapping[str, tuple[Callable[[Store, Store], None], Callable[[Store, Store], None]]] = {
    "insert": (_prepare_insert, _insert),
    "fetch": (_prepare_new, _fetch),
    "fetch_together": (_prepare_new, _fetch_together),
    "merge": (_prepare_new, _merge),
    "take_over": (_prepare_taken, _fetch),
    "audit": (_prepare_damaged, _audit),
    "fetch_merged": (_prepare_merged, _fetch_merged),
    "move": (_prepare_merged_on_both, _move),
    "recover": (_prepare_lost, _recover),
    "drop": (_prepare_drop, _drop),
    "delete": (_prepare_drop, _delete),
    "alter": (_prepare_cold, _alter),
    "rebuild": (_prepare_wiped, _rebuild),
}


@contextmanager
def _both(pair: Pair) -> Iterator[tuple[Store, Store]]:
    with ExitStack() as stack:
        yield stack.enter_context(pair.open("a")), stack.enter_context(pair.open("b"))


def act(operation: str, pair: Pair, mode: Mode, at: int) -> list[str]:
    """What the operation begins with, then the operation with the hook on; its effects."""
    hook = Failpoints(mode, at)
    with _both(pair) as (a, b):
        policy = "cold" if operation in ("move", "drop", "delete", "alter") else "local"
        policy = "marked" if operation in _MARKED else policy
        for store in (a, b):
            lifecycle.create(store.context, TABLE, definition(), policy, None, None, if_not_exists=False)
            following.serve(store.context)
        OPERATIONS[operation][0](a, b)
        with hooked(hook):
            OPERATIONS[operation][1](a, b)
    return hook.names


def examine(operation: str, pair: Pair) -> list[str]:
    """What is wrong after the next start, and after the operation was repeated."""
    if operation in ("drop", "delete"):
        return _examine_drop(operation, pair)
    if operation == "alter":
        return _examine_alter(pair)
    if operation == "rebuild":
        return _examine_rebuilt(pair)
    wrong: list[str] = []
    with _both(pair) as (a, b):
        if operation.startswith("fetch"):
            wrong += _said_too_early(b)
        for store in (a, b):
            sync(store)
        found = rows(a)
        if found not in (sorted(BEFORE), sorted(BEFORE + NEW)):
            wrong.append(f"half of the block: {found}")
        if operation != "insert" and len(found) != len(BEFORE + NEW):
            wrong.append(f"acknowledged rows are gone: {found}")
        if operation == "move" and rows(b) != found:
            wrong.append(f"the other replica answers {rows(b)}")
        if operation == "audit":
            wrong += damaged_marks.violations(a)
        OPERATIONS[operation][1](a, b)
        insert(b, NEW)  # on the other one, too: it is there already
        for store in (a, b, a):
            done = sync(store)
        wrong += [f"postponed: {one.reason}" for one in done.postponed]
        for name, store in (("a", a), ("b", b)):
            wrong += [f"{name}: {sentence}" for sentence in faults(store)]
            if operation == "move":
                wrong += [f"{name}: {sentence}" for sentence in _not_moved(store)]
            if operation in _MARKED:
                wrong += [f"{name}: {sentence}" for sentence in _not_shared(store)]
    if _files(pair, "a") != _files(pair, "b"):
        wrong.append("the replicas hold other files")
    return wrong


def _examine_drop(operation: str, pair: Pair) -> list[str]:
    """All of the partition is there, or none; once it is dropped, it is for good, and the same block is new; what TTL
    deleted is a duplicate still."""
    wrong: list[str] = []
    rest = [row for row in sorted(BEFORE + NEW) if row[0] != 1]
    with _both(pair) as (a, b):
        for store in (a, b, a):
            sync(store)
        found = rows(a)
        if found not in (rest, sorted(BEFORE + NEW + ONE)):
            wrong.append(f"half of the partition: {found}")
        if rows(b) != found:
            wrong.append(f"the other replica answers {rows(b)}, not {found}")
        if found != rest:
            OPERATIONS[operation][1](a, b)
        for name, store in (("a", a), ("b", b)):
            wrong += [f"{name}: {sentence}" for sentence in faults(store, rest)]
        insert(b, NEW)
        for store in (a, b, a):
            sync(store)
        again = sorted([NEW[0], *rest]) if operation == "drop" else rest
        for name, store in (("a", a), ("b", b)):
            wrong += [f"{name}, inserted again: {line}" for line in faults(store, again)]
    if _files(pair, "a") != _files(pair, "b"):
        wrong.append("the replicas hold other files")
    return wrong


def _examine_alter(pair: Pair) -> list[str]:
    """Both have the old definition or the new one; once it is altered, on every disk, and older parts follow it."""
    wrong: list[str] = []
    with _both(pair) as (a, b):
        for store in (a, b, a):
            sync(store)
        versions = {store.definition(TABLE).version for store in (a, b)}
        if len(versions) > 1:
            wrong.append(f"definitions of versions {versions}")
        _alter(a, b)
        for name, store in (("a", a), ("b", b)):
            wrong += [f"{name}: {sentence}" for sentence in faults(store)]
            table = store.definition(TABLE)
            if table.version != 2 or store.context.catalog.disks_lacking_definition(table):
                wrong.append(f"{name}: version {table.version} is not on every disk")
            if set(store.table(TABLE).scan().read_all().to_pydict()[COLUMN]) != {7}:
                wrong.append(f"{name}: the new column has other values")
            replica = Replica.open(store.context, table)
            if replica.keeper.get(replica.own.metadata_version).data != b"2":
                wrong.append(f"{name}: Keeper says that it has another definition")
    return wrong


def _examine_rebuilt(pair: Pair) -> list[str]:
    """Nobody writes before all is said; once it is, all that was acknowledged is there, once, and numbers go on."""
    wrong: list[str] = []
    with _both(pair) as (a, b):
        _rebuild(a, b)
        for store in (a, b, a):
            done = sync(store)
        wrong += [f"postponed: {one.reason}" for one in done.postponed]
        insert(a, NEW)
        insert(a, LATER)
        for store in (b, a):
            sync(store)
        expected = sorted(BEFORE + NEW + ONE + LATER)
        for name, store in (("a", a), ("b", b)):
            wrong += [f"{name}: {sentence}" for sentence in faults(store, expected)]
    if _files(pair, "a") != _files(pair, "b"):
        wrong.append("the replicas hold other files")
    return wrong


def replace(pair: Pair) -> list[str]:
    """What is wrong after the other replica made the moves of one that is dead, and that comes back then."""
    with pair.open("b") as b:
        _until_free(b)
    with _both(pair) as (a, b):
        sync(a)
        return [
            f"{name}: {sentence}"
            for name, store in (("a", a), ("b", b))
            for sentence in (*faults(store), *_not_moved(store))
        ]


def _until_free(store: Store) -> None:
    """Move what is left, as soon as the dead mover's session is over."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sync(store)
        hot = [stored.part.name for stored in store.parts(TABLE) if stored.disk == "ssd"]
        report = store.apply([move for part in hot for move in store.plan_manual_move(TABLE, part=part, to_disk="s3")])
        if not report.skipped:
            break
        assert all("moves parts" in skipped.reason for skipped in report.skipped), report.skipped


def faults(store: Store, expected: Sequence[tuple[int, int]] = tuple(sorted(BEFORE + NEW))) -> Iterator[str]:
    """Rows once each; the parts that Keeper knows are those that are here, whole; nothing waits, nothing is left."""
    store.refresh()
    table = store.definition(TABLE)
    replica = Replica.open(store.context, table)
    if rows(store) != list(expected):
        yield f"rows {rows(store)}"
    everything = store.parts(TABLE, include_outdated=True)
    if {stored.name for stored in everything} != replica.parts():
        yield f"parts {[stored.part.name for stored in everything]}, Keeper knows {sorted(map(str, replica.parts()))}"
    if waiting := queue.queue(replica):
        yield f"queued: {waiting}"
    if left := store.disk("ssd").list(f"{table.directory}/{ARRIVING}"):
        yield f"left over: {left}"
    for stored in everything:
        disk = store.disk(stored.disk)
        _, wanted = copying.read_part(disk, stored.directory)
        if not copying.is_complete(disk, stored.directory, wanted, proof=True):
            yield f"{stored.part.name} is not whole"


def _said_too_early(store: Store) -> Iterator[str]:
    """Parts that Keeper says are here and are not, nor what covers them; and those that nobody would bring."""
    replica = Replica.open(store.context, store.definition(TABLE))
    here = {stored.name for stored in store.parts(TABLE, include_outdated=True)}
    for said in replica.parts():
        if not any(one == said or one.covers(said) for one in here):
            yield f"Keeper says that {said} is here"


def _not_moved(store: Store) -> Iterator[str]:
    """What lies elsewhere than on the shared disk, and what a mover left."""
    for stored in store.parts(TABLE, include_outdated=True):
        if stored.disk != "s3":
            yield f"{stored.part.name} is on {stored.disk}"
    replica = Replica.open(store.context, store.definition(TABLE))
    while moving.busy(
        replica
    ):  # as every pass asks before it merges or drops: the dead one is replaced with its session
        replica.keeper.sync(replica.table.path)
    if replica.keeper.get(replica.table.mover).data or replica.keeper.children(replica.table.mover):
        yield "somebody is said to move"


def _not_shared(store: Store) -> Iterator[str]:
    """Parts that came with their bytes, and what the logs name without a mark."""
    for stored in store.parts(TABLE, include_outdated=True):
        if stored.disk != "own":
            yield f"{stored.part.name} is on {stored.disk}"
    disk = as_disk(store.disk("own"), LoggedDisk)
    assert disk is not None
    objects = {info.key for info in disk.store.list(BLOBS_PREFIX) if is_blob_key(info.key)}
    if objects != {info.key for info in disk.walk() if info.key is not None}:
        yield f"{len(objects)} objects"
    found = auditing.run(store.context, disk, repairs=False, dry_run=True)
    yield from (f"{one.kind} {one.what}" for one in found.differences)


def _files(pair: Pair, name: str) -> dict[str, bytes]:
    root = pair.root / name / "ssd" / "store"
    found = {}
    for path in root.glob("*/*/*/*"):
        if path.is_file():
            found[str(path.relative_to(root))] = path.read_bytes()
    return found


def near_changes(names: list[str]) -> list[int]:
    """Before each change in Keeper, and right after it."""
    changes = [at for at, name in enumerate(names, start=1) if name == "keeper.change"]
    return sorted({at + after for at in changes for after in (0, 1)} & set(range(1, len(names) + 1)))
