"""A box for SQL, and the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from tui.facts.answers import answer
from tui.facts.listing import Listing
from tui.facts.shown import arrange
from tui.screens.list_view import ListView

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tui.facts.shown import Shown


class Sql(ListView):
    """Read-only SQL."""

    name_: ClassVar[str] = "SQL"
    about: ClassVar[str] = (
        "Read-only SQL over all tiers; tables are named DB.TABLE. F5 or Ctrl+J runs it. Filter and sort the result"
        " like any table. Esc leaves the editor; e returns to it."
    )
    reads_at_once: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5,ctrl+j", "run", "Run", id="sql.run", priority=True),
        Binding("escape", "rows", "Leave the box", id="sql.rows"),
        Binding("e", "write", "Edit", id="sql.write"),
    ]

    def compose(self) -> ComposeResult:
        """The statement above the rows."""
        yield TextArea.code_editor(
            "", language=None, id="statement", show_line_numbers=False, tab_behavior="focus", compact=True
        )
        yield from super().compose()

    def question(self) -> Callable[[Store], Any]:
        """Nothing: an answer stays until the next statement."""
        return lambda store: None

    def answer(self, facts: Shown | None) -> None:
        """The rows, when there are new ones."""
        if facts is not None:
            super().answer(facts)

    def facts(self, store: Store) -> Listing:
        """The rows of the statement."""
        return answer(store, self.query_one(TextArea).text)

    def action_run(self) -> None:
        """Run the statement, beside everything else."""
        self.begin(self._run, group="sql", exclusive=True)

    def action_rows(self) -> None:
        """The keys act again, instead of being written; among the rows, what was searched for is cleared."""
        if self.query_one(TextArea).has_focus and self.grid.loading:  # rows that are waited for take no keys
            self.screen.set_focus(None)
        elif self.query_one(TextArea).has_focus:
            self.grid.focus()
        else:
            self.action_clear()

    def action_write(self) -> None:
        """The keys write again."""
        self.take_focus()

    async def _run(self) -> None:
        sql = self.query_one(TextArea).text.strip()
        if not sql:
            return
        self.grid.loading = True
        try:
            shown = await self.board.source.act("query", lambda store: arrange(answer(store, sql), self.order))
        finally:
            self.grid.loading = False
        self.answer(shown)
        self.grid.focus()

    def take_focus(self) -> None:
        """The keys write."""
        self.query_one(TextArea).focus()
