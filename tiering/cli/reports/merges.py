"""What `merge` answers: a document for `--json`, tables for people."""

from typing import TYPE_CHECKING

from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.reports.moves import print_merge_stays, print_merges
from tiering.config.units import format_size

if TYPE_CHECKING:
    from tiering.facts.merges import MergesDocument


def report_merges(session: Session, document: "MergesDocument", *, waits: bool = False) -> None:
    """Show what was merged or is planned, and why the rest stays. `waits`: some merge was agreed upon, and is not done
    here yet."""
    from msgspec.structs import replace

    merged = {merge.partition for merge in document.merges}
    document = replace(document, not_merged=[stay for stay in document.not_merged if stay.partition not in merged])
    if session.options.json:
        session.output.document(document)
    else:
        if document.dry_run:
            session.output.line("Dry run: these parts would be merged; nothing was changed.")
        print_merges(session.output, document.merges)
        _print_costs(session, document)
        print_merge_stays(session.output, document.not_merged)
    if not document.merges and not document.failed and not waits:
        session.nothing_to_do("Nothing to merge.")


def _print_costs(session: Session, document: "MergesDocument") -> None:
    from msgspec import UNSET

    from tiering.facts.merges import ColdMergeRow

    merges = [merge for merge in document.merges if isinstance(merge, ColdMergeRow)]
    if not merges:
        return
    costs = [merge.cost for merge in merges]
    currency, summary = costs[0].currency, document.summary
    if summary is not UNSET:
        rows = [
            (name, size.parts, f"{size.rows:,}", format_size(size.bytes), f"{size.price_month:.6f} {currency}")
            for name, size in (("before", summary.before), ("after", summary.after))
        ]
        session.output.line()
        session.output.table(["", "parts", "rows", "size", "storage a month"], rows)
    else:
        for merge in merges:
            session.output.line(f"{merge.partition}: {merge.reason}")
    down, up = sum(cost.bytes_down for cost in costs), sum(cost.bytes_up for cost in costs)
    session.output.line(
        f"{counted(sum(merge.shards for merge in merges), 'shard')}: {sum(cost.put for cost in costs):,} writes, "
        f"{sum(cost.get for cost in costs):,} reads, {format_size(down)} down, {format_size(up)} up, "
        f"{sum(cost.price for cost in costs):.6f} {currency}"
    )
    if summary is not UNSET:
        session.output.line(
            f"{summary.cpu_seconds:.1f} s of processor time, "
            f"at most {format_size(summary.peak_memory_bytes)} of memory a process"
        )
