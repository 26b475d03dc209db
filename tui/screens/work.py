"""Moves and merges, the policy's plan, the daemon's jobs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from oplog.errors import UsageError
from tiering.config.units import parse_time
from tiering.journal.records import MoveRecord
from tiering.policy.plan import Move
from tui.actions import moving
from tui.facts import work
from tui.facts.listing import Listing
from tui.screens.dialogs import Ask
from tui.screens.list_view import ListView
from tui.screens.view import Choice

if TYPE_CHECKING:
    from tiering.engine.store import Store


class Moves(ListView):
    """Moves and merges."""

    name_: ClassVar[str] = "Moves"
    about: ClassVar[str] = "Running, failed and finished work; the detail has reason and error."
    needs_store: ClassVar[bool] = False
    leaves_out_what_is_away: ClassVar[bool] = False

    def facts(self, store: Store) -> Listing:
        """From the journal."""
        return work.moves(store)

    async def cancel(self) -> None:
        """Ask moves to stop."""
        ids = [row.id for row in self.grid.chosen if isinstance(row, MoveRecord)]
        if not ids:
            raise UsageError("a merge cannot be cancelled", hint="only moves can; an interrupted merge changes nothing")
        await self.board.carry_out(moving.cancel_moves(ids))

    choices: ClassVar[tuple[Choice, ...]] = (Choice("moves.cancel", "c", "Cancel", cancel),)


class Policy(ListView):
    """The plan."""

    name_: ClassVar[str] = "Policy"
    about: ClassVar[str] = (
        "What the policy would move and delete, now or at a time that t asks for, and what it holds back and why. a"
        " carries out the marked moves, or the one under the cursor."
    )
    at: datetime | None = None

    def facts(self, store: Store) -> Listing:
        """The plan."""
        return work.policy(store, self.at)

    async def look_at(self) -> None:
        """The plan of another time."""
        now = "" if self.at is None else f"{self.at:%Y-%m-%dT%H:%M:%SZ}"
        text = await self.board.ask(Ask("Plan for which time? Such as 2026-01-31; empty: now.", now))
        if text is not None:
            self.at = parse_time(text) if text else None
            self.board.reload()

    async def approve(self) -> None:
        """Carry out the chosen moves."""
        if self.at is not None:
            raise UsageError("this is a plan for another time", hint="t and an empty line show the current plan")
        chosen = self.grid.chosen
        if moves := [row for row in chosen if isinstance(row, Move)]:
            await self.board.carry_out(moving.apply_moves(moves))
        elif chosen:
            raise UsageError(
                "only moves can be approved, and none is selected",
                hint="m in Parts moves postponed parts now; T deletes what a TTL rule selects",
            )

    async def tick(self) -> None:
        """One pass of the daemon."""
        await self.board.carry_out(moving.tick())

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("policy.approve", "a", "Approve", approve),
        Choice("policy.at", "t", "At a time", look_at, changes=False),
        Choice("policy.tick", "T", "Pass now", tick),
    )


class Jobs(ListView):
    """The daemon's jobs."""

    name_: ClassVar[str] = "Jobs"
    about: ClassVar[str] = (
        "The daemon's jobs and their last runs; then lanes, the inbox by table, budgets of policies and hooks."
        " frostline daemon run starts the daemon."
    )
    needs_store: ClassVar[bool] = False
    leaves_out_what_is_away: ClassVar[bool] = False
    each_minute: ClassVar[bool] = True

    def facts(self, store: Store) -> Listing:
        """Of the daemon's record."""
        return work.jobs(store)

    async def tick(self) -> None:
        """One pass now."""
        await self.board.carry_out(moving.tick())

    async def pause(self) -> None:
        """Let all automatic work wait."""
        await self.board.carry_out(moving.pause("", paused=True))

    async def resume(self) -> None:
        """No longer."""
        await self.board.carry_out(moving.pause("", paused=False))

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("jobs.tick", "T", "Pass now", tick),
        Choice("jobs.pause", "P", "Pause all", pause),
        Choice("jobs.resume", "U", "Resume all", resume),
    )
