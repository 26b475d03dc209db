"""One instant of all tables and disks, held for as long as a backup needs it.

The disks share no transaction, so the instant is found by looking twice: what the first look saw is held (second names
for local files that the repository lacks, a pin for a bucket), then the second look must see the same. Names of parts
are never used again, so what is the same at both looks was so all the time in between, on every disk at once. Otherwise
it starts over; after a few times local commits wait for the moment that a look takes.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from backup.format.header import LeftOut
from backup.scope import Scope
from disks.base import Disk, list_each
from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.effects import make_directory, op, remove_tree
from disks.kinds import as_disk
from disks.stores.base import ByteRange
from oplog.errors import Conflict, NotFound
from restore.rebuild.held_revision import HeldRevision, pinned
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.catalog.definitions.unreadable import UnreadableTable
from tiering.catalog.stored import LazyPart
from tiering.table.part import PART_FILE, PartFile, PartFiles
from tiering.table.schema import TableDefinition

_LOOKS = 50
_PATIENT_LOOKS = 3
_PIECE_BYTES = 16 * 1024 * 1024
_HELD = timedelta(days=14)
"""How long second names stay when this process neither ends nor lets go."""


class BlobSource(msgspec.Struct, frozen=True):
    """A file that is an object of a disk's bucket."""

    disk: str
    key: str


class SourceFile(msgspec.Struct, frozen=True):
    """One file of a part, and where its bytes are kept until the backup is done."""

    name: str
    size_bytes: int
    sha256: str
    source: Path | BlobSource | None
    """None: a `part.json`, whose bytes are in hand, or a local file that the repository has."""


class PartDocument(msgspec.Struct, frozen=True):
    """A `part.json`: what it is, and its bytes where they are to be sent."""

    file: SourceFile
    data: bytes | None
    files: tuple[PartFile, ...]
    """The data files that it names."""

    @classmethod
    def of(cls, data: bytes, files: PartFiles, has: Container[tuple[str, int]] = ()) -> PartDocument:
        """Of many parts, those that the repository `has` would fill the memory."""
        sha256, size_bytes = hashlib.sha256(data).hexdigest(), len(data)
        file = SourceFile(PART_FILE, size_bytes, sha256, None)
        return cls(file, None if (sha256, size_bytes) in has else data, files.files)


class TableNow(msgspec.Struct, frozen=True):
    """One table as it was at the instant."""

    definition: TableDefinition
    parts: tuple[StoredPart, ...]

    def is_as(self, other: TableNow) -> bool:
        """Whether what must be the same at both looks is."""
        one, two = self.definition, other.definition
        if (one.uuid, one.version, len(self.parts)) != (two.uuid, two.version, len(other.parts)):
            return False
        return all(map(_is_where, self.parts, other.parts))


def _is_where(stored: StoredPart, other: StoredPart) -> bool:
    return stored is other or (stored.facts.name, stored.disk) == (other.facts.name, other.disk)


class Instant(msgspec.Struct):
    """What a backup shows, held."""

    tables: list[TableNow]
    taken: datetime
    held: Mapping[tuple[str, str], Path]
    """(disk, path of a file) -> its second name, or a copy."""
    documents: Mapping[tuple[str, str], PartDocument]
    """(disk, path) -> each `part.json` that was read at the first look."""
    pins: Mapping[str, HeldRevision]
    revisions: Mapping[str, int]
    held_open: ExitStack
    """What is closed when the instant is let go."""
    left_out: tuple[LeftOut, ...] = ()
    """The tables that are meant and cannot be read."""
    _past: dict[str, Disk] = msgspec.field(default_factory=dict)
    _blobs: dict[tuple[str, str], dict[str, str]] = msgspec.field(default_factory=dict)
    """By disk and table, the key of each file."""

    def document(self, stored: StoredPart) -> PartDocument:
        """The part's `part.json`."""
        return self.documents[stored.disk, stored.path(PART_FILE)]

    def files(self, context: Context, stored: StoredPart, document: PartDocument) -> list[SourceFile]:
        """The part's data files, as its document names them."""
        disk, directory = stored.disk, stored.directory
        keys = None if as_disk(context.disk(disk), BucketDisk) is None else self._keys(context, stored)
        found: list[SourceFile] = []
        for file in document.files:
            path = f"{directory}/{file.name}"
            source: Path | BlobSource | None
            if keys is None:
                source = self.held.get((disk, path))
            elif (key := keys.get(path)) is not None:
                source = BlobSource(disk, key)
            else:
                raise NotFound(f"{disk}:{path} has no object", hint="run 'frostline fsck'; the part is damaged")
            found.append(SourceFile(file.name, file.size_bytes, file.sha256, source))
        return found

    def _keys(self, context: Context, stored: StoredPart) -> Mapping[str, str]:
        """The key of each file of the part's table on the part's disk, by path."""
        place = stored.disk, stored.definition.directory
        known = self._blobs.get(place)
        if known is None:
            infos = self._then(context, stored.disk).walk(stored.definition.directory)
            known = {info.path: info.key for info in infos if info.key is not None}
            self._blobs[place] = known
        return known

    def _then(self, context: Context, name: str) -> Disk:
        """The disk as it was at the instant: others commit while the backup is made; what they took away is held."""
        disk = context.disk(name)
        revision, logged = self.revisions.get(name), as_disk(disk, LoggedDisk)
        if logged is None or revision is None or disk.revision == revision:
            return disk
        if name not in self._past:
            self._past[name] = self.held_open.enter_context(closing(logged.at(revision)))
        return self._past[name]


