"""A repository's objects: its mark, headers, lists and what else lies there. Puts and reads; deletes only headers and
marks, never content.

Several machines write at once, without locks: nothing is overwritten, and every key but the mark's is somebody's own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from backup.copies import CopiesSeen, RepositoryCopies
from backup.format import encoding, header, lists, names
from backup.format.encoding import UnknownBackupFormat
from backup.format.header import (
    BackupHeader,
    DrillRecord,
    Marker,
    Revoked,
    TableEntry,
    TreeEntry,
    UnfinishedBackup,
    VerificationRecord,
    sealed,
)
from backup.format.lists import PartitionList, TableList, TreeList
from backup.format.names import Ref
from backup.objects import Holdings, StoredObject, document, put_once, read_twice
from disks.object_disk.pending_deletes import ENDED, announced, read_announcement
from disks.object_disk.references import INTENTS_PREFIX
from disks.stores.base import ObjectInfo, ObjectStore
from oplog.errors import UNDELETABLE, AlreadyExists, Conflict, Damaged, FrostlineError, NotFound, Refused

READERS = 32
_SEALED: dict[str, type[msgspec.Struct]] = {
    names.UNFINISHED_PREFIX: UnfinishedBackup,
    names.CLAIMS_PREFIX: BackupHeader,
    VerificationRecord.prefix: VerificationRecord,
    DrillRecord.prefix: DrillRecord,
}
_Q = TypeVar("_Q")
_A = TypeVar("_A")


_MARKER_HINT = (
    "bring it back from a copy or the bucket's versioning; or run 'frostline backup init' on an empty directory or "
    f"prefix, and move the {names.MARKER_KEY} from there: every backup works with any of them"
)


class BrokenBackup(msgspec.Struct, frozen=True):
    """A header that is there and cannot be read."""

    key: str
    error: FrostlineError


class DeletedMeanwhile(NotFound):
    """A backup was deleted while somebody read it: what only it named may have gone."""


class Storage:
    """An open repository, as objects. Methods are thread-safe."""

    def __init__(self, store: ObjectStore, marker: Marker) -> None:
        self.store = store
        self.id = marker.id
        self.name = store.name
        self.copies = RepositoryCopies()
        self._read: dict[tuple[str, str], TableList | PartitionList | TreeList] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, store: ObjectStore) -> Storage:
        """The repository in the store. Raises `NotFound` where there is none, `UnknownBackupFormat` for a later one."""
        where = f"{store.name}{names.MARKER_KEY}"
        try:
            data = document(store, store.head(names.MARKER_KEY))
        except NotFound:
            raise NotFound(
                f"{store.name} is no backup repository", hint=f"make one: frostline backup init {store.name}"
            ) from None
        return cls(store, encoding.unsealed(data, Marker, where, hint=_MARKER_HINT))

    @classmethod
    def init(cls, store: ObjectStore) -> Storage:
        """Make the place a repository. Raises `AlreadyExists` for one, `Refused` where other things are."""
        marker = Marker(id=names.fresh_nonce(), created=datetime.now(UTC))
        try:
            existing = cls.open(store)
        except NotFound:
            stranger = next(iter(store.list()), None)
            if stranger is not None:
                is_ours = stranger.key.startswith(names.PREFIXES)
                raise Refused(
                    f"{store.name} is no backup repository and not empty: it holds {stranger.key}",
                    hint=f"its {names.MARKER_KEY} is gone: {_MARKER_HINT}"
                    if is_ours
                    else "name an empty directory or prefix",
                ) from None
        else:
            raise AlreadyExists(f"{existing.name} is a backup repository already", hint="use it; it needs no init")
        put_once(store, names.MARKER_KEY, sealed(marker))
        return cls.open(store)

    # -- content -----------------------------------------------------------------------------------------------------

    def put_content(self, prefix: str, data: bytes) -> Ref:
        """Put a list or pack under a key that nobody ever had."""
        digest = hashlib.sha256(data)
        ref = Ref(digest.hexdigest(), names.fresh_nonce(), len(data))
        self.store.put(names.content_key(prefix, ref.sha256, ref.nonce), data, sha256=digest.digest())
        return ref

    def get_content(self, prefix: str, ref: Ref) -> bytes:
        """The bytes of a list or pack, compared with their digest. Raises `Damaged`, `NotFound`."""
        key = names.content_key(prefix, ref.sha256, ref.nonce)
        data = read_twice(self.store, key, ref.size_bytes, ref.sha256)
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise Damaged(
                f"{self.name}{key} is not what was written", hint="'frostline backup verify' names what else is"
            )
        return data

    def table(self, entry: TableEntry) -> TableList:
        """The list of a backup's table. Raises `Damaged` when it is another table's."""
        found = self.table_list(entry.list)
        if (found.table.full_name, found.table.uuid) != (entry.name, entry.uuid):
            key = names.content_key(names.LISTS_PREFIX, entry.list.sha256, entry.list.nonce)
            raise Damaged(f"{self.name}{key} is not the list of {entry.name}", hint=encoding.VERIFY)
        return found

    def table_list(self, ref: Ref) -> TableList:
        """A table's list; read once."""
        return self._list(ref, lists.read_table)

    def partition_list(self, ref: Ref) -> PartitionList:
        """A partition's list; read once."""
        return self._list(ref, lists.read_partition)

    def tree_list(self, ref: Ref) -> TreeList:
        """The list of a directory that ClickHouse wrote; read once."""
        return self._list(ref, lists.read_tree)

    def tree(self, entry: TreeEntry) -> TreeList:
        """The same of a backup. Raises `Damaged` when it is another directory's."""
        found = self.tree_list(entry.list)
        if found.directory != entry.directory:
            key = names.content_key(names.LISTS_PREFIX, entry.list.sha256, entry.list.nonce)
            raise Damaged(f"{self.name}{key} is not the list of {entry.directory}", hint=encoding.VERIFY)
        return found

    def copied_list(
        self, ref: Ref, modified: datetime, copied: CopiesSeen, *, table: bool
    ) -> TableList | PartitionList:
        """A list, of which a copy on this machine will do: who lets a backup name it reads the list itself."""
        key = names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)
        read: Callable[[bytes, str], TableList | PartitionList] = lists.read_table if table else lists.read_partition
        item = ObjectInfo(key, ref.size_bytes, modified)
        data = copied.find(item)
        if data is not None:
            return read(data, f"{self.name}{key}")

        def kept(data: bytes, where: str) -> TableList | PartitionList:
            copied.add(item, data)
            return read(data, where)

        return self._list(ref, kept)

    def _list(self, ref: Ref, read: Callable[[bytes, str], _A]) -> _A:
        known = self._read.get((ref.sha256, ref.nonce))
        if known is None:
            key = names.content_key(names.LISTS_PREFIX, ref.sha256, ref.nonce)
            known = read(self.get_content(names.LISTS_PREFIX, ref), f"{self.name}{key}")  # type: ignore[assignment]
            with self._lock:
                self._read[ref.sha256, ref.nonce] = known  # type: ignore[assignment]
        return known  # type: ignore[return-value]

    def holdings(self, *, to_count_on: bool = False) -> Holdings:
        """List all blobs, packs and lists, but those that a verification found damaged. `to_count_on`: for a backup
        that is being made, so without what a collection has said it will delete, whether it still runs or not."""
        found = Holdings()
        if to_count_on:  # before the listing: what is withdrawn until then has gone from it
            found.to_delete = announced(self, now=None)
        found.damaged = {item.key.removeprefix(names.DAMAGED_PREFIX) for item in self.store.list(names.DAMAGED_PREFIX)}
        for prefix in (names.BLOBS_PREFIX, names.PACKS_PREFIX, names.LISTS_PREFIX):
            for item in self.store.list(prefix):
                if item.key not in found.damaged and item.key not in found.to_delete:
                    found.objects[item.key] = StoredObject(item.size_bytes, item.modified)
        return found

    def mark_damaged(self, key: str) -> None:
        """Remember that the object is not what was written: later backups send its content again."""
        put_once(self.store, f"{names.DAMAGED_PREFIX}{key}", b"{}")

    # -- backups -----------------------------------------------------------------------------------------------------

    def put_header(self, made: BackupHeader) -> None:
        """The commit point of a backup: from now on it exists. Raises `Conflict` for one that was given up."""
        try:
            put_once(self.store, made.key, sealed(made))
        except AlreadyExists as error:
            raise Conflict(
                f"backup {made.name} was given up while it was made: it was deleted, or took too long",
                hint="run it again: what is there is not sent twice",
            ) from error

    def headers(self, *, remembered: bool = False) -> tuple[list[BackupHeader], list[BrokenBackup]]:
        """All backups, oldest first, and those whose header cannot be read. `remembered`: copies of headers on this
        machine will do."""
        items = list(self.store.list(names.BACKUPS_PREFIX))
        headers: list[BackupHeader] = []
        broken: list[BrokenBackup] = []
        copies = self.copies if remembered else RepositoryCopies()
        with copies.of(names.BACKUPS_PREFIX, {info.key for info in items}) as copied:
            answers = self.each(lambda info: self._header(info, copied), items)
        for info, answer in zip(items, answers, strict=True):
            if isinstance(answer, BackupHeader):
                headers.append(answer)
            elif answer is not None:
                broken.append(BrokenBackup(info.key, answer))
        return sorted(headers, key=lambda made: (made.taken, made.key)), broken

    def _header(self, info: ObjectInfo, copied: CopiesSeen) -> BackupHeader | FrostlineError | None:
        where, last = f"{self.name}{info.key}", None
        for _ in range(2):  # a bit may flip on the way
            try:
                cached = copied.find(info)
                data = document(self.store, info) if cached is None else cached
                read = None if header.is_revoked(data, where) else header.read_header(data, info.key, where)
            except NotFound:
                return None  # deleted since the listing
            except (Damaged, UnknownBackupFormat) as error:
                last = error
            else:
                if cached is None:
                    copied.add(info, data)
                return read
        return last

    def is_complete(self, key: str) -> bool:
        """Whether a backup's header is there; one that cannot be read is."""
        try:
            return self._header(self.store.head(key), CopiesSeen({})) is not None
        except NotFound:
            return False

    def is_given_up(self, key: str) -> bool:
        """Whether what lies at a header's key says that the backup was given up. False for one that is not there."""
        try:
            return header.is_revoked(document(self.store, self.store.head(key)), f"{self.name}{key}")
        except (NotFound, Damaged, UnknownBackupFormat):
            return False

    @contextmanager
    def reading(self, headers: Sequence[BackupHeader]) -> Iterator[None]:
        """Read backups, which nothing keeps from being deleted meanwhile: what is missing or refused then is
        `DeletedMeanwhile`, for a header goes before anything that it names."""
        try:
            yield
        except (NotFound, Damaged, Refused) as error:
            for made in headers:
                if not self.is_complete(made.key):
                    raise deleted_meanwhile(made) from error
            raise

    def is_taken(self, name: str, machine: str) -> bool:
        """Whether the machine has a backup of this name."""
        keys = [item.key for item in self.store.list(f"{names.BACKUPS_PREFIX}{name}/")]
        return any((names.parse_header_key(key) or ("", ""))[1] == machine and self.is_complete(key) for key in keys)

    def unfinished(self, complete: Iterable[BackupHeader]) -> list[UnfinishedBackup]:
        """The marks of backups that have no header."""
        finished = {made.id for made in complete}
        items = self.store.list(names.UNFINISHED_PREFIX)
        wanted = [item for item in items if names.parse_unfinished_key(item.key) not in finished]
        return [mark for mark in self.each(self._unfinished, wanted) if mark is not None]

    def _unfinished(self, info: ObjectInfo) -> UnfinishedBackup | None:
        try:
            return encoding.unsealed(document(self.store, info), UnfinishedBackup, f"{self.name}{info.key}")
        except NotFound:
            return None
        except (Damaged, UnknownBackupFormat):  # that it is there says enough
            backup_id = names.parse_unfinished_key(info.key) or info.key
            return UnfinishedBackup(id=backup_id, name="?", machine="?", actor="?", started=info.modified)

    def mark_unfinished(self, mark: UnfinishedBackup) -> None:
        """Say that a backup is being made."""
        put_once(self.store, names.unfinished_key(mark.id), sealed(mark))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove headers, marks or records. Raises the first error."""
        for error in self.store.delete(keys).values():
            if error is not None:
                raise error

    def claim(self, made: BackupHeader) -> None:
        """Say what a backup is about to name: from now on a collection leaves it alone. After its claim a backup checks
        for what collections have announced, which look for claims after they did: so one of the two sees the other."""
        put_once(self.store, names.claim_key(made.id), sealed(made))

    def claims(self) -> list[BackupHeader | BrokenBackup]:
        """The claims. A reader of all that is named lists these first, and the headers afterwards: a claim stays
        until its header is there."""
        items = list(self.store.list(names.CLAIMS_PREFIX))
        answers = zip(items, self.each(lambda info: self._header(info, CopiesSeen({})), items), strict=True)
        answered = ((info, answer) for info, answer in answers if answer is not None)
        return [
            answer if isinstance(answer, BackupHeader) else BrokenBackup(info.key, answer) for info, answer in answered
        ]

    def forget_mark(self, backup_id: str) -> None:
        """Take mark and claim away. Where they cannot be deleted, the header beside them says that it is finished."""
        with suppress(*UNDELETABLE):
            self.remove([names.claim_key(backup_id), names.unfinished_key(backup_id)])

    def revoke(self, key: str, backup_id: str, actor: str) -> bool:
        """Give up a backup that is not complete: its header can never be put at its key from now on, however late its
        maker goes on. False when the header is there already; then only mark and claim go."""
        revoked = Revoked(revoked=backup_id, time=datetime.now(UTC), actor=actor)
        try:
            put_once(self.store, key, sealed(revoked))
        except AlreadyExists:
            pass
        given_up = not self.is_complete(key)
        self.forget_mark(backup_id)
        return given_up

    def unreadable(self, *, records: bool) -> list[BrokenBackup]:
        """Marks, claims and announcements that are not what was written, and with `records` what was found before.
        Reads each."""
        prefixes = (names.UNFINISHED_PREFIX, names.CLAIMS_PREFIX, INTENTS_PREFIX)
        items = [item for prefix in prefixes for item in self.store.list(prefix)]
        items += (
            [item for kind in (VerificationRecord, DrillRecord) for item in self.store.list(kind.prefix)]
            if records
            else []
        )
        answers = zip(items, self.each(self._fault_of, items), strict=True)
        return [BrokenBackup(item.key, fault) for item, fault in answers if fault is not None]

    def _fault_of(self, info: ObjectInfo) -> FrostlineError | None:
        kind = next((kind for prefix, kind in _SEALED.items() if info.key.startswith(prefix)), None)
        try:
            if kind is not None:
                encoding.unsealed(document(self.store, info), kind, f"{self.name}{info.key}")
            elif not info.key.endswith(ENDED):
                read_announcement(self.store, info)
        except NotFound:
            return None  # gone since the listing
        except (Damaged, UnknownBackupFormat) as error:
            return error
        return None

    def each(self, answer: Callable[[_Q], _A], items: Sequence[_Q]) -> list[_A]:
        """The answers, in the order of the items, asked side by side."""
        if len(items) < 2:
            return [answer(item) for item in items]
        with ThreadPoolExecutor(min(READERS, len(items)), thread_name_prefix="repository") as pool:
            return list(pool.map(answer, items))


def deleted_meanwhile(made: BackupHeader) -> DeletedMeanwhile:
    """The error of a backup that was there when somebody began to read it."""
    return DeletedMeanwhile(
        f"backup {made.name} of {made.machine} was deleted while it was read",
        hint="'frostline backup list' shows those that are there",
    )
