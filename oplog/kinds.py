"""What a commit did: one struct a kind, with a typed field for all that anybody decides on. Pure; no I/O.

An entry of the log holds the kind's word and `details`, an object of texts: a field that is text as it is, any other
as its JSON. Recovery, undo and history read fields; a commit's `reason` is for people. A kind may gain fields, each
with a default that stands for "the entry does not say"; a field never changes its meaning or type. What a later
version, or somebody else, calls by a word that is not known here is an `OtherKind`: it is shown and applied like any
other, and not undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from oplog import bounds
from oplog.errors import Damaged


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    @property
    def word(self) -> str:
        """How the log calls it."""
        return str(self.__struct_config__.tag)


class Inserted(_Kind, frozen=True, tag="insert"):
    """New rows became parts. The fields are those of a job of Spark."""

    table: str = ""
    job: str = ""
    """The id that makes the job's rows come in once."""
    tasks_began: int | None = None
    """Seconds since 1970: its blobs were uploaded from then on."""


class Merged(_Kind, frozen=True, tag="merge"):
    """Parts became one, or none when every row was past its TTL."""

    merged_into: str = ""
    """Where inputs go and the output lies on another disk: the output."""
    inputs: dict[str, tuple[int, str]] = {}
    """Where the output comes: of each part that went into it the rows, and the digest of its `part.json`. Empty where
    an older version wrote the entry."""


class Moved(_Kind, frozen=True, tag="move"):
    """Parts came from other disks, or went to another one."""

    table: str = ""
    sources: dict[str, tuple[str, ...]] = {}
    """By disk: the parts that came from there."""
    kept: tuple[str, ...] = ()
    """Those of them that stay on their source as well."""
    moved_to: str = ""
    """The disk that parts went to."""

    def source_of(self, part: str) -> str:
        """The disk that the part came from; empty when the commit does not say."""
        return next((disk for disk, parts in self.sources.items() if part in parts), "")


class Dropped(_Kind, frozen=True, tag="drop"):
    """Parts, or a table, went for good."""

    by_ttl: bool = False
    """Because a TTL rule said so."""


class Tidied(_Kind, frozen=True, tag="tidy"):
    """Copies went that another part had replaced."""


class TableCreated(_Kind, frozen=True, tag="create_table"):
    """A table's definition came."""


class TableAltered(_Kind, frozen=True, tag="alter_table"):
    """A table's definition took the place of an older one."""

    undoes: int | None = None
    """The revision whose alter this takes back."""
    undone: str = msgspec.field(default="", name="kind")
    """The word of that one's kind."""


class BlocksAllocated(_Kind, frozen=True, tag="allocate"):
    """A machine took a range of block numbers."""


class Undone(_Kind, frozen=True, tag="undo"):
    """What one commit did was taken back."""

    undoes: int
    """Its revision."""
    undone: str = msgspec.field(default="", name="kind")
    """The word of its kind."""


class Restored(_Kind, frozen=True, tag="restore"):
    """The disk, or some of it, is again as it was, or as another bucket is."""

    revision: int | None = None
    """Which revision of this disk."""
    source: str = ""
    """The other bucket."""
    source_revision: int | None = None
    epoch: str = ""
    """A random name that all commits of one restore share."""
    scope: str | None = None
    """The paths it was limited to, with a blank between them, for people."""


class Repaired(_Kind, frozen=True, tag="repair"):
    """A check wrote again what it could derive."""

    contradicted: int | None = None
    """The first entry that says of the table what is not so: from it up to this one the operations count, and this one
    says what they give."""


class SetAside(_Kind, frozen=True, tag="set_aside"):
    """Parts were renamed: into `detached/`, by a check or a person, or by a person out of it."""


class Fenced(_Kind, frozen=True, tag="fence"):
    """A collection is about to delete what it has announced: who named an object before the entry is read by it, who
    comes after looks at the announcement. Changes no file."""

    announcement: str = ""
    """Its key."""


class DiskGivenUp(_Kind, frozen=True, tag="give_up"):
    """A person gave up another disk, or adopted one that had been given up; or two homes were found to go by its id."""

    disk: str = ""
    """Its id."""
    adopted: bool = False
    cloned: bool = False


class OtherKind(msgspec.Struct, frozen=True):
    """A kind that this version does not know: a later one's, or somebody else's. Nothing is decided by its details."""

    word: str
    details: dict[str, str] = {}


KnownKind: TypeAlias = (
    Inserted
    | Merged
    | Moved
    | Dropped
    | Tidied
    | TableCreated
    | TableAltered
    | BlocksAllocated
    | Undone
    | Restored
    | Repaired
    | SetAside
    | Fenced
    | DiskGivenUp
)
CommitKind: TypeAlias = KnownKind | OtherKind


def undone_revision(kind: CommitKind) -> int | None:
    """The revision that a commit of this kind takes back; None when it takes none back."""
    return kind.undoes if isinstance(kind, Undone | TableAltered) else None


class _Field(msgspec.Struct, frozen=True):
    name: str
    key: str
    default: object
    read: Callable[[str], Any]


def _field(info: msgspec.structs.FieldInfo) -> _Field:
    is_text = info.type in (str, str | None)
    read = str if is_text else msgspec.json.Decoder(info.type).decode
    default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
    return _Field(info.name, info.encode_name, default, read)


_encoder = msgspec.json.Encoder(order="deterministic")
_KINDS: dict[str, type[KnownKind]] = {str(kind.__struct_config__.tag): kind for kind in KnownKind.__args__}
_FIELDS = {kind: [_field(info) for info in msgspec.structs.fields(kind)] for kind in _KINDS.values()}


def encode(kind: CommitKind) -> tuple[str, dict[str, str]]:
    """The word and the details of the kind. Fields that say what their default says are left out."""
    if isinstance(kind, OtherKind):
        return kind.word, kind.details
    details: dict[str, str] = {}
    for field in _FIELDS[type(kind)]:
        value = getattr(kind, field.name)
        if value != field.default:
            details[field.key] = value if isinstance(value, str) else _encoder.encode(value).decode()
    return kind.word, details


def decode(word: str, details: Mapping[str, str], *, name: str) -> CommitKind:
    """The kind that an entry of this name tells of. Details that are not known are left out. Raises `Damaged` for those
    that are not what they must be."""
    known = _KINDS.get(word)
    if known is None:
        return OtherKind(word, dict(details))
    values: dict[str, Any] = {}
    for field in _FIELDS[known]:
        text = details.get(field.key)
        if text is not None:
            try:
                values[field.name] = field.read(text)
            except bounds.UNREADABLE as error:
                raise _damaged(name, word, f"{field.key} is {text[:60]!r}: {error}") from error
        elif field.default is msgspec.NODEFAULT:
            raise _damaged(name, word, f"{field.key} is missing")
        value = values.get(field.name)
        if isinstance(value, int) and abs(value) > bounds.LARGEST_COUNT:
            raise _damaged(name, word, f"{field.key} is a number that no revision or time is")
    return known(**values)


def _damaged(name: str, word: str, problem: str) -> Damaged:
    return Damaged(
        f"log entry {name} cannot be read: of its kind, {word}, {problem}",
        hint="Frostline did not write it like this: bring the object back from a copy or the bucket's versioning; the "
        "entries before it can still be restored with --revision",
    )
