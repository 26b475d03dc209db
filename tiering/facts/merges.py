"""Merges as rows: those that were made, and those that are planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from tiering.merge.selection import MergeStay
from tiering.policy.cost import Cost, price, price_of_storage

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
    from tiering.engine.store import Store
    from tiering.merge.cold.job import ColdMergeReport
    from tiering.merge.output import MergeResult
    from tiering.merge.selection import FailedGroup, MergePlan


class MergeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A merge. Of one that is planned, the output and its size are unknown."""

    table: str
    partition: str
    inputs: Sequence[str]
    output: str | None
    rows_in: int
    rows_out: int | None
    bytes_in: int
    bytes_out: int | None
    seconds: float
    kept: str
    """Why rows that may be past their TTL stay; empty if none do."""

    @classmethod
    def of(cls, result: MergeResult) -> MergeRow:
        """Of a merge that is done."""
        return cls(**{name: getattr(result, name) for name in MergeRow.__struct_fields__})

    @classmethod
    def planned(cls, table: str, inputs: Sequence[StoredPart]) -> MergeRow:
        """Of one that is not."""
        return cls(
            table=table,
            partition=inputs[0].name.partition,
            inputs=[stored.facts.name for stored in inputs],
            output=None,
            rows_in=sum(stored.facts.rows for stored in inputs),
            rows_out=None,
            bytes_in=sum(stored.facts.size_bytes for stored in inputs),
            bytes_out=None,
            seconds=0,
            kept="",
        )


class MergeCost(Cost, frozen=True, kw_only=True):
    """What a cold merge costs."""

    price: float
    currency: str

    @classmethod
    def priced(cls, store: Store, cost: Cost) -> MergeCost:
        """By the prices of the configuration."""
        prices = store.context.config.prices
        return cls(**asdict(cost), price=round(price(cost, prices), 6), currency=prices.currency)


class ColdMergeRow(MergeRow, frozen=True, kw_only=True):
    """A merge of parts in a bucket."""

    reason: str
    shards: int
    cost: MergeCost


class MergeGroup(msgspec.Struct, frozen=True):
    """Parts of a partition that were to be merged."""

    partition: str
    inputs: list[str]


class MergeError(msgspec.Struct, frozen=True):
    """Why a group was not merged."""

    kind: str
    message: str
    hint: str


class FailedMergeGroup(MergeGroup, frozen=True):
    """A group that could not be merged."""

    error: MergeError


class TableSize(msgspec.Struct, frozen=True):
    """What a table or a partition holds, and what that costs in a month."""

    parts: int
    rows: int
    bytes: int
    price_month: float


class MergeSummary(msgspec.Struct, frozen=True):
    """What a cold merge changed and took."""

    before: TableSize
    after: TableSize
    shards: int
    cpu_seconds: float
    peak_memory_bytes: int


class MergesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`merge --json`."""

    merges: Sequence[MergeRow]
    not_merged: Sequence[MergeStay]
    failed: list[FailedMergeGroup] = []
    not_begun: list[MergeGroup] | UnsetType = UNSET
    """This and the next two: of a cold merge that was made."""
    summary: MergeSummary | UnsetType = UNSET
    spark: UnsetType | None = UNSET
    """None if Spark was not needed."""
    dry_run: bool


def planned_cold(store: Store, table: str, plan: MergePlan, *, shard_bytes: int) -> ColdMergeRow:
    """A cold merge that is planned: with its reason, its shards and what it will cost."""
    from tiering.merge.cold.job import shards_of
    from tiering.merge.cold.shards import estimate_merge

    definition = store.definition(table)
    shards = shards_of(store.context, definition, plan, shard_bytes=shard_bytes)
    cost = estimate_merge(shards, target_file_bytes=definition.settings.target_file_size_bytes)
    row = MergeRow.planned(table, plan.parts)
    return ColdMergeRow(**asdict(row), reason=plan.reason, shards=len(shards), cost=MergeCost.priced(store, cost))


def done_cold(store: Store, result: MergeResult) -> ColdMergeRow:
    """A cold merge that is done: the same with what it did cost."""
    requests = result.requests
    cost = Cost(
        put=requests.get("PUT", 0),
        get=requests.get("GET", 0) + requests.get("HEAD", 0),
        bytes_down=result.bytes_read,
        bytes_up=result.bytes_out,
    )
    row, priced = MergeRow.of(result), MergeCost.priced(store, cost)
    return ColdMergeRow(**asdict(row), reason=result.reason, shards=result.shards, cost=priced)


def size_of(store: Store, table: str, partition: str | None) -> TableSize:
    """Of a table or one of its partitions now."""
    config = store.context.config
    parts = [stored for stored in store.parts(table) if partition in (None, stored.name.partition)]
    by_disk: dict[str, int] = {}
    for stored in parts:
        by_disk[stored.disk] = by_disk.get(stored.disk, 0) + stored.facts.size_bytes
    return TableSize(
        parts=len(parts),
        rows=sum(stored.facts.rows for stored in parts),
        bytes=sum(stored.facts.size_bytes for stored in parts),
        price_month=round(price_of_storage(by_disk, config.prices, config.buckets().keys()), 6),
    )


def cold_document(
    merges: Sequence[MergeRow],
    stays: Sequence[MergeStay],
    report: ColdMergeReport,
    sizes: tuple[TableSize, TableSize],
    *,
    spark: UnsetType | None = UNSET,
) -> MergesDocument:
    """The document of a cold merge. `sizes`: before and after."""
    return MergesDocument(
        merges=merges,
        not_merged=stays,
        failed=failed_groups(report.failures),
        not_begun=[MergeGroup(*_group(plan)) for plan in report.not_begun],
        summary=MergeSummary(*sizes, report.shards, round(report.cpu_seconds, 3), report.peak_memory_bytes),
        spark=spark,
        dry_run=False,
    )


def failed_groups(failures: Sequence[FailedGroup]) -> list[FailedMergeGroup]:
    """The groups that could not be merged, and why."""
    return [
        FailedMergeGroup(
            *_group(failure.plan), MergeError(failure.error.kind, failure.error.message, failure.error.advice)
        )
        for failure in failures
    ]


def _group(plan: MergePlan) -> tuple[str, list[str]]:
    return plan.partition, [stored.facts.name for stored in plan.parts]
