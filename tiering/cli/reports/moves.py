"""Moves as tables and documents; what `plan`, `move`, `apply` and `tick` share."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from oplog.errors import FrostlineError
from tiering.cli.frame.output import Output, counted
from tiering.cli.frame.session import Session, fail_if_partly
from tiering.config.units import format_size

if TYPE_CHECKING:
    from tiering.catalog.identities.faults import Fault
    from tiering.facts.merges import MergeRow
    from tiering.facts.moves import MoveRows, PassDocument, WouldMove
    from tiering.merge.selection import MergeStay
    from tiering.move.report import FailedMove, MovedPart, MoveReport, SkippedMove
    from tiering.policy.plan import Move


def move_report(session: Session, report: "MoveReport") -> None:
    """Print what moved. Raises `PartlyDone` when some failed."""
    if session.options.json:
        from msgspec.structs import asdict

        from tiering.facts.moves import MovesDocument

        session.output.document(MovesDocument(**asdict(report), dry_run=False))
    else:
        print_report(session.output, report)
    if not report.moved and not report.failed:
        session.nothing_to_do("Nothing was moved.")
    fail_if_partly(len(report.failed), len(report.moved), "moves", [move.kind for move in report.failed])


def print_report(output: Output, document: "MoveRows | MoveReport") -> None:
    """The report for people."""
    for item in document.moved:
        size = format_size(item.bytes) if item.copied else "without a byte"
        output.line(f"moved    {_line(item)}  {size} in {item.seconds:.2f} s")
    for skipped in document.skipped:
        output.line(f"skipped  {_line(skipped)}  {skipped.reason}")
    for failed in document.failed:
        output.line(f"failed   {_line(failed)}  {failed.error}")
    for hint in dict.fromkeys(item.hint for item in document.failed if item.hint):
        output.line(f"         {hint}")
    total = sum(item.bytes for item in document.moved if item.copied)
    output.line(
        f"{counted(len(document.moved), 'part')} moved ({format_size(total)}), {len(document.skipped)} skipped,"
        f" {len(document.failed)} failed."
    )


def print_moves(output: Output, moves: "Sequence[Move]") -> None:
    """Planned moves with their reasons."""
    output.table(
        ["table", "part", "from", "to", "size", "reason"],
        [
            (
                item.table,
                item.part,
                item.source,
                item.target,
                format_size(item.bytes),
                item.reason.detail,
            )
            for item in moves
        ],
    )


def _line(move: "MovedPart | WouldMove | FailedMove | SkippedMove") -> str:
    return f"{move.table} {move.part}  {move.source} -> {move.target}"


def _rows(before: int, after: int | None) -> str:
    return f"{before:,}" if after in (None, before) else f"{before:,} to {after:,}"


def print_merges(output: Output, merges: "Sequence[MergeRow]") -> None:
    """Merges as a table."""
    output.table(
        ["table", "partition", "parts", "into", "rows", "before", "after", "seconds"],
        [
            (
                merge.table,
                merge.partition,
                len(merge.inputs),
                merge.output,
                _rows(merge.rows_in, merge.rows_out),
                format_size(merge.bytes_in),
                "" if merge.bytes_out is None else format_size(merge.bytes_out),
                f"{merge.seconds:.2f}",
            )
            for merge in merges
        ],
    )
    for sentence, group in groupby((merge for merge in merges if merge.kept), key=lambda merge: merge.kept):
        names = ", ".join(str(merge.output) for merge in group)
        output.note(f"{names}: {sentence}")


def print_merge_stays(output: Output, stays: "Sequence[MergeStay]") -> None:
    """Why partitions are not merged, on stderr; those of one reason in one line."""
    by_reason: dict[str, list[MergeStay]] = {}
    for stay in stays:
        by_reason.setdefault(stay.reason.detail, []).append(stay)
    for detail, group in by_reason.items():
        names = ", ".join(stay.partition for stay in group[:5])
        more = f" and {len(group) - 5:,} more" if len(group) > 5 else ""
        output.note(f"not merged: {counted(len(group), 'partition')} ({names}{more}): {detail}")


def fail_as_the_pass_did(document: "PassDocument", faults: "Sequence[Fault]") -> None:
    """Exit 3 or 1 for steps that could not be done; where `faults` of disks are all of them, as the first one does:
    a user who tries again needs to know whether that can help."""
    done, failed = document.steps
    if not done and 0 < failed == len(faults):
        raise faults[0].error
    kinds = [move.kind for move in document.failed] + [FrostlineError.kind for _ in document.problems]
    fail_if_partly(failed, done, "steps", kinds)
