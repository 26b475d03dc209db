"""The index of parts against a plain reading of every `part.json` (I1, I7).

Two machines' worth of processes share one file: each has its own disks and index. Commits and hands change the disks,
scans die, rows of the file are lost, go back in time or change. Whoever looks then is shown what the disks hold,
however little was read for it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from disks.base import Disk
from disks.registry import open_disk
from oplog.errors import FrostlineError
from oplog.kinds import Inserted
from tests.index_parts import BEGIN, TABLE, dying, part
from tests.keeping import keeping, patched
from tests.turns import histories
from tiering.catalog.index import scan
from tiering.catalog.index.database import OvertakenError
from tiering.catalog.index.index import PartIndex, unsettled
from tiering.catalog.index.rows import DiskTable, IndexedPart, decoded_facts
from tiering.catalog.index.scan import ScanTarget
from tiering.config.settings import Config, embedded
from tiering.policy.due import dues_of, timed_columns
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part, PartName, facts_of, range_of
from tiering.table.schema import Column, MoveToVolume, Recompress, TableDefinition, TtlRule

EXAMPLES, STEPS = 60, 25
DISKS = ("ssd", "s3")
RULES: tuple[tuple[TtlRule, ...], ...] = (
    (),
    (TtlRule(3 * 86400, "ts", MoveToVolume("cold")),),
    (TtlRule(5 * 86400, "seen", MoveToVolume("cold")), TtlRule(86400, "ts", Recompress("zstd", 9))),
)


class Process:
    """One that has the index open, and the disks."""

    def __init__(self, config: Config, path: Path | None, stack: ExitStack) -> None:
        self.disks: dict[str, Disk] = {
            name: open_disk(name, disk, config.state_directory) for name, disk in config.disks.items()
        }
        for disk in self.disks.values():
            stack.callback(disk.close)
        self.config = config
        self.index = PartIndex(path)
        stack.callback(self.index.close)

    def target(self, name: str, definition: TableDefinition) -> ScanTarget:
        return ScanTarget(self.disks[name], definition, self.config.policies.get(definition.policy))

    def look(self, name: str, definition: TableDefinition, *, every_file: bool) -> DiskTable:
        self.disks[name].refresh()
        return scan.scan(self.index, self.target(name, definition), every_file=every_file)


class IndexMachine(RuleBasedStateMachine):
    """`number` of a part is its rows: each is another part, also under a name that there was before."""

    names = st.tuples(st.integers(1, 3), st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 2]))
    disks = st.sampled_from(DISKS)

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.home = Path(tempfile.mkdtemp(prefix="frostline-index-"))
        self.stack.callback(shutil.rmtree, self.home, True)
        self.rows = 0
        self.definition = TABLE
        self.touched_within = False
        """Whether a hand changed a file in a part's directory: only who asks for each file sees that."""

    @initialize(settled=st.booleans(), at_once=st.sampled_from([1, 2, 100]), memory=st.booleans())
    def begin(self, settled: bool, at_once: int, memory: bool) -> None:
        self.stack.enter_context(keeping(settled=settled))
        self.stack.enter_context(patched({"tiering.catalog.index.scan.AT_ONCE": at_once}))
        config = embedded(self.home)
        self.path = config.state_directory / "index.db"
        self.processes = [Process(config, self.path, self.stack) for _ in range(2)]
        self.processes.append(Process(config, None, self.stack))
        self.acting = Process(config, None, self.stack)
        for name in DISKS:
            self.commit(name, [part(1, 1, 0, self._more())])

    def teardown(self) -> None:
        self.stack.close()

    def _more(self) -> int:
        self.rows += 1
        return self.rows

    def _there(self, name: str) -> list[str]:
        disk = self.acting.disks[name]
        disk.refresh()
        return [child[:-1] for child in disk.list(TABLE.directory) if child.endswith("/")]

    # What changes disks

    def commit(self, name: str, new: list[Part], gone: tuple[str, ...] = ()) -> None:
        there = self._there(name)
        with self.acting.disks[name].transaction(Inserted()) as transaction:
            for taken in {*gone, *(one.name for one in new)} & set(there):
                transaction.remove(TABLE.part_directory(taken))
            for one in new:
                transaction.create(f"{TABLE.part_directory(one.name)}/{PART_FILE}", part_format.encode(one))
            transaction.commit()

    @rule(name=disks, names=st.lists(names, min_size=1, max_size=4, unique=True), replaces=st.booleans())
    def insert(self, name: str, names: list[tuple[int, int, int]], replaces: bool) -> None:
        replaced = tuple(self._there(name)[:1]) if replaces else ()
        self.commit(name, [part(*one, self._more(), replaced) for one in names])

    @rule(name=disks, data=st.data())
    def remove(self, name: str, data: st.DataObject) -> None:
        if there := self._there(name):
            gone = data.draw(st.lists(st.sampled_from(there), min_size=1, unique=True))
            self.commit(name, [], tuple(gone))

    @rule(name=disks, data=st.data())
    def move(self, name: str, data: st.DataObject) -> None:
        if there := self._there(name):
            one = data.draw(st.sampled_from(there))
            with suppress(FrostlineError):
                path = f"{TABLE.part_directory(one)}/{PART_FILE}"
                moved = part_format.decode(self.acting.disks[name].read(path), path=path)
                self.commit("s3" if name == "ssd" else "ssd", [moved])
                self.commit(name, [], (one,))

    @rule(one=names)
    def hand_that_brings_a_part(self, one: tuple[int, int, int]) -> None:
        made = part(*one, self._more())
        directory = self.home / "ssd" / TABLE.part_directory(made.name)
        if not directory.exists():
            directory.mkdir(parents=True)
            (directory / PART_FILE).write_bytes(part_format.encode(made))

    @rule(data=st.data())
    def hand_that_takes_a_part(self, data: st.DataObject) -> None:
        if there := self._there("ssd"):
            directory = self.home / "ssd" / TABLE.part_directory(data.draw(st.sampled_from(there)))
            directory.rename(self.home / f"aside-{self._more()}")

    @rule(data=st.data(), what=st.sampled_from([b"", b"{}", b"another"]))
    def hand_within_a_part(self, data: st.DataObject, what: bytes) -> None:
        if there := self._there("ssd"):
            name = data.draw(st.sampled_from(there))
            if what == b"another":
                what = part_format.encode(part(1, 9, 0, self._more()))
            (self.home / "ssd" / TABLE.part_directory(name) / PART_FILE).write_bytes(what)
            self.touched_within = True

    @rule(data=st.data())
    def hand_that_mends_a_part(self, data: st.DataObject) -> None:
        """Who believes what shows no change sees it all the same."""
        read = _shown(self.acting, "ssd", TABLE)
        if broken := sorted({*self._there("ssd")} - {*read}):
            name = PartName.parse(data.draw(st.sampled_from(broken)))
            mended = part(int(name.partition[-1]), name.min_block, name.level, self._more())
            path = self.home / "ssd" / TABLE.part_directory(str(name)) / PART_FILE
            path.write_bytes(part_format.encode(mended))
            self.believe(0, "ssd")

    @rule(rules=st.sampled_from(RULES), has_dates=st.booleans())
    def alter(self, rules: tuple[TtlRule, ...], has_dates: bool) -> None:
        """Other rules; with a date, also other columns of which the facts have the ranges."""
        columns = (*TABLE.columns[:2], Column(3, "k", "date32" if has_dates else "int64"))
        self.definition = msgspec.structs.replace(TABLE, ttl=rules, columns=columns)

    # What happens to the file

    @rule(at=st.integers(0, 11), name=disks, is_first=st.booleans())
    def scan_dies(self, at: int, name: str, is_first: bool) -> None:
        if is_first:
            self.processes[0].index.throw_away()
        with dying(at), suppress(KeyboardInterrupt):
            self.processes[0].look(name, self.definition, every_file=True)
        self.restart()
        self.believe(1, name)

    @rule(process=st.integers(0, 1), name=disks)
    def scan_is_overtaken(self, process: int, name: str) -> None:
        """By a commit that another process has seen before the scan ends."""
        original, waiting = scan.compared, [name]

        def compared(*arguments: Any) -> Any:
            found = original(*arguments)
            if waiting:
                waiting.clear()
                self.commit(name, [part(3, 6, 0, self._more())], tuple(self._there(name)[:1]))
                self.processes[1 - process].look(name, self.definition, every_file=True)
            return found

        with patched({"tiering.catalog.index.scan.compared": compared}), unheld():
            self.processes[process].disks[name].refresh()
            with suppress(FrostlineError):
                self.processes[process].look(name, self.definition, every_file=True)
        self.believe(process, name)

    @rule(table=st.sampled_from(["parts", "sums", "disk_tables", "documents"]), number=st.integers(0, 5))
    def a_row_is_lost(self, table: str, number: int) -> None:
        with self._opened() as connection:
            key = {"sums": "partition", "parts": "name"}.get(table, "id")
            rows = connection.execute(f"SELECT {key} FROM {table} ORDER BY {key}").fetchall()
            if rows:
                connection.execute(f"DELETE FROM {table} WHERE {key} = ?", rows[number % len(rows)])

    @rule(data=st.data(), bit=st.integers(0, 4000), is_dropped=st.booleans())
    def a_bit_flips(self, data: st.DataObject, bit: int, is_dropped: bool) -> None:
        table, key, column = data.draw(
            st.sampled_from(
                [("sums", "partition", "data"), ("disk_tables", "id", "data"), ("documents", "id", "data")]
                + [
                    ("parts", "name", column)
                    for column in ("facts", "fingerprint", "rows", "revision", "state", "rules")
                ]
            )
        )
        with self._opened() as connection:
            for number, value in connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall():
                if isinstance(value, bytes) and value:
                    flipped = bytearray(value)
                    flipped[bit // 8 % len(value)] ^= 1 << bit % 8
                    value = bytes(flipped)
                else:
                    value = (value or 0) ^ (1 << bit % 8)
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (value, number))
                break
        for name in DISKS if is_dropped else ():
            self.commit(name, [], tuple(self._there(name)))
        self.restart()
        for name in DISKS:
            self.believe(0, name)

    @rule(kept=st.booleans())
    def rows_of_another_day(self, kept: bool) -> None:
        """Some tables of the file are as they were before, as after a power cut."""
        before: dict[str, list[tuple[Any, ...]]] = {"parts": [], "sums": []}
        with self._opened() as connection:
            before = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in before}
        self.commit("ssd", [part(1, 1, 0, self._more()), part(2, 2, 0, self._more())])
        with suppress(OvertakenError):
            self.processes[0].look("ssd", self.definition, every_file=False)
        with self._opened() as connection:
            for table in ("parts",) if kept else ("parts", "sums"):
                connection.execute(f"DELETE FROM {table}")
                for row in before[table]:
                    connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)

    @rule()
    def the_file_is_cut(self) -> None:
        if self.path.exists():
            for process in self.processes:
                process.index.close()
            self.path.write_bytes(self.path.read_bytes()[:5000])

    @rule()
    def restart(self) -> None:
        for number in range(2):
            self.processes[number] = Process(self.processes[0].config, self.path, self.stack)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            self.processes[0].look("ssd", self.definition, every_file=True)
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(self.path)) as connection, connection:
            yield connection

    # What must be

    @rule(process=st.integers(0, 2), name=disks)
    def believe(self, process: int, name: str) -> None:
        if not self.touched_within:
            self._compare(self.processes[process], name, every_file=False)

    @rule(process=st.integers(0, 2), partition=st.integers(1, 3))
    def settle(self, process: int, partition: int) -> None:
        """States stay as long as no part of the partition comes or goes."""
        if self.touched_within:
            return
        one = self.processes[process]
        with suppress(OvertakenError):
            tables = [one.look(name, self.definition, every_file=False) for name in DISKS]
            mixed = one.index.mixed(tables)
            assert mixed >= {name for name in unsettled(tables) if is_mixed(one, tables, name)}
            before = one.index.parts(tables, both)
            chosen = unsettled(tables) | {f"2026010{partition}"}
            states = {
                (table.id, row.name): 1 + row.document[0] % 2
                if row.name.startswith(f"2026010{partition}")
                else row.state
                for table, row in before
                if row.name.partition("_")[0] not in chosen or row.name.startswith(f"2026010{partition}")
            }
            after = one.index.settle(tables, chosen, {key: state for key, state in states.items() if state})
            assert unsettled(after) == set()
            shown = {(table.id, row.name): row.state for table, row in one.index.parts(after, both)}
            assert shown == {(table.id, row.name): states.get((table.id, row.name), 0) for table, row in before}
            inactive = sum(sums.inactive for table in after for sums in table.partitions.values())
            assert inactive == sum(map(bool, shown.values()))
            for name in [row.name for table, row in before if table.disk == "ssd"][:1]:
                self.commit("ssd", [], (name,))
                assert name.partition("_")[0] in unsettled([one.look("ssd", self.definition, every_file=False)])

    @rule(process=st.integers(0, 2), name=disks, changes=st.booleans())
    def one_partition(self, process: int, name: str, changes: bool) -> None:
        """What others change between the look and the target is never in the answer in part."""
        one = self.processes[process]
        if self.touched_within:
            return
        table = one.look(name, self.definition, every_file=False)
        shown = _shown(one, name, self.definition)
        if changes:
            self.commit(name, [part(1, 6, 0, self._more()), part(2, 6, 0, self._more())], tuple(self._there(name)[:1]))
        self.processes[1 - process % 2].look(name, self.definition, every_file=False)
        with suppress(OvertakenError):
            for partition in ("20260101", "20260102", "none"):
                rows = one.index.parts([table], lambda _, row: row, partition)
                assert {row.name for row in rows} == {found for found in shown if found.startswith(partition)}

    @invariant()
    def is_as_read(self) -> None:
        if self.touched_within:
            for process in (0, 2):
                for name in DISKS:
                    self._compare(self.processes[process], name, every_file=True)
            self.touched_within = False

    def _compare(self, process: Process, name: str, *, every_file: bool) -> None:
        for _ in range(8):  # a damaged file shows when it is read: then another look is asked for
            with suppress(OvertakenError):
                table = process.look(name, self.definition, every_file=every_file)
                assert [*differing(process, table, name, self.definition)] == []
                return
        raise AssertionError("no look was believed")


