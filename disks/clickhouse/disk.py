"""A disk whose log is ClickHouse's (format 1), so that a ClickHouse server, too, restores from its bucket.

The file table on this machine is the truth here, as a server's local metadata is; the log in the bucket restores it
after a loss, with what such a log can say (`LIMITATIONS`). A transaction becomes visible by one SQLite commit. Before
its operations are logged the table says what is to be done (the intent), so that whatever stops it, the next one who
writes finishes it. The steps, and what a crash after each leaves:

    numbers in files.db      numbers that nothing bears
    blobs, staged            objects that a replay drops and gc removes
    the intent in files.db   what the next writer, or `recover`, carries out            <- the commit point
    operations, in order     some of them: the next writer puts the rest
    rows in, intent out      done
"""

from __future__ import annotations

import builtins
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disks.base import DiskCapabilities
from disks.clickhouse.log import ClickHouseLog, LoggedTransaction
from disks.clickhouse.plan import blobs_below, plan
from disks.clickhouse.transaction import ClickHouseTransaction
from disks.contracts.bucket_disk import BucketTransaction, ClickHouseLogDisk
from disks.effects import make_directory
from disks.file_table.table import FileTable, TableDamaged
from disks.host.database import set_database_aside
from disks.host.locks import file_lock, sweep
from disks.object_disk.commit_checks import CommitChecks
from disks.object_disk.lease import Lease
from disks.object_disk.table_disk import TableDisk
from disks.object_disk.transaction import Target
from disks.stores.base import ObjectStore
from oplog import replay
from oplog.clickhouse import writing
from oplog.clickhouse.names import parse_key
from oplog.entry import Commit, Create, Remove
from oplog.errors import Conflict, FrostlineError, OutcomeUnknown, Refused
from oplog.kinds import CommitKind
from oplog.replay import FileRow

LIMITATIONS = (
    "one writer at a time: a lease in the bucket keeps others out, as far as the clocks agree",
    "the file table on this machine is the truth: after its loss the log gives back what follows",
    "a transaction that also renames or removes files may be restored partly if the machine is lost while logging it",
    "digests of files, and the reasons of changes, are not in the log: after a rebuild only sizes are checked",
    "an older revision can be read while its objects are there; nothing keeps gc from them but the retention",
    "no snapshots: a rebuild asks the bucket for the path of every object",
)

_RESERVED_NUMBERS = 64
_FEW_OBJECTS = 16
_LOOK_SECONDS = 60.0
"""Half of the lease's term: as long it cannot have gone to somebody else."""


class NoLocalMetadata(Refused):
    """The bucket holds a disk and this machine has no file table of it."""


