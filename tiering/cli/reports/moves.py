"""Moves as tables and documents; what `plan`, `move`, `apply` and `tick` share."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from oplog.errors import FrostlineError
from tiering.cli.frame.output import Output, counted
from tiering.cli.frame.session import Session, fail_if_partly

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
    from tiering.catalog.identities.faults import Fault
    from tiering.engine.maintenance import TickReport
    from tiering.move.mover import MoveReport


def move_document(report: "MoveReport") -> dict[str, Any]:
    """`{"moved", "failed", "skipped"}` as scripts know it."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(report)
    return {name: plain[name] for name in ("moved", "failed", "skipped")}


def move_report(session: Session, report: "MoveReport") -> None:
    """Print what moved. Raises `PartlyDone` when some failed."""
    document = move_document(report)
    if session.options.json:
        session.output.document({**document, "dry_run": False})
    else:
        print_report(session.output, document)
    if not document["moved"] and not document["failed"]:
        session.nothing_to_do("Nothing was moved.")
    kinds = [move["kind"] for move in document["failed"]]
    fail_if_partly(len(document["failed"]), len(document["moved"]), "moves", kinds)


def print_report(output: Output, document: dict[str, Any]) -> None:
    """The report for people."""
    from tiering.config.units import format_size

    for item in document["moved"]:
        size = format_size(item["bytes"]) if item.get("copied", True) else "without a byte"
        output.line(f"moved    {_line(item)}  {size} in {item['seconds']:.2f} s")
    for item in document["skipped"]:
        output.line(f"skipped  {_line(item)}  {item['reason']}")
    for item in document["failed"]:
        output.line(f"failed   {_line(item)}  {item['error']}")
    for hint in dict.fromkeys(item["hint"] for item in document["failed"] if item["hint"]):
        output.line(f"         {hint}")
    total = sum(item["bytes"] for item in document["moved"] if item.get("copied", True))
    output.line(
        f"{counted(len(document['moved']), 'part')} moved ({format_size(total)}), {len(document['skipped'])} skipped,"
        f" {len(document['failed'])} failed."
    )


def print_moves(output: Output, moves: list[dict[str, Any]]) -> None:
    """Planned moves with their reasons."""
    from tiering.config.units import format_size

    output.table(
        ["table", "part", "from", "to", "size", "reason"],
        [
            (
                item["table"],
                item["part"],
                item["from"],
                item["to"],
                format_size(item["bytes"]),
                item["reason"]["detail"],
            )
            for item in moves
        ],
    )


def _line(move: dict[str, Any]) -> str:
    return f"{move['table']} {move['part']}  {move['from']} -> {move['to']}"


def merge_document(result: Any) -> dict[str, Any]:
    """One entry of `merge --json`."""
    names = ("table", "partition", "inputs", "output", "rows_in", "rows_out", "bytes_in", "bytes_out", "seconds")
    document = {name: getattr(result, name) for name in names}
    document["inputs"] = list(document["inputs"])
    document["kept"] = result.kept
    return document


def merge_plan_document(table: str, inputs: "Sequence[StoredPart]") -> dict[str, Any]:
    """The same for a merge that is only planned: the output and its size are not known yet."""
    return {
        "table": table,
        "partition": inputs[0].name.partition,
        "inputs": [stored.facts.name for stored in inputs],
        "output": None,
        "rows_in": sum(stored.facts.rows for stored in inputs),
        "rows_out": None,
        "bytes_in": sum(stored.facts.size_bytes for stored in inputs),
        "bytes_out": None,
        "seconds": 0,
        "kept": "",
    }


def _rows(before: int, after: int | None) -> str:
    return f"{before:,}" if after in (None, before) else f"{before:,} to {after:,}"


def print_merges(output: Output, merges: list[dict[str, Any]]) -> None:
    """Merges as a table."""
    from tiering.config.units import format_size

    output.table(
        ["table", "partition", "parts", "into", "rows", "before", "after", "seconds"],
        [
            (
                merge["table"],
                merge["partition"],
                len(merge["inputs"]),
                merge["output"],
                _rows(merge["rows_in"], merge["rows_out"]),
                format_size(merge["bytes_in"]),
                "" if merge["bytes_out"] is None else format_size(merge["bytes_out"]),
                f"{merge['seconds']:.2f}",
            )
            for merge in merges
        ],
    )
    for sentence, group in groupby((merge for merge in merges if merge["kept"]), key=lambda merge: merge["kept"]):
        names = ", ".join(merge["output"] for merge in group)
        output.note(f"{names}: {sentence}")


def print_merge_stays(output: Output, stays: list[dict[str, Any]]) -> None:
    """Why partitions are not merged, on stderr; those of one reason in one line."""
    by_reason: dict[str, list[dict[str, Any]]] = {}
    for stay in stays:
        by_reason.setdefault(stay["reason"]["detail"], []).append(stay)
    for detail, group in by_reason.items():
        names = ", ".join(stay["partition"] for stay in group[:5])
        more = f" and {len(group) - 5:,} more" if len(group) > 5 else ""
        output.note(f"not merged: {counted(len(group), 'partition')} ({names}{more}): {detail}")


def steps_of(document: dict[str, Any]) -> tuple[int, int]:
    """Of a pass: how many steps were done, and how many could not be."""
    done = sum(len(document.get(name, ())) for name in ("moved", "merges", "deleted", "snapshots", "gc"))
    return done, len(document["failed"]) + len(document["problems"])


def fail_as_the_pass_did(document: dict[str, Any], faults: "Sequence[Fault]") -> None:
    """Exit 3 or 1 for steps that could not be done; where `faults` of disks are all of them, as the first one does:
    a user who tries again needs to know whether that can help."""
    done, failed = steps_of(document)
    if not done and 0 < failed == len(faults):
        raise faults[0].error
    kinds = [move["kind"] for move in document["failed"]] + [FrostlineError.kind for _ in document["problems"]]
    fail_if_partly(failed, done, "steps", kinds)


def tick_document(report: "TickReport") -> dict[str, Any]:
    """`tick --json`: what moved, merged and was deleted, and what could not be done."""
    import msgspec

    return {
        **move_document(report.moves),
        "merges": [merge_document(result) for result in report.merges],
        "deleted": msgspec.to_builtins(report.deleted),
        "snapshots": report.snapshots,
        "problems": report.problems,
        "waiting": report.waiting,
        "held": dict(report.held),
    }
