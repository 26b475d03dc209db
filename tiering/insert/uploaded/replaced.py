"""What a write takes the place of: the parts of whole partitions, which go in the commit that brings the rows.

Only rows that were there when the write began may go: its user knew of no others. So the log says of a newer part
where it came from: what merges made of older parts is as old as those. Old rows come back
by `undo` of the commit, so they have to lie in the bucket that it is for.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from oplog import paths
from oplog.entry import Commit, Remove
from oplog.errors import Locked, Refused
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.config.units import counted
from tiering.policy.part_events import event
from tiering.table.schema import TableDefinition

ATTEMPTS = 40
"""Others change the table between the look and the commit: the limit of looks."""
_CLAIM_SECONDS = 600.0
"""So long a move or merge of this machine is waited for: the work of a whole write is at stake."""
_LOOK_AGAIN_SECONDS = 0.2


class Replaced(msgspec.Struct, frozen=True):
    """The parts that go."""

    revision: int
    """Of the disk, when it was looked at."""
    names: tuple[str, ...]
    directories: tuple[str, ...]


@contextmanager
def held_to_replace(
    context: Context, disk: LoggedDisk, definition: TableDefinition, partitions: Collection[str] | None, *, since: int
) -> Iterator[Replaced]:
    """The parts of the partitions, or of all, which no move or merge of this machine takes while the block runs.

    Raises `Refused` for what lies on other disks, and for rows that came after revision `since`.
    """
    with _claimed(context, definition, partitions):
        revision = disk.revision or 0
        context.catalog.refresh()
        found = parts_to_replace(context, definition, partitions)
        check_replaceable(disk, definition, found, since=since)
        directories = tuple(sorted({stored.directory for stored in found}))
        yield Replaced(revision, tuple(sorted({stored.facts.name for stored in found})), directories)


@contextmanager
def _claimed(context: Context, definition: TableDefinition, partitions: Collection[str] | None) -> Iterator[None]:
    """The parts that are there now. Raises `Locked` for one that somebody of this machine holds too long."""
    until = time.monotonic() + _CLAIM_SECONDS
    with ExitStack() as claimed:
        while True:
            context.catalog.refresh()
            names = [stored.facts.name for stored in parts_to_replace(context, definition, partitions)]
            try:
                claimed.enter_context(context.journal.claim(definition.uuid, names, "replace"))
                break
            except Locked:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK_AGAIN_SECONDS)
        yield


def parts_to_replace(
    context: Context, definition: TableDefinition, partitions: Collection[str] | None
) -> list[StoredPart]:
    """The parts of the partitions, or of all: every copy, also one that another part has replaced, for it would answer
    when that one is gone."""
    everything = context.catalog.parts(definition, include_outdated=True)
    return [stored for stored in everything if partitions is None or stored.name.partition in partitions]


def check_replaceable(
    disk: LoggedDisk, definition: TableDefinition, parts: Sequence[StoredPart], *, since: int
) -> None:
    """Raise as `held_to_replace` does."""
    _check_here(disk, definition, parts)
    _check_known(disk, definition, parts, since)


def _check_here(disk: LoggedDisk, definition: TableDefinition, parts: Sequence[StoredPart]) -> None:
    elsewhere = [stored for stored in parts if stored.disk != disk.name]
    if elsewhere:
        first = elsewhere[0]
        disks = ", ".join(sorted({stored.disk for stored in elsewhere}))
        raise Refused(
            f"of what is to be replaced in {definition.full_name} disk {disks} has {counted(len(elsewhere), 'part')}, "
            f"where undo cannot restore them, such as {first.facts.name}: nothing was replaced",
            hint=f"frostline move {definition.full_name} --partition {first.name.partition} --to-disk {disk.name}",
        )


def _check_known(disk: LoggedDisk, definition: TableDefinition, parts: Sequence[StoredPart], since: int) -> None:
    newer = [stored for stored in parts if stored.revision is None or stored.revision > since]
    if newer and disk.commits().oldest > since + 1:
        raise Refused(
            f"the log of disk {disk.name} does not go back to revision {since} any more, where this write began: "
            f"it is unknown whether {newer[0].facts.name} has newer rows; nothing was replaced",
            hint="run it again; retention_seconds of the disk says how long the log is kept",
        )
    for stored in newer:
        came = newcomer(disk, stored.directory, since)
        if came:
            raise Refused(
                f"partition {stored.name.partition} of {definition.full_name} has rows that came after this write "
                f"began: {came}; nothing was replaced",
                hint="run it again",
            )


def newcomer(disk: LoggedDisk, directory: str, since: int) -> str:
    """What brought rows into the part after the revision, for people; empty where all of them are older: it was there,
    or merges made it of parts that were."""
    for entry in disk.commits().touching(directory, since):
        seen = event(entry.commit, directory)
        if seen is None or not seen.arrived:
            continue
        name = directory.rpartition("/")[2]
        if seen.verb != "merged":
            return f"part {name} was {seen.text}, by revision {entry.commit.revision}"
        for source in seen.sources:
            before = f"{directory.rpartition('/')[0]}/{source}"
            if not _takes_away(entry.commit, before):
                return f"part {name} was merged from {source}, which was elsewhere"
            if found := newcomer(disk, before, since):
                return found
    return ""


def _takes_away(commit: Commit, directory: str) -> bool:
    above = {directory, *paths.ancestors(directory)}
    return any(isinstance(operation, Remove) and operation.path in above for operation in commit.operations)
