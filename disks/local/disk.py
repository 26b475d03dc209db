"""A disk in a directory. Files are made durable before the transaction commits, and appear together then.

<root>/…                               the files
<root>/.frostline/staging/<tx>/        a transaction being written; its owner holds a lock
<root>/.frostline/committed/<tx>/      the commit point is the rename from staging: files and record.json, rolled
                                       forward at once, or by the next reader of the disk after a crash
<root>/.frostline/hidden/<tx>.json     removed files that readers may still open: not listed, swept later
<root>/.frostline/trash/<tx>/          being deleted
<root>/.frostline/changes              which names the last commits touched (`disks.local.changes`)
<root>/.frostline/sizes.db             what lies below directories of many parts (`disks.local.sizes`)
<root>/.frostline/readers/<id>/        second names of files that other processes read (`disks.local.held_files`)
<root>/.frostline/disk.json            the id of the disk, written by its first transaction
<root>/.frostline/stamp-…              which transactions were the last ones (`disks.local.stamps`)
<root>/.frostline/reserve              room for what makes room, when there is none (`disks.host.reserve`)
<root>/.frostline/{commit,view,readers,trash}.lock
"""

from __future__ import annotations

import builtins
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from disks.base import (
    DiskCapabilities,
    DiskUsage,
    FileInfo,
    Fingerprint,
    Leftover,
    Location,
    SmallFile,
    Transaction,
)
from disks.contracts.directory_disk import DirectoryDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.effects import nearest_directory, remove_file, why_not_writable
from disks.host.locks import abandoned, file_lock, sweep, try_file_lock
from disks.host.reserve import Reserve
from disks.identity import DISK_FILE, IdentityGuard, read_file, write_file
from disks.local.commits import LocalCommits
from disks.local.held_files import hold_files, let_go
from disks.local.sizes import KeptSizes
from disks.local.transaction import LocalTransaction
from disks.local.tree import OWN_DIRECTORY, TreeNow, fingerprint_of, join, read_range, read_whole
from disks.stores.base import ByteRange
from disks.system_errors import read_only
from oplog.errors import NotFound, ReadOnly, Refused
from oplog.kinds import CommitKind, Dropped
from oplog.stamps import CommitStamp, KeptStamp, WriterState

logger = logging.getLogger(__name__)

SETTLED_NS = 2_000_000_000
"""A file that was changed more recently has no fingerprint: another change may leave the same coarse times."""
UNCHANGED_NS = 2_000_000_000
"""A directory that was changed more recently has a state only where a commit gave it a time of its own."""


