"""Format 2 of the operations log: one commit is one transaction, one JSON document, one object.

    operations/r<64 binary digits>-commit

A commit holds the digest of the one before it, so a missing, altered or reordered entry is seen. `operations` apply in
order to a file table (path -> blob); see `oplog.replay`. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import msgspec

from oplog import bounds, kinds
from oplog.documents import Document
from oplog.errors import Damaged, UsageError
from oplog.kinds import CommitKind
from oplog.stamps import WriterState

FORMAT = 3
"""Who reads format 3 heeds floors and fences, and proves the end of the log before it commits. A version that knows
only format 2 would commit into the hole that a collection left: it refuses the first entry of format 3."""
NAMED_LOG_FORMAT = 4
"""Of entries of a log that has its objects in one prefix with other logs. A version that knows only format 3 would take
what the others name for garbage: it refuses the first of them."""
MINIMUM_READER = "0.2.0"
"""The first version of Frostline that reads what this one writes in a prefix with one log."""
READABLE = frozenset((2, FORMAT, NAMED_LOG_FORMAT))
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


def changed_paths(operation: Operation) -> tuple[str, ...]:
    """The paths where something is other after it than before it."""
    match operation:
        case Create(path=path) | Remove(path=path) | Link(target=path):
            return (path,)
        case Rename(source=source, target=target):
            return (source, target)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction. Times are RFC 3339 UTC; the wall clock is decoration, the revision is the order."""

    revision: int
    previous: str
    """SHA-256 (hex) of the previous commit's bytes; `GENESIS_DIGEST` for revision 1."""
    writer: str
    """Who wrote it, and a nonce of the attempt, with `-` between; random both. It tells who won the race for this
    revision, and whose turn is next. Older versions wrote one random word."""
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
    table_digest: str = ""
    """`TableDigest` of the file table right after it; empty where its writer did not know."""
    earlier: bytes = b""
    """The texts of the entries before it, every 64th time (`oplog.earlier`)."""
    state: WriterState = WriterState()
    """How far the disks and the journal of its writer were."""
    format: int = FORMAT
    """Of the entry it is written as."""

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
    table_digest: str = ""
    earlier: bytes = b""
    state: WriterState = WriterState()


class _Format(msgspec.Struct):
    format: int


_encoder = msgspec.json.Encoder(order="deterministic")
_format_decoder = msgspec.json.Decoder(_Format)
_decoder = msgspec.json.Decoder(_Document)


def encode(commit: Commit) -> bytes:
    """The commit's bytes, the same for equal commits. Raises `Refused` for one that could not be read back."""
    return _commit.encode(commit)


def _write(commit: Commit) -> bytes:
    word, details = kinds.encode(commit.kind)
    document = _Document(
        format=commit.format,
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
        table_digest=commit.table_digest,
        earlier=commit.earlier,
        state=commit.state,
    )
    return _encoder.encode(document)


def decode(data: bytes, *, name: str) -> Commit:
    """The commit of an entry's bytes, with every field within its bounds. Raises `Damaged` naming the entry,
    `UsageError` for a newer format."""
    document = _read(data, name)
    fault = _fault_in(document)
    if fault is not None:
        raise _damaged(name, fault)
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
        table_digest=document.table_digest,
        earlier=document.earlier,
        state=document.state,
        format=document.format,
    )


def _read(data: bytes, name: str) -> _Document:
    try:
        version = _format_decoder.decode(data).format
        if version not in READABLE:
            known = " and ".join(map(str, sorted(READABLE)))
            raise UsageError(
                f"log entry {name} has format {version}; this version reads format {known}",
                hint="upgrade frostline",
            )
        return _decoder.decode(data)
    except bounds.UNREADABLE as error:
        raise _damaged(name, str(error) if data else "it is empty") from error


def _damaged(name: str, why: str) -> Damaged:
    return Damaged(
        f"log entry {name} cannot be read: {why}",
        hint="bring the object back from a copy or the bucket's versioning; the entries before it can still be "
        "restored with --revision",
    )


def _fault_in(document: _Document) -> str | None:
    return (
        bounds.fault_in_count("revision", document.revision)
        or (bounds.fault_in_digest("previous", document.previous) if document.previous else None)
        or (bounds.fault_in_digest("table_digest", document.table_digest) if document.table_digest else None)
        or bounds.fault_in_time("time", document.time)
        or document.state.fault()
        or next(filter(None, map(_fault_in_operation, document.operations)), None)
    )


def _fault_in_operation(operation: Operation) -> str | None:
    match operation:
        case Link(source=source, target=target) | Rename(source=source, target=target):
            return bounds.fault_in_path(source) or bounds.fault_in_path(target)
        case Create(path=path, key=key):
            return (
                bounds.fault_in_path(path)
                or bounds.fault_in_key(path, key)
                or bounds.fault_in_digest(f"the SHA-256 of {path!r}", operation.sha256)
                or bounds.fault_in_size(f"the size of {path!r}", operation.size_bytes)
            )
    return bounds.fault_in_path(operation.path)


_commit = Document("log entry", Commit, write=_write, read=lambda data: decode(data, name="written now"))


def is_consistent(commit: Commit) -> bool:
    """Whether the bytes that ride along are what the commit says of them."""
    return all(
        operation.inline is None or hashlib.sha256(operation.inline).hexdigest() == operation.sha256
        for operation in commit.operations
        if isinstance(operation, Create)
    )


def digest(data: bytes) -> str:
    """What the next commit's `previous` holds."""
    return hashlib.sha256(data).hexdigest()


def now() -> datetime:
    """The wall clock in UTC, to the microsecond."""
    return datetime.now(UTC)
