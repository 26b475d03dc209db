"""`merge`: in this process, in buckets, and by Spark."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oplog.errors import UsageError
from tiering.cli.commands.merge_here import merge_here, note_failures
from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.remote_work import Master, SparkWork
from tiering.cli.frame.remote_work import wanted as spark_wanted
from tiering.cli.frame.session import Session, fail_if_partly
from tiering.cli.frame.verb import verb
from tiering.cli.reports.merges import report_merges
from tiering.config.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiering.engine.store import Store
    from tiering.merge.cold.job import Workers
    from tiering.merge.request import ColdOptions, MergeRequest
    from tiering.merge.selection import FailedGroup
    from tiering.table.schema import TableDefinition

_GROUPS_IN_FLIGHT = 4
"""Unless Spark can run more tasks than this."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, changes=True)(merge)


def merge(
    session: Session,
    table: TableName,
    partition: Annotated[str | None, typer.Option(metavar="P", help="only this partition")] = None,
    final: Annotated[bool, typer.Option("--final", help="merge to one part per partition")] = False,
    adopt: Annotated[bool, typer.Option("--adopt", help="first take over other machines' parts in the bucket")] = False,
    adopt_as: Annotated[
        Literal["older", "newer"] | None,
        typer.Option(help="with --adopt: their rows are older or newer than this machine's"),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="merge parts in buckets, even where merges are disabled")
    ] = False,
    spark: Annotated[bool, typer.Option("--spark", help="the same on Spark executors")] = False,
    master: Master = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="with --cold: only partitions that may match")
    ] = None,
    target_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="with --cold: leave parts near this size alone")
    ] = None,
    min_inputs: Annotated[int, typer.Option(metavar="N", min=2, help="with --cold: fewest parts per merge")] = 2,
    max_group_size: Annotated[str | None, typer.Option(metavar="SIZE", help="with --cold: largest output part")] = None,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="with --cold: input bytes per task")] = "256MiB",
    groups_in_flight: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="with --spark: concurrent merges")
    ] = None,
    max_failed_groups: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="with --cold: stop after more failures")
    ] = None,
    drop_deleted: Annotated[
        bool, typer.Option("--drop-deleted", help="drop rows that mark deleted keys, if a whole partition merges")
    ] = False,
) -> None:
    """Merge parts into larger ones, by the table's merge mode. Expired rows are deleted.

    Parts of other machines merge only with each other. --adopt first takes over those in the bucket; it is refused
    (exit 13) if the merge mode depends on the order of inserts, and that is unknown (see --adopt-as).
    """
    from msgspec.structs import replace

    from tiering.merge.request import MergeRequest

    texts = _ColdTexts(where, target_size, min_inputs, max_group_size, shard_size, max_failed_groups)
    if adopt_as is not None and not adopt:
        raise UsageError("--adopt-as sets the order of adopted rows", hint="add --adopt")
    request = MergeRequest(partition=partition, final=final, adopt=adopt, adopt_as=adopt_as, drop_deleted=drop_deleted)
    if spark_wanted(spark, master) or cold:
        request = replace(request, cold=texts.parsed(session.store().definition(table)))
        start = partial(SparkWork, session, f"merge {table}", master) if spark else None
        _merge_cold(session, table, request, start, groups_in_flight)
        return
    if texts != _ColdTexts():
        raise UsageError(
            "--where, --target-size, --min-inputs, --max-group-size, --shard-size and --max-failed-groups are for "
            "parts in buckets",
            hint="add --cold or --spark",
        )
    merge_here(session, table, request)


@dataclass(frozen=True)
class _ColdTexts:
    """The options of a cold merge as they were typed."""

    where: str | None = None
    target_size: str | None = None
    min_inputs: int = 2
    max_group_size: str | None = None
    shard_size: str = "256MiB"
    max_failed_groups: int | None = None

    def parsed(self, definition: "TableDefinition") -> "ColdOptions":
        from tiering.merge.request import ColdOptions
        from tiering.query.sql_filter import parse_filter
        from tiering.table.pruning import TRUE

        options = ColdOptions(
            where=parse_filter(self.where, definition) if self.where else TRUE,
            min_inputs=self.min_inputs,
            target_bytes=parse_size(self.target_size) if self.target_size else None,
            max_group_bytes=parse_size(self.max_group_size) if self.max_group_size else None,
            shard_bytes=parse_size(self.shard_size),
            max_failed_groups=self.max_failed_groups,
        )
        if options.shard_bytes < 1024 * 1024:
            raise UsageError(f"--shard-size is too small: {self.shard_size}", hint="at least 1MiB")
        return options


def _merge_cold(
    session: Session,
    table: str,
    request: "MergeRequest",
    start: "Callable[[], SparkWork] | None",
    groups_in_flight: int | None,
) -> None:
    from msgspec import UNSET

    from tiering.facts.merges import (
        MergeRow,
        MergesDocument,
        cold_document,
        done_cold,
        failed_groups,
        planned_cold,
        size_of,
    )
    from tiering.merge.cold.job import ColdMergeReport

    assert request.cold is not None
    store = session.store()
    refused: list[FailedGroup] = []
    adoptions = store.plan_adoptions(table, request, refused) if request.adopt else []
    plans = store.plan_merges(table, request)
    if refused and not plans and not adoptions:
        raise refused[0].error
    if session.dry_run:
        note_failures(session, refused)
        shard_bytes = request.cold.shard_bytes
        rows = [
            *(MergeRow.planned(table, plan.parts) for plan in adoptions),
            *(planned_cold(store, table, plan, shard_bytes=shard_bytes) for plan in plans),
        ]
        left = [*adoptions, *plans, *(failure.plan for failure in refused)]
        stays = store.explain_merges(table, left, request)
        document = MergesDocument(merges=rows, not_merged=stays, failed=failed_groups(refused), dry_run=True)
        report_merges(session, document)
        fail_if_partly(len(refused), len(rows), "merges")
        return
    before = size_of(store, table, request.partition)
    if not plans and not adoptions:  # what scripts read is there, whether there was something to do or not
        stays = store.explain_merges(table, plans, request)
        spark = None if start is not None else UNSET
        report_merges(session, cold_document([], stays, ColdMergeReport(), (before, before), spark=spark))
        return
    work = start() if start is not None else None
    workers = _spark_workers(work, store, groups_in_flight) if work else _own_workers(store)
    report = store.merge_cold(table, workers, request)
    if work is not None:
        work.report()
    stays = store.explain_merges(table, report.left(), request)
    after = size_of(store, table, request.partition)
    note_failures(session, report.failures)
    if report.not_begun:
        session.output.note(f"not begun: {counted(len(report.not_begun), 'group')}")
    rows = [done_cold(store, result) for result in report.merges]
    report_merges(session, cold_document(rows, stays, report, (before, after)))
    failed, kinds = len(report.failures) + len(report.not_begun), [failure.error.kind for failure in report.failures]
    fail_if_partly(failed, len(report.merges), "groups", kinds)


def _own_workers(store: "Store") -> "Workers":
    from tiering.merge.cold.job import Workers

    return Workers.of_this_process(store.context)


def _spark_workers(work: SparkWork, store: "Store", groups_in_flight: int | None) -> "Workers":
    from tiering.merge.cold.job import Workers

    config = store.context.config
    return Workers(
        work.runner,
        lambda disk: work.remote(config.bucket(disk.name)).store,
        groups_in_flight=groups_in_flight or max(_GROUPS_IN_FLIGHT, work.runner.slots),
    )
