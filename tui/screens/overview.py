"""The overview: trouble first, the disks with how full they are, what is under way, what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from tiering.config.units import counted
from tui.actions import moving
from tui.facts.listing import minute, size
from tui.facts.overview import amounts, daemon_text, disk_text, due_text, has_aged, overview, under_way
from tui.screens.view import Choice, View
from tui.widgets.plain import Plain

if TYPE_CHECKING:
    from tiering.catalog.rows import DiskRow
    from tiering.engine.store import Store
    from tiering.journal.records import MoveRecord
    from tui.facts.overview import TopDocument, WorkUnderWay

_BAR = 20
_FULLNESS = _BAR + len("[] 100% full")
_COLUMNS = "▁▂▃▄▅▆▇█"
_LINES = 12
"""Of each kind; the screens behind have all."""


async def _tick(view: View) -> None:
    await view.board.carry_out(moving.tick())


async def _pause(view: View) -> None:
    await view.board.carry_out(moving.pause("", paused=True))


async def _resume(view: View) -> None:
    await view.board.carry_out(moving.pause("", paused=False))


class Overview(View):
    """The store at a glance."""

    name_: ClassVar[str] = "Overview"
    about: ClassVar[str] = (
        "Problems first, each with the command to run next. Then the disks, running work and what is due next."
    )
    leaves_out_what_is_away: ClassVar[bool] = False
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("overview.tick", "T", "Pass now", _tick),
        Choice("overview.pause", "P", "Pause all", _pause),
        Choice("overview.resume", "U", "Resume all", _resume),
    )

    document: TopDocument | None = None
    """As `top --json` has it."""

    def compose(self) -> ComposeResult:
        """Trouble, and the rest."""
        with VerticalScroll():
            yield Plain(id="trouble")
            yield Plain("Reading the store …", id="facts")

    def question(self) -> Callable[[Store], TopDocument]:
        """The document of `top`."""
        return overview

    def aged(self) -> Callable[[Store], bool]:
        """Whether something is due by now, or the disks, the daemon or the hour are not those that are shown."""
        document = self.document
        return lambda store: document is None or has_aged(document, store)

    def answer(self, facts: TopDocument) -> None:
        """Show it."""
        self.document = facts
        trouble = [f"! {item.what}  [{item.command}]" for item in facts.trouble]
        self.query_one("#trouble", Plain).say(trouble)
        self.query_one("#trouble").display = bool(trouble)
        self.query_one("#facts", Plain).say(overview_text(facts))

    def glance(self) -> Callable[[Store], WorkUnderWay] | None:
        """What is under way."""
        return None if self.document is None else under_way

    def take_in(self, facts: WorkUnderWay) -> None:
        """Beside what was known of the rest."""
        if self.document is not None:
            self.answer(replace(self.document, moves=facts.moves, merges=facts.merges))

    def take_focus(self) -> None:
        """The keys scroll."""
        self.query_one(VerticalScroll).focus()


def overview_text(facts: TopDocument) -> Iterator[str]:
    """The lines below the trouble."""
    status = facts.status
    yield (f"{'   '.join(amounts(status))}   {size(status.bytes)}   {daemon_text(status.daemon)}")
    yield ""
    yield "Disks"
    for disk in facts.disks:
        yield f"  {disk.name:<10} {_fullness(disk)}  {disk_text(disk)}"
    yield from _capacity_lines(facts.capacity)
    yield ""
    yield (
        f"Moves: {len(facts.moves):,} under way, {due_text(status)}, {status.failed_moves:,} failed."
        f"   Merges: {len(facts.merges):,} under way."
    )
    for move in facts.moves[:_LINES]:
        yield f"  {move.state:<9}  {move.part}  {move.source} > {move.target}  {size(move.bytes)}{_done(move)}"
    for merge in facts.merges[:_LINES]:
        yield f"  {merge.state:<9}  {merge.output}  {counted(len(merge.inputs), 'part')} of {merge.table}"
    for due in facts.due[:_LINES]:
        yield f"  due        {due.part}  {due.source} > {due.target}  {due.reason.detail}"
    if (left := status.planned_moves - min(_LINES, len(facts.due))) > 0:
        yield f"  and {left:,} more: see Policy"
    if not facts.due:
        upcoming = facts.next_due
        yield f"  The next part is due at {minute(upcoming)}." if upcoming else "  No part is scheduled to move."


def _fullness(disk: DiskRow) -> str:
    """How full it is, by all that lies there; a bucket has no end, and a disk that is away tells nothing."""
    total, free = disk.total_bytes, disk.free_bytes
    return bar((total - free) / total) + " full" if total and free is not None else " " * _FULLNESS


def _done(move: MoveRecord) -> str:
    """How far the copy is, as its process last noted."""
    return f"  {bar(min(move.bytes_done / move.bytes, 1.0))}" if move.bytes_done and move.bytes else ""


def _capacity_lines(capacity: dict[str, list[int | None]]) -> Iterator[str]:
    """How full each disk was: an hour a character."""
    if not capacity:
        return
    yield "Last 24 hours (a dot: no data)"
    for disk, hours in capacity.items():
        known = [value for value in hours if value is not None]
        change = size(known[-1]) if known[0] == known[-1] else f"{size(known[0])} > {size(known[-1])}"
        yield f"  {disk:<10}  {sparkline(hours)}   {change}"


def sparkline(values: Sequence[int | None]) -> str:
    """The values as columns, the highest a whole one; a dot for what is not known."""
    highest = max((value for value in values if value is not None), default=0) or 1
    top = len(_COLUMNS) - 1
    return "".join("." if value is None else _COLUMNS[-(-value * top // highest)] for value in values)


def bar(share: float) -> str:
    """A share, drawn with characters of every terminal."""
    full = round(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {share:>4.0%}"
