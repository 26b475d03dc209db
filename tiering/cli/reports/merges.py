"""What `merge` answers: documents for `--json`, tables for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.reports.moves import merge_document, merge_plan_document, print_merge_stays, print_merges

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.merge.cold.job import ColdMergeReport, FailedGroup
    from tiering.merge.output import MergeResult
    from tiering.merge.selection import MergePlan, MergeStay
    from tiering.policy.cost import Cost


def plan_document(store: "Store", table: str, plan: "MergePlan", *, shard_bytes: int) -> dict[str, Any]:
    """A cold merge that is planned: with its reason, its shards and what it will cost."""
    from tiering.merge.cold.job import shards_of
    from tiering.merge.cold.shards import estimate_merge

    definition = store.definition(table)
    shards = shards_of(store.context, definition, plan, shard_bytes=shard_bytes)
    cost = estimate_merge(shards, target_file_bytes=definition.settings.target_file_size_bytes)
    return {
        **merge_plan_document(table, plan.parts),
        "reason": plan.reason,
        "shards": len(shards),
        "cost": _cost_document(store, cost),
    }


def done_document(store: "Store", result: "MergeResult") -> dict[str, Any]:
    """A cold merge that is done: the same with what it did cost."""
    from tiering.policy.cost import Cost

    requests = result.requests
    cost = Cost(
        put=requests.get("PUT", 0),
        get=requests.get("GET", 0) + requests.get("HEAD", 0),
        bytes_down=result.bytes_read,
        bytes_up=result.bytes_out,
    )
    return {
        **merge_document(result),
        "reason": result.reason,
        "shards": result.shards,
        "cost": _cost_document(store, cost),
    }


def _cost_document(store: "Store", cost: "Cost") -> dict[str, Any]:
    import msgspec

    from tiering.policy.cost import price

    prices = store.context.config.prices
    return {**msgspec.to_builtins(cost), "price": round(price(cost, prices), 6), "currency": prices.currency}


def size_of(store: "Store", table: str, partition: str | None) -> dict[str, Any]:
    """Parts, rows and bytes of a table or one of its partitions now, and what they cost in a month."""
    from tiering.policy.cost import price_of_storage

    config = store.context.config
    parts = [stored for stored in store.parts(table) if partition in (None, stored.name.partition)]
    by_disk: dict[str, int] = {}
    for stored in parts:
        by_disk[stored.disk] = by_disk.get(stored.disk, 0) + stored.facts.size_bytes
    return {
        "parts": len(parts),
        "rows": sum(stored.facts.rows for stored in parts),
        "bytes": sum(stored.facts.size_bytes for stored in parts),
        "price_month": round(price_of_storage(by_disk, config.prices, config.buckets().keys()), 6),
    }


def summary_document(
    store: "Store", report: "ColdMergeReport", before: dict[str, Any], after: dict[str, Any]
) -> dict[str, Any]:
    """What a cold merge adds to `merge --json`."""
    return {
        **failures_document(report.failures),
        "not_begun": [_group(plan) for plan in report.not_begun],
        "summary": {
            "before": before,
            "after": after,
            "shards": report.shards,
            "cpu_seconds": round(report.cpu_seconds, 3),
            "peak_memory_bytes": report.peak_memory_bytes,
        },
    }


def failures_document(failures: "Sequence[FailedGroup]") -> dict[str, Any]:
    """What every merge adds to `merge --json`."""
    return {
        "failed": [
            {
                **_group(failure.plan),
                "error": {"kind": failure.error.kind, "message": failure.error.message, "hint": failure.error.advice},
            }
            for failure in failures
        ]
    }


def _group(plan: "MergePlan") -> dict[str, Any]:
    return {"partition": plan.partition, "inputs": [stored.facts.name for stored in plan.parts]}


def report_merges(
    session: Session,
    documents: list[dict[str, Any]],
    stays: "Sequence[MergeStay]",
    more: dict[str, Any],
    *,
    waits: bool = False,
) -> None:
    """Show what was merged or is planned, why the rest stays, and `more`: `summary_document` or nothing. `waits`: some
    merge was agreed upon, and is not done here yet."""
    import msgspec

    merged = {document["partition"] for document in documents}
    shown = [msgspec.to_builtins(stay) for stay in stays if stay.partition not in merged]
    if session.options.json:
        session.output.document({"merges": documents, "not_merged": shown, **more, "dry_run": session.dry_run})
    else:
        if session.dry_run:
            session.output.line("Dry run: these parts would be merged; nothing was changed.")
        print_merges(session.output, documents)
        _print_costs(session, documents, more)
        print_merge_stays(session.output, shown)
    if not documents and not more.get("failed") and not waits:
        session.nothing_to_do("Nothing to merge.")


def _print_costs(session: Session, documents: list[dict[str, Any]], more: dict[str, Any]) -> None:
    from tiering.config.units import format_size

    costs = [document["cost"] for document in documents if "cost" in document]
    if not costs:
        return
    currency, summary = costs[0]["currency"], more.get("summary")
    if summary is not None:
        sizes = [(name, summary[name]) for name in ("before", "after")]
        rows = [
            (
                name,
                size["parts"],
                f"{size['rows']:,}",
                format_size(size["bytes"]),
                f"{size['price_month']:.6f} {currency}",
            )
            for name, size in sizes
        ]
        session.output.line()
        session.output.table(["", "parts", "rows", "size", "storage a month"], rows)
    else:
        for document in documents:
            session.output.line(f"{document['partition']}: {document['reason']}")
    total = {name: sum(cost[name] for cost in costs) for name in ("put", "get", "bytes_down", "bytes_up", "price")}
    session.output.line(
        f"{counted(sum(document['shards'] for document in documents), 'shard')}: {total['put']:,} writes, "
        f"{total['get']:,} reads, {format_size(total['bytes_down'])} down, {format_size(total['bytes_up'])} up, "
        f"{total['price']:.6f} {currency}"
    )
    if summary is not None:
        session.output.line(
            f"{summary['cpu_seconds']:.1f} s of processor time, "
            f"at most {format_size(summary['peak_memory_bytes'])} of memory a process"
        )
