"""Format 2 of the operations log: one commit is one transaction, one JSON document, one object.

    operations/r<64 binary digits>-commit

A commit holds the digest of the one before it, so a missing, altered or reordered entry is seen. `operations` apply in
order to a file table (path -> blob); see `oplog.replay`. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import msgspec

from oplog import kinds
from oplog.errors import Damaged, UsageError
from oplog.kinds import CommitKind

FORMAT = 2
GENESIS_DIGEST = "0" * 64
"""`previous` of the first commit."""


class Create(msgspec.Struct, frozen=True, tag_field="op", tag="create", omit_defaults=True):
    """A new file. Its bytes are the object `key`, or ride along as `inline`."""

    path: str
    size_bytes: int
    sha256: str
    key: str | None = None
    inline: bytes | None = None
    blob_set: str | None = None
    """The part (as first written) whose blobs this one belongs to: the unit of sharing between replicas."""


class Link(msgspec.Struct, frozen=True, tag_field="op", tag="link"):
    """A second path for the source's bytes."""

    source: str
    target: str


class Rename(msgspec.Struct, frozen=True, tag_field="op", tag="rename"):
    """A file, or a directory with everything below it, changes its path."""

    source: str
    target: str


class Remove(msgspec.Struct, frozen=True, tag_field="op", tag="remove"):
    """A file, or a directory with everything below it, goes from the table. Its objects stay until gc."""

    path: str


Operation = Create | Link | Rename | Remove


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction. Times are RFC 3339 UTC; the wall clock is decoration, the revision is the order."""

    revision: int
    previous: str
    """SHA-256 (hex) of the previous commit's bytes; `GENESIS_DIGEST` for revision 1."""
    writer: str
    """Random id of one transaction attempt's writer and nonce: who won the race for this revision."""
    time: datetime
    kind: CommitKind
    """What it did, with all that is decided on."""
    actor: str = ""
    reason: str = ""
    """For people only."""
    present: tuple[str, ...] = ()
    """Preconditions: paths that existed when this committed."""
    absent: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the files this commit created."""
        return sum(operation.size_bytes for operation in self.operations if isinstance(operation, Create))


class _Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit as it is written down."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)
    """Always written: msgspec leaves plain defaults out, and what a default is changes with the version."""
    revision: int
    previous: str
    writer: str
    time: datetime
    kind: str
    actor: str = ""
    reason: str = ""
    details: dict[str, str] = {}
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()


class _Format(msgspec.Struct):
    format: int


_encoder = msgspec.json.Encoder(order="deterministic")
_format_decoder = msgspec.json.Decoder(_Format)
_decoder = msgspec.json.Decoder(_Document)


def encode(commit: Commit) -> bytes:
    """The commit's bytes, the same for equal commits."""
    word, details = kinds.encode(commit.kind)
    document = _Document(
        revision=commit.revision,
        previous=commit.previous,
        writer=commit.writer,
        time=commit.time,
        kind=word,
        actor=commit.actor,
        reason=commit.reason,
        details=details,
        present=commit.present,
        absent=commit.absent,
        operations=commit.operations,
    )
    return _encoder.encode(document)


def decode(data: bytes, *, name: str) -> Commit:
    """The commit of an entry's bytes. Raises `Damaged` naming the entry, `UsageError` for a newer format."""
    document = _read(data, name)
    return Commit(
        revision=document.revision,
        previous=document.previous,
        writer=document.writer,
        time=document.time,
        kind=kinds.decode(document.kind, document.details, name=name),
        actor=document.actor,
        reason=document.reason,
        present=document.present,
        absent=document.absent,
        operations=document.operations,
    )


def _read(data: bytes, name: str) -> _Document:
    try:
        version = _format_decoder.decode(data).format
        if version != FORMAT:
            raise UsageError(
                f"log entry {name} has format {version}; this version reads format {FORMAT}",
                hint="upgrade frostline",
            )
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(
            f"log entry {name} cannot be read: {error if data else 'it is empty'}",
            hint="bring the object back from a copy or the bucket's versioning; the entries before it can still be "
            "restored with --revision",
        ) from error


def digest(data: bytes) -> str:
    """What the next commit's `previous` holds."""
    return hashlib.sha256(data).hexdigest()


def now() -> datetime:
    """The wall clock in UTC, to the microsecond."""
    return datetime.now(UTC)
