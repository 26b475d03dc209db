"""Random work on tables that lie on an SSD and in buckets, and each way back is taken back: rows and trees are what
they were. Nothing doubles a row, and a refusal changes nothing and names what to do.

Guards I1, I2, I7, I17 and I18. A seed is a history; `python -m tests.property.test_ways_back FIRST COUNT` tries many.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from disks.base import Disk
from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.contracts.bucket_disk import LoggedDisk
from oplog.errors import AlreadyExists, FrostlineError, NotFound, Refused
from restore.history.undo import preview, undo
from restore.rebuild.definitions import NAMES_DIRECTORY
from restore.rebuild.elsewhere import look_around
from restore.rebuild.rebuild import located, restore
from restore.rebuild.request import RebuildRequest
from tests.turns import due
from tiering.catalog import tables
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table import schema, tombstones
from tiering.table.definitions import define_table
from tiering.table.paths import locate
from tiering.table.schema import Column, TableDefinition
from tiering.table.tombstones import essence

STEPS = 16
FOUND = (7009, 7109, 7151, 7163, 7251)
"""Histories that found something: a name that was gone, the wrong table named, a hidden table shown."""
TABLES = ("d.t", "d.u")
_MARKS = re.compile(r"/(?:blocks|levels|altered)-\d+\.json\Z")

Answer = dict[str, list[int]]
Trees = dict[str, dict[str, object]]


def config(root: Path, buckets: int) -> Config:
    """An SSD and so many buckets, one behind the other."""
    names = [f"s{number}" for number in range(1, buckets + 1)]
    disks: dict[str, LocalDiskConfig | ObjectDiskConfig] = {"ssd": LocalDiskConfig(path=str(root / "ssd"))}
    disks |= {name: ObjectDiskConfig(url=f"{(root / name).as_uri()}/", snapshot_every_commits=7) for name in names}
    volumes = tuple(VolumeConfig(name=f"v_{name}", disks=(name,)) for name in disks)
    return Config(state_path=str(root / "state"), disks=disks, policies={"tiers": PolicyConfig(volumes=volumes)})


class History:
    """One store, and what has been done to it. Each step opens it anew, as each command does."""

    def __init__(self, root: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.config = config(root, 1 + seed % 2)
        self.buckets = [name for name in self.config.disks if name != "ssd"]
        self.told: list[str] = []
        self.next_key = 0
        self.batches: dict[tuple[str, int], list[range]] = {}
        self.ways_back = 0
        self.taken_back = 0

    @contextmanager
    def open(self) -> Iterator[Store]:
        with Store.open(self.config, actor="somebody@here") as store:
            yield store

    def run(self, steps: int = STEPS) -> None:
        with self.open() as store:
            self.create(store, "d.t")
        for _ in range(steps):
            if self.dice.random() < 0.4:
                self.way_back()
            else:
                self.work()
            self.check_rows()

    # -- work ----------------------------------------------------------------------------------------------------

    def work(self) -> None:
        dice = self.dice
        with self.open() as store:
            known = [definition.full_name for definition in store.definitions()]
            lacking = [name for name in TABLES if name not in known]
            if lacking and (not known or dice.random() < 0.3):
                self.create(store, lacking[0])
                return
            name = dice.choice(known)
            parts = store.parts(name)
            match dice.randrange(9):
                case 0 | 1 | 2:
                    self.insert(store, name)
                case 3 | 4 | 5 if parts:
                    self.move(store, name)
                case 6 if parts:
                    self.tell(f"merge {name}")
                    store.merge(name, MergeRequest(final=True))
                case 7 if parts and dice.random() < 0.7:
                    part = dice.choice(parts)
                    self.tell(f"drop {part.part.name} of {name} on {part.disk}")
                    tables.drop_parts(store.context, [part], reason="a rule", by_ttl=True)
                case 7:
                    self.tell(f"drop {name}")
                    store.drop_table(name)
                case _:
                    self.alter(store, name)

    def tell(self, what: str) -> None:
        self.told.append(what)

    def create(self, store: Store, name: str) -> None:
        self.tell(f"create {name}")
        columns = ["k:int64", "p:int64"]
        table = define_table(name, columns=columns, order_by="k", partition_by="p", policy="tiers")
        try:
            store.create_table(table)
        except AlreadyExists as error:  # of a table that a way back hid: the hint says what to do
            hidden = error.hint.rpartition(" ")[2] if error.hint else ""
            self.tell(f"  drop {hidden}")
            store.drop_table(hidden)  # not found, unless it was told rightly
            store.create_table(table)

    def insert(self, store: Store, name: str) -> None:
        definition = store.definition(name)
        repeated = self.batches.setdefault((definition.uuid, definition.schema_version), [])
        if repeated and self.dice.random() < 0.4:  # known again as long as the columns are what they were
            batch = self.dice.choice(repeated)
        else:
            batch = range(self.next_key, self.next_key + self.dice.randrange(1, 4))
            self.next_key = batch.stop
            repeated.append(batch)
        self.tell(f"insert {batch} into {name}")
        rows = pa.table({"k": list(batch), "p": [batch.start % 2] * len(batch)})
        store.table(name).insert(rows.to_batches())

    def move(self, store: Store, name: str) -> None:
        part = self.dice.choice(store.parts(name))
        target = self.dice.choice([disk for disk in self.config.disks if disk != part.disk])
        self.tell(f"move {part.part.name} of {name} from {part.disk} to {target}")
        store.apply(store.plan_manual_move(name, part=part.part.name, to_disk=target))

    def alter(self, store: Store, name: str) -> None:
        old = store.definition(name)
        number = old.last_column_id + 1
        self.tell(f"alter {name}: column {number}")
        column = Column(id=number, name=f"c{number}", type="int64", nullable=True)
        new = msgspec.structs.replace(
            old,
            columns=(*old.columns, column),
            last_column_id=number,
            version=old.version + 1,
            schema_version=old.schema_version + 1,
        )
        store.alter_table(old, new)

    # -- ways back -----------------------------------------------------------------------------------------------

    def way_back(self) -> None:
        name = self.dice.choice(self.buckets)
        before = self.state()
        with self.open() as store:
            disk = store.object_disk(name)
            head = disk.revision
            if head == 0:
                return
            if self.dice.random() < 0.5:
                done = self.restore(store, disk)
            else:
                done = self.undo(store, disk, self.dice.randrange(1, head + 1))
        if done is None:
            after = self.state()
            assert after == before, f"it did nothing, and yet: {difference(before, after)}"
            return
        self.ways_back += 1
        between = self.state()
        self.take_back(name, done, before)
        if between != before and self.dice.random() < 0.6:
            with self.open() as store:
                again = store.object_disk(name).revision
            self.take_back(name, again, between)

    def restore(self, store: Store, disk: LoggedDisk) -> int | None:
        dice = self.dice
        revision = dice.randrange(0, disk.revision + 1)
        names = [definition.full_name for definition in store.definitions()]
        chosen: tuple[str, ...] = ()
        partitions: tuple[str, ...] = ()
        if names and dice.random() < 0.6:
            chosen = (dice.choice(names),)
            if dice.random() < 0.4:
                partitions = (str(dice.randrange(2)),)
        self.tell(f"restore {disk.name} to {revision} {' '.join((*chosen, *partitions))}")
        look = partial(look_around, store.context)
        try:
            request = located(disk, RebuildRequest(revision=revision, tables=chosen, partitions=partitions))
        except NotFound:
            return None  # the table was not there then
        seen = restore(disk, request, look=look)
        if seen.objection:
            with pytest.raises(Refused) as refused:
                restore(disk, replace(request, apply=True), look=look)
            assert refused.value.hint
            self.tell(f"  refused: {seen.objection}")
            return None
        result = restore(disk, replace(request, apply=True), look=look)
        assert (seen.difference, seen.left_out) == (result.difference, result.left_out)
        return result.commit

    def undo(self, store: Store, disk: LoggedDisk, revision: int) -> int | None:
        self.tell(f"undo {revision} of {disk.name}")
        seen = preview(store.context, disk, revision)
        if seen.objections:
            with pytest.raises(Refused) as refused:
                undo(store.context, disk, revision)
            self.check_hint(revision, refused.value)
            assert "store/" not in refused.value.message
            self.tell(f"  refused: {refused.value.message}; {refused.value.hint}")
            return None
        _, done = undo(store.context, disk, revision)
        return done

    def check_hint(self, revision: int, error: FrostlineError) -> None:
        """Who is told to undo others first is told which, and they are later ones."""
        if error.hint and error.hint.startswith("undo "):
            named = [
                int(number)
                for number in re.findall(r"\d+", re.sub(r" and \d+ more", "", error.hint.split(" first")[0]))
            ]
            assert named, error.hint
            assert all(number > revision for number in named), (revision, error.hint)

    def take_back(self, name: str, revision: int, before: tuple[Answer, Trees]) -> None:
        """Undo the way back: everything is as it was."""
        with self.open() as store:
            disk = store.object_disk(name)
            self.tell(f"undo {revision} of {name}, a way back")
            seen = preview(store.context, disk, revision)
            assert not seen.objections, f"it cannot be taken back: {seen.objections}"
            _, done = undo(store.context, disk, revision)
            assert done is not None or seen.done
        self.taken_back += 1
        after = self.state()
        assert after == before, difference(before, after)

    # -- what there is -------------------------------------------------------------------------------------------

    def state(self) -> tuple[Answer, Trees]:
        with self.open():
            pass  # what is unfinished is finished
        with self.open() as store:
            return answers(store), {name: tree(store, disk) for name, disk in store.context.disks.items()}

    def check_rows(self) -> None:
        """I1, I2: no row twice, and each table answers."""
        with self.open() as store:
            for name, keys in answers(store).items():
                assert len(keys) == len(set(keys)), f"rows of {name} are there twice: {keys}"


def answers(store: Store) -> Answer:
    found: Answer = {}
    for definition in store.definitions():
        read = store.table(definition.full_name).scan(columns=["k"]).read_all()
        found[definition.full_name] = sorted(read["k"].to_pylist())
    return found


def tree(store: Store, disk: Disk) -> dict[str, object]:
    """What lies on a disk, without marks: numbers that were given stay given. A definition counts without its version;
    of a table that is hidden only its parts do, and it may keep its name."""
    known = {definition.uuid for definition in store.definitions()}
    found: dict[str, object] = {}
    for info in disk.walk():
        path = info.path
        if _MARKS.search(path) or tombstones.uuid_of(path):
            continue
        if path.startswith(f"{NAMES_DIRECTORY}/") and json.loads(disk.read(path))["table"] not in known:
            continue
        if tombstones.is_definition(path):
            place = locate(path)
            if place is not None and place.uuid in known:
                definition: TableDefinition = schema.decode(disk.read(path), path=path)
                found[path] = essence(definition)
        else:
            found[path] = info.sha256
    return found


def difference(before: tuple[Answer, Trees], after: tuple[Answer, Trees]) -> str:
    said = [f"rows {before[0]} -> {after[0]}"] if before[0] != after[0] else []
    for disk, then in before[1].items():
        now = after[1][disk]
        said += [f"{disk} lacks {path}" for path in then if path not in now]
        said += [f"{disk} has {path}" for path in now if path not in then]
        said += [f"{disk}: another {path}" for path in then if path in now and now[path] != then[path]]
    return "\n".join(said)


def history(seed: int) -> History:
    """Live through it; what was done is told when it fails."""
    root = Path(tempfile.mkdtemp(prefix=f"frostline-ways-{seed}-"))
    lived = History(root, seed)
    try:
        lived.run()
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}:", *lived.told]))
        raise
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return lived


@pytest.mark.parametrize("seed", due("ways back", (*range(24), *FOUND)))
def test_each_way_back_can_be_taken_back(seed: int) -> None:
    history(seed)


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    failed = 0
    done = 0
    for number in range(first, first + count):
        try:
            done += history(number).taken_back
        except Exception as problem:
            failed += 1
            notes = "\n".join(problem.__notes__)
            print(f"{type(problem).__name__}: {problem}\n{notes}\n", flush=True)
    print(f"{count} histories, {done} ways back taken back, {failed} failed")
