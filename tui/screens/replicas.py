"""Replicas of tables on several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tui.actions.replicas import sync_replica
from tui.facts import replicas
from tui.facts.listing import Listing
from tui.screens.dialogs import Text
from tui.screens.list_view import ListView
from tui.screens.view import Choice

if TYPE_CHECKING:
    from tiering.engine.store import Store


class Replicas(ListView):
    """The replicas of the tables that this machine has one of."""

    name_: ClassVar[str] = "Replicas"
    about: ClassVar[str] = (
        "Every replica of the tables here: parts, queue and lag. w shows the queue of this machine, y syncs with the"
        " others."
    )
    needs_store: ClassVar[bool] = False
    each_minute: ClassVar[bool] = True

    def facts(self, store: Store) -> Listing:
        """From Keeper, as far as it answers."""
        return replicas.replicas(store)

    async def waiting(self) -> None:
        """The queue of this machine's replica."""
        if (row := self.grid.row) is not None:
            table = row.table
            lines = await self.board.source.read(lambda store: replicas.waiting(store, table))
            await self.board.ask(Text(f"frostline replica queue {table}", lines))

    async def sync(self) -> None:
        """Take in what the others did."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(sync_replica(row.table))

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("replicas.waiting", "w", "Waiting", waiting, changes=False),
        Choice("replicas.sync", "y", "Sync", sync),
    )