class ClickHouseDisk(TableDisk, ClickHouseLogDisk):
    """One writer; several processes of one machine share its state directory."""

    kind = "clickhouse"
    capabilities = DiskCapabilities(remote=True, writers="one", dense_revisions=False)
    limitations = LIMITATIONS

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        state_path: Path,
        *,
        retention_seconds: int = 24 * 3600,
        read_only: bool = False,
        max_size_bytes: int | None = None,
        lease_settle_seconds: float = 2.0,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_place`: as of an `ObjectDisk`."""
        self.name = name
        self.store = store
        self.state_path = state_path
        self.retention_seconds = retention_seconds
        self.read_only = read_only
        self.max_size_bytes = max_size_bytes
        self._check_place = check_place
        self._log = ClickHouseLog(store, name)
        self._host = writing.host_word(socket.gethostname())
        self._lease = Lease(store, state_path / "lease.json", settle_seconds=lease_settle_seconds)
        self._lock = threading.RLock()
        self._commit_lock = threading.Lock()
        self._number_lock = threading.Lock()
        self._table: FileTable | None = None
        self._begun = False
        self._looked = -math.inf
        self._notes: list[str] = []
        self._numbers = range(0)

    # The table

    @property
    def file_table(self) -> FileTable:
        """The table. Raises `NoLocalMetadata` when the bucket holds a disk that this machine knows nothing of."""
        if self._table is not None and self._begun:
            return self._table
        with self._lock:
            table = self._open()
            if not self._begun:
                with file_lock(self.state_path / "open.lock"):
                    if not _has_begun(table):
                        self._begin(table)
                self._begun = not self.read_only or _has_begun(table)
            return table

    @property
    def revision(self) -> int:  # type: ignore[override]
        """The number of the newest operation of ours. Numbers grow and have gaps: files bear them too."""
        return self.file_table.head()[0]

    def _open(self) -> FileTable:
        """The table, whatever it holds. Raises `TableDamaged`; `Refused` when it is that of another bucket."""
        with self._lock:
            if self._table is None:
                make_directory(self.state_path)
                with file_lock(self.state_path / "open.lock"):
                    self._table = self._checked(self._open_file())
            return self._table

    def _open_file(self) -> FileTable:
        try:
            return FileTable(self.table_path)
        except TableDamaged as error:
            raise TableDamaged(
                error.message, hint=f"'frostline restore {self.name} --apply' rebuilds it from the bucket's log"
            ) from error

    def _checked(self, table: FileTable) -> FileTable:
        with table.read() as view:
            known = view.state().get("store", self.store.name)
        if known == self.store.name:
            return table
        table.close()
        raise Refused(
            f"the local metadata of disk {self.name} is that of {known}, not of {self.store.name}",
            hint=f"correct the url; or move {self.table_path} away if that is meant",
        )

    def _begin(self, table: FileTable) -> None:
        """Start with an empty disk, if the bucket is empty."""
        self.check_schema()
        for number, item in enumerate(self.store.list()):
            if parse_key(item.key) is not None or number >= _FEW_OBJECTS:
                raise NoLocalMetadata(
                    f"{self.store.name} holds a disk, and this machine has no local metadata of disk {self.name}",
                    hint=f"'frostline restore {self.name}' rebuilds it from the bucket's log; "
                    f"'frostline clickhouse import {self.name} DIR' takes over that of a server",
                )
        if not self.read_only:
            self._check_place()
            with table.write(forgettable=True) as view:
                view.remember(store=self.store.name)

    def check_schema(self) -> bool:
        return self._log.check_schema()

    def known_rows(self) -> dict[str, FileRow] | None:
        if not self.local_state_exists():
            return None
        try:
            table = self._open()
            return {row.path: row for row in table.rows()} if _has_begun(table) else None
        except TableDamaged:
            return None

    def finish(self) -> None:
        if self.read_only or not self.local_state_exists():
            return
        try:
            table = self._open()
            if self._intent(table) is not None:
                with self._exclusive():
                    self._finish(table)
        except TableDamaged:
            return

    def replace_rows(
        self, rows: Collection[FileRow], highest: int, *, unknown: str = "", set_aside_damaged: bool = False
    ) -> None:
        with self._exclusive():
            try:
                self._replace(rows, highest, unknown)
            except TableDamaged as error:
                if not set_aside_damaged:
                    raise
                self._set_aside(error)
                self._replace(rows, highest, unknown)
            with self._number_lock:
                self._numbers = range(0)

    def _replace(self, rows: Collection[FileRow], highest: int, unknown: str) -> None:
        with self._open().write() as view:
            given = int(view.state().get("counter", "0"))
            if "intent" in view.state():
                raise Conflict(f"disk {self.name}: a transaction began meanwhile", hint="run the command again")
            view.clear()
            view.insert(rows)
            view.set_head(highest, "")
            view.remember(store=self.store.name, counter=str(max(given, highest)), since=str(time.time()))
            if unknown:
                view.remember(unknown=unknown)

    def _set_aside(self, error: TableDamaged) -> None:
        with self._lock:
            if self._table is not None:
                self._table.close()
            self._table, self._begun = None, False
        aside = set_database_aside(self.table_path)
        self._notes.append(f"{error.message}; set aside as {aside.name}")

    def recover(self, *, only_here: bool = False) -> builtins.list[str]:
        if only_here:
            return []
        notes, self._notes = self._notes, []
        if self.local_state_exists() and not self.read_only:
            table = self._open()
            if self._intent(table) is not None:
                with self._exclusive():
                    finished = self._finish(table)
                notes += [f"finished {finished}, which had been stopped"] if finished else []
        swept = sweep(self.state_path / "scratch")
        return notes + [f"removed the scratch directory {name} of a transaction that never ended" for name in swept]

    def close(self) -> None:
        with self._lock:
            if self._table is not None:
                self._table.close()
                self._table = None
        self.store.close()

    # What gc and fsck ask

    def kept_keys(self) -> Iterator[str]:
        with self.file_table.read() as view:
            for row in view.rows():
                yield from (key for key, _ in row.blobs)
            yield from view.dropped_since(time.time() - self.retention_seconds)
            found = view.state().get("intent")
        if found is not None:
            for operation in LoggedTransaction.decode(found, disk=self.name).commit.operations:
                if isinstance(operation, Create) and operation.key is not None:
                    yield operation.key

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._exclusive():
            self._finish(self.file_table)
            self._lease.hold()
            yield

    # Writing

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> BucketTransaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")

        def commit(draft: Commit, basis: CommitChecks) -> int:
            # Nobody else writes, and a collection has the lock and the newest table: the age alone counts.
            basis.made_from = None
            basis.check(self.revision, 0, lambda after: (), proved=self.revision)
            return self._commit(draft, transaction.staging, transaction.groups)

        target = Target(self.store, self.state_path / "scratch", lambda: self.revision, commit)
        transaction = ClickHouseTransaction(target, self._next_number, kind, reason=reason, actor=actor)
        return transaction

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Nobody else on this machine commits meanwhile."""
        make_directory(self.state_path)
        with self._commit_lock, file_lock(self.state_path / "commit.lock"):
            yield

    def _next_number(self) -> int:
        """A number for a file's object: above every one that any object of the bucket, or an earlier call, had."""
        with self._number_lock:
            if not self._numbers:
                first = self._reserve(_RESERVED_NUMBERS)
                self._numbers = range(first, first + _RESERVED_NUMBERS)
            number, self._numbers = self._numbers[0], self._numbers[1:]
            return number

    def _reserve(self, count: int) -> int:
        """Take the next `count` numbers for good; the first of them. They are written down before they are used."""
        self._look_for_others()
        with self.file_table.write() as view:
            first = int(view.state().get("counter", "0")) + 1
            view.remember(counter=str(first + count - 1))
        return first

    def _look_for_others(self) -> None:
        """Raise `Refused` when somebody else wrote: what the table says is no longer what the bucket holds. Looks again
        when the lease may have gone to another one."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        if found := self.numbers_of_others():
            raise Refused(
                f"{self.store.name} has objects up to number {found[0]}, and this machine gave numbers up to "
                f"{found[1]}: another writer wrote to the bucket",
                hint=f"stop the other writer; 'frostline restore {self.name}' shows what the bucket's log says",
            )
        self._looked = time.monotonic()

    def numbers_of_others(self) -> tuple[int, int] | None:
        highest = self._log.highest_number(self._given())
        given = self._given()  # once more: other processes of this machine give numbers too, and write them down first
        return (highest, given) if highest > given else None

    def _given(self) -> int:
        with self.file_table.read() as view:
            return int(view.state().get("counter", "0"))

    def _commit(self, draft: Commit, staging: str, groups: Mapping[str, int]) -> int:
        """Check the draft, note the intent, log its operations, take them in. Raises `Conflict` when it does not fit,
        `OutcomeUnknown` when the bucket failed in the middle: the next writer, or `recover`, finishes it then."""
        with self._exclusive():
            table = self.file_table
            self._finish(table)
            self._log.mark()
            steps = plan(table, draft, staging, groups)
            self._lease.hold()
            first = self._reserve(len(steps))
            commit = msgspec.structs.replace(draft, revision=first + len(steps) - 1)
            intent = LoggedTransaction(first, self._host, tuple(steps), commit)
            with table.write() as view:
                view.remember(intent=intent.encode())
            try:
                self._log.append(intent)
            except FrostlineError as error:
                self._abandon_unlogged(table, intent, error)
                raise
            self._take_in(table, intent)
            return commit.revision

    def _abandon_unlogged(self, table: FileTable, intent: LoggedTransaction, error: FrostlineError) -> None:
        """Forget an intent of which nothing was logged; raise `OutcomeUnknown` when something was, or may have been."""
        try:
            logged = self._log.has_begun(intent)
        except FrostlineError:
            logged = True
        if logged:
            raise OutcomeUnknown(
                f"disk {self.name}: the {intent.commit.kind.word} was logged in part: {error.message}",
                hint="the next command that uses the disk finishes it",
            ) from error
        with table.write() as view:
            view.forget("intent")

    def _take_in(self, table: FileTable, intent: LoggedTransaction) -> None:
        """Make the transaction visible, and remember which blobs it removed."""
        with table.write() as view:
            for operation in intent.commit.operations:
                if isinstance(operation, Remove):
                    view.drop(blobs_below(view, operation.path), time.time())
                one = msgspec.structs.replace(intent.commit, present=(), absent=(), operations=(operation,))
                replay.execute(view, one)
            view.set_head(intent.commit.revision, "")
            view.forget("intent")
            view.forget_dropped(time.time() - 2 * self.retention_seconds)

    def _finish(self, table: FileTable) -> str:
        """Do what a stopped transaction had begun; what it was, or nothing."""
        intent = self._intent(table)
        if intent is None:
            return ""
        self._lease.hold()
        self._log.append(intent)
        self._take_in(table, intent)
        return f"the {intent.commit.kind.word} of revision {intent.commit.revision}"

    def _intent(self, table: FileTable) -> LoggedTransaction | None:
        with table.read() as view:
            found = view.state().get("intent")
        return LoggedTransaction.decode(found, disk=self.name) if found is not None else None


def _has_begun(table: FileTable) -> bool:
    with table.read() as view:
        return "store" in view.state()
