"""A disk in a directory. Files are durable when created, and appear together when the transaction commits.

<root>/…                               the files
<root>/.frostline/staging/<tx>/        a transaction being written; its owner holds a lock
<root>/.frostline/committed/<tx>/      the commit point is the rename from staging: files and record.json, rolled
                                       forward at once, or by whoever looks at the disk after a crash
<root>/.frostline/hidden/<tx>.json     removed files that readers may still open: not listed, swept later
<root>/.frostline/trash/<tx>/          being deleted
<root>/.frostline/{commit,view,readers}.lock
"""

from __future__ import annotations

import builtins
import logging
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from disks.base import Disk, DiskCapabilities, DiskUsage, FileInfo, Location, Transaction, check_path
from disks.effects import (
    fsync_directory,
    make_directory,
    op,
    remove_file,
    remove_tree,
    rename,
    replace_file,
    write_new_file,
)
from disks.local_plan import Move, Plan, Record, has_chains
from disks.local_transaction import RECORD, LocalTransaction
from disks.locks import file_lock, sweep, try_file_lock
from disks.stores.base import ByteRange
from oplog import paths
from oplog.errors import Damaged, NoSpace, NotFound, Refused

logger = logging.getLogger(__name__)

OWN_DIRECTORY = ".frostline"
_MOVED = "moved"


