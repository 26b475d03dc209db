"""Replicas of tables, and the marks by which they share objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oplog.errors import Damaged, PartlyDone
from tiering.config.units import counted
from tui.actions.action import Action, Lines

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from zerocopy.execution.auditing import Audited


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


def audit_marks(disk: str) -> Action:
    """`replica audit DISK --repair`. A disk that nobody shares is refused."""

    def preview(store: Store) -> Lines:
        return list(_audited(store, disk, dry_run=True).lines())

    def run(store: Store) -> str:
        found = _audited(store, disk)
        if not found.clean:
            raise Damaged("; ".join(found.lines()), hint=f"frostline replica audit {disk} --json")
        return " ".join(found.lines())

    return Action(
        title=f"Audit the marks of disk {disk} and restore missing ones",
        commands=(("replica", "audit", disk, "--repair"),),
        preview=preview,
        run=run,
    )


def _audited(store: Store, disk: str, *, dry_run: bool = False) -> Audited:
    from zerocopy.execution import auditing

    (shared,) = auditing.disks(store.context, disk)
    return auditing.run(store.context, shared, repairs=True, dry_run=dry_run)
