"""The dashboard in a real terminal: how soon it is there, how soon a key is seen, what it takes, what it slows down.

    python -m benchmarks.bench_dashboard [--parts 10000] [--many 100000] [--only idle] [--harlequin PROGRAM]

Beside it in the same harness: an app of textual that shows how often a key was pressed (what the harness itself takes),
textual's own DataTable with the same rows, and harlequin with them, where its program is named: it wants libraries of
other versions than ours, and so an environment of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.bench_open import TABLE, part
from benchmarks.measure import Figure, bound_figure, paired, ratio_figure, report, scratch
from benchmarks.pseudo_terminal import PseudoTerminal
from oplog.kinds import Inserted
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.journal.records import NewMove
from tiering.table import part as part_format

if TYPE_CHECKING:
    from tiering.journal.work import WorkRecords

_MOVING = 100
_REFRESHES = 4
"""A second."""
_WATCHED_SECONDS = 15.0
_IDLE_SECONDS = 120.0
"""What makes it read all anew comes seldom: a shorter time shows none of that, or too much."""
_SETTLED_SECONDS = 3.0
"""After its start, whose cost is another figure."""
_MOVED_PARTS, _MOVED_BYTES = 24, 8_000_000
_COUNTER = """
from textual.app import App
from textual.widgets import Static
class Counter(App):
    count = 0
    def compose(self):
        yield Static("<0>")
    def on_key(self, event):
        self.count += 1
        self.query_one(Static).update(f"<{self.count}>")
Counter().run()
"""
_DATA_TABLE = """
import sys
from textual.app import App
from textual.widgets import DataTable
class Table(App):
    def compose(self):
        yield DataTable(cursor_type="row")
    def on_mount(self):
        table = self.query_one(DataTable)
        table.add_columns("part", "disk", "age", "size", "goes to", "due", "rows")
        for n in range(1, int(sys.argv[1]) + 1):
            table.add_row(f"all_{n}_{n}_0", "ssd", "100d", "15.3 MiB", "s3", "2027-01-28 23:00", "400,000")
Table().run()
"""

_QUERY = """select 'all_' || n || '_' || n || '_0' as part, 'ssd' as disk, '100d' as age, '15.3 MiB' as size,
 's3' as goes, '2027-01-28 23:00' as due, '400,000' as rows from range(1, {parts} + 1) t(n)"""


def fill(home: Path, parts: int) -> None:
    """A store of so many parts, half of them in the bucket."""
    with Store.open(embedded(home)) as store:
        store.create_table(TABLE)
        for disk, first in (("ssd", 1), ("s3", parts // 2 + 1)):
            with store.disk(disk).transaction(Inserted()) as transaction:
                for number in range(first, first + parts // 2):
                    directory = TABLE.part_directory(f"all_{number}_{number}_0")
                    transaction.create(f"{directory}/part.json", part_format.encode(part(number)))
                transaction.commit()


def dashboard(home: Path) -> PseudoTerminal:
    """`frostline top` on the store."""
    command = [str(Path(sys.executable).with_name("frostline")), "top"]
    return PseudoTerminal(command, FROSTLINE_HOME=str(home))


def started(home: Path, parts: int) -> tuple[float, float]:
    """Seconds to the first paint, and until the numbers are there."""
    with dashboard(home) as terminal:
        first = terminal.sees("Overview")
        return first, terminal.sees(f"{parts:,} parts")


def key_seconds(terminal: PseudoTerminal, keys: int) -> list[float]:
    """Until the row is seen that the key goes to: the next one, for which all rows move once the screen is full."""
    return [terminal.press("\x1b[B", f"all_{row}_{row}_0") for row in range(2, keys + 2)]


def p95_milliseconds(seconds: list[float]) -> float:
    """Of what took long."""
    return statistics.quantiles(seconds, n=20)[-1] * 1e3


@contextmanager
def moving(home: Path) -> Iterator[None]:
    """A hundred moves of another process that go on, as often a second as somebody may look."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.bench_dashboard", "--be-moves", str(home)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def be_moves(home: Path) -> None:
    """Write down, until killed, how moves begin."""
    with Store.open(embedded(home)) as store:
        work: WorkRecords = store.context.journal.work
        new = [
            NewMove(
                table=TABLE.full_name,
                table_uuid=TABLE.uuid,
                part=f"all_{n}_{n}_0",
                source="ssd",
                target="s3",
                bytes=16_000_000,
                reason_kind="manual",
                reason_detail="by hand",
            )
            for n in range(1, _MOVING + 1)
        ]
        ids = work.plan_moves(new)
        while True:
            work.set_moves(ids, "copying")
            time.sleep(1 / _REFRESHES)


