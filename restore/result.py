"""What a restore found and did, as the command line shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from restore.plan import Difference, MissingObject


@dataclass(slots=True)
class RestoreResult:
    """What a restore found, and what it changed or would change. Counts are of files within the scope."""

    disk: str
    revision: int
    """The revision the disk is compared with, or taken back to."""
    head: int
    """The newest revision in the bucket when it was listed."""
    files: int
    bytes: int
    difference: Difference
    missing_objects: list[MissingObject]
    digest: str
    """`table_digest` of the table at `revision` within the scope."""
    applied: bool = False
    commit: int | None = None
    """The revision of the restore's own commit; None when nothing had to change, or for the cache."""
    objects: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    moved_in: list[str] = field(default_factory=list)
    """Directories of parts that go although they lay on another disk at the time: now they lie on none."""
    notes: list[str] = field(default_factory=list)

    @property
    def created(self) -> int:
        return self.difference.created_files

    @property
    def removed(self) -> int:
        return self.difference.removed_files

    @property
    def unchanged(self) -> int:
        return self.difference.unchanged

    def document(self) -> dict[str, object]:
        """The JSON of the command line."""
        return {
            "disk": self.disk,
            "revision": self.revision,
            "files": self.files,
            "bytes": self.bytes,
            "created": self.created,
            "removed": self.removed,
            "unchanged": self.unchanged,
            "missing_objects": [
                {"object": lost.key, "path": lost.path, "bytes": lost.size_bytes, "found_bytes": lost.found_bytes}
                for lost in self.missing_objects
            ],
            "applied": self.applied,
            "commit": self.commit,
            "digest": self.digest,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "moved_in": self.moved_in,
            "notes": self.notes,
        }