def both(table: DiskTable, row: IndexedPart) -> tuple[DiskTable, IndexedPart]:
    return table, row


def is_mixed(process: Process, tables: list[DiskTable], partition: str) -> bool:
    names = [PartName.parse(row.name) for row in process.index.parts(tables, lambda _, row: row, partition)]
    return len(set(names)) < len(names) or part_format.meet(sorted(names))


def _shown(process: Process, name: str, definition: TableDefinition) -> dict[str, tuple[Part, bytes, int | None]]:
    """Each part as its `part.json` says it, by name."""
    disk, found = process.disks[name], {}
    for child in disk.list(definition.directory):
        path = f"{definition.directory}/{child}{PART_FILE}"
        with suppress(FrostlineError):
            data = disk.read(path)
            part = part_format.decode(data, path=path)
            if f"{part.name}/" == child:
                found[part.name] = part, data, disk.stat(path).revision
    return found


def differing(process: Process, table: DiskTable, name: str, definition: TableDefinition) -> Iterator[str]:
    """What the index says otherwise than the disk."""
    index, disk = process.index, process.disks[name]
    policy = process.config.policies.get(definition.policy)
    read = _shown(process, name, definition)
    rows = index.parts([table], lambda _, row: row)
    if {row.name for row in rows} != {*read} or len(rows) != len(read):
        yield f"it shows {sorted(row.name for row in rows)}, not {sorted(read)}"
        return
    documents = index.documents([row.document for row in rows])
    columns = timed_columns(definition)
    for row in rows:
        part, data, revision = read[row.name]
        if decoded_facts(row.facts) != msgspec.msgpack.decode(
            msgspec.msgpack.encode(facts_of(part, columns)), type=part_format.PartFacts
        ):
            yield f"it has other facts of {row.name}"
        if documents.get(row.document, data) != data or row.revision != revision:
            yield f"it has another {row.name}"
    there = {child[:-1] for child in disk.list(definition.directory) if child.endswith("/")}
    if {broken for broken, _ in table.row.broken} != there - {*read}:
        yield f"{table.row.broken} are broken, not {there - {*read}}"
    yield from _differing_sums(table, [part for part, _, _ in read.values()])
    if index.newest(table) != max((part.created for part, _, _ in read.values()), default=None):
        yield "another part is the newest"
    dues = {part.name: dues_of(definition, part, name, policy) for part, _, _ in read.values()}
    for moment in (BEGIN, BEGIN + timedelta(days=4), BEGIN + timedelta(days=9)):
        due = {one.partition("_")[0] for one, found in dues.items() if found.acting and found.acting <= moment}
        if index.due(table, moment) != due:
            yield f"others than {due} are due"
        times = [at for found in dues.values() for at in (found.acting, min(found.told, default=None))]
        if index.next_due(table, moment) != min((at for at in times if at and at > moment), default=None):
            yield f"it has another next time after {moment}"


