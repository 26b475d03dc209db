"""Taking a part over without its bytes: the objects of a store that several logs share, by marks that prove it.

    offer     the source says which objects the part is                   nothing
    mark      this log's mark on their sets                               marks of what no log names
    probe     every object                                                the same
    check     the source's own mark is still there                        the same
    commit    the log names them                                          the part, unsaid
    look      this log's mark is still there; else the part goes again    the same
    word      Keeper knows that this replica has it (`fetching`)          done

A collection takes the node of a set away before it deletes, and a set with a mark keeps its node: so what is marked is
being collected by nobody, and what collections announce needs no look.

In this order, each step for many parts at once. Whatever else is found on the way of one means that this one is fetched
whole, and it is said why; the others go on.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobMarks, BlobReference
from disks.kinds import as_disk
from disks.object_disk.sharing.marks import directory_of
from disks.object_disk.sharing.other_log import OtherLog
from disks.object_disk.sharing.prefix import store_identity
from oplog.errors import Damaged, FrostlineError, NoSpace, NotFound, Refused
from oplog.kinds import CommitKind, Tidied
from oplog.replay import FileRow
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.catalog.lineage import content_digest
from tiering.table.part import Part, PartName
from tiering.table.schema import TableDefinition
from zerocopy.interserver import offer
from zerocopy.interserver.offer import Offer
from zerocopy.replica.connections import connections, peers_of
from zerocopy.replica.replica import Replica

AT_ONCE = 500
"""Parts that are taken over in one commit, at most: one request to Keeper takes the marks of so many."""
_THREADS = 16
_READ_BYTES = 1 << 20
"""Where the store keeps no checksums, an object up to this size is read for one."""


class PartHolder(msgspec.Struct, frozen=True):
    """A replica that has a part, or one that covers it."""

    replica: str
    part: PartName
    digest: str
    address: str


def stores(context: Context, definition: TableDefinition) -> dict[str, LoggedDisk]:
    """The stores whose objects this machine can share, by id: of the table's disks that can be reached, and that parts
    may come to."""
    found: dict[str, LoggedDisk] = {}
    drained, known = context.journal.overrides.drained(), connections(context)
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        logged = as_disk(disk, LoggedDisk)
        if logged is None or logged.marks is None or disk.read_only or disk.unreachable or disk.broken is not None:
            continue
        if name in drained:
            continue
        with suppress(FrostlineError):
            identity = known.store_of(logged)
            if identity is not None:
                found.setdefault(identity, logged)
    return found


class Offered(msgspec.Struct, frozen=True):
    """A part, and what objects it is."""

    part: Part
    offer: Offer
    description: bytes
    """Its `part.json`."""


def asked(
    replica: Replica, name: str, address: str, digests: Mapping[str, str], stores_: Collection[str]
) -> dict[str, Offered | str]:
    """What the replica of this name offers of the parts with these digests, or why it offers nothing, by part. Raises
    `Transient`, `NotFound` and `Damaged` as a fetch."""
    answers = peers_of(replica.context).ask(address, replica.definition, digests, stores_)
    if answers is None:
        return dict.fromkeys(digests, f"replica {name} is of a version that gives parts whole")
    offers: dict[str, Offered | str] = {}
    for part, told in answers.items():
        if isinstance(told, FrostlineError):
            offers[part] = told.message
        elif told[1].offer is None:
            offers[part] = told[1].why
        elif told[1].offer.store not in stores_:
            offers[part] = "it is in another store"
        else:
            offers[part] = Offered(told[0], told[1].offer, bytes(told[1].part))
    return offers


def read(replica: Replica, disk: LoggedDisk, log: str, digests: Mapping[str, str]) -> dict[str, Offered | str]:
    """The same as another log of the disk's prefix says it, which needs nobody to answer."""
    other = OtherLog(disk, log)
    try:
        other.refresh()
        return {name: _read(replica, other, disk, log, name, digest) for name, digest in digests.items()}
    finally:
        other.close()


def _read(replica: Replica, other: OtherLog, disk: LoggedDisk, log: str, name: str, digest: str) -> Offered | str:
    directory = replica.definition.part_directory(name)
    try:
        part, description = copying.read_part(other, directory)
        infos = {info.path.rpartition("/")[2]: info for info in other.walk(directory)}
    except NotFound as error:
        return error.message
    if content_digest(part) != digest:
        return f"log {log} has another part of this name"
    made = offer.offered(infos, store=str(store_identity(disk)), log=log, directory=directory)
    return made if isinstance(made, str) else Offered(part, made, description)


