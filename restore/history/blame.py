"""Who made a part, moved it, merged it, brought it back or dropped it: from the logs of all disks and the journal.

The log of each object disk tells what happened in its bucket; the journal of this machine what happened on its local
disks. A part that was merged from others is followed to them. A part that is gone is no other case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.commit_index import touched
from disks.file_table.commits import Commits
from disks.kinds import as_disk
from oplog.entry import Commit, Create
from oplog.errors import Damaged, NotFound
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.journal.records import MergeRecord, MoveRecord
from tiering.policy.part_events import PartEffect, created_part, event
from tiering.table import schema
from tiering.table.part import Part, PartName
from tiering.table.schema import TABLE_FILE, TableDefinition

_MOST_PARTS = 1000
"""How many parts one answer follows."""


class PartEvent(msgspec.Struct, frozen=True):
    """One thing that happened to one part."""

    time: datetime
    part: str
    verb: str
    what: str
    """The verb with what belongs to it: merged from …, moved to …."""
    disk: str
    """The disk whose log or part says so; empty when only the journal or the part itself does."""
    revision: int | None
    kind: str
    actor: str
    reason: str
    source: str
    """log, journal or part: where it is written."""


class Blame(msgspec.Struct):
    """The history of one part and of those it was merged from."""

    table: str
    part: str
    disk: str | None
    """Where the part lies now; None when it is gone."""
    merged_into: str | None
    """The active part that holds its rows now; None when there is none, or the part itself is active."""
    deeds: list[PartEvent]
    """By time."""
    log_since: dict[str, int]
    """By disk: the oldest revision that is kept. What happened before is known only as far as later entries tell."""
    followed: int
    """How many parts the report covers."""
    left_out: int = 0
    """Sources that were not followed: there are too many."""


class TableIdentity(msgspec.Struct, frozen=True):
    """What is known of a table, also of one that was dropped."""

    uuid: str
    full_name: str
    directory: str


def blame(context: Context, table: str, part: str, *, reading: Callable[[int], None] = lambda count: None) -> Blame:
    """The history of the part and of all that went into it. `reading`: see `Commits`.

    Raises `NotFound` when neither a disk, nor a log, nor the journal knows the table or the part.
    """
    PartName.parse(part)
    disks = [logged for disk in context.disks.values() if (logged := as_disk(disk, LoggedDisk)) is not None]
    logs = {disk.name: disk.commits(reading) for disk in disks}
    for identity in identities(context, logs, table):
        told = _Inquiry(context, logs, identity).history_of(part)
        if told is not None:
            return told
    raise NotFound(
        f"there is no record of part {part} of {table}",
        hint="the logs begin at "
        + (", ".join(f"revision {log.oldest} of disk {name}" for name, log in logs.items()) or "no disk")
        + "; earlier history is gone",
    )


def identities(context: Context, logs: dict[str, Commits], table: str) -> Iterator[TableIdentity]:
    """The tables that have or had this name: the present one, then dropped ones, the newest first. Raises `NotFound`
    when there are none."""
    seen: set[str] = set()
    missing: NotFound | None = None
    try:
        present = _identity(context.catalog.table(table))
        seen.add(present.uuid)
        yield present
    except NotFound as error:
        missing = error
    for log in logs.values():
        definitions = log.definitions()
        entries = log.read(revision for _, revision in definitions)
        for directory, revision in reversed(definitions):
            known = _defined(entries[revision].commit, directory) if revision in entries else None
            if known is not None and known.full_name == table and known.uuid not in seen:
                seen.add(known.uuid)
                yield _identity(known)
    if missing is not None and not seen:
        raise missing


def _identity(definition: TableDefinition) -> TableIdentity:
    return TableIdentity(definition.uuid, definition.full_name, definition.directory)


def _defined(commit: Commit, directory: str) -> TableDefinition | None:
    for operation in commit.operations:
        if isinstance(operation, Create) and operation.path == f"{directory}/{TABLE_FILE}" and operation.inline:
            try:
                return schema.decode(operation.inline, path=operation.path)
            except Damaged:
                return None
    return None


class _Inquiry:
    """One answer: follows a part and its sources."""

    def __init__(self, context: Context, logs: dict[str, Commits], identity: TableIdentity) -> None:
        self._context = context
        self._logs = logs
        self._identity = identity
        self._stored = _stored(context, identity)
        self._merges = [
            record for record in context.journal.work.merges(table_uuid=identity.uuid) if record.state == "done"
        ]
        self._deeds: list[PartEvent] = []

    def history_of(self, part: str) -> Blame | None:
        """The history; None when nobody knows the part."""
        waiting, seen = deque([part]), {part}
        followed = 0
        while waiting and followed < _MOST_PARTS:
            sources = self._follow(waiting.popleft())
            if not self._deeds:
                return None
            followed += 1
            waiting.extend(source for source in sources if source not in seen)
            seen.update(sources)
        self._deeds.sort(key=lambda deed: (deed.time, deed.revision or 0, deed.part))
        return Blame(
            table=self._identity.full_name,
            part=part,
            disk=next((stored.disk for stored in self._stored if stored.facts.name == part), None),
            merged_into=self._holder(part),
            deeds=self._deeds,
            log_since={name: log.oldest for name, log in self._logs.items()},
            followed=followed,
            left_out=len(waiting),
        )

    def _holder(self, part: str) -> str | None:
        name = PartName.parse(part)
        active = (stored for stored in self._stored if stored.state == "active")
        return next((stored.facts.name for stored in active if stored.name.covers(name)), None)

    def _follow(self, part: str) -> tuple[str, ...]:
        """Tell what happened to one part; the parts it was merged from."""
        own: list[PartEvent] = []
        known: Part | None = next((stored.part for stored in self._stored if stored.facts.name == part), None)
        for disk, log in self._logs.items():
            deeds, written = self._from_log(disk, log, part)
            own += deeds
            known = known or written
        sources = known.sources if known is not None else ()
        own += self._moves(part, own)
        for record in self._merges:
            if record.output == part and not any(deed.verb == "merged" for deed in own):
                own.append(_from_merge(record, part, PartEffect("merged", arrived=True, sources=record.inputs)))
                sources = sources or record.inputs
            if part in record.inputs and not any(deed.verb == "merged away" for deed in own):
                own.append(_from_merge(record, part, PartEffect("merged away", arrived=False, other=record.output)))
        if known is not None and not any(deed.verb in ("inserted", "merged") for deed in own):
            own.append(_from_part(known))
        self._deeds += own
        return sources

    def _from_log(self, disk: str, log: Commits, part: str) -> tuple[list[PartEvent], Part | None]:
        directory = f"{self._identity.directory}/{part}"
        deeds: list[PartEvent] = []
        written: Part | None = None
        there = False
        for entry in log.touching(directory):
            commit = entry.commit
            seen = event(commit, directory)
            if seen is None or not (seen.arrived or there or _names(commit, directory)):
                continue  # its table was dropped when the part was not there
            there = seen.arrived
            written = created_part(commit, directory) or written
            deeds.append(
                PartEvent(
                    time=commit.time,
                    part=part,
                    verb=seen.verb,
                    what=seen.text,
                    disk=disk,
                    revision=commit.revision,
                    kind=commit.kind.word,
                    actor=commit.actor,
                    reason=commit.reason,
                    source="log",
                )
            )
        return deeds, written

    def _moves(self, part: str, told: list[PartEvent]) -> list[PartEvent]:
        """Moves that the journal knows and no log tells of: those between local disks."""
        records = self._context.journal.work.moves(table_uuid=self._identity.uuid, part=part)
        return [
            PartEvent(
                time=record.updated,
                part=part,
                verb="moved",
                what=f"moved from {record.source} to {record.target}",
                disk=record.target,
                revision=None,
                kind="move",
                actor=record.actor,
                reason=f"{record.reason_kind}: {record.reason_detail}",
                source="journal",
            )
            for record in records
            if record.state in ("committed", "done") and not any(_tells(deed, record) for deed in told)
        ]


def _stored(context: Context, identity: TableIdentity) -> list[StoredPart]:
    definition = next((table for table in context.catalog.tables() if table.uuid == identity.uuid), None)
    return context.catalog.parts(definition, include_outdated=True) if definition is not None else []


def _names(commit: Commit, directory: str) -> bool:
    """Whether the commit names the directory, or something in it, and not only what is above it."""
    return any(path == directory or path.startswith(f"{directory}/") for path, _ in touched(commit))


def _tells(deed: PartEvent, record: MoveRecord) -> bool:
    arrived = deed.verb == "moved in" and deed.disk == record.target and deed.revision == record.revision
    return arrived or (deed.verb == "moved out" and deed.disk == record.source)


def _from_merge(record: MergeRecord, part: str, seen: PartEffect) -> PartEvent:
    return PartEvent(
        time=record.updated,
        part=part,
        verb=seen.verb,
        what=seen.text,
        disk="",
        revision=None,
        kind="merge",
        actor=record.actor,
        reason=record.reason,
        source="journal",
    )


def _from_part(part: Part) -> PartEvent:
    """All that is left of a beginning on a disk without a log: when, and from what."""
    merged = bool(part.sources)
    seen = PartEffect("merged" if merged else "inserted", arrived=True, sources=part.sources)
    return PartEvent(
        time=part.created,
        part=part.name,
        verb=seen.verb,
        what=seen.text,
        disk="",
        revision=None,
        kind="merge" if merged else "insert",
        actor="",
        reason="",
        source="part",
    )
