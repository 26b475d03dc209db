"""What the verbs of publications print with `--json`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from tiering.iceberg.publication import Publication, Published

State = Literal["published", "behind", "not published", "changed by another program"]


class PublishedDocument(msgspec.Struct, frozen=True):
    """One table."""

    table: str
    disk: str
    location: str
    metadata: str | None
    """URL of the newest metadata; None where there is none."""
    state: State
    revision: int | None
    behind: int
    """Revisions of the disk since then that may have changed the table: 0 or 1, as far as one is known."""
    rows: int
    files: int
    rows_elsewhere: int
    complete_until: datetime | None
    snapshots: int
    dry_run: bool = False

    @classmethod
    def of(cls, publication: Publication, published: Published | None, *, dry_run: bool = False) -> PublishedDocument:
        """What is published of a table."""
        elsewhere = publication.elsewhere()
        current = published.metadata.current if published is not None else None
        summary = current.summary if current is not None else {}
        behind = published is None or publication.due(published) is not None
        state: State = "behind" if behind else "published"
        if published is None:
            state = "not published"
        elif not published.is_ours:
            state = "changed by another program"
        return cls(
            table=publication.definition.full_name,
            disk=publication.disk.name,
            location=publication.url(),
            metadata=publication.metadata_url(published.version) if published is not None else None,
            state=state,
            revision=published.revision if published is not None else None,
            behind=int(behind),
            rows=int(summary.get("total-records", 0)),
            files=int(summary.get("total-data-files", 0)),
            rows_elsewhere=elsewhere.rows,
            complete_until=elsewhere.complete_until,
            snapshots=len(published.metadata.snapshots) if published is not None else 0,
            dry_run=dry_run,
        )


class StatusDocument(msgspec.Struct, frozen=True):
    """All of them."""

    tables: list[PublishedDocument]


class UnpublishedDocument(msgspec.Struct, frozen=True):
    """A publication that ended."""

    table: str
    location: str
    objects: int
    dry_run: bool