@contextmanager
def one_instant(context: Context, scope: Scope, has: Container[tuple[str, int]], scratch: Path) -> Iterator[Instant]:
    """The chosen tables at one instant; inserts, merges, moves and drops go on. Nobody will read files with the content
    (SHA-256 and size) that the repository `has`: local ones are not held. `scratch` takes copies of files that only
    their disk can read. Raises `NotFound` for what is not
    there, `Damaged` for what cannot be read, `Conflict` when the tables never stood still."""
    for attempt in range(_LOOKS):
        with ExitStack() as stack:
            with ExitStack() as still:
                if attempt >= _PATIENT_LOOKS:
                    for disk in context.disks.values():
                        if as_disk(disk, BucketDisk) is None:
                            still.enter_context(disk.steady())
                instant = _looked(context, scope, has, scratch, stack)
            if instant is not None:
                yield instant
                return
    raise Conflict(
        f"the tables changed at each of {_LOOKS} looks: other machines commit to the same bucket without a pause",
        hint="try again, or back up fewer tables at a time (-t)",
    )


def _looked(
    context: Context, scope: Scope, has: Container[tuple[str, int]], scratch: Path, stack: ExitStack
) -> Instant | None:
    """What both looks saw, held by the stack; None when something changed in between."""
    first = look(context, scope)
    lacking = left_out(context, scope)
    revisions = {disk.name: disk.revision for disk in _buckets(context, first)}
    pins = {disk.name: _pinned(context, disk, stack) for disk in _buckets(context, first)}
    try:
        documents = _documents(first, has)
        held = _held(context, first, documents, has, scratch, stack)
    except NotFound:
        return None
    taken = context.clock()
    second = look(context, scope)
    if lacking != left_out(context, scope) or len(first) != len(second) or not all(map(TableNow.is_as, first, second)):
        return None
    kept = {name: pin for name, pin in pins.items() if pin is not None}
    return Instant(first, taken, held, documents, kept, revisions, stack, left_out=lacking)


def look(context: Context, scope: Scope) -> list[TableNow]:
    """The chosen tables as all disks show them now, each readable as a whole."""
    context.catalog.refresh()
    found: list[TableNow] = []
    partitions: set[str] = set()
    for definition in chosen_tables(context, scope):
        name = definition.full_name
        reachability.check_whole(context, definition, f"backing up {name}")
        reachability.check_certain(context, definition)
        context.catalog.check_readable(definition)
        everything = context.catalog.originals(definition)
        reachability.require((context.disk(stored.disk) for stored in everything), f"backing up {name}")
        if scope.partitions:
            partitions.update(stored.name.partition for stored in everything)
            everything = [part for part in everything if scope.has(part.name.partition)]
        found.append(TableNow(definition, tuple(everything)))
    scope.check_partitions(partitions)
    return found


def chosen_tables(context: Context, scope: Scope) -> list[TableDefinition]:
    """The tables that are meant, by name. Raises `NotFound`, and `Damaged` where none of them can be read."""
    names = {definition.full_name: definition for definition in context.catalog.tables()}
    lacking = _unreadable(context, scope)
    others = (*scope.others, *(table.called for table in lacking))
    chosen = [context.catalog.table(name) for name in replace(scope, others=others).chosen(names)]
    if lacking and not chosen and not scope.others:
        raise lacking[0].error()
    return chosen


