"""The log of a disk in ClickHouse's format: the marker, the objects of operations, and the numbers that are taken."""

from __future__ import annotations

import hashlib
from typing import Self

import msgspec

from disks.stores.base import ObjectStore
from oplog import entry
from oplog.clickhouse import writing
from oplog.clickhouse.names import SCHEMA_VERSION, parse_key
from oplog.clickhouse.writing import LogStep
from oplog.documents import Document
from oplog.entry import Commit
from oplog.errors import AlreadyExists, Damaged, Locked, NotFound, OutcomeUnknown
from oplog.log import UnknownLogFormat
from oplog.mark import damaged_format, is_format, read_mark
from oplog.revision import OPERATIONS_PREFIX, SCHEMA_VERSION_KEY


class LoggedTransaction(msgspec.Struct, frozen=True):
    """A transaction that is being logged: its operations bear the numbers from `first` on."""

    first: int
    host: str
    steps: tuple[LogStep, ...]
    commit: Commit

    def encode(self) -> str:
        """What the file table holds of it until it is done."""
        written = _Written(self.first, self.host, self.steps, msgspec.Raw(entry.encode(self.commit)))
        return _document.encode(written).decode()

    @classmethod
    def decode(cls, text: str, *, disk: str) -> Self:
        """The transaction that the file table of this disk holds. Raises `Damaged`."""
        try:
            written = _document.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Damaged(
                f"disk {disk}: what it was about to log cannot be read: {error}",
                hint=f"move its file table away; 'frostline restore {disk} --apply' rebuilds it from the bucket",
            ) from error
        commit = entry.decode(bytes(written.commit), name=f"in the file table of disk {disk}")
        return cls(written.first, written.host, written.steps, commit)

    @property
    def objects(self) -> list[tuple[str, LogStep]]:
        """Key and content of each operation's object, in order."""
        return [(step.key(number, self.host), step) for number, step in enumerate(self.steps, self.first)]


class _Written(msgspec.Struct, frozen=True):
    first: int
    host: str
    steps: tuple[LogStep, ...]
    commit: msgspec.Raw
    """As an entry of a log of commits."""


_document = Document("entry of a log of ClickHouse that is about to be put", _Written)


class ClickHouseLog:
    """What is written to the bucket besides blobs. Every call may be repeated."""

    def __init__(self, store: ObjectStore, disk_name: str) -> None:
        self._store = store
        self._disk_name = disk_name
        self._marked = False

    def check_schema(self) -> bool:
        """Whether the bucket says that it has this log. Raises `UnknownLogFormat` when it says otherwise."""
        try:
            said = read_mark(self._store, SCHEMA_VERSION_KEY).strip()
        except NotFound:
            return False
        if not is_format(said):
            raise damaged_format(f"{self._store.name}{SCHEMA_VERSION_KEY}", said)
        if said != SCHEMA_VERSION.encode():
            raise UnknownLogFormat(
                f"{self._store.name} has log format {said[:20].decode(errors='replace')}, not 1",
                hint=f"set log_format of disk {self._disk_name}, or its url",
            )
        return True

    def mark(self) -> None:
        """Let the bucket say which log it has. A disk that was only taken over stays as the server left it."""
        if self._marked:
            return
        if not self.check_schema():
            body = SCHEMA_VERSION.encode()
            self._store.put(SCHEMA_VERSION_KEY, body, sha256=hashlib.sha256(body).digest())
        self._marked = True

    def append(self, intent: LoggedTransaction) -> None:
        """Put the objects of the operations, in order; those that are there already stay.

        Raises `Locked` when somebody else took one of the numbers, and what the store raises.
        """
        body = writing.OPERATION_BODY
        digest = hashlib.sha256(body).digest()
        for key, step in intent.objects:
            metadata = step.metadata(intent.commit.writer)
            try:
                if self._store.capabilities.conditional_put:
                    self._store.put_if_absent(key, body, sha256=digest, metadata=metadata)
                else:
                    self._store.put(key, body, sha256=digest, metadata=metadata)
            except (AlreadyExists, OutcomeUnknown) as error:
                if self._writer_of(key) == intent.commit.writer:
                    continue
                if isinstance(error, OutcomeUnknown):
                    raise
                raise Locked(
                    f"{self._store.name}{key} was written by another writer; this disk allows one",
                    hint="find the other writer; a copy of this machine's state directory counts as one",
                ) from error

    def has_begun(self, intent: LoggedTransaction) -> bool:
        """Whether any of its operations is in the bucket."""
        return any(self._writer_of(key) == intent.commit.writer for key, _ in intent.objects)

    def highest_number(self, number: int) -> int:
        """The highest number above `number` among the objects; 0 when there is none. Lists only files and operations
        after `number`."""
        highest = 0
        for prefix in ("", OPERATIONS_PREFIX):
            after = f"{prefix}r{number:064b}~"
            for info in self._store.list(f"{prefix}r0", start_after=after):
                name = parse_key(info.key)
                highest = max(highest, name.revision if name is not None else 0)
        return highest

    def _writer_of(self, key: str) -> str | None:
        try:
            return self._store.head(key).metadata.get(writing.WRITER, "")
        except NotFound:
            return None
