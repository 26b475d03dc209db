"""Logs of buckets: entries, what differs between two, who did what to a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from restore.history.documents import LogRow, diff_lines, log_row
from tui.facts.listing import ListColumn, Listing, field, minute, number, plain, size

if TYPE_CHECKING:
    from tiering.engine.store import Store

ENTRIES_SHOWN = 2_000
"""The newest so many of each disk; `log` has all."""


class LogRowOfDisk(LogRow, frozen=True):
    """An entry, and the disk whose log has it."""

    disk: str


def log(store: Store) -> Listing:
    """`log` of every disk that has one, newest first."""
    rows: list[LogRowOfDisk] = []
    silent: list[str] = []
    for disk in store.object_disks():
        entries = [] if disk.broken is not None else list(disk.commits().between(0, None, ENTRIES_SHOWN))
        if not entries and (disk.broken is not None or disk.unreachable):
            silent.append(disk.name)
        rows += [LogRowOfDisk(**asdict(log_row(entry.commit)), disk=disk.name) for entry in entries]
    rows.sort(key=lambda row: (row.time, row.revision), reverse=True)
    unread = ", ".join(silent)
    return Listing(
        columns=(
            ListColumn("revision", "revision", 8, field("revision"), number, right=True),
            ListColumn("disk", "disk", 8, field("disk")),
            ListColumn("time", "time", 16, field("time"), minute),
            ListColumn("kind", "kind", 12, field("kind")),
            ListColumn("reason", "reason", 20, field("reason"), grows=True),
            ListColumn("operations", "ops", 5, field("operations"), number, right=True),
            ListColumn("size", "size", 10, field("bytes"), size, right=True),
            ListColumn("actor", "actor", 18, field("actor")),
        ),
        rows=rows,
        key=lambda row: f"{row.disk} {row.revision}",
        document=lambda row: {name: value for name, value in asdict(row).items() if name != "disk"},
        state=field("revision"),
        summary=f"without the log of {unread}" if silent and rows else "",
        empty=f"The log of {unread} cannot be read now."
        if silent
        else "No entries: no disk of this store has an operations log yet.",
    )


def difference(store: Store, disk: str, before: int, after: int) -> list[str]:
    """`diff`, as lines; not yet escaped."""
    from restore.history.diff import diff

    found = diff(store.object_disk(disk), before, after)
    lines = list(diff_lines(found, files=False))
    return [*lines, "The two revisions do not differ."] if found.empty else lines


def blamed(store: Store, table: str, part: str) -> list[str]:
    """`blame`, as lines; not yet escaped."""
    from restore.history.blame import blame

    found = blame(store.context, table, part)
    where = f"on disk {found.disk}" if found.disk else "gone"
    into = f"; its rows are in part {found.merged_into}" if found.merged_into else ""
    return [f"part {found.part} of {found.table}: {where}{into}", *map(_deed, found.deeds)]


def _deed(deed: Any) -> str:
    pieces: Sequence[Any] = (deed.disk, deed.revision, deed.actor, deed.reason)
    return f"  {minute(deed.time)}  {deed.part}  {deed.what}  " + "  ".join(plain(piece) or "-" for piece in pieces)
