"""Drop the backups that no rule keeps, and collect what only they named. Headers first: a backup whose header is there
is whole, also when the collection is stopped in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, UnsetType

from backup import records
from backup.format.header import BackupHeader, DrillRecord, VerificationRecord
from backup.retention.collect import collect
from backup.retention.references import named_by, roots
from backup.retention.rules import Candidate, KeepRules, RetentionChoice, choose, is_proved
from backup.storage import Storage
from disks.garbage.report import GcReport
from disks.garbage.rules import GcRules
from oplog.errors import Damaged, Refused, Retained


class PruneRequest(msgspec.Struct, frozen=True):
    """What somebody asks for. `gc`: the rules for what then nothing names."""

    keep: KeepRules
    gc: GcRules = msgspec.field(default_factory=lambda: GcRules(delete=True))
    actor: str = ""
    dry_run: bool = False


class PruneResult(msgspec.Struct, frozen=True):
    """What was decided, and done unless it was a dry run."""

    choices: tuple[RetentionChoice, ...]
    freed_bytes: int
    """Of objects that only the dropped backups name, each once; they go when they are older than the guard interval."""
    locked: dict[str, datetime | None]
    """Backups that should go and that the store keeps, by id, and until when."""
    gc: GcReport | None
    dry_run: bool

    @property
    def dropped(self) -> list[RetentionChoice]:
        return [choice for choice in self.choices if not choice.keep]

    @property
    def kept_rows(self) -> list[ChoiceRow]:
        return [_row(choice) for choice in self.choices if choice.keep]

    @property
    def dropped_rows(self) -> list[ChoiceRow]:
        return [_row(choice) for choice in self.dropped]


class ChoiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that a retention keeps or drops."""

    name: str
    id: str
    machine: str
    taken: str
    verified: bool
    reasons: tuple[str, ...]


class RepositoryGc(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection of a repository saw and did."""

    referenced: int
    pending: int
    orphaned: int
    orphaned_bytes: int
    deleted: int
    deleted_bytes: int
    refused: str | None
    quarantined: int
    suspicious: list[str]
    foreign: list[str]
    failed: dict[str, str]
    kept: dict[str, datetime | None]
    uploads: int
    uploads_aborted: int
    limited: bool
    leftovers_deleted: int


class _RepositoryGcRun(RepositoryGc, frozen=True, kw_only=True):
    dry_run: bool


class RepositoryGcDocument(_RepositoryGcRun, frozen=True):
    """`backup gc --json`. Its own field comes first: those of the base are keyword-only."""

    repository: str


class PruneDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`backup prune --json`."""

    repository: str
    kept: list[ChoiceRow]
    dropped: list[ChoiceRow]
    freed_bytes: int
    locked: dict[str, str | None]
    dry_run: bool
    gc: RepositoryGc | UnsetType = UNSET


def _row(choice: RetentionChoice) -> ChoiceRow:
    backup = choice.backup
    return ChoiceRow(
        name=backup.name,
        id=backup.id,
        machine=backup.machine,
        taken=f"{backup.taken:%Y-%m-%dT%H:%M:%SZ}",
        verified=backup.verified,
        reasons=choice.reasons,
    )


def prune(
    storage: Storage, request: PruneRequest, release: Callable[[BackupHeader], None], now: datetime | None = None
) -> PruneResult:
    """Drop and collect. `release` lets go of what a dropped backup holds elsewhere. Raises `Refused`, with nothing
    dropped, when what the others name is not known: nothing could be collected then."""
    try:
        everything = roots(storage)
        headers = {header.id: header for header in storage.headers()[0]}
        choices = choose(_candidates(storage, list(headers.values())), request.keep, now or datetime.now(UTC))
        going = {choice.backup.id for choice in choices if not choice.keep}
        kept = named_by(storage, [root for root in everything if root.id not in going]).sizes
    except Damaged as error:
        raise Refused(f"nothing is dropped: {error.message}", hint=error.hint) from error
    dropped = named_by(storage, [headers[backup] for backup in sorted(going)], strict=False).sizes
    freed = {key: size_bytes for key, size_bytes in dropped.items() if key not in kept}
    if request.dry_run:
        return PruneResult(tuple(choices), sum(freed.values()), {}, None, True)
    locked: dict[str, datetime | None] = {}
    for choice in choices:
        if not choice.keep:
            drop(storage, headers[choice.backup.id], release, locked)
    report = collect(storage, request.gc, actor=request.actor, expected=freed.keys(), now=now)
    return PruneResult(tuple(choices), sum(freed.values()), locked, report, False)


def drop(
    storage: Storage, header: BackupHeader, release: Callable[[BackupHeader], None], locked: dict[str, datetime | None]
) -> None:
    """Drop one backup. What is beside its header goes first: alone it would look like a backup that is being made."""
    try:
        storage.forget_mark(header.id)
        storage.remove([header.key])
    except Retained as error:
        locked[header.id] = error.until
    else:
        release(header)


def retained(where: str, locked: Mapping[str, datetime | None]) -> Retained:
    """The error of backups that a lock of the store keeps."""
    until = max((moment for moment in locked.values() if moment is not None), default=None)
    when = f" until {until:%Y-%m-%d %H:%M} UTC" if until is not None else ""
    return Retained(
        f"{where} keeps {len(locked)} of the backups{when}: {', '.join(sorted(locked))}",
        until=until,
        hint="they can be deleted when the lock ends",
    )


def _candidates(storage: Storage, headers: Sequence[BackupHeader]) -> list[Candidate]:
    ids = [header.id for header in headers]
    verified, drilled = records.newest(storage, ids, VerificationRecord), records.newest(storage, ids, DrillRecord)
    return [
        Candidate(
            id=header.id,
            name=header.name,
            machine=header.machine,
            scope=header.scope,
            taken=header.taken,
            tags=header.tags,
            verified=is_proved(verified.get(header.id), drilled.get(header.id)),
            tables=frozenset((table.uuid, table.name) for table in header.tables),
            left_out=frozenset((table.uuid, table.table) for table in header.left_out),
        )
        for header in headers
    ]
