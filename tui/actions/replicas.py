"""Replicas of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oplog.errors import PartlyDone
from tiering.config.units import counted
from tui.actions.action import Action

if TYPE_CHECKING:
    from tiering.engine.store import Store


def sync_replica(table: str) -> Action:
    """`replica sync DB.TABLE`."""

    def run(store: Store) -> str:
        from zerocopy.execution import work

        done = work.sync(store.context, store.definition(table))
        text = f"{table}: {counted(len(done.fetched), 'part')} fetched, {counted(len(done.merged), 'part')} merged"
        if done.postponed:
            first = done.postponed[0]
            raise PartlyDone(
                f"{text}, {len(done.postponed):,} postponed; {first.queued.entry.brings}: {first.reason}",
                hint=f"frostline replica queue {table}",
            )
        return f"{text}."

    return Action(title=f"Sync the replica of {table} here", commands=(("replica", "sync", table),), run=run)