def left_out(context: Context, scope: Scope) -> tuple[LeftOut, ...]:
    """Those that are meant and cannot be read."""
    return tuple(LeftOut(table=table.called, uuid=table.uuid, why=table.text) for table in _unreadable(context, scope))


def _unreadable(context: Context, scope: Scope) -> list[UnreadableTable]:
    return [table for table in context.catalog.unreadable() if scope.means(table.called)]


def _buckets(context: Context, tables: list[TableNow]) -> list[LoggedDisk]:
    """The disks with a log of commits that hold parts of the tables."""
    names = sorted({stored.disk for table in tables for stored in table.parts})
    return [logged for name in names if (logged := as_disk(context.disk(name), LoggedDisk)) is not None]


def _pinned(context: Context, disk: LoggedDisk, stack: ExitStack) -> HeldRevision | None:
    return stack.enter_context(pinned(disk, disk.revision, context.actor, "a backup is being made"))


def _documents(tables: list[TableNow], has: Container[tuple[str, int]]) -> dict[tuple[str, str], PartDocument]:
    """Each `part.json` as the scan saw it. Raises `NotFound` when one that is not kept is gone."""
    parts = [stored for table in tables for stored in table.parts]
    lazy = [stored.described for stored in parts if isinstance(stored.described, LazyPart)]
    documents = zip(parts, LazyPart.documents(lazy), strict=True)
    return {
        (stored.disk, stored.path(PART_FILE)): PartDocument.of(data, files, has) for stored, (data, files) in documents
    }


def _held(
    context: Context,
    tables: list[TableNow],
    documents: Mapping[tuple[str, str], PartDocument],
    has: Container[tuple[str, int]],
    scratch: Path,
    stack: ExitStack,
) -> dict[tuple[str, str], Path]:
    """Second names for the files of parts outside buckets that are to be read, or copies where files have no names.
    Raises `NotFound` when one is gone."""
    local: dict[str, list[StoredPart]] = defaultdict(list)
    for table in tables:
        for stored in table.parts:
            if as_disk(context.disk(stored.disk), BucketDisk) is None:
                local[stored.disk].append(stored)
    unsent: dict[str, dict[str, int]] = {}
    for name, parts in local.items():
        disk, sizes = context.disk(name), unsent.setdefault(name, {})
        for stored, found in zip(parts, list_each(disk, [stored.directory for stored in parts]), strict=True):
            files = documents[name, stored.path(PART_FILE)].files
            _check_names(disk, stored, files, found)
            sizes |= {
                stored.path(file.name): file.size_bytes for file in files if (file.sha256, file.size_bytes) not in has
            }
    held: dict[tuple[str, str], Path] = {}
    for name, sizes in unsent.items():
        if not sizes:
            continue
        disk, paths = context.disk(name), list(sizes)
        directory = as_disk(disk, DirectoryDisk)
        if directory is None:
            copies = scratch / "copies" / name
            stack.callback(remove_tree, copies)
            held.update({(name, path): copy for path, copy in _copied(disk, sizes, copies).items()})
            continue
        if disk.read_only:
            held.update({(name, path): directory.local_path(path) for path in paths})
            continue
        names = directory.hold(paths, until=context.clock() + _HELD, process=os.getpid())
        stack.callback(remove_tree, names[0].parent)
        held.update({(name, path): second for path, second in zip(paths, names, strict=True)})
    return held


def _copied(disk: Disk, sizes: Mapping[str, int], directory: Path) -> dict[str, Path]:
    """Copies of files that only the disk can read, by their paths. Their digests are compared when they are sent."""
    copies: dict[str, Path] = {}
    make_directory(directory)
    with disk.read_lease():
        for number, (path, size_bytes) in enumerate(sizes.items()):
            read, copy = disk.reader(path), directory / str(number)
            with op("fs.write", copy), copy.open("wb") as output:
                for start in range(0, size_bytes, _PIECE_BYTES):
                    output.write(read(ByteRange(start, min(start + _PIECE_BYTES, size_bytes))))
            copies[path] = copy
    return copies


def _check_names(disk: Disk, stored: StoredPart, files: Sequence[PartFile], names: Sequence[str]) -> None:
    """A part with more or fewer files than it names is not whole: `Damaged`, unless it is gone altogether."""
    if PART_FILE not in names:
        raise NotFound(f"{disk.name}:{stored.directory} is gone")
    copying.check_names(disk, stored.directory, (file.name for file in files), names)
