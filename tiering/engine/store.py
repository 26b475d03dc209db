"""The store: the facade that the command line, the daemon and programs use.

    with Store.open() as store:
        store.table("nyc.flights").scan(columns=["carrier"]).read_all()

Read it downwards: opening and recovery, tables and data, storage policies, maintenance. Every method is a few lines
that delegate; decisions are pure functions (`policy`, `merge_selection`), effects live in `mover`, `merger`, `insert`
and `tables`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk, with_commits
from disks.stores.wrappers.limit import Limiter
from disks.workers.progress import Progress
from oplog.errors import UsageError
from oplog.kinds import TableAltered
from tiering.catalog import reachability, tables
from tiering.catalog.catalog import Catalog, DroppedTable, StoredPart
from tiering.catalog.context import Context, wall_clock
from tiering.catalog.copies.set_aside import SetAsidePart, find_set_aside
from tiering.catalog.definitions.unreadable import UnreadableTable
from tiering.catalog.freshness import Freshness
from tiering.catalog.identities.faults import Fault
from tiering.config.reading import checked, load
from tiering.config.settings import Config
from tiering.engine import recovery as recovering
from tiering.engine import replication
from tiering.engine.opening import make_context
from tiering.engine.table import Table
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:  # what most verbs do not need: policies, merges, the query engine, the garbage collector
    from disks.garbage.collect import GcReport
    from disks.garbage.rules import GcRules
    from disks.workers.runner import Remote
    from tiering.engine.maintenance import Sizes, TickReport, TickStep
    from tiering.merge.cold.job import ColdMergeReport, Workers
    from tiering.merge.output import MergeResult
    from tiering.merge.request import MergeRequest
    from tiering.merge.selection import FailedGroup, MergePlan, MergeStay
    from tiering.move.report import MoveReport
    from tiering.policy.decide import Staying
    from tiering.policy.plan import Explanation, Move, Plan, Rest
    from tiering.query.query import QueryResult


class Store:
    """An open store. Several processes may open one store at once; each sees what the others committed at `refresh`."""

    def __init__(self, context: Context, *, recovered: list[str]) -> None:
        self.context = context
        self.recovered = recovered
        """What opening had to finish or undo after a crash, one sentence each."""

    # -- opening -----------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        config: Config | Path | None = None,
        *,
        actor: str = "library",
        workers: int | None = None,
        limiter: Limiter | None = None,
        progress: Progress | None = None,
        clock: Callable[[], datetime] = wall_clock,
        recover: bool = True,
        partial: bool = False,
        freshness: Freshness = Freshness.EVERY_FILE,
    ) -> Self:
        """Open the store of a configuration (default: as the command line finds it) and recover from a crash.

        `recover=False` changes nothing: what `--dry-run` and checks use. `partial`: answers leave out what lies on
        disks that are not what they were, and are not refused. `freshness`: with less than each file, one that was
        another program changed is not noticed before something is deleted.
        Raises `UsageError` for a bad configuration.
        """
        settings = checked(config) if isinstance(config, Config) else load(config)
        context = make_context(settings, actor=actor, workers=workers, limiter=limiter, progress=progress, clock=clock)
        context.partial = partial
        if recover:
            return cls(context, recovered=recovering.recover(context, freshness))
        context.catalog.refresh(freshness)
        reachability.compare(context)
        return cls(context, recovered=[])

    def close(self) -> None:
        """Release files and connections."""
        if self.context.replication is not None:
            self.context.replication.close()
        while self.context.idle_engines:
            self.context.idle_engines.pop().close()
        for disk in self.context.disks.values():
            disk.close()
        self.context.catalog.close()
        self.context.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self, freshness: Freshness = Freshness.EVERY_FILE, *, again: bool = False) -> None:
        """Take in what other processes and machines committed, and whether the disks are still there. With `again` a
        bucket is asked that did not answer a moment ago, too."""
        if again:
            for disk in self.context.disks.values():
                if (logged := as_disk(disk, LoggedDisk)) is not None:
                    logged.ask_again()
        if self.context.identities is not None:
            self.context.identities.look()
        unseen = self.context.journal.unseen()
        self.context.catalog.refresh(freshness)
        recovering.note_seen(self.context, unseen)
        reachability.compare(self.context)

    @property
    def config(self) -> Config:
        """The configuration that it was opened with."""
        return self.context.config

    # -- tables ------------------------------------------------------------------------------------------------------

    def create_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> TableDefinition:
        """Create a table. Raises `AlreadyExists` unless `if_not_exists`."""
        return tables.create(self.context, definition, if_not_exists=if_not_exists)

    def alter_table(
        self, old: TableDefinition, new: TableDefinition, *, reason: str = "alter table"
    ) -> TableDefinition:
        """Replace a table's definition. Of a replicated one it is agreed upon; the other replicas follow."""
        reachability.check_whole(self.context, old, f"altering {old.full_name}")
        if old.is_replicated:
            return replication.work().alter(self.context, old, new, reason)
        return tables.replace(self.context, old, new, reason=reason, kind=TableAltered())

    def drop_table(self, name: str) -> None:
        """Drop a table and its parts. The bucket keeps the revisions inside the retention: `restore` brings it back."""
        for gone in self.dropped():
            if gone.definition.uuid == name:
                tables.drop_what_is_left(self.context, gone, reason=f"drop table {gone.definition.full_name}")
                return
        for table in self.unreadable():
            if table.is_called(name) and table.before is None:
                tables.drop_unreadable(self.context, table)
                return
        definition = self.definition_to_change(name)
        reachability.check_whole(self.context, definition, f"dropping {name}")
        if definition.is_replicated:
            replication.work().drop(self.context, definition)
        else:
            tables.drop(self.context, definition)

    def dropped(self) -> list[DroppedTable]:
        """Tables that a bucket says are gone, and whose files some disk of this machine still has."""
        return self.context.catalog.dropped()

    def definition(self, name: str) -> TableDefinition:
        """The table `db.name`. Raises `NotFound`."""
        return self.context.catalog.table(name)

    def definition_to_change(self, name: str) -> TableDefinition:
        """The same for an alter or a drop: of a table whose newest definition cannot be read the one before it."""
        return self.context.catalog.table_to_change(name)

    def unreadable(self) -> list[UnreadableTable]:
        """Tables whose newest definition cannot be read: no answer has them."""
        return self.context.catalog.unreadable()

    def definitions(self) -> list[TableDefinition]:
        """All tables, by name."""
        return self.context.catalog.tables()

    def table(self, name: str) -> Table:
        """A handle for reading and writing one table. Raises `NotFound`."""
        return Table(self.context, self.definition(name))

    def parts(
        self, table: str | None = None, *, partition: str | None = None, include_outdated: bool = False
    ) -> list[StoredPart]:
        """Parts of one table or of all, or of one partition."""
        catalog = self.context.catalog
        wanted = catalog.parts if partition is None else partial(catalog.partition, partition=partition)
        return [part for table in self._selected(table) for part in wanted(table, include_outdated=include_outdated)]

    def check_answer(self, table: str | None = None) -> None:
        """Raise the fault of a disk that an answer about the table, or all tables, would leave something out for."""
        for fault in self.context.faults if table is None and not self.context.partial else ():
            raise type(fault.error)(fault.error.message, hint=f"{fault.error.hint}; --partial answers without it")
        for definition in [] if table is None else [self.definition(table)]:
            reachability.check_answer(self.context, definition)

    def set_aside(self, table: str | None = None) -> list[SetAsidePart]:
        """The parts of the table, or of all, that a repair set aside and whose rows are in no answer."""
        context = self.context
        tables = self._selected(table)
        parts = context.catalog.parts
        return [gap for item in tables for gap in find_set_aside(context.disks, item, partial(parts, item))]

    def disk(self, name: str) -> Disk:
        """The disk. Raises `NotFound`."""
        return self.context.disk(name)

    def object_disk(self, name: str) -> LoggedDisk:
        """The disk, which must have an operations log. Raises `NotFound` or `UsageError`."""
        return with_commits(self._usable(name))

    @property
    def is_begun(self) -> bool:
        """Whether anybody has ever written to one of the disks: else there is no store yet, and this one is empty."""
        return self.context.identities is None or self.context.identities.is_begun

    def faults(self) -> tuple[Fault, ...]:
        """The disks that are not what they were: not mounted, another one, under two names, or not configured."""
        return self.context.faults

    def unreachable(self) -> list[str]:
        """The disks that cannot be reached now. What lies on the others can be queried and changed."""
        return reachability.unreachable(self.context)

    def object_disks(self) -> list[LoggedDisk]:
        """All disks that have an operations log."""
        return [logged for disk in self.context.disks.values() if (logged := as_disk(disk, LoggedDisk)) is not None]

    def query(
        self,
        sql: str,
        *,
        revision: int | None = None,
        disk: str | None = None,
        skip_broken: bool = False,
        sequential: bool = False,
        allow_files: bool = False,
    ) -> QueryResult:
        """Run read-only SQL over all tiers; with `revision`, over what the object disk held right after it. Where there
        are several, `disk` names the one that is meant. `sequential`: of replicated tables everything that was
        acknowledged with a quorum before. `allow_files`: the statement may read local files, by `read_csv('FILE')`,
        `read_parquet` and `read_json`.

        Raises `Damaged` when a part of a queried table cannot be read, unless `skip_broken` leaves its rows out.
        """
        if revision is None:
            return self._answer(self.context, sql, ExitStack(), sequential, skip_broken, allow_files)
        with ExitStack() as held:
            past = held.enter_context(self.past(revision, disk))
            return self._answer(past, sql, held, sequential, skip_broken, allow_files)

    def _answer(
        self, context: Context, sql: str, held: ExitStack, sequential: bool, skip_broken: bool, allow_files: bool
    ) -> QueryResult:
        from tiering.query import query

        def resolve(name: str) -> tuple[TableDefinition, query.PartsFor]:
            definition = context.catalog.table(name)
            if sequential and definition.is_replicated:
                replication.work().read_all(self.context, definition)
                definition = context.catalog.table(name)
            reachability.check_certain(context, definition)
            if not skip_broken:
                context.catalog.check_readable(definition)
            return definition, partial(query.parts_for, context, definition)

        return query.run_sql(context, sql, resolve, allow_files=allow_files, held=held)

    @contextmanager
    def past(self, revision: int, disk: str | None = None) -> Iterator[Context]:
        """The store right after a revision of its object disk, or of the one of this name, read-only, without what lies
        on other disks: until the block ends.

        Raises `UsageError` unless it is clear which disk is meant, `NotFound` for a revision that is not kept.
        """
        chosen = self._of_revision(revision, disk)
        with closing(chosen.at(revision, briefly=True)) as then:
            # The catalog is not closed: what is kept belongs to that of the present.
            catalog = Catalog(
                self.context.config, {chosen.name: then}, index=self.context.catalog.index, stand_still=True
            )
            catalog.refresh(Freshness.CHANGES)
            yield msgspec.structs.replace(self.context, disks={chosen.name: then}, catalog=catalog, identities=None)

    def _of_revision(self, revision: int, name: str | None) -> LoggedDisk:
        if name is not None:
            return self.object_disk(name)
        for disk in self.context.disks.values():
            if disk.broken is not None and disk.capabilities.remote:
                self._usable(disk.name)
        disks = self.object_disks()
        if len(disks) != 1:
            known = ", ".join(disk.name for disk in disks)
            raise UsageError(
                f"a revision is one of a disk with an operations log, and there are {len(disks)}"
                + (f": {known}" if known else ""),
                hint=f"choose one: --revision {disks[0].name}:{revision}" if disks else "give a configuration with one",
            )
        return disks[0]

    # -- storage policies --------------------------------------------------------------------------------------------

    def plan(self, table: str | None = None, *, at: datetime | None = None, rest: Rest = "each") -> Plan:
        """What would move now, or at a time, and why; and of the rest, why each part stays, or only how many they are
        and when the next is due, which looks at no part that is not. Changes nothing."""
        from tiering.move import policy_facts

        return policy_facts.plan(self.context, self._selected(table), at=at, rest=rest)

    def staying(self, planned: Plan) -> Staying:
        """What `plan(rest="next")` leaves out: why each part stays that it says nothing of, asked for one by one."""
        from tiering.move import policy_facts

        return policy_facts.staying(self.context, planned.now)

    def apply(self, moves: Sequence[Move]) -> MoveReport:
        """Carry out planned moves; each that no longer fits is skipped with its reason."""
        recovering.begin_disks(self.context)
        return replication.moved(self.context, moves)

    def plan_manual_move(
        self,
        table: str,
        *,
        partition: str | None = None,
        part: str | None = None,
        to_volume: str | None = None,
        to_disk: str | None = None,
        keep_source: bool = False,
    ) -> list[Move]:
        """The moves a person asks for, to look at before `apply`."""
        from tiering.move import policy_facts

        definition = self.definition(table)
        reachability.check_whole(self.context, definition, f"moving parts of {definition.full_name}")
        return policy_facts.manual_moves(
            self.context,
            definition,
            partition=partition,
            part=part,
            to_volume=to_volume,
            to_disk=to_disk,
            keep_source=keep_source,
        )

    def explain(self, table: str, part: str) -> Explanation:
        """Why a part moves, why not, and when it will."""
        from tiering.move import policy_facts

        return policy_facts.explain(self.context, self.definition(table), part, now=self.context.clock())

    # -- maintenance -------------------------------------------------------------------------------------------------

    def merge(self, table: str, request: MergeRequest, failures: list[FailedGroup] | None = None) -> list[MergeResult]:
        """Merge what is worth merging, or what the request says. What is merged of a replicated table is agreed upon
        first; then this replica does it, too. `failures`: as of `maintenance.merge`."""
        from tiering.engine import maintenance

        if self.definition(table).is_replicated:
            return replication.work().merge(self.context, self._changing(table, "merging"), request)
        return maintenance.merge(self.context, self._changing(table, "merging"), request, failures)

    def merge_cold(self, table: str, workers: Workers, request: MergeRequest) -> ColdMergeReport:
        """Merge as `request.cold` says, with these `workers`."""
        from tiering.engine import maintenance

        replication.refuse(self.definition(table), "a cold merge of", "merge it without --cold and --spark")
        return maintenance.merge_cold(self.context, self._changing(table, "merging"), workers, request)

    def plan_merges(self, table: str, request: MergeRequest) -> list[MergePlan]:
        """What `merge`, or with `request.cold` `merge_cold`, would begin with. Changes nothing."""
        from tiering.engine import maintenance

        return maintenance.plan_merges(self.context, self.definition(table), request)

    def plan_adoptions(
        self, table: str, request: MergeRequest, failures: list[FailedGroup] | None = None
    ) -> Sequence[MergePlan]:
        """What a merge with `request.adopt` would begin with. Changes nothing. `failures`: as of
        `maintenance.plan_adoptions`."""
        from tiering.engine import maintenance

        return maintenance.plan_adoptions(self.context, self.definition(table), request, failures)

    def explain_merges(self, table: str, plans: Sequence[MergePlan], request: MergeRequest) -> list[MergeStay]:
        """Why the partitions that none of the plans is about are not merged now."""
        from tiering.engine import maintenance

        return maintenance.explain_merges(self.context, self.definition(table), plans, request)

    def believe_clock(self) -> None:
        """Go by this machine's clock where no other clock can be asked: somebody looked at it."""
        from tiering.engine import maintenance

        maintenance.believe_clock(self.context)

    def tick(
        self,
        *,
        only: TickStep | None = None,
        stop: threading.Event | None = None,
        merges: bool = True,
        sizes: Sizes | None = None,
    ) -> TickReport:
        """One pass of the daemon: merges, TTL deletes, moves, snapshots. Without `merges` somebody else merges; what is
        not of the `sizes` somebody else merges and moves."""
        from tiering.engine import maintenance

        if stop is not None:
            self.context.stop = stop
        recovering.begin_disks(self.context)
        return maintenance.tick(self.context, only=only, merges=merges, sizes=sizes or maintenance.ALL_SIZES)

    def beside(self, config: Config, stop: threading.Event, progress: Progress) -> Self:
        """The store once more, for another thread of this process: both keep to the same limits, and promise nobody
        the same space."""
        own = self.context
        store = type(self).open(
            config,
            actor=own.actor,
            workers=own.workers,
            limiter=own.limiter,
            progress=progress,
            clock=own.clock,
            freshness=Freshness.LAST_ANSWER,
        )
        store.context.stop = stop
        store.context.reservations = own.reservations
        return store

    def gc(self, disk: str, rules: GcRules, *, remote: Remote | None = None) -> GcReport:
        """Report, or as the rules say remove, objects that nothing names. With `remote` others list the bucket."""
        from disks.garbage import collect as garbage

        now = None if self.context.clock is wall_clock else self.context.clock()
        usable = self._usable(disk)
        references = replication.references(self.context, usable)
        return garbage.collect(usable, rules, now=now, remote=remote, references=references)

    def _usable(self, name: str) -> Disk:
        """The disk, when it is what its name stands for."""
        disk = self.disk(name)
        if (error := disk.broken) is not None:
            raise type(error)(error.message, hint=error.hint)
        return disk

    def _changing(self, table: str, operation: str) -> TableDefinition:
        """The table, when all of its disks are there."""
        definition = self.definition(table)
        reachability.check_whole(self.context, definition, f"{operation} {definition.full_name}")
        recovering.begin_disks(self.context)
        return definition

    def _selected(self, table: str | None) -> list[TableDefinition]:
        return self.definitions() if table is None else [self.definition(table)]
