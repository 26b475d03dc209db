"""Taking a part over without its bytes: the objects of a store that several logs share, by marks that prove it.

    offer     the source says which objects the part is                   nothing
    mark      this log's mark on their sets                               marks of what no log names
    probe     what is announced, then every object                        the same
    check     the source's own mark is still there                        the same
    commit    the log names them                                          the part, unsaid
    look      this log's mark is still there; else the part goes again    the same
    word      Keeper knows that this replica has it (`fetching`)          done

In this order. Whatever else is found on the way means that the part is fetched whole, and `Whole` says why.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from disks.base import LoggedDisk
from disks.file_table.blob_sets import Marks, Reference
from disks.object_disk.doomed import announced
from disks.object_disk.sharing.marks import directory_of
from disks.object_disk.sharing.other_log import OtherLog
from disks.object_disk.sharing.prefix import store_identity
from oplog.errors import FrostlineError, NoSpace, NotFound, Refused
from oplog.kinds import CommitKind, Tidied
from oplog.replay import FileRow
from tiering.catalog import copying
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.lineage import content_digest
from tiering.table.part import Part, PartName
from tiering.table.schema import TableDefinition
from zerocopy.interserver import client, offer
from zerocopy.interserver.offer import Offer
from zerocopy.replica.connections import secret_of
from zerocopy.replica.replica import Replica

_THREADS = 16
_READ_BYTES = 1 << 20
"""Where the store keeps no checksums, an object up to this size is read for one."""


class Whole(Exception):
    """The part cannot be taken over by its objects, for this reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """A replica that has a part, or one that covers it."""

    replica: str
    part: PartName
    digest: str
    address: str


def stores(context: Context, definition: TableDefinition) -> dict[str, LoggedDisk]:
    """The stores whose objects this machine can share, by id: of the table's disks that can be reached."""
    found: dict[str, LoggedDisk] = {}
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        logged = disk.logged
        if logged is None or logged.marks is None or disk.read_only or disk.unreachable or disk.broken is not None:
            continue
        with suppress(FrostlineError):
            identity = store_identity(logged)
            if identity is not None:
                found.setdefault(identity, logged)
    return found


@dataclass(frozen=True, slots=True)
class Offered:
    """A part, and what objects it is."""

    part: Part
    offer: Offer
    description: bytes
    """Its `part.json`."""


def asked(replica: Replica, source: Source, stores_: Collection[str]) -> Offered:
    """What the source offers of the part. Raises `Whole`; `Transient`, `NotFound` and `Damaged` as a fetch."""
    definition, secret = replica.definition, secret_of(replica.context)
    part, answer = client.ask(source.address, secret, definition, str(source.part), source.digest, stores_)
    if answer is None:
        raise Whole(f"replica {source.replica} is of a version that gives parts whole")
    if answer.offer is None:
        raise Whole(answer.why)
    if answer.offer.store not in stores_:
        raise Whole("it lies in another store")
    return Offered(part, answer.offer, bytes(answer.part))


def read(replica: Replica, disk: LoggedDisk, log: str, name: str, digest: str) -> Offered:
    """The same as another log of the disk's prefix says it, which needs nobody to answer. Raises `Whole`."""
    directory = replica.definition.part_directory(name)
    other = OtherLog(disk, log)
    try:
        other.refresh()
        part, description = copying.read_part(other, directory)
        infos = {info.path.rpartition("/")[2]: info for info in other.walk(directory)}
    except NotFound as error:
        raise Whole(error.message) from error
    finally:
        other.close()
    if content_digest(part) != digest:
        raise Whole(f"log {log} has another part of this name")
    made = offer.offered(infos, store=str(store_identity(disk)), log=log, directory=directory)
    if isinstance(made, str):
        raise Whole(made)
    return Offered(part, made, description)


