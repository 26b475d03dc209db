"""Three machines with SSDs of their own and one bucket: tables, inserts, moves, merges, drops and alterations."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import msgspec
import pyarrow as pa

from disks.config import ObjectDiskConfig
from disks.garbage.rules import GcRules
from disks.stores import schemes
from oplog.errors import FrostlineError
from restore.check.check import check
from tests.simulation.scheduler import Killed, Machine
from tests.simulation.simulated import clock
from tests.simulation.truth import Violation
from tests.simulation.world import World
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.cold.job import Workers
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.table.definitions import add_column, define_table
from tiering.table.schema import TableDefinition

_RETENTION_SECONDS = 7200
_COLLECTING = GcRules(
    guard=timedelta(hours=1),
    delete=True,
    max_delete_fraction=1.0,
    compact_after_commits=1,
    allow_bucket_root=True,
)
_NAMES = ("d.t", "d.u")


@dataclass(slots=True)
class Rows:
    """What a table, by its uuid, must hold."""

    name: str
    certain: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)
    dropped: bool = False
    perhaps_dropped: bool = False
    made: bool = True
    """Whether its creation was acknowledged."""


class TablesWorld(World):
    """A row is a number that no other row has."""

    def begin(self) -> None:
        self._stores: dict[int, Store] = {}
        self._tables: dict[str, Rows] = {}
        self._rows = 0
        self._looked = False
        """Whether the verb that began last had taken in what others did."""
        schemes._memory[self.bucket.name.removeprefix("memory://").rstrip("/")] = self.bucket  # type: ignore[assignment]
        made = self._store(0).create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        self._tables[made.uuid] = Rows("d.t")

    def _config(self, number: int) -> Config:
        config = embedded(self.home / str(number))
        shared = ObjectDiskConfig(
            url=self.bucket.name, snapshot_every_commits=20, retention_seconds=_RETENTION_SECONDS, retries=3
        )
        return msgspec.structs.replace(config, disks={**config.disks, "s3": shared})

    def _store(self, number: int) -> Store:
        if number not in self._stores:
            self._stores[number] = Store.open(self._config(number), actor=f"machine-{number}", workers=1)
        return self._stores[number]

    def do(self, machine: Machine, verb: str, mark: str, chance: random.Random) -> object:
        if verb == "reopen" and (old := self._stores.pop(machine.number, None)) is not None:
            old.close()
        store = self._store(machine.number)
        self._looked = chance.random() < 0.7
        if self._looked:
            store.refresh()
        if verb == "create":
            name = chance.choice(_NAMES)
            made = define_table(name, columns=["k:int64"], order_by="k", policy="hot_cold")
            self._tables[made.uuid] = Rows(name, made=False)
            store.create_table(made)
            self._tables[made.uuid].made = True
            return None
        tables = store.definitions()
        if not tables:
            return None
        table = chance.choice(tables)
        match verb:
            case "insert":
                self._insert(store, table, chance)
            case "cold" | "hot":
                return self._move(store, table, chance, "s3" if verb == "cold" else "ssd")
            case "merge_cold":
                asked = MergeRequest(final=True, cold=ColdOptions())
                return store.merge_cold(table.uuid, Workers.of_this_process(store.context), asked)
            case "merge":
                return store.merge(table.uuid, MergeRequest(final=True))
            case "drop":
                self._tables[table.uuid].perhaps_dropped = True
                store.drop_table(table.uuid)
                self._tables[table.uuid].dropped = True
            case "alter":
                store.alter_table(table, add_column(table, f"c{chance.randrange(10_000)}:int64"))
            case "gc":
                return store.gc("s3", _COLLECTING)
            case "look":
                store.refresh()
                self._look(store, f"machine {machine.number}")
        return None

    def _insert(self, store: Store, table: TableDefinition, chance: random.Random) -> None:
        rows = self._tables[table.uuid]
        for _ in range(chance.randint(1, 3)):
            self._rows += 1
            key = self._rows  # others insert while this machine stands still
            rows.perhaps.add(key)
            store.table(table.uuid).insert(pa.table({"k": [key]}).to_batches())
            rows.certain.add(key)

    @staticmethod
    def _move(store: Store, table: TableDefinition, chance: random.Random, disk: str) -> None:
        parts = [one.part.name for one in store.parts(table.full_name) if one.disk != disk]
        if not parts:
            return
        if chance.random() < (0.7 if disk == "s3" else 0.2):
            moves = store.plan_manual_move(table.full_name, partition="all", to_disk=disk)
        else:
            moves = store.plan_manual_move(table.full_name, part=chance.choice(parts), to_disk=disk)
        store.apply(moves)

    def ended(
        self, machine: Machine, verb: str, mark: str, how: str, answer: object, error: BaseException | None
    ) -> None:
        """A verb that nobody disturbed is carried out."""
        working = ("insert", "cold", "merge", "merge_cold")
        if verb in working and how == "refused" and self._looked and self.undisturbed:
            raise Violation(f"{verb} of machine {machine.number} was refused while nothing was wrong: {error}")

    def lose(self, machine: Machine) -> None:
        if (store := self._stores.pop(machine.number, None)) is not None:
            machine.killed = True
            with suppress(FrostlineError, Killed):
                store.close()
            machine.killed = False

    # At the end

    def judge(self) -> None:
        last = self.truth.newest()
        self.truth.judge(last, conditional=True)
        for number in range(3):
            self._again(number)
        for number in range(3):
            self.quietly(partial(self._all_cold, self._store(number)))
        for number in (0, 1, 2, 9):
            self.quietly(partial(self._compare, self._again(number), number))
        if self.truth.violations:
            raise Violation("; ".join(self.truth.violations[:3]))

    def _again(self, number: int) -> Store:
        """A new process on the machine."""
        if (old := self._stores.pop(number, None)) is not None:
            old.close()
        opened = self.quietly(lambda: self._store(number))
        assert isinstance(opened, Store)
        return opened

    @staticmethod
    def _all_cold(store: Store) -> None:
        store.refresh()
        for table in store.definitions():
            if any(part.disk == "ssd" for part in store.parts(table.full_name)):
                report = store.apply(store.plan_manual_move(table.full_name, partition="all", to_disk="s3"))
                if report.failed:
                    raise Violation(f"what is on an SSD cannot go to the bucket: {report.failed[:2]}")

    def _compare(self, store: Store, number: int) -> None:
        store.refresh()
        there = {table.uuid: table for table in store.definitions()}
        who = f"machine {number}" if number < 3 else "a new machine"
        for uuid, rows in self._tables.items():
            if rows.dropped and uuid in there:
                raise Violation(f"I17: {rows.name} {uuid[:8]} was dropped, and {who} has it")
            if rows.made and not rows.perhaps_dropped and uuid not in there:
                raise Violation(f"I17: {rows.name} {uuid[:8]} is gone on {who}")
        self._look(store, who, whole=True)
        problems = check(
            store.context.disks, merges=lambda uuid: store.context.journal.work.merges(table_uuid=uuid)
        ).problems
        if problems:
            raise Violation(f"fsck of {who}: {[f'{one.invariant} {one.what} {one.path}' for one in problems[:3]]}")

    def _look(self, store: Store, who: str, *, whole: bool = False) -> None:
        """What is answered is what was inserted, each row once; and `whole`, all of it."""
        for table in store.definitions():
            rows = self._tables[table.uuid]
            found = Counter(store.table(table.uuid).scan(columns=["k"]).read_all().column("k").to_pylist())
            twice = sorted(key for key, count in found.items() if count > 1)
            if twice:
                raise Violation(f"I1: {who} answers rows {twice} of {rows.name} more than once")
            if unknown := sorted(found.keys() - rows.perhaps):
                raise Violation(f"I1: {who} answers rows {unknown} of {rows.name}, which nobody inserted there")
            if whole and (lost := sorted(rows.certain - found.keys())):
                raise Violation(f"I1: {who} does not answer rows {lost} of {rows.name}, which were acknowledged")

    def close(self) -> None:
        for store in self._stores.values():
            with suppress(FrostlineError, Killed):
                store.close()
        schemes._memory.pop(self.bucket.name.removeprefix("memory://").rstrip("/"), None)
        clock.ahead = 0.0
