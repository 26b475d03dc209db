"""A table that draws only the lines that are seen, so that a hundred thousand rows cost no more than ten.

Everything shown is plain text that passed `visible`: a name is never markup and never an escape sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tiering.config.escaping import visible
from tui.facts.listing import ListColumn
from tui.facts.shown import Shown

_GAP = "  "
_NEAR = 500
"""So many rows up and down are looked through for the one that the cursor was on."""
_MARGIN = 2
"""Before the first column: whether a row is marked, or new."""


class Grid(ScrollView, can_focus=True):
    """A table with a cursor and marks. Its screen gives it all of its content at once."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"grid--header", "grid--cursor", "grid--marked", "grid--changed"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False, id="grid.up"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="grid.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="grid.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="grid.page_down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="grid.first"),
        Binding("end,G", "edge(1)", "Last", show=False, id="grid.last"),
        Binding("left", "sideways(-8)", "Left", show=False, id="grid.left"),
        Binding("right", "sideways(8)", "Right", show=False, id="grid.right"),
        Binding("space", "mark", "Mark", show=False, id="grid.mark"),
        Binding("asterisk", "mark_all", "Mark all", show=False, id="grid.mark_all"),
    ]

    @dataclass
    class Moved(Message):
        """The cursor is on another row, or the row is another."""

        grid: Grid

        def can_replace(self, message: Message) -> bool:
            """Where the cursor has been meanwhile does not matter."""
            return isinstance(message, Grid.Moved)

    @dataclass
    class HeaderClicked(Message):
        """Somebody wants to sort by a column."""

        grid: Grid
        key: str

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  as textual calls it
        super().__init__(id=id)
        self.shown: Shown | None = None
        self.cursor = 0
        self.marks: set[str] = set()
        self.sorted_by: tuple[str | None, bool] = (None, False)
        self._columns: list[tuple[ListColumn, int]] = []

    # What is shown

    def show(self, shown: Shown) -> None:
        """Replace the rows. The cursor stays on its row, marks of rows that are gone go."""
        key, cursor = self.key, self.cursor
        self.shown = shown
        self.cursor = self._place_of(key, cursor)
        self.marks &= shown.states.keys()
        self._lay_out()
        self._into_view()
        self.refresh()
        self.post_message(self.Moved(self))

    def _place_of(self, key: str, cursor: int) -> int:
        """Where the row is that the cursor is on by now: it may have gone on while the rows were read."""
        assert self.shown is not None
        rows, place, key_of = self.shown.rows, self.shown.cursor, self.shown.listing.key
        if not key or (place < len(rows) and key_of(rows[place]) == key):
            return place
        near = range(max(0, cursor - _NEAR), min(len(rows), cursor + _NEAR))
        return next((index for index in near if key_of(rows[index]) == key), place)

    @property
    def row(self) -> Any:
        """The row under the cursor; None where there are no rows."""
        rows = self._rows
        return rows[self.cursor] if self.cursor < len(rows) else None

    @property
    def key(self) -> str:
        """Its key; empty where there are no rows."""
        return "" if self.shown is None or self.row is None else self.shown.listing.key(self.row)

    @property
    def chosen(self) -> list[Any]:
        """The marked rows, or the one under the cursor."""
        if self.shown is None:
            return []
        key = self.shown.listing.key
        marked = [row for row in self.shown.listing.rows if key(row) in self.marks] if self.marks else []
        return marked or ([] if self.row is None else [self.row])

    @property
    def _rows(self) -> Sequence[Any]:
        return () if self.shown is None else self.shown.rows

    def _lay_out(self) -> None:
        """Which columns fit, and how wide each is."""
        if self.shown is None:
            return
        width = self.scrollable_content_region.width
        listing = self.shown.listing
        columns: list[tuple[ListColumn, int]] = []
        fits = True
        used = _MARGIN - len(_GAP)
        for column in listing.columns:
            left = width - used - len(_GAP)
            cells = max(column.least, left) if column.least else column.width
            if listing.sideways or not columns or (cells <= left and (fits or column.least)):
                columns.append((column, cells))
                used += len(_GAP) + cells
            else:
                fits = False
        growing = sum(column.grows for column, _ in columns)
        spare = max(0, width - used) // max(1, growing)
        self._columns = [(column, cells + (spare if column.grows else 0)) for column, cells in columns]
        total = used + spare * growing
        self.virtual_size = Size(total, len(self._rows) + 1)

    def on_resize(self) -> None:
        """The columns share the new width."""
        self._lay_out()
        self._into_view()

    # Drawing

    def render_line(self, y: int) -> Strip:
        """The header, or a row."""
        width = self.size.width
        base = self.rich_style
        if y == 0:
            return self._strip(
                self._header(), base + self.get_component_rich_style("grid--header", partial=True), width
            )
        index = y - 1 + self.scroll_offset.y
        if self.shown is None or index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        key = self.shown.listing.key(row)
        marked, changed = key in self.marks, key in self.shown.changed
        style = base
        if changed:
            style += self.get_component_rich_style("grid--changed", partial=True)
        if marked:
            style += self.get_component_rich_style("grid--marked", partial=True)
        if index == self.cursor and self.has_focus:
            style += self.get_component_rich_style("grid--cursor", partial=True)
        sign = "*" if marked else "+" if changed else ">" if index == self.cursor else " "
        cells = [fitted(column.text(column.value(row)), width, right=column.right) for column, width in self._columns]
        return self._strip(f"{sign} " + _GAP.join(cells), style, width)

    def _header(self) -> str:
        sort, descending = self.sorted_by
        cells = []
        for column, width in self._columns:
            arrow = ("-" if descending else "+") if column.key == sort else ""
            cells.append(fitted(column.title + arrow, width, right=column.right))
        return "  " + _GAP.join(cells)

    def _strip(self, text: str, style: Style, width: int) -> Strip:
        left = self.scroll_offset.x
        strip = Strip([Segment(text, style)], cell_len(text))
        return strip.crop_extend(left, left + width, style)

    # The cursor

    def action_cursor(self, steps: int) -> None:
        """So many rows down."""
        self._go(self.cursor + steps)

    def action_page(self, pages: int) -> None:
        """So many pages down."""
        self._go(self.cursor + pages * max(1, self.scrollable_content_region.height - 2))

    def action_edge(self, end: int) -> None:
        """To the first or the last row."""
        self._go(0 if end < 0 else len(self._rows) - 1)

    def action_sideways(self, cells: int) -> None:
        """See what lies beside."""
        self.scroll_to(x=self.scroll_offset.x + cells, animate=False)

    def action_mark(self) -> None:
        """Mark the row, or unmark it; on to the next."""
        if self.key:
            self.marks ^= {self.key}
            self.refresh()
            self._go(self.cursor + 1)

    def action_mark_all(self) -> None:
        """Mark all rows that are shown, or none."""
        if self.shown is not None:
            keys = {self.shown.listing.key(row) for row in self._rows}
            self.marks = set() if keys <= self.marks else keys
            self.refresh()
            self.post_message(self.Moved(self))  # the screen shows how many they are

    def on_click(self, event: events.Click) -> None:
        """The cursor to the row; a click on a title sorts by it."""
        x, y = event.x + self.scroll_offset.x - _MARGIN, event.y
        if y:
            self._go(y - 1 + self.scroll_offset.y)
            return
        for column, width in self._columns:
            if x < width:
                self.post_message(self.HeaderClicked(self, column.key))
                return
            x -= width + len(_GAP)

    def _go(self, index: int) -> None:
        index = max(0, min(index, len(self._rows) - 1))
        if index != self.cursor:
            before, self.cursor = self.cursor, index
            self._into_view()
            for line in (before, index):
                self.refresh(Region(0, line + 1 - self.scroll_offset.y, self.size.width, 1))
            self.post_message(self.Moved(self))

    def _into_view(self) -> None:
        """Scroll no more than the cursor needs. What is not seen has no height yet: it is asked again when it has."""
        height = self.scrollable_content_region.height - 1
        if height < 1:
            return
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """The text in so many cells, cut or filled, with nothing in it that a terminal would obey."""
    text = visible(text)
    if text.isascii():
        if len(text) > width:
            return text[: max(0, width - 1)] + "~" if width else ""
        return text.rjust(width) if right else text.ljust(width)
    cells = cell_len(text)
    if cells > width:
        return set_cell_size(text, max(0, width - 1)) + "~"
    filling = " " * (width - cells)
    return filling + text if right else text + filling
