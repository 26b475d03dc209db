"""A screen that is a table: search, filter, sort, marks, and beside it what is known of the row under the cursor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input

from oplog.errors import FrostlineError, in_a_line
from tui.facts.filters import EXAMPLE
from tui.facts.listing import Listing
from tui.facts.shown import Order, Shown, arrange
from tui.screens.view import View
from tui.widgets.grid import Grid
from tui.widgets.plain import Plain

if TYPE_CHECKING:
    from tiering.engine.store import Store


_PATIENCE_SECONDS = 0.5
"""What comes sooner is not announced."""


class ListView(View):
    """A table of facts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", id="list.filter"),
        Binding("s", "sort", "Sort", id="list.sort"),
        Binding("S", "reverse", "Reverse", show=False, id="list.reverse"),
        Binding("enter", "detail", "Detail", id="list.detail"),
        Binding("ctrl+y", "copy", "Copy", show=False, id="list.copy"),
        Binding("escape", "clear", "Clear", show=False, id="list.clear"),
    ]

    reads_at_once: ClassVar[bool] = True
    """Whether it has rows without being asked for them."""
    each_minute: ClassVar[bool] = False
    """Whether it shows what changes without a trace in the store: room on disks, jobs, what other machines have."""

    def __init__(self) -> None:
        super().__init__()
        self.order = Order()
        self._listing: Listing | None = None

    def compose(self) -> ComposeResult:
        """Filter, summary, table and detail."""
        yield Input(placeholder=f"filter, such as {EXAMPLE}", compact=True, classes="filter")
        yield Plain(classes="summary")
        with Horizontal(classes="body"):
            yield Grid()
            with VerticalScroll(classes="detail", can_focus=False):
                yield Plain()

    def on_mount(self) -> None:
        """Until there is an answer, say what is waited for: a bucket may take its time."""
        if self.reads_at_once:
            line = self.query_one(".summary", Plain)
            line.say(["Reading the store …"])
            line.display = True

    @property
    def grid(self) -> Grid:
        """The table."""
        return self.query_one(Grid)

    def facts(self, store: Store) -> Listing:
        """What is listed."""
        raise NotImplementedError

    def more(self, row: Any) -> Callable[[Store], list[str]] | None:
        """What else the store can say of a row, for the pane beside it."""
        return None

    # Facts

    def question(self) -> Callable[[Store], Shown]:
        """The listing, put in order."""
        order, before, key, at = self.order, self.grid.shown, self.grid.key, self.grid.cursor
        return lambda store: arrange(self.facts(store), order, before=before, cursor=key, at=at)

    def aged(self) -> Callable[[Store], bool]:
        """Whether the time has come at which the clock alone changes what is listed, as the listing says."""
        listing = self._listing
        if self.each_minute or listing is None:
            return super().aged()
        until = listing.until
        return lambda store: until is not None and store.context.clock() >= until

    def answer(self, facts: Shown) -> None:
        """Show it."""
        self._listing = facts.listing
        self.grid.sorted_by = (self.order.sort, self.order.descending)
        self.grid.show(facts)
        self._summarize()
        if facts.order != self.order:  # it was asked for while the rows were read
            self.begin(self._rearrange, group="order", exclusive=True)

    def no_answer(self) -> None:
        """Nothing is waited for any more."""
        if self.grid.shown is None:
            self.query_one(".summary").display = False

    def _summarize(self) -> None:
        shown = self.grid.shown
        if shown is None:
            return
        listing, lines = shown.listing, []
        if not listing.rows:
            lines.append(listing.empty.removesuffix(".") if listing.summary else listing.empty)
        elif len(shown.rows) < len(listing.rows):
            lines.append(f"{len(shown.rows):,} of {len(listing.rows):,}: {self.order.filter}")
        if marked := len(self.grid.marks):
            lines.append(f"{marked:,} marked")
        if listing.summary:
            lines.append(listing.summary)
        self.query_one(".summary", Plain).say(["; ".join(lines)] if lines else [])
        self.query_one(".summary").display = bool(lines)

    async def _rearrange(self) -> None:
        """The same facts in another order, beside the event loop."""
        listing, order, key = self._listing, self.order, self.grid.key
        if listing is None:
            return
        try:
            shown = await asyncio.to_thread(arrange, listing, order, cursor=key)
        except FrostlineError as error:
            self._complain(error)
            return
        self.answer(shown)

    def _complain(self, error: FrostlineError) -> None:
        line = self.query_one(".summary", Plain)
        line.say([in_a_line(error)])
        line.display = True

    # Filter and order

    def action_filter(self) -> None:
        """Write a filter."""
        line = self.query_one(".filter", Input)
        line.display = True
        line.focus()

    def action_clear(self) -> None:
        """Leave the filter line; then forget the marks; then the filter."""
        line = self.query_one(".filter", Input)
        if line.has_focus:
            line.display = bool(line.value)
            self.grid.focus()
        elif self.grid.marks:
            self.grid.marks = set()
            self.grid.refresh()
            self._summarize()
        elif line.value:
            line.value = ""
            line.display = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by what is written so far."""
        if event.input.has_class("filter"):
            event.stop()
            self._reorder(Order(event.value, self.order.sort, self.order.descending))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the rows."""
        if event.input.has_class("filter"):
            event.stop()
            event.input.display = bool(event.value)
            self.grid.focus()

    def action_sort(self) -> None:
        """By the next column."""
        if self._listing is not None:
            keys = [None, *(column.key for column in self._listing.columns)]
            now = keys.index(self.order.sort) if self.order.sort in keys else 0
            self._reorder(Order(self.order.filter, keys[(now + 1) % len(keys)], self.order.descending))

    def action_reverse(self) -> None:
        """The other way round."""
        self._reorder(Order(self.order.filter, self.order.sort, not self.order.descending))

    def on_grid_header_clicked(self, message: Grid.HeaderClicked) -> None:
        """By that column; a second time the other way round."""
        again = message.key == self.order.sort
        self._reorder(Order(self.order.filter, message.key, again and not self.order.descending))

    def _reorder(self, order: Order) -> None:
        if order != self.order:
            self.order = order
            self.begin(self._rearrange, group="order", exclusive=True)

    # The row under the cursor

    def action_detail(self) -> None:
        """Show what is known of the row, or no more."""
        self.set_class(not self.has_class("with-detail"), "with-detail")
        self._show_detail()

    def on_grid_moved(self) -> None:
        """The pane follows."""
        self._summarize()
        self._show_detail()

    def _show_detail(self) -> None:
        if self.has_class("with-detail") and self.is_mounted:
            self.begin(self._read_detail, group="detail", exclusive=True)

    async def _read_detail(self) -> None:
        row, shown = self.grid.row, self.grid.shown
        pane = self.query_one(".detail Plain", Plain)
        if row is None or shown is None:
            pane.say([])
            return
        lines = document_lines(shown.listing.document(row))
        pane.say(lines)
        more = self.more(row)
        if more is None:
            return
        asked = asyncio.ensure_future(self.board.source.read(more))
        try:
            if not (await asyncio.wait({asked}, timeout=_PATIENCE_SECONDS))[0]:
                pane.say(["Reading the store …", "", *lines])
            told = await asked
        except FrostlineError as error:
            told = [error.message, error.hint or ""]
        finally:
            asked.cancel()  # the cursor has gone on
        pane.say([*told, "", *lines] if told else lines)  # why comes first: a small terminal has room for little

    def action_copy(self) -> None:
        """What is chosen, as JSON, to the clipboard of the terminal."""
        shown = self.grid.shown
        if shown is not None and (chosen := self.grid.chosen):
            documents = [dict(shown.listing.document(row)) for row in chosen]
            self.app.copy_to_clipboard(json.dumps(documents, default=str, indent=2))
            self.board.tell(f"Copied {len(chosen):,} as JSON.")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The cursor is drawn where the keys go."""
        self.grid.refresh()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """And nowhere else."""
        self.grid.refresh()

    def take_focus(self) -> None:
        """To the rows."""
        self.grid.focus()


def document_lines(document: Any, indent: str = "") -> list[str]:
    """A document as lines: names and values."""
    lines: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}", *document_lines(value, indent + "  ")]
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{name}")
            lines += [f"{indent}  " + ", ".join(f"{key} {_text(one)}" for key, one in item.items()) for item in value]
        else:
            lines.append(f"{indent}{name:<10} {_text(value)}")
    return lines


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
