"""What a collection saw and did: a plain record for every kind of disk."""

from __future__ import annotations

from datetime import datetime

import msgspec

from oplog.errors import AccessDenied, FrostlineError, PartlyDone, Retained


class GcRow(msgspec.Struct):
    """What a collection saw and did. Counts are of blobs; the log's own objects are counted apart."""

    disk: str
    referenced: int = 0
    pending: int = 0
    orphaned: int = 0
    orphaned_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    refused: str | None = None
    """Why nothing (more) was deleted; None when no safety rule spoke."""
    quarantined: int = 0
    """Orphans announced by this run or too lately by an earlier one: they go when their quarantine is over."""
    suspicious: list[str] = msgspec.field(default_factory=list)
    """Unnamed blobs with an impossible time: kept."""
    foreign: list[str] = msgspec.field(default_factory=list)
    """Objects whose names Frostline does not give: kept."""
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    """Key -> why the store did not delete it. The next collection tries again."""
    denied: int = 0
    """How many of them the credentials may not delete."""
    kept: dict[str, datetime | None] = msgspec.field(default_factory=dict)
    """Key -> until when a lock of the store keeps it (None: it does not say). No failure: a later collection has it."""
    scratch_deleted: int = 0
    """What a killed `doctor` or `objbench` left."""
    log_collectable: int = 0
    log_deleted: int = 0
    """Old commits and snapshots that no restorable revision needs."""
    snapshots_written: list[int] = msgspec.field(default_factory=list)
    """Revisions of the snapshots that took the place of old commits."""
    uploads: int = 0
    """Unfinished multipart uploads older than the guard interval."""
    uploads_aborted: int = 0
    pins_expired: list[str] = msgspec.field(default_factory=list)
    oldest_revision: int | None = None
    """The oldest revision that the retention keeps."""
    limited: bool = False
    """Stopped at `max_delete_bytes`; more is left."""
    versioning: str | None = None
    """`on` or `suspended`: what is deleted stays as an old version, and is paid for, until a rule of the bucket ends
    it. None: the bucket keeps no versions, or does not say."""
    old_versions: int = 0
    old_version_bytes: int = 0
    """Versions and delete markers of our names that no listing shows. Counted, never touched."""


class GcReport(GcRow):
    """The same, with what no document has: it may be long."""

    delete: bool = False
    orphans: list[str] = msgspec.field(default_factory=list)
    """Keys of the orphaned blobs, the oldest first."""

    @property
    def row(self) -> GcRow:
        return GcRow(**{name: getattr(self, name) for name in GcRow.__struct_fields__})

    def stays(self, key: str, error: FrostlineError) -> None:
        """The store did not delete the object."""
        if isinstance(error, Retained):
            self.kept[key] = error.until
        else:
            self.failed[key] = error.message
            self.denied += isinstance(error, AccessDenied)

    def failure(self) -> FrostlineError | None:
        """The error for objects that could not be deleted: 12 where the credentials may delete nothing."""
        if not self.failed:
            return None
        what = f"{len(self.failed)} objects could not be deleted"
        if self.denied == len(self.failed) and not self.deleted:
            why = next(iter(self.failed.values()))
            return AccessDenied(f"{what}: {why}", hint="gc --delete needs s3:DeleteObject (and s3:DeleteObjectVersion)")
        return PartlyDone(what, hint="the next gc tries them again")


class SafetyStop(Exception):
    """A safety rule spoke: nothing more is deleted."""