class LocalDisk(DirectoryDisk, IdentifiedDisk):
    """Files of one directory tree, shared by the processes of one machine."""

    kind = "local"
    capabilities = DiskCapabilities(remote=False, writers="one")

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        keep_free_space_bytes: int = 0,
        max_size_bytes: int | None = None,
        read_only: bool = False,
        reserve_bytes: int = 0,
        lock_timeout_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.root = path
        self._read_only = read_only
        self._own = path / OWN_DIRECTORY
        self._commits = LocalCommits(
            name, path, reserve=Reserve(self._own, reserve_bytes), lock_timeout_seconds=lock_timeout_seconds
        )
        self._identity = IdentityGuard(name, str(path), self.identity, lambda: write_file(self._own), cheap=True)
        self._committed: Callable[[CommitStamp], None] = lambda stamp: None
        self._hidden = self._commits.hidden
        self._trash = self._commits.trash
        self._sizes = KeptSizes(self._own / "sizes.db", self.state_of, self.changed_between)
        self.keep_free_space_bytes = keep_free_space_bytes
        self.max_size_bytes = max_size_bytes

    @property
    def read_only(self) -> bool:  # type: ignore[override]
        """By its configuration, or because its file system is mounted so."""
        return self._read_only or self._is_mounted_read_only()

    def _is_mounted_read_only(self) -> bool:
        return isinstance(why_not_writable(self.root), ReadOnly)

    # Reading

    def usage(self) -> DiskUsage:
        self._trash.wait()
        try:
            status = os.statvfs(self.root if self.read_only else nearest_directory(self.root))
        except FileNotFoundError:
            return DiskUsage(0, 0, 0)
        total = status.f_blocks * status.f_frsize
        free = status.f_bavail * status.f_frsize
        used = total - status.f_bfree * status.f_frsize
        if self.max_size_bytes is not None:
            used = self.stored_bytes()
            total, free = self.max_size_bytes, min(free, self.max_size_bytes - used)
        kept = self.keep_free_space_bytes
        return DiskUsage(max(total - kept, 0), max(free - kept, 0), used)

    def stored_bytes(self) -> int:
        with self.steady(), self._commits.view() as tree:
            if self.read_only:
                return sum(info.size_bytes for info in self.walk())
            return self._sizes.total(tree)

    def list(self, directory: str = "") -> builtins.list[str]:
        with self._commits.view() as tree:
            return tree.names(directory, self._hidden.inodes())

    def directories(self, directory: str) -> builtins.list[str]:
        with self._commits.view() as tree:
            return [entry.name for entry, is_directory in tree.scan(directory) if is_directory]

    def files_in(self, directory: str, begin: str = "") -> builtins.list[str]:
        with self._commits.view() as tree:
            names = tree.file_names(directory, self._hidden.inodes())
        return [name for name in names if name.startswith(begin)]

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        with self._commits.view() as tree:
            files = tree.files(directory, self._hidden.inodes())
            found = [FileInfo(path, entry.stat().st_size) for path, entry in files]
        found.sort(key=lambda info: info.path.encode())
        return iter(found)

    def stat(self, path: str) -> FileInfo:
        with self._commits.view() as tree:
            return FileInfo(path, tree.stat_file(path).st_size)

    def exists(self, path: str) -> bool:
        with self._commits.view() as tree:
            return TreeNow(tree).exists(path)

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        with self._commits.view() as tree:
            descriptor, size = tree.open(path, self._hidden.inodes())
        if byte_range is None:
            return read_whole(descriptor, size)
        return read_range(descriptor, size, byte_range, self.root / path)

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        with self._commits.view() as tree:
            tree.stat_file(path)
        file = self.root / path

        def read(byte_range: ByteRange) -> bytes:
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise NotFound(f"no file {path} on disk {self.name}") from error
            return read_range(descriptor, os.fstat(descriptor).st_size, byte_range, file)

        return read

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> builtins.list[SmallFile]:
        files: builtins.list[SmallFile] = []
        with self._commits.view() as tree:
            hidden = self._hidden.inodes()
            settled_ns = time.time_ns() - SETTLED_NS
            above = join(directory, "")
            root = f"{self.root}/"
            everything = (entry.name for entry, is_directory in tree.scan(directory) if is_directory)
            for child in everything if among is None else among:
                path = f"{above}{child}/{name}"
                fingerprint = fingerprint_of(root + path, settled_ns)
                before = fingerprints.get(path)
                if before is not None and before == fingerprint and hidden.get(path) != fingerprint[0]:
                    files.append(SmallFile(path, before, None, None))  # of many files one object each
                    continue
                with suppress(NotFound):
                    files.append(SmallFile(path, fingerprint, read_whole(*tree.open(path, hidden)), None))
        files.sort(key=attrgetter("path"))  # the order of its bytes
        return files

    def state_of(self, directory: str) -> Fingerprint | None:
        """As promised: every change moves the time of the directory, and every commit those of all that are above what
        it touches."""
        with self._commits.view() as tree:
            changes = self._commits.changes
            state = changes.state(directory)
            if state is None:
                return None
            is_settled = max(state[3:]) <= time.time_ns() - UNCHANGED_NS
            if (is_settled and not tree.hidden.records()) or changes.has_left(directory, state):
                return state
        return None

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        return self._commits.changes.between(directory, before, after)

    def location(self, path: str) -> Location:
        with self._commits.view() as tree:
            tree.stat_file(path)
        return Location(f"file://{(self.root / path).absolute()}")

    def local_path(self, path: str) -> Path:
        return self.root / path

    @contextmanager
    def steady(self) -> Iterator[None]:
        if self._hidden.is_held:
            yield
            return
        with self._commits.view(), self._hidden.held():
            yield

    @contextmanager
    def read_lease(self) -> Iterator[None]:
        if not self._own.is_dir():
            yield
            return
        timeout_seconds = self._commits.lock_timeout_seconds
        with file_lock(self._hidden.readers_lock, shared=True, timeout_seconds=timeout_seconds):
            yield
        if self._hidden.records():
            with self._commits.alone_if_idle() as ours:
                if ours:
                    self._hidden.sweep()
                    self._trash.empty_soon()

    def hold(self, paths: Sequence[str], *, until: datetime, process: int) -> builtins.list[Path]:
        """As promised; costs no space while the files are there."""
        if self._is_mounted_read_only():  # nobody removes them
            return [self.root / path for path in paths]
        let_go(self._own)
        try:
            return hold_files(self._own, [self.root / path for path in paths], until=until, process=process)
        except FileNotFoundError as error:
            raise NotFound(f"{error.filename} is gone", hint="it was moved or merged just now; try again") from error

    # Writing

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        if self._read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")
        if self._is_mounted_read_only():
            raise read_only(f"disk {self.name}, {self.root}")
        self._identity.before_writing()
        self._commits.prepare()
        if isinstance(kind, Dropped):  # which leaves small marks of what it takes away
            self._commits.make_room()
        return LocalTransaction(self._commits.staging, self._commit, kind, reason)

    def _commit(self, transaction: LocalTransaction) -> None:
        if (stamp := self._commits.commit(transaction)) is not None:
            self._committed(stamp)

    def inspect(self) -> tuple[builtins.list[FileInfo], builtins.list[str]]:
        """As promised; never follows or opens what does not belong here."""
        files: builtins.list[FileInfo] = []
        strange: builtins.list[str] = []
        with self._commits.view():
            hidden = self._hidden.inodes()
            waiting = [""]
            while waiting:
                directory = waiting.pop()
                for entry in os.scandir(self.root / directory) if (self.root / directory).is_dir() else ():
                    path = join(directory, entry.name)
                    if path == OWN_DIRECTORY or hidden.get(path) == entry.inode():
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(FileInfo(path, entry.stat(follow_symlinks=False).st_size))
                    else:
                        strange.append(path)
        return sorted(files, key=lambda info: info.path.encode()), sorted(strange)

    def leftovers(self) -> builtins.list[Leftover]:
        found = [Leftover(path) for path in abandoned(self._commits.staging)]
        for directory in (self._commits.committed, self._trash.path):
            what = f"leftover of a crash in {directory.name}: recovery removes it"
            found += [Leftover(path, what) for path in sorted(directory.iterdir() if directory.is_dir() else ())]
        return found

    def recover(self, *, only_here: bool = False) -> builtins.list[str]:
        if self.read_only or not self._own.is_dir():
            return []
        self._commits.prepare()
        let_go(self._own)
        done = [f"finished the committed transaction {name} ({kind})" for name, kind in self._commits.finish()]
        done += [
            f"removed the staging of transaction {name}, which never committed" for name in sweep(self._commits.staging)
        ]
        with self._commits.alone():
            self._hidden.remove_torn_records()
            with try_file_lock(self._trash.lock_path) as idle:  # else somebody is deleting it just now
                trash = self._trash.empty() if idle else []
            done += [f"finished deleting what transaction {name} removed" for name in trash]
            unread = self._hidden.sweep()
            self._trash.empty_soon()
        done += [f"deleted {len(unread)} removed files that no reader holds any more"] if unread else []
        return done

    def identity(self) -> str | None:
        return read_file(self._own)

    def watch(self, disk_id: str | None, begin: Callable[[str], None]) -> None:
        self._identity.watch(disk_id, begin)

    def stamps(self) -> Sequence[KeptStamp]:
        return self._commits.stamps.all()

    def stamp_commits(self, state: Callable[[], WriterState], committed: Callable[[CommitStamp], None]) -> None:
        self._commits.writer_state, self._committed = state, committed

    def restamp(self, above: int) -> CommitStamp | None:
        if self.read_only or self.identity() is None:
            return None
        state = self._commits.writer_state()
        with self._commits.alone():
            return self._commits.stamps.begin_after(above, state)

    def renew_identity(self) -> str:
        with self._commits.alone():
            remove_file(self._own / DISK_FILE, missing_ok=True)
            return write_file(self._own)

    def close(self) -> None:
        self._trash.wait()