def take(
    replica: Replica,
    disk: LoggedDisk,
    offered: Sequence[Offered],
    *,
    kind: CommitKind,
    reason: str,
    covered: Sequence[StoredPart] = (),
) -> None:
    """Have the parts on this disk, by their objects, in one commit; the caller holds the claims on them. Raises `Whole`
    where those of one are not proved to be there and to stay: nothing is left then."""
    context, definition, marks = replica.context, replica.definition, disk.marks
    assert marks is not None
    rows: list[FileRow] = []
    theirs: dict[str, set[Reference]] = defaultdict(set)
    for one in offered:
        found = offer.rows(one.offer, one.part, one.description, definition.part_directory(one.part.name))
        if isinstance(found, str):
            raise Whole(found)
        rows += found
        theirs[one.offer.log] |= {Reference(own.blob_set, one.offer.directory) for own in _references(found)}
    own = _references(rows)
    directories = tuple(definition.part_directory(one.part.name) for one in offered)
    size_bytes = sum(one.part.size_bytes for one in offered)
    try:
        with (
            context.reservations.reserve(disk.name, size_bytes),
            disk.transaction(kind, reason=reason, actor=context.actor) as transaction,
        ):
            transaction.require(present=(definition.path,), absent=directories)
            transaction.mark(own)
            try:
                probe(disk, rows)
                if any(marks.missing(references, log) for log, references in theirs.items()):
                    raise Whole("the source's own mark is gone")
                for row in rows:
                    transaction.adopt(row)
                for old in covered:
                    transaction.remove(old.directory)
                transaction.commit()
            except (Whole, NotFound, Refused):
                _let_go(disk, marks, own)
                raise
    except (NoSpace, NotFound, Refused) as error:
        raise Whole(error.message) from error
    _look(context, disk, marks, own)


def probe(disk: LoggedDisk, rows: Iterable[FileRow]) -> None:
    """Every object is there, with its size and with the checksum that the store keeps, and no collection is about to
    delete one. Raises `Whole`."""
    files = [row for row in rows if row.key is not None]
    going = announced(disk, now=None)
    for row in files:
        if row.key in going:
            raise Whole(f"a collection is deleting object {row.key}")

    def look(row: FileRow) -> bool:
        """Whether the store keeps a checksum."""
        assert row.key is not None
        try:
            info = disk.store.head(row.key)
        except NotFound:
            raise Whole(f"object {row.key} is not there") from None
        if info.size_bytes != row.size_bytes or info.sha256 not in (None, row.sha256):
            raise Whole(f"object {row.key} is not the one that the part names")
        return info.sha256 is not None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="probe") as pool:
        kept = list(pool.map(look, files))
    smallest = min(files, key=lambda row: row.size_bytes, default=None)
    if smallest is not None and not any(kept) and smallest.size_bytes <= _READ_BYTES:
        _read(disk, smallest)


def _read(disk: LoggedDisk, row: FileRow) -> None:
    assert row.key is not None
    if hashlib.sha256(disk.store.get(row.key)).hexdigest() != row.sha256:
        raise Whole(f"object {row.key} does not have the bytes that the part names")


def _look(context: Context, disk: LoggedDisk, marks: Marks, own: Collection[Reference]) -> None:
    """The marks that were set are there after the commit, too: else nothing tells others that the objects are used."""
    if not (missing := marks.missing(own)):
        return
    why = "its mark went while it was taken over"
    with disk.transaction(Tidied(), reason=why, actor=context.actor) as transaction:
        for directory in sorted({one.directory for one in missing}):
            transaction.remove(directory)
        transaction.commit()
    raise Whole(why)


def _let_go(disk: LoggedDisk, marks: Marks, own: Collection[Reference]) -> None:
    """Take the marks back of what is not there. Where nobody answers, an audit finds them."""
    with suppress(FrostlineError):
        marks.remove(marks.seen([one for one in own if not disk.exists(one.directory)]))


def _references(rows: Iterable[FileRow]) -> set[Reference]:
    return {Reference(row.blob_set, directory_of(row.path)) for row in rows if row.key and row.blob_set is not None}
