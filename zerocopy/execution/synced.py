"""What a sync did, as a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from zerocopy.execution.steps import Done


class FetchedWhole(msgspec.Struct, frozen=True):
    """A part that was fetched with its bytes though objects are shared, and why."""

    part: str
    reason: str


class PostponedEntry(msgspec.Struct, frozen=True):
    """An entry that could not be done."""

    number: int
    part: str
    reason: str


class SyncedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of `replica sync --json`."""

    table: str
    taken_over: int
    """Entries of the log."""
    fetched: list[str]
    adopted: list[str]
    """Those of the fetched parts that came without a byte."""
    whole: list[FetchedWhole]
    merged: list[str | None]
    dropped: list[str]
    altered: int | None
    """The version of the definition that came."""
    skipped: int
    freed: list[str]
    cloned: str
    """The replica whose parts this one took over."""
    set_aside: list[str]
    postponed: list[PostponedEntry]


def synced_table(table: str, done: Done) -> SyncedTable:
    """Of one run over the queue."""
    return SyncedTable(
        table=table,
        taken_over=done.pulled,
        fetched=done.fetched,
        adopted=done.adopted,
        whole=[FetchedWhole(part, why) for part, why in done.whole.items()],
        merged=[result.output for result in done.merged],
        dropped=done.dropped,
        altered=done.altered or None,
        skipped=done.skipped,
        freed=done.freed,
        cloned=done.cloned,
        set_aside=done.set_aside,
        postponed=[
            PostponedEntry(entry.queued.number, entry.queued.entry.brings, entry.reason) for entry in done.postponed
        ],
    )