class _Wanted(msgspec.Struct, frozen=True):
    """A part that is to be taken over, as it becomes this machine's."""

    name: str
    directory: str
    size_bytes: int
    rows: list[FileRow]
    log: str
    """Whose marks hold its objects."""
    theirs: frozenset[BlobReference]
    own: frozenset[BlobReference]


class _Unproved(Exception):
    """Of these parts it is not proved that their objects are there and stay: why, by name."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self.reasons = reasons


def take(
    replica: Replica,
    disk: LoggedDisk,
    offered: Sequence[Offered],
    *,
    kind: Callable[[Collection[str]], CommitKind],
    reason: str,
    covered: Sequence[StoredPart] = (),
) -> dict[str, str]:
    """Have the parts on this disk, by their objects, in one commit of the kind that these parts make; the caller holds
    the claims on them. Returns why of those that are not proved to be there and to stay: nothing is left of them."""
    refused: dict[str, str] = {}
    wanted: list[_Wanted] = []
    for one in offered:
        found = _wanted(one, replica.definition.part_directory(one.part.name))
        if isinstance(found, str):
            refused[one.part.name] = found
        else:
            wanted.append(found)
    return refused | _taken(replica, disk, wanted, kind, reason, covered)


def _wanted(offered: Offered, directory: str) -> _Wanted | str:
    rows = offer.rows(offered.offer, offered.part, offered.description, directory)
    if isinstance(rows, str):
        return rows
    own = frozenset(_references(rows))
    theirs = frozenset(BlobReference(reference.blob_set, offered.offer.directory) for reference in own)
    return _Wanted(offered.part.name, directory, offered.part.size_bytes, rows, offered.offer.log, theirs, own)


def _taken(
    replica: Replica,
    disk: LoggedDisk,
    parts: Sequence[_Wanted],
    kind: Callable[[Collection[str]], CommitKind],
    reason: str,
    covered: Sequence[StoredPart],
) -> dict[str, str]:
    """Why of those that were not taken. Those that do not do are left out; where it is not known which, each half is
    taken by itself."""
    refused: dict[str, str] = {}
    rest = list(parts)
    while rest:
        try:
            _commit(replica, disk, rest, kind([part.name for part in rest]), reason, covered)
            return refused | _look(replica.context, disk, rest)
        except _Unproved as unproved:
            refused |= unproved.reasons
            rest = [part for part in rest if part.name not in refused]
        except (NoSpace, NotFound, Refused) as error:
            if len(rest) == 1:
                return refused | {rest[0].name: error.message}
            middle = len(rest) // 2
            for half in (rest[:middle], rest[middle:]):
                refused |= _taken(replica, disk, half, kind, reason, covered)
            return refused
    return refused


def _commit(
    replica: Replica,
    disk: LoggedDisk,
    parts: Sequence[_Wanted],
    kind: CommitKind,
    reason: str,
    covered: Sequence[StoredPart],
) -> None:
    """Mark, probe, check and commit; all of the parts or none. Raises `_Unproved` for those that keep it back."""
    context, definition, marks = replica.context, replica.definition, disk.marks
    assert marks is not None
    own = {reference for part in parts for reference in part.own}
    with (
        context.reservations.reserve(disk.name, sum(part.size_bytes for part in parts)),
        disk.transaction(kind, reason=reason, actor=context.actor) as transaction,
    ):
        transaction.require(present=(definition.path,), absent=tuple(part.directory for part in parts))
        try:
            transaction.mark(own)
            if faults := probe(disk, {part.name: part.rows for part in parts}) or _check(marks, parts):
                raise _Unproved(faults)
            for part in parts:
                for row in part.rows:
                    transaction.adopt(row)
            for old in covered:
                transaction.remove(old.directory)
            transaction.commit()
        except (_Unproved, NotFound, Refused):
            _let_go(disk, marks, own)
            raise


def _check(marks: BlobMarks, parts: Sequence[_Wanted]) -> dict[str, str]:
    """The parts whose source holds their objects no more: it may be dropping them just now."""
    by_log: dict[str, set[BlobReference]] = defaultdict(set)
    for part in parts:
        by_log[part.log] |= part.theirs
    missing = {log: set(marks.missing(references, log)) for log, references in by_log.items() if references}
    gone = (part.name for part in parts if not part.theirs.isdisjoint(missing.get(part.log, ())))
    return dict.fromkeys(gone, "the source's own mark is gone")


def probe(disk: LoggedDisk, parts: Mapping[str, Sequence[FileRow]]) -> dict[str, str]:
    """Every object is there, with its size and with the checksum that the store keeps: of which parts that is not so,
    and why. They are marked: no collection is about to delete one."""
    files = [(name, row) for name, rows in parts.items() for row in rows if row.key is not None]
    faults: dict[str, str] = {}
    summed: set[str] = set()

    def note(looked: Iterable[tuple[str, bool | str]]) -> None:
        for name, found in looked:
            if isinstance(found, str):
                faults.setdefault(name, found)
            elif found:
                summed.add(name)

    def looked_at(some: Sequence[tuple[str, FileRow]]) -> Iterable[tuple[str, bool | str]]:
        return pool.map(lambda file: (file[0], _looked_at(disk, file[1])), some)

    def are_read(some: Iterable[tuple[str, FileRow]]) -> Iterable[tuple[str, bool | str]]:
        return pool.map(lambda file: (file[0], _read_whole(disk, file[1])), some)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="probe") as pool:
        note(looked_at(files[:1]))
        rest, smallest = files[1:], {} if summed or faults else _smallest(files[1:])
        note(are_read(smallest.items()))  # the store keeps no checksums, it seems: what is read needs no other look
        note(looked_at([(name, row) for name, row in rest if row is not smallest.get(name)]))
        note(are_read(_smallest(file for file in files if file[0] not in summed and file[0] not in faults).items()))
    return faults


def _smallest(files: Iterable[tuple[str, FileRow]]) -> dict[str, FileRow]:
    """Of each part the smallest object, where it is small enough to be read."""
    found: dict[str, FileRow] = {}
    for name, row in sorted(files, key=lambda file: file[1].size_bytes):
        if row.size_bytes <= _READ_BYTES:
            found.setdefault(name, row)
    return found


def _looked_at(disk: LoggedDisk, row: FileRow) -> bool | str:
    """Whether the store keeps a checksum of the object; what is wrong with it."""
    assert row.key is not None
    try:
        info = disk.store.head(row.key)
    except NotFound:
        return f"object {row.key} is not there"
    if info.size_bytes != row.size_bytes or info.sha256 not in (None, row.sha256):
        return f"object {row.key} is not the one that the part names"
    return info.sha256 is not None


def _read_whole(disk: LoggedDisk, row: FileRow) -> bool | str:
    """True where the object has the bytes that the part names; what is wrong with it."""
    assert row.key is not None
    try:
        data = disk.store.get(row.key)
    except NotFound:
        return f"object {row.key} is not there"
    except Damaged as error:
        return error.message
    if hashlib.sha256(data).hexdigest() != row.sha256:
        return f"object {row.key} does not have the bytes that the part names"
    return True


def _look(context: Context, disk: LoggedDisk, parts: Sequence[_Wanted]) -> dict[str, str]:
    """The marks that were set are there after the commit, too: else nothing tells others that the objects are used, and
    the part goes again."""
    assert disk.marks is not None
    missing = set(disk.marks.missing({reference for part in parts for reference in part.own}))
    if not missing:
        return {}
    why = "its mark went while it was taken over"
    gone = [part for part in parts if not part.own.isdisjoint(missing)]
    with disk.transaction(Tidied(), reason=why, actor=context.actor) as transaction:
        for part in gone:
            transaction.remove(part.directory)
        transaction.commit()
    return {part.name: why for part in gone}


def _let_go(disk: LoggedDisk, marks: BlobMarks, own: Collection[BlobReference]) -> None:
    """Take the marks back of what is not there. Where nobody answers, an audit finds them."""
    with suppress(FrostlineError):
        marks.remove(marks.seen([one for one in own if not disk.exists(one.directory)]))


def _references(rows: Iterable[FileRow]) -> set[BlobReference]:
    return {BlobReference(row.blob_set, directory_of(row.path)) for row in rows if row.key and row.blob_set is not None}