class LocalDisk(Disk):
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
        lock_timeout_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.root = path
        self.keep_free_space_bytes = keep_free_space_bytes
        self.max_size_bytes = max_size_bytes
        self.read_only = read_only
        self.lock_timeout_seconds = lock_timeout_seconds
        self._root = str(path)
        self._own = path / OWN_DIRECTORY
        self._ready = False
        self._steady = _Steady()

    # Reading

    def usage(self) -> DiskUsage:
        self._prepare()
        try:
            status = os.statvfs(self.root)
        except FileNotFoundError:
            return DiskUsage(0, 0, 0)
        total = status.f_blocks * status.f_frsize
        free = status.f_bavail * status.f_frsize
        used = total - status.f_bfree * status.f_frsize
        if self.max_size_bytes is not None:
            used = sum(info.size_bytes for info in self.walk())
            total, free = self.max_size_bytes, min(free, self.max_size_bytes - used)
        kept = self.keep_free_space_bytes
        return DiskUsage(max(total - kept, 0), max(free - kept, 0), used)

    def list(self, directory: str = "") -> builtins.list[str]:
        with self._view():
            hidden = self._hidden()
            return sorted(
                f"{entry.name}/" if is_directory else entry.name
                for entry, is_directory in self._scan(directory)
                if self._shows(_join(directory, entry.name), entry, is_directory, hidden)
            )

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        with self._view():
            found = [FileInfo(path, entry.stat().st_size) for path, entry in self._files(directory, self._hidden())]
        found.sort(key=lambda info: info.path.encode())
        return iter(found)

    def stat(self, path: str) -> FileInfo:
        with self._view():
            return FileInfo(path, self._stat_file(path).st_size)

    def exists(self, path: str) -> bool:
        with self._view():
            return _TreeNow(self).exists(path)

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        with self._view():
            self._stat_file(path)
            descriptor = self._open(path)
        with open(descriptor, "rb") as file:
            if byte_range is None:
                return file.read()
            size = os.fstat(file.fileno()).st_size
            if not 0 <= byte_range.start <= byte_range.stop <= size:
                raise Damaged(
                    f"{self.root / path} has {size} bytes; [{byte_range.start}, {byte_range.stop}) is not in it",
                    hint="the file is shorter than its reader expects; run 'frostline fsck'",
                )
            file.seek(byte_range.start)
            return file.read(byte_range.size_bytes)

    def small_files(self, directory: str, name: str) -> Iterator[tuple[str, bytes, int | None]]:
        found: builtins.list[tuple[str, bytes]] = []
        with self._view():
            hidden = self._hidden()
            for entry, is_directory in self._scan(directory):
                path = f"{_join(directory, entry.name)}/{name}"
                if not is_directory:
                    continue
                try:
                    with open(self._open(path), "rb") as file:
                        if hidden.get(path) != os.fstat(file.fileno()).st_ino:
                            found.append((path, file.read()))
                except NotFound:
                    continue
        for path, data in sorted(found, key=lambda item: item[0].encode()):
            yield path, data, None

    def location(self, path: str) -> Location:
        with self._view():
            self._stat_file(path)
        return Location(f"file://{(self.root / path).absolute()}")

    @contextmanager
    def steady(self) -> Iterator[None]:
        if self._steady.hidden is not None:
            yield
            return
        with self._view():
            self._steady.hidden = self._hidden()
            try:
                yield
            finally:
                self._steady.hidden = None

    @contextmanager
    def read_lease(self) -> Iterator[None]:
        self._prepare()
        if not self._own.is_dir():
            yield
            return
        with file_lock(self._own / "readers.lock", shared=True, timeout_seconds=self.lock_timeout_seconds):
            yield
        if self._hidden_records():
            with try_file_lock(self._own / "commit.lock") as ours:
                if ours:
                    self._sweep_hidden()
                    self._empty_trash()

    # Writing

    def transaction(
        self, kind: str, *, reason: str = "", actor: str = "", details: dict[str, str] | None = None
    ) -> Transaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")
        self._prepare()
        return LocalTransaction(self._staging, self._commit, kind, reason)

    def inspect(self) -> tuple[builtins.list[FileInfo], builtins.list[str]]:
        """Every visible file, and the paths of what does not belong on a disk: links, devices, pipes. Never raises
        `Damaged` as `walk` does, and never follows or opens any of it."""
        files: builtins.list[FileInfo] = []
        strange: builtins.list[str] = []
        with self._view():
            hidden = self._hidden()
            waiting = [""]
            while waiting:
                directory = waiting.pop()
                for entry in os.scandir(self.root / directory) if (self.root / directory).is_dir() else ():
                    path = _join(directory, entry.name)
                    if path == OWN_DIRECTORY or hidden.get(path) == entry.inode():
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(FileInfo(path, entry.stat(follow_symlinks=False).st_size))
                    else:
                        strange.append(path)
        return sorted(files, key=lambda info: info.path.encode()), sorted(strange)

    def recover(self) -> builtins.list[str]:
        if self.read_only or not self._own.is_dir():
            return []
        self._prepare()
        done = [f"finished the committed transaction {name} ({kind})" for name, kind in self._roll_forward_all()]
        done += [f"removed the staging of transaction {name}, which never committed" for name in sweep(self._staging)]
        with self._committing():
            for torn in (self._own / "hidden").glob(".*.tmp"):
                remove_file(torn, missing_ok=True)
            trash = self._empty_trash()
            done += [f"finished deleting what transaction {name} removed" for name in trash]
            swept = self._sweep_hidden()
            self._empty_trash()
        done += [f"deleted {len(swept)} removed files that no reader holds any more"] if swept else []
        return [f"disk {self.name}: {sentence}" for sentence in done]

    @property
    def _staging(self) -> Path:
        return self._own / "staging"

    @property
    def _committed(self) -> Path:
        return self._own / "committed"

    @property
    def _trash(self) -> Path:
        return self._own / "trash"

    def _prepare(self) -> None:
        if self._ready:
            return
        if not self.read_only:
            for directory in (self._staging, self._committed, self._trash, self._own / "hidden"):
                make_directory(directory)
        self._ready = True

    @contextmanager
    def _committing(self) -> Iterator[None]:
        with file_lock(self._own / "commit.lock", timeout_seconds=self.lock_timeout_seconds):
            yield

    @contextmanager
    def _view(self) -> Iterator[None]:
        """The tree between commits, never in the middle of one. Finishes a commit that a crash interrupted."""
        if self._steady.hidden is not None:
            yield
            return
        self._prepare()
        with ExitStack() as stack:
            while self._committed.is_dir():
                lock = file_lock(self._own / "view.lock", shared=True, timeout_seconds=self.lock_timeout_seconds)
                stack.enter_context(lock)
                if not any(os.scandir(self._committed)):
                    break
                stack.close()
                self._roll_forward_all()
            yield

    def _commit(self, transaction: LocalTransaction) -> None:
        with self._committing():
            self._roll_forward_pending()
            plan = transaction.plan(Plan(_TreeNow(self)))
            staging = transaction.seal(plan)
            committed = self._committed / staging.name
            with file_lock(self._own / "view.lock", timeout_seconds=self.lock_timeout_seconds):
                rename(staging, committed)
                fsync_directory(self._committed)
                try:
                    self._roll_forward(committed)
                except (OSError, NoSpace) as error:
                    # Committed and durable: whoever looks at the disk next tries again, and reports it.
                    logger.error("disk %s: %s is committed but not in place yet: %s", self.name, staging.name, error)
            self._sweep_hidden()
            self._empty_trash()

    def _roll_forward_all(self) -> builtins.list[tuple[str, str]]:
        with self._committing():
            return self._roll_forward_pending()

    def _roll_forward_pending(self) -> builtins.list[tuple[str, str]]:
        """Finish committed transactions; there is at most one unless steps failed. Holds the commit lock."""
        if not any(os.scandir(self._committed)):
            return []
        with file_lock(self._own / "view.lock", timeout_seconds=self.lock_timeout_seconds):
            return [(path.name, self._roll_forward(path)) for path in sorted(self._committed.iterdir())]

    def _roll_forward(self, committed: Path) -> str:
        """Do what the record says and has not been done. Twice is as good as once."""
        try:
            record = msgspec.json.decode((committed / RECORD).read_bytes(), type=Record)
        except (msgspec.DecodeError, FileNotFoundError) as error:
            raise Damaged(
                f"{committed / RECORD} cannot be read: {error}",
                hint="move the directory away and run 'frostline fsck'",
            ) from error
        touched: set[Path] = set()
        if not (committed / _MOVED).exists():
            self._do_moves(record.moves, committed, touched)
            if record.moves:
                _fsync_all(touched)
            if record.moves and record.arrivals:
                self._mark(committed / _MOVED)
        for arrival in record.arrivals:
            staged = committed / "files" / str(arrival.number)
            if staged.exists():
                target = self.root / arrival.path
                self._make_way(arrival.path, committed.name)
                make_directory(target.parent)
                rename(staged, target)
                touched.add(target.parent)
        _fsync_all(touched)
        for parent in {move.source.rpartition("/")[0]: None for move in record.moves}:
            self._prune(self.root / parent)
        rename(committed, self._trash / committed.name)
        fsync_directory(self._committed)
        return record.kind

    def _do_moves(self, moves: tuple[Move, ...], committed: Path, touched: set[Path]) -> None:
        """Every rename and removal that has not been done. What readers may still open is hidden, all at once."""
        chained = has_chains(moves)
        with try_file_lock(self._own / "readers.lock") as idle:
            hiding: dict[str, int] = {}
            for number, move in enumerate(moves):
                mark = committed / f"{_MOVED}-{number}"
                if mark.exists():
                    continue
                if move.target is not None:
                    self._hide(hiding, committed.name)
                self._do_move(move, committed.name, touched, hiding=None if idle else hiding)
                if chained:
                    self._hide(hiding, committed.name)
                    _fsync_all(touched)
                    self._mark(mark)
            self._hide(hiding, committed.name)

    def _do_move(self, move: Move, transaction: str, touched: set[Path], *, hiding: dict[str, int] | None) -> None:
        source = self.root / move.source
        if _inode(f"{self._root}/{move.source}") != move.inode:
            return  # done before
        if move.target is None:
            if hiding is None:
                self._throw_away(source, transaction)
            else:
                files = {name: entry.inode() for name, entry in self._files(move.source, self._hidden())}
                hiding.update(files or {move.source: move.inode})
        else:
            target = self.root / move.target
            self._displace_hidden(move.source, transaction)
            self._make_way(move.target, transaction)
            make_directory(target.parent)
            rename(source, target)
            touched.add(target.parent)
        touched.add(source.parent)

    def _hide(self, hiding: dict[str, int], transaction: str) -> None:
        """Put the files out of sight durably, for the sweep after the last reader; empties `hiding`."""
        if hiding:
            record = self._own / "hidden" / f"{transaction}-{secrets.token_hex(4)}.json"
            replace_file(record, msgspec.json.encode(hiding))
            hiding.clear()

    @staticmethod
    def _mark(mark: Path) -> None:
        write_new_file(mark, b"")
        fsync_directory(mark.parent)

    def _throw_away(self, path: Path, transaction: str) -> None:
        trash = self._trash / f"{transaction}-{secrets.token_hex(4)}"
        try:
            rename(path, trash)
        except FileNotFoundError:
            return

    def _make_way(self, path: str, transaction: str) -> None:
        """Throw away what is at the path, or is a file where it needs a directory: the commit found nothing visible
        there, so it is hidden, or an empty directory."""
        for directory in paths.ancestors(path):
            if _is_other_than_directory(self.root / directory):
                self._displace_hidden(directory, transaction)
        self._displace_hidden(path, transaction)
        if _inode(self.root / path) is not None:
            self._throw_away(self.root / path, transaction)

    def _displace_hidden(self, path: str, transaction: str) -> None:
        """Throw hidden files at or below the path away although readers may want them: the path is needed. They leave
        the hidden records too, also when a crash threw them away before."""
        for record in self._hidden_records():
            hidden = msgspec.json.decode(record.read_bytes(), type=dict[str, int])
            displaced = [name for name in hidden if name == path or name.startswith(f"{path}/")]
            for name in displaced:
                if _inode(self.root / name) == hidden.pop(name):
                    self._throw_away(self.root / name, transaction)
            if displaced:
                replace_file(record, msgspec.json.encode(hidden))

    def _prune(self, directory: Path) -> None:
        """Remove directories that became empty, upward; the root stays."""
        while directory != self.root and directory.is_relative_to(self.root):
            try:
                with op("fs.rmdir", directory):
                    directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return  # not empty
            directory = directory.parent

    def _empty_trash(self) -> builtins.list[str]:
        names = sorted(os.listdir(self._trash))
        for name in names:
            remove_tree(self._trash / name)
        return names

    # Hidden files

    def _hidden_records(self) -> builtins.list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self._own / "hidden") if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []

    def _hidden(self) -> dict[str, int]:
        """Paths that were removed but are still there for readers, with the inode that is meant."""
        if self._steady.hidden is not None:
            return self._steady.hidden
        hidden: dict[str, int] = {}
        for record in self._hidden_records():
            try:
                hidden.update(msgspec.json.decode(record.read_bytes(), type=dict[str, int]))
            except FileNotFoundError:
                continue  # swept meanwhile
        return hidden

    def _sweep_hidden(self) -> builtins.list[str]:
        """Delete hidden files when nobody reads, and what a killed writer of a record left. Holds the commit lock."""
        for leftover in sorted((self._own / "hidden").glob(".*.tmp")):
            remove_file(leftover, missing_ok=True)
        records = self._hidden_records()
        if not records:
            return []
        deleted: builtins.list[str] = []
        with try_file_lock(self._own / "readers.lock") as idle:
            if not idle:
                return []
            for record in records:
                hidden = msgspec.json.decode(record.read_bytes(), type=dict[str, int])
                gone = [path for path, inode in hidden.items() if _inode(self.root / path) == inode]
                self._delete_hidden(gone, record.stem)
                deleted += gone
                remove_file(record, missing_ok=True)
        return deleted

    def _delete_hidden(self, gone: builtins.list[str], transaction: str) -> None:
        """Delete the files, durably: else a power cut brings them back when their record is gone. A directory with
        nothing else in it goes whole, which is one rename and, for all of them together, one fsync."""
        touched: set[Path] = set()
        by_directory: dict[Path, builtins.list[str]] = {}
        for path in gone:
            by_directory.setdefault((self.root / path).parent, []).append(path)
        for directory, files in by_directory.items():
            if directory != self.root and len(os.listdir(directory)) == len(files):
                self._throw_away(directory, transaction)
                touched.add(directory.parent)
                continue
            for path in files:
                remove_file(self.root / path, missing_ok=True)
            touched.add(directory)
        emptied = sorted(touched)
        _fsync_all(touched)
        for directory in emptied:
            self._prune(directory)

    # The tree

    def _scan(self, directory: str) -> Iterator[tuple[os.DirEntry[str], bool]]:
        """Entries of a directory, with whether each is one. Raises `Damaged` at anything but files and directories."""
        if directory:
            check_path(directory)
        try:
            entries = builtins.list(os.scandir(f"{self._root}/{directory}"))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if not directory and entry.name == OWN_DIRECTORY:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield entry, True
            elif entry.is_file(follow_symlinks=False):
                yield entry, False
            else:
                raise Damaged(
                    f"{entry.path} is neither a file nor a directory",
                    hint="symbolic links, devices and pipes do not belong on a disk; move it away",
                )

    def _files(self, directory: str, hidden: dict[str, int]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        for entry, is_directory in self._scan(directory):
            path = _join(directory, entry.name)
            if is_directory:
                yield from self._files(path, hidden)
            elif hidden.get(path) != entry.inode():
                yield path, entry

    def _shows(self, path: str, entry: os.DirEntry[str], is_directory: bool, hidden: dict[str, int]) -> bool:
        if is_directory:
            return next(self._files(path, hidden), None) is not None
        return hidden.get(path) != entry.inode()

    def _stat_file(self, path: str) -> os.stat_result:
        try:
            found = os.lstat(f"{self._root}/{check_path(path)}")
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or stat.S_ISDIR(found.st_mode) or self._hidden().get(path) == found.st_ino:
            raise NotFound(f"no file {path} on disk {self.name}")
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{self.root / path} is not a regular file", hint="move it away")
        return found

    def _open(self, path: str) -> int:
        check_path(path)
        try:
            return os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"no file {path} on disk {self.name}") from error


class _Steady(threading.local):
    """What a thread that holds `steady` knows: the hidden files. Meanwhile they can only be swept, never grow."""

    hidden: dict[str, int] | None = None


class _TreeNow:
    """The visible files as they are; the caller holds a lock that keeps them so."""

    def __init__(self, disk: LocalDisk) -> None:
        self._disk = disk
        self._hidden = disk._hidden()

    def is_file(self, path: str) -> bool:
        try:
            found = os.lstat(f"{self._disk._root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(found.st_mode) and self._hidden.get(path) != found.st_ino

    def files(self, directory: str) -> Iterator[str]:
        return (path for path, _ in self._disk._files(directory, self._hidden))

    def inode(self, path: str) -> int | None:
        return _inode(f"{self._disk._root}/{path}")

    def exists(self, path: str) -> bool:
        return self.is_file(path) or next(self.files(path), None) is not None

    def absolute(self, path: str) -> Path:
        return self._disk.root / path


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _inode(path: Path | str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_other_than_directory(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _fsync_all(directories: set[Path]) -> None:
    for directory in sorted(directories):
        if directory.is_dir():
            fsync_directory(directory)
    directories.clear()