FIGURES = ("move", "start", "moving", "idle", "beside", "many")
"""What `--only` chooses from."""


def figures(home: Path, many: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Those that are wanted, one after the other."""
    wanted = options.only
    with _textual(_COUNTER) as terminal:
        bare = terminal.sees("<0>")
        floor = p95_milliseconds([terminal.press("j", f"<{count}>") for count in range(1, options.keys + 1)])
    if "start" in wanted:
        yield from _start(home, options, bare)
    if "moving" in wanted:
        yield from _moving(home, options, floor)
    if "idle" in wanted:
        yield _idle(home, options)
    if "beside" in wanted:
        yield from _beside(options, floor)
    if "many" in wanted:
        yield from _many(many, options, floor)


def _start(home: Path, options: argparse.Namespace, bare: float) -> Iterator[Figure]:
    starts = [started(home, options.parts) for _ in range(5)]
    first, complete = (statistics.median(values) for values in zip(*starts, strict=True))
    detail = f"(an empty app of textual: {bare:.2f} s)"
    yield bound_figure(f"top: first paint, {options.parts:,} parts", first, at_most=0.6, unit="s", detail=detail)
    yield bound_figure(f"top: complete, {options.parts:,} parts", complete, at_most=1.5, unit="s", detail=detail)


def _moving(home: Path, options: argparse.Namespace, floor: float) -> Iterator[Figure]:
    with dashboard(home) as terminal, moving(home):
        terminal.sees("100 under way")
        before, began = terminal.cpu_seconds(), time.perf_counter()
        time.sleep(_WATCHED_SECONDS)
        share = (terminal.cpu_seconds() - before) / (time.perf_counter() - began) * 100
        yield bound_figure(f"top: CPU, {_MOVING} moving", share, at_most=15, unit="% of a core")
        terminal.press("3", "> all_1_1_0")
        yield from _keys(f"{options.parts:,} parts, {_MOVING} moving", terminal, options, floor, 30)


def _idle(home: Path, options: argparse.Namespace) -> Figure:
    with dashboard(home) as terminal:
        terminal.sees(f"{options.parts:,} parts")
        time.sleep(25)  # what it noted when it began has been read anew
        before, began = terminal.cpu_seconds(), time.perf_counter()
        time.sleep(_IDLE_SECONDS)
        share = (terminal.cpu_seconds() - before) / (time.perf_counter() - began) * 100
        return bound_figure("top: CPU, idle", share, at_most=1, unit="% of a core")


def _beside(options: argparse.Namespace, floor: float) -> Iterator[Figure]:
    with _textual(_DATA_TABLE, str(options.parts)) as terminal:
        yield from _theirs("textual's DataTable", terminal, terminal.sees("all_2_2_0"), options, floor)
    if options.harlequin:
        with scratch() as home, PseudoTerminal([options.harlequin, "--no-download-tzdata"], HOME=str(home)) as terminal:
            terminal.sees("Query Editor")
            terminal.press(_QUERY.format(parts=options.parts).replace("\n", ""), "t(n)")
            seconds = terminal.press("\n", "all_2_2_0")
            terminal.press("\x1b[15~\x1b[B\x1b[A", "all_2_2_0")  # F5: the keys go to the results
            yield from _theirs("harlequin, which was open", terminal, seconds, options, floor)


def _theirs(
    name: str, terminal: PseudoTerminal, filled_seconds: float, options: argparse.Namespace, floor: float
) -> Iterator[Figure]:
    p95 = p95_milliseconds(key_seconds(terminal, options.keys))
    yield bound_figure(f"{name}: filled", filled_seconds, at_most=filled_seconds, unit="s", detail="(shown beside)")
    yield bound_figure(f"{name}: key to paint, p95", p95 - floor, at_most=p95, unit="ms", detail="(shown beside)")


def _many(many: Path, options: argparse.Namespace, floor: float) -> Iterator[Figure]:
    with dashboard(many) as terminal:
        terminal.sees(f"{options.many:,} parts")
        terminal.press("3", "> all_1_1_0")
        yield from _keys(f"{options.many:,} parts", terminal, options, floor, 50)
        resident = terminal.resident_bytes() / 2**20
        yield bound_figure(f"top: memory, {options.many:,} parts", resident, at_most=250, unit="MiB")


def _keys(
    what: str, terminal: PseudoTerminal, options: argparse.Namespace, floor: float, goal: float
) -> Iterator[Figure]:
    p95 = p95_milliseconds(key_seconds(terminal, options.keys))
    detail = f"({p95:.1f} ms, of which the harness takes {floor:.1f})"
    yield bound_figure(f"top: key to paint p95, {what}", p95 - floor, at_most=goal, unit="ms", detail=detail)


def _textual(script: str, *arguments: str) -> PseudoTerminal:
    return PseudoTerminal([sys.executable, "-c", script, *arguments])


def fill_for_moves(home: Path) -> None:
    """A store of parts with real bytes in their files."""
    with Store.open(embedded(home)) as store:
        store.create_table(msgspec.structs.replace(TABLE, ttl=()))
        with store.disk("ssd").transaction(Inserted()) as transaction:
            for number in range(1, _MOVED_PARTS + 1):
                data = os.urandom(_MOVED_BYTES)
                made = part(number)
                file = msgspec.structs.replace(
                    made.files[0], size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), row_groups=()
                )
                made = msgspec.structs.replace(made, files=(file,), size_bytes=len(data))
                directory = TABLE.part_directory(made.name)
                transaction.create(f"{directory}/{file.name}", data)
                transaction.create(f"{directory}/part.json", part_format.encode(made))
            transaction.commit()


def move_seconds(home: Path) -> float:
    """A move of everything to the bucket and back."""
    command = [str(Path(sys.executable).with_name("frostline")), "-q", "move", TABLE.full_name, "--partition", "all"]
    began = time.perf_counter()
    for disk in ("s3", "ssd"):
        subprocess.run(
            [*command, "--to-disk", disk],
            env={**os.environ, "FROSTLINE_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
    return time.perf_counter() - began


def slowdown(home: Path, rounds: int) -> Figure:
    """How much longer a move takes while somebody looks."""

    def watched() -> float:
        with dashboard(home) as terminal:
            terminal.sees(f"{_MOVED_PARTS:,} parts")
            time.sleep(_SETTLED_SECONDS)
            return move_seconds(home)

    move_seconds(home)
    ours, alone = paired(watched, lambda: move_seconds(home), rounds=rounds)
    megabytes = 2 * _MOVED_PARTS * _MOVED_BYTES / 1e6
    detail = f"({megabytes / ours:.0f} MB/s; alone {megabytes / alone:.0f})"
    return ratio_figure(
        "move while top looks", ours, alone, at_most=1.02, baseline_name="the move alone", detail=detail
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--harlequin", metavar="PROGRAM", help="show harlequin's table beside")
    parser.add_argument("--be-moves", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_moves is not None:
        be_moves(options.be_moves)
    with scratch() as directory:
        home, many, files = directory / "home", directory / "many", directory / "files"
        if "move" in options.only:
            fill_for_moves(files)
            report([slowdown(files, options.rounds)])
        fill(home, options.parts)
        if "many" in options.only:
            fill(many, options.many)
        for figure in figures(home, many, options):
            report([figure])


if __name__ == "__main__":
    main()
