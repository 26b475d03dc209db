"""`objbench`: how fast a disk's store is, and whether it keeps its promises."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import Refused, UsageError
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.config.units import format_size, parse_size

if TYPE_CHECKING:
    from disks.stores.trial.bench import BenchReport, BenchStep, Measurement

_SIZES = "4KiB,256KiB,8MiB"
_PART_BYTES = 256 * 1024
_PARTS_A_COMMIT = 100


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, changes=True)(objbench)


def objbench(
    session: Session,
    disk: Annotated[str, typer.Argument(metavar="DISK", help="an object disk")],
    objects: Annotated[int, typer.Option(metavar="N", help="objects per size", min=1, max=100_000)] = 100,
    size: Annotated[str, typer.Option(metavar="S,…", help="object sizes")] = _SIZES,
) -> None:
    """Benchmark a store and check its guarantees, with 1 and with -j workers.

    Writes below `objbench/` and deletes it at the end. Exit 4: a guarantee failed.
    """
    from disks.stores.open import open_store
    from disks.stores.trial.bench import plan, requests_of, run

    config = session.object_disk(disk)
    sizes = [parse_size(text) for text in size.split(",")]
    if any(one < 1 for one in sizes):
        raise UsageError("an object of objbench has at least one byte", hint=f"--size {_SIZES}")
    workers = session.options.workers or session.loaded.config.limits.workers
    steps = plan(sizes, objects, sorted({1, workers}))
    planned = requests_of(steps)
    document: dict[str, Any] = {
        "disk": disk,
        "store": config.store.name,
        "planned": planned,
        "dry_run": session.dry_run,
    }
    if session.dry_run:
        if session.options.json:
            session.output.document(document)
            return
        session.output.line(f"Dry run: would measure {config.store.name} with {counted(len(steps), 'step')}; about")
        sent = ", ".join(f"{planned[kind]:,} {kind}" for kind in ("PUT", "GET", "LIST", "DELETE"))
        session.output.line(f"  requests  {sent}")
        up, down = format_size(planned["bytes_up"]), format_size(planned["bytes_down"])
        session.output.line(f"  bytes     {up} up, {down} down; at most {format_size(_most(steps))} stored at a time")
        return
    if config.read_only:
        raise Refused(f"disk {disk} is read-only: objbench writes", hint="choose another disk")
    with (
        open_store(session.loaded.config.bucket(disk), limiter=session.limiter()) as store,
        session.progress().task(f"measuring {disk}", items=len(steps)) as task,
    ):

        def advance(step: "BenchStep") -> None:
            task.note(f"{step.verb}, {format_size(step.size_bytes)}, {counted(step.workers, 'worker')}")
            task.advance(items=1)

        report = run(store, steps, advance)
        document |= _document(report)
        document |= {"requests": store.counts(), "bytes_up": store.bytes_sent, "bytes_down": store.bytes_received}
        document["conditional_put"] = store.capabilities.conditional_put
    if session.options.json:
        session.output.document(document)
    else:
        _print(session, report, document)
    if not document["ok"]:
        session.found_something()


def _most(steps: "list[BenchStep]") -> int:
    return max((step.size_bytes * step.count for step in steps if step.verb == "put"), default=0)


def _document(report: "BenchReport") -> dict[str, Any]:
    return {
        "measurements": [
            {
                "verb": found.step.verb,
                "size_bytes": found.step.size_bytes,
                "workers": found.step.workers,
                "requests": found.requests,
                "seconds": round(found.seconds, 6),
                "per_second": round(found.per_second, 1),
                "bytes_per_second": round(found.bytes_per_second),
                "p50_ms": _ms(found.p50),
                "p95_ms": _ms(found.p95),
                "p99_ms": _ms(found.p99),
            }
            for found in report.measurements
        ],
        "checks": [{"check": check.name, "ok": check.ok, "what": check.what} for check in report.checks],
        "ok": all(check.ok for check in report.checks),
        "leftovers_removed": report.leftovers_removed,
        "kept": report.kept,
        "parts_per_second": _parts_per_second(report.measurements),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def _parts_per_second(measurements: "list[Measurement]") -> float | None:
    """How many small parts a second a move could write: one PUT each, and its share of a commit."""
    puts = [measurement for measurement in measurements if measurement.step.verb == "put"]
    commits = [measurement for measurement in measurements if measurement.step.verb == "put if absent"]
    if not puts or not commits:
        return None
    put = min(puts, key=lambda measurement: (abs(measurement.step.size_bytes - _PART_BYTES), -measurement.step.workers))
    return round(1 / (1 / put.per_second + commits[0].p50 / _PARTS_A_COMMIT), 1)


def _print(session: Session, report: "BenchReport", document: dict[str, Any]) -> None:
    rows = [
        (
            found.step.verb,
            format_size(found.step.size_bytes) if found.step.size_bytes else "",
            found.step.workers,
            f"{found.per_second:,.0f}",
            f"{format_size(found.bytes_per_second)}/s" if found.moved_bytes else "",
            f"{_ms(found.p50):,.1f}",
            f"{_ms(found.p95):,.1f}",
            f"{_ms(found.p99):,.1f}",
        )
        for found in report.measurements
    ]
    columns = ["operation", "size", "workers", "per second", "throughput", "p50 ms", "p95 ms", "p99 ms"]
    session.output.table(columns, rows, empty="Nothing was measured.")
    for check in report.checks:
        session.output.line(
            f"{'ok     ' if check.ok else 'PROBLEM'}  {check.name}{': ' if check.what else ''}{check.what}"
        )
    if not document["conditional_put"]:
        session.output.line("note     no conditional writes: only one machine can write at a time, with a lease")
    if (rate := document["parts_per_second"]) is not None:
        needed = f"A move of 256 KiB parts takes 1 PUT each and 1 commit a batch of {_PARTS_A_COMMIT}"
        session.output.line(f"{needed}: about {rate:,.0f} parts a second here.")
    if report.leftovers_removed:
        session.output.note(f"{counted(report.leftovers_removed, 'object')} of an earlier, killed run were removed")
    if report.kept:
        session.output.note(f"{counted(report.kept, 'object')} are kept by Object Lock; gc removes them when it ends")
