"""The store: the facade that the command line, the daemon and programs use.

    with Store.open() as store:
        store.table("nyc.flights").scan(columns=["carrier"]).read_all()

Read it downwards: opening and recovery, tables and data, storage policies, maintenance. Every method is a few lines
that delegate; decisions are pure functions (`policy`, `merge_selection`), effects live in `mover`, `merger`, `insert`
and `tables`.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from disks.base import Disk, LoggedDisk, with_commits
from disks.registry import open_disk
from disks.stores.wrappers.limit import Limiter
from disks.workers.progress import Progress, Silent
from oplog.errors import UsageError
from oplog.kinds import TableAltered
from tiering.catalog import reachability, tables
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.context import Context, wall_clock
from tiering.catalog.identity import Fault, Identities
from tiering.catalog.reservation import Reservations
from tiering.config.places import place_of
from tiering.config.reading import checked, load
from tiering.config.settings import Config
from tiering.engine import maintenance
from tiering.engine import recovery as recovering
from tiering.engine.maintenance import TickReport, TickStep
from tiering.journal.journal import Journal
from tiering.move import mover
from tiering.move import policy_facts as planning
from tiering.move.mover import MoveReport
from tiering.policy.plan import Explanation, Move, Plan
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:  # heavy imports that most verbs do not need: the query engine, the garbage collector
    import pyarrow as pa

    from disks.garbage.collect import GcReport
    from disks.garbage.rules import GcRules
    from disks.workers.runner import Remote
    from tiering.insert.insert import InsertResult
    from tiering.merge.cold.job import ColdMergeReport, Workers
    from tiering.merge.output import MergeResult
    from tiering.merge.request import MergeRequest
    from tiering.merge.selection import MergePlan, MergeStay
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
    ) -> Self:
        """Open the store of a configuration (default: as the command line finds it) and recover from a crash.

        `recover=False` changes nothing: what `--dry-run` and checks use. `partial`: answers leave out what lies on
        disks that are not what they were, and are not refused. Raises `UsageError` for a bad configuration.
        """
        settings = checked(config) if isinstance(config, Config) else load(config)
        context = make_context(settings, actor=actor, workers=workers, limiter=limiter, progress=progress, clock=clock)
        context.partial = partial
        if recover:
            return cls(context, recovered=recovering.recover(context))
        context.catalog.refresh()
        reachability.compare(context)
        return cls(context, recovered=[])

    def close(self) -> None:
        """Release files and connections."""
        for disk in self.context.disks.values():
            disk.close()
        self.context.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> None:
        """Take in what other processes and machines committed, and whether the disks are still there."""
        if self.context.identities is not None:
            self.context.identities.look()
        self.context.catalog.refresh()
        reachability.compare(self.context)

    # -- tables ------------------------------------------------------------------------------------------------------

    def create_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> TableDefinition:
        """Create a table. Raises `AlreadyExists` unless `if_not_exists`."""
        return tables.create(self.context, definition, if_not_exists=if_not_exists)

    def alter_table(
        self, old: TableDefinition, new: TableDefinition, *, reason: str = "alter table"
    ) -> TableDefinition:
        """Replace a table's definition."""
        reachability.check_whole(self.context, old, f"altering {old.full_name}")
        return tables.replace(self.context, old, new, reason=reason, kind=TableAltered())

    def drop_table(self, name: str) -> None:
        """Drop a table and its parts. The bucket keeps the revisions inside the retention: `restore` brings it back."""
        definition = self.definition(name)
        reachability.check_whole(self.context, definition, f"dropping {name}")
        tables.drop(self.context, definition)

    def definition(self, name: str) -> TableDefinition:
        """The table `db.name`. Raises `NotFound`."""
        return self.context.catalog.table(name)

    def definitions(self) -> list[TableDefinition]:
        """All tables, by name."""
        return self.context.catalog.tables()

    def table(self, name: str) -> Table:
        """A handle for reading and writing one table. Raises `NotFound`."""
        return Table(self.context, self.definition(name))

    def parts(self, table: str | None = None, *, include_outdated: bool = False) -> list[StoredPart]:
        """Parts of one table or of all."""
        definitions = self.definitions() if table is None else [self.definition(table)]
        return [
            part
            for definition in definitions
            for part in self.context.catalog.parts(definition, include_outdated=include_outdated)
        ]

    def check_answer(self, table: str | None = None) -> None:
        """Raise the fault of a disk that an answer about the table, or all tables, would leave something out for."""
        for fault in self.context.faults if table is None and not self.context.partial else ():
            raise type(fault.error)(fault.error.message, hint=f"{fault.error.hint}; --partial answers without it")
        for definition in [] if table is None else [self.definition(table)]:
            reachability.check_answer(self.context, definition)

    def disk(self, name: str) -> Disk:
        """The disk. Raises `NotFound`."""
        return self.context.disk(name)

    def object_disk(self, name: str) -> LoggedDisk:
        """The disk, which must have an operations log. Raises `NotFound` or `UsageError`."""
        return with_commits(self._usable(name))

    def faults(self) -> tuple[Fault, ...]:
        """The disks that are not what they were: not mounted, another one, under two names, or not configured."""
        return self.context.faults

    def unreachable(self) -> list[str]:
        """The disks that cannot be reached now. What lies on the others can be queried and changed."""
        return reachability.unreachable(self.context)

    def object_disks(self) -> list[LoggedDisk]:
        """All disks that have an operations log."""
        return [logged for disk in self.context.disks.values() if (logged := disk.logged) is not None]

    def query(self, sql: str, *, revision: int | None = None, skip_broken: bool = False) -> QueryResult:
        """Run read-only SQL over all tiers; with `revision`, over what the object disk held right after it.

        Raises `Damaged` when a part of a queried table cannot be read, unless `skip_broken` leaves its rows out.
        """
        from tiering.query import query

        context = self.context if revision is None else self.past(revision)

        def resolve(name: str) -> tuple[TableDefinition, list[StoredPart]]:
            definition = context.catalog.table(name)
            reachability.check_certain(context, definition)
            if not skip_broken:
                context.catalog.check_readable(definition)
            return definition, context.catalog.parts(definition)

        return query.run_sql(context, sql, resolve)

    def past(self, revision: int) -> Context:
        """The store right after a revision of its object disk, read-only, without what lies on other disks.

        Raises `UsageError` unless there is exactly one object disk, `NotFound` for a revision that is not kept.
        """
        for disk in self.context.disks.values():
            if disk.broken is not None and disk.capabilities.remote:
                self._usable(disk.name)
        disks = self.object_disks()
        if len(disks) != 1:
            raise UsageError(
                f"a revision needs exactly one disk with an operations log; there are {len(disks)}",
                hint="give a configuration with that one disk",
            )
        past = {disks[0].name: disks[0].at(revision)}
        catalog = Catalog(self.context.config, past)
        catalog.refresh()
        return dataclasses.replace(self.context, disks=past, catalog=catalog, identities=None)

    # -- storage policies --------------------------------------------------------------------------------------------

    def plan(self, table: str | None = None, *, at: datetime | None = None) -> Plan:
        """What would move now, or at a time, and why; and why the rest stays. Changes nothing."""
        return planning.plan(self.context, self._selected(table), at=at)

    def apply(self, moves: Sequence[Move]) -> MoveReport:
        """Carry out planned moves; each that no longer fits is skipped with its reason."""
        recovering.begin_disks(self.context)
        return mover.execute(self.context, moves)

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
        definition = self.definition(table)
        reachability.check_whole(self.context, definition, f"moving parts of {definition.full_name}")
        return planning.manual_moves(
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
        return planning.explain(self.context, self.definition(table), part, now=self.context.clock())

    # -- maintenance -------------------------------------------------------------------------------------------------

    def merge(self, table: str, request: MergeRequest) -> list[MergeResult]:
        """Merge what is worth merging, or what the request says."""
        return maintenance.merge(self.context, self._changing(table, "merging"), request)

    def merge_cold(self, table: str, workers: Workers, request: MergeRequest) -> ColdMergeReport:
        """Merge as `request.cold` says, by whoever `workers` are."""
        return maintenance.merge_cold(self.context, self._changing(table, "merging"), workers, request)

    def plan_merges(self, table: str, request: MergeRequest) -> list[MergePlan]:
        """What `merge`, or with `request.cold` `merge_cold`, would begin with. Changes nothing."""
        return maintenance.plan_merges(self.context, self.definition(table), request)

    def plan_adoptions(self, table: str, request: MergeRequest) -> list[MergePlan]:
        """What `merge` with `request.adopt` would begin with. Changes nothing."""
        return maintenance.plan_adoptions(self.context, self.definition(table), request)

    def explain_merges(self, table: str, plans: Sequence[MergePlan], request: MergeRequest) -> list[MergeStay]:
        """Why the partitions that none of the plans is about are not merged now."""
        return maintenance.explain_merges(self.context, self.definition(table), plans, request)

    def believe_clock(self) -> None:
        """Go by this machine's clock where no other clock can be asked: somebody looked at it."""
        maintenance.believe_clock(self.context)

    def tick(self, *, only: TickStep | None = None, stop: threading.Event | None = None) -> TickReport:
        """One pass of the daemon: merges, TTL deletes, moves, snapshots."""
        if stop is not None:
            self.context.stop = stop
        recovering.begin_disks(self.context)
        return maintenance.tick(self.context, only=only)

    def gc(self, disk: str, rules: GcRules, *, remote: Remote | None = None) -> GcReport:
        """Report, or as the rules say remove, objects that nothing names. With `remote` others list the bucket."""
        from disks.garbage import collect as garbage

        now = None if self.context.clock is wall_clock else self.context.clock()
        return garbage.collect(self._usable(disk), rules, now=now, remote=remote)

    def _usable(self, name: str) -> Disk:
        """The disk, when it is what its name stands for."""
        disk = self.disk(name)
        if (error := disk.broken) is not None:
            raise type(error)(error.message, hint=error.hint)
        return disk

    def _changing(self, table: str, what: str) -> TableDefinition:
        """The table, when all of its disks are there."""
        definition = self.definition(table)
        reachability.check_whole(self.context, definition, f"{what} {definition.full_name}")
        recovering.begin_disks(self.context)
        return definition

    def _selected(self, table: str | None) -> list[TableDefinition]:
        return self.definitions() if table is None else [self.definition(table)]


class Table:
    """One table: insert Arrow, scan Arrow."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        self._context = context
        self.definition = definition

    def insert(self, batches: Iterable[pa.RecordBatch]) -> InsertResult:
        """Insert Arrow batches; what an earlier identical insert wrote already is skipped."""
        from tiering.insert import insert

        reachability.check_whole(self._context, self.definition, f"inserting into {self.definition.full_name}")
        recovering.begin_disks(self._context)
        result = insert.insert(self._context, self.definition, batches)
        self._context.catalog.refresh()
        return result

    def parts(self) -> list[StoredPart]:
        """The active parts."""
        return self._context.catalog.parts(self.definition)

    def scan(self, *, columns: Sequence[str] | None = None, filter: object = None) -> pa.RecordBatchReader:  # noqa: A002
        """Stream the rows of all tiers as Arrow; parts, row groups and columns that cannot matter are not read.

        Raises `Damaged` when a part cannot be read.
        """
        from tiering.query import scan

        self._check_complete()
        return scan.scan(self._context, self.definition, self.parts(), columns=columns, filter=filter)

    def dataset(self) -> pa.dataset.Dataset:
        """The table as a pyarrow dataset, which pandas, Polars and DuckDB can read. Raises `Damaged` as `scan` does."""
        from tiering.query import dataset

        self._check_complete()
        return dataset.table_dataset(self._context, self.definition, self.parts())

    def _check_complete(self) -> None:
        reachability.check_certain(self._context, self.definition)
        self._context.catalog.check_readable(self.definition)


def make_context(
    config: Config,
    *,
    actor: str,
    workers: int | None,
    limiter: Limiter | None,
    progress: Progress | None,
    clock: Callable[[], datetime],
) -> Context:
    """Open the disks and the journal of a configuration, and compare the disks' ids: one request a bucket at most."""
    state = config.state_directory
    limits = config.limits
    workers = workers or limits.workers
    limiter = limiter or Limiter(
        bytes_per_second=limits.bytes_per_second,
        requests_per_second=limits.requests_per_second,
        max_concurrency=max(workers, 16),
    )
    disks = {name: open_disk(name, disk, state, limiter=limiter) for name, disk in config.disks.items()}
    journal = Journal(state)
    places = {name: place_of(disk, os.environ).text for name, disk in config.disks.items()}
    identities = Identities(disks, places, journal)
    identities.look()
    return Context(
        config=config,
        disks=disks,
        catalog=Catalog(config, disks, dropping=lambda: tables.being_dropped(journal)),
        journal=journal,
        reservations=Reservations(config, disks),
        workers=workers,
        actor=actor,
        progress=progress or Silent(),
        clock=clock,
        identities=identities,
    )