def _differing_sums(table: DiskTable, parts: list[Part]) -> Iterator[str]:
    sums: dict[str, list[Any]] = {}
    for listed in parts:
        one = sums.setdefault(listed.part_name.partition, [0, 0, 0])
        one[0], one[1], one[2] = one[0] + 1, one[1] + listed.rows, one[2] + listed.size_bytes
        kept = table.partitions.get(listed.part_name.partition)
        block = listed.part_name.max_block
        if (
            kept is None
            or kept.highest.get(range_of(block), -1) < block
            or kept.values
            not in (
                None,
                [*listed.partition_values],
                listed.partition_values,
            )
        ):
            yield f"the sums of its partition do not have {listed.name}"
    shown = {name: [one.parts, one.rows, one.bytes] for name, one in table.partitions.items() if one.parts}
    if shown != sums:
        yield f"the sums are {shown}, not {sums}"
    if (table.parts, table.rows, table.bytes) != tuple(sum(one[i] for one in sums.values()) for i in range(3)):
        yield "the sums of the table are others"


@contextmanager
def unheld() -> Iterator[None]:
    """Commits do not wait for a scan."""
    with patched({"disks.local.disk.LocalDisk.steady": lambda self: nullcontext()}):
        yield


def test_the_index_is_what_the_disks_say() -> None:
    """Bounded; a failure prints the steps that lead to it."""
    run_state_machine_as_test(IndexMachine, settings=histories(EXAMPLES, STEPS))
