"""The log of buckets, and backups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from oplog.errors import UsageError
from tui.actions import keeping
from tui.facts import backups, history
from tui.facts.listing import Listing
from tui.screens.dialogs import Text
from tui.screens.list_view import ListView
from tui.screens.view import Choice

if TYPE_CHECKING:
    from tiering.engine.store import Store


class Log(ListView):
    """The operations log."""

    name_: ClassVar[str] = "Log"
    about: ClassVar[str] = (
        "Commits: time, actor and reason. d shows the changes of a commit, or the difference of two marked ones;"
        " z previews and undoes one."
    )

    def facts(self, store: Store) -> Listing:
        """Of all disks that have one."""
        return history.log(store)

    async def difference(self) -> None:
        """Between two marked revisions, or what one of them did."""
        rows = sorted(self.grid.chosen, key=lambda row: row.revision)
        if not rows:
            return
        disk = rows[0].disk
        if len(rows) > 2 or any(row.disk != disk for row in rows):
            raise UsageError("a difference is between two revisions of one disk", hint="mark two, or none")
        after = rows[-1].revision
        before = rows[0].revision if len(rows) == 2 else after - 1
        lines = await self.board.source.read(lambda store: history.difference(store, disk, before, after))
        await self.board.ask(Text(f"frostline diff {disk} {before} {after}", lines))

    async def undo(self) -> None:
        """Reverse the commit."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(keeping.undo(row.disk, row.revision))

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("log.diff", "d", "Diff", difference, changes=False),
        Choice("log.undo", "z", "Undo", undo),
    )


class Backups(ListView):
    """The backups."""

    name_: ClassVar[str] = "Backups"
    about: ClassVar[str] = "The backups of the configured repository: size, last verification, results."
    each_minute: ClassVar[bool] = True

    def facts(self, store: Store) -> Listing:
        """Of the repository."""
        return backups.backups(store)

    async def create(self) -> None:
        """Make one."""
        await self.board.carry_out(keeping.create_backup())

    async def verify(self) -> None:
        """Prove that it is whole."""
        if (row := self._complete()) is not None:
            await self.board.carry_out(keeping.verify_backup(row.name, row.id))

    async def restore(self) -> None:
        """Show what a restore would do, beside the tables that are there; then do it."""
        if (row := self._complete()) is not None:
            beside = await self.board.source.act("names", lambda store: keeping.names_beside(row.tables, store))
            await self.board.carry_out(keeping.restore_backup(row.name, row.id, beside))

    def _complete(self) -> Any:
        row = self.grid.row
        if row is not None and row.state != "complete":
            raise UsageError(f"backup {row.name} is {row.state}", hint="only a complete one can be used")
        return row

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("backups.create", "c", "Create", create),
        Choice("backups.verify", "v", "Verify", verify),
        Choice("backups.restore", "R", "Restore", restore),
    )
