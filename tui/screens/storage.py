"""Tables, partitions, parts, disks and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tiering.catalog.rows import UsageRow
from tiering.config.units import counted
from tui.actions import keeping, moving
from tui.actions.replicas import audit_marks, sync_replica
from tui.facts import history, replicas, storage
from tui.facts.listing import Listing, minute
from tui.facts.shown import Shown
from tui.screens.dialogs import Choose, Text
from tui.screens.list_view import ListView
from tui.screens.view import Choice

if TYPE_CHECKING:
    from tiering.config.settings import Config, PolicyConfig
    from tiering.engine.store import Store


class Tables(ListView):
    """The tables; below each table its partitions."""

    name_: ClassVar[str] = "Tables"
    about: ClassVar[str] = (
        "The tables and where they are stored; the detail has the partitions. p shows partitions instead."
    )
    by_partition = False

    def facts(self, store: Store) -> Listing:
        """Tables, or partitions."""
        return storage.partitions(store) if self.by_partition else storage.tables(store)

    async def toggle(self) -> None:
        """Tables, or partitions."""
        self.by_partition = not self.by_partition
        self.order = type(self.order)()
        self.grid.marks = set()
        self.board.reload()

    async def merge(self) -> None:
        """Merge what the cursor is on."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(moving.merge(row.table, row.partition if isinstance(row, UsageRow) else None))

    async def pause(self) -> None:
        """Let automatic work on the table wait."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(moving.pause(row.table, paused=True))

    async def resume(self) -> None:
        """No longer."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(moving.pause(row.table, paused=False))

    async def drop(self) -> None:
        """Drop the table."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(keeping.drop_table(row.table))

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("tables.partitions", "p", "Partitions", toggle, changes=False),
        Choice("tables.merge", "m", "Merge", merge),
        Choice("tables.pause", "P", "Pause", pause),
        Choice("tables.resume", "U", "Resume", resume),
        Choice("tables.drop", "D", "Drop", drop),
    )


class Parts(ListView):
    """The parts."""

    name_: ClassVar[str] = "Parts"
    about: ClassVar[str] = (
        "Every part: its disk, the age of its newest row, where it moves and when. The detail shows why it stays or"
        " goes, rule by rule."
    )

    config: Config
    """The configuration when the rows were read: picking a target waits for no bucket."""

    def facts(self, store: Store) -> Listing:
        """The parts."""
        self.config = store.context.config
        return storage.parts(store)

    def aged(self) -> Callable[[Store], bool]:
        """Ages are drawn without a reload, but rows may be chosen by them."""
        return (lambda store: True) if self.order.filter else super().aged()

    def draw_ages(self) -> None:
        """Those of the rows that are seen."""
        self.grid.refresh()

    def more(self, row: Any) -> Callable[[Store], list[str]]:
        """`explain`."""
        table, part = row.definition.full_name, row.label
        return lambda store: _explained(store, table, part)

    def _chosen(self) -> list[tuple[str, str]]:
        return [(row.definition.full_name, row.label) for row in self.grid.chosen]

    async def move(self) -> None:
        """To a volume or disk that somebody picks."""
        if not (parts := self._chosen()):
            return
        options = _targets(self.config.policy(row.definition.policy) for row in self.grid.chosen)
        target = await self.board.ask(Choose(f"Move {counted(len(parts), 'part')} to", options))
        if target is not None:
            kind, _, name = target.partition(" ")
            await self.board.carry_out(moving.move_parts(parts, **{kind: name}))

    async def pin(self) -> None:
        """Keep them where they are."""
        if parts := self._chosen():
            await self.board.carry_out(moving.pin_parts(parts, pinned=True))

    async def unpin(self) -> None:
        """Let the rules decide again."""
        if parts := self._chosen():
            await self.board.carry_out(moving.pin_parts(parts, pinned=False))

    async def blame(self) -> None:
        """Who did what to it."""
        if (row := self.grid.row) is not None:
            table, part = row.definition.full_name, row.label
            lines = await self.board.source.read(lambda store: history.blamed(store, table, part))
            await self.board.ask(Text(f"frostline blame {table} {part}", lines))

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("parts.move", "m", "Move", move),
        Choice("parts.pin", "p", "Pin", pin),
        Choice("parts.unpin", "u", "Unpin", unpin),
        Choice("parts.blame", "b", "Blame", blame, changes=False),
    )


def _targets(policies: Iterable[PolicyConfig]) -> Sequence[tuple[str, str]]:
    """The volumes and disks of these policies."""
    volumes = {volume.name: volume.disks for policy in policies for volume in policy.volumes}
    disks = sorted({disk for names in volumes.values() for disk in names})
    return [
        *((f"volume {name}", f"volume {name} ({', '.join(names)})") for name, names in volumes.items()),
        *((f"disk {name}", f"disk {name}") for name in disks),
    ]


def _explained(store: Store, table: str, part: str) -> list[str]:
    told = store.explain(table, part)
    target = f" to {told.target}" if told.target else ""
    lines = [
        f"{told.decision}{target}: {told.reason.detail}",
        *(f"rule {rule.rule}: {rule.detail}" for rule in told.rules),
    ]
    return [*lines, f"next {minute(told.next_due)}"] if told.next_due and told.decision == "stay" else lines


class Disks(ListView):
    """The disks."""

    name_: ClassVar[str] = "Disks"
    about: ClassVar[str] = (
        "Space, parts and revision of each disk; what moves of this machine write and read there each second, and how"
        " many fail. gc shows unreferenced objects before deleting them; Marks compares those by which machines share"
        " objects with all logs."
    )
    each_minute: ClassVar[bool] = True

    def facts(self, store: Store) -> Listing:
        """The disks."""
        return storage.disks(store)

    def more(self, row: Any) -> Callable[[Store], list[str]]:
        """What is asked of a bucket, and what keeps objects in it."""
        name = row.name
        return lambda store: [*storage.work_lines(store, name), *storage.bucket_lines(store, name)]

    def answer(self, facts: Shown) -> None:
        """Show it. While bytes go, what is shown is the mean of seconds that pass: it is read again."""
        super().answer(facts)
        columns = [column for column in facts.listing.columns if column.key in ("written", "read")]
        if self.display and any(column.value(row) for row in facts.listing.rows for column in columns):
            self.board.read_again()

    async def collect(self) -> None:
        """Delete what nothing names."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(keeping.collect(row.name))

    async def snapshot(self) -> None:
        """Write the file table to the bucket."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(keeping.snapshot(row.name))

    async def audit(self) -> None:
        """Compare the marks of who shares its objects with all logs, and mend them."""
        if (row := self.grid.row) is not None:
            await self.board.carry_out(audit_marks(row.name))

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("disks.gc", "c", "gc", collect),
        Choice("disks.snapshot", "w", "Snapshot", snapshot),
        Choice("disks.audit", "m", "Marks", audit),
    )


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
