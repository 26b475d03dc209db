"""A disk in a dict: the executable specification of `Disk`, and a disk for tests."""

from __future__ import annotations

import builtins
import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from disks.base import Disk, DiskCapabilities, DiskUsage, FileInfo, Location, Transaction, check_path
from disks.stores.base import ByteRange
from oplog import paths
from oplog.errors import Conflict, Damaged, NotFound, Refused
from oplog.kinds import CommitKind

Files = dict[str, bytes]
Change = Callable[[Files], None]


class MemoryDisk(Disk):
    """A dict from path to bytes. A transaction changes a copy, which then takes the dict's place."""

    kind = "memory"
    capabilities = DiskCapabilities(remote=False, writers="one")

    def __init__(self, name: str = "memory", *, read_only: bool = False) -> None:
        self.name = name
        self.read_only = read_only
        self.files: Files = {}
        self._lock = threading.Lock()

    def usage(self) -> DiskUsage:
        return DiskUsage(None, None, sum(map(len, self.files.values())))

    def list(self, directory: str = "") -> builtins.list[str]:
        prefix = f"{directory}/" if directory else ""
        names = (path[len(prefix) :].partition("/") for path in self.files if path.startswith(prefix))
        return sorted({name + slash for name, slash, _ in names})

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        prefix = f"{directory}/" if directory else ""
        for path, data in sorted(self.files.items(), key=lambda entry: entry[0].encode()):
            if path.startswith(prefix):
                yield FileInfo(path, len(data), hashlib.sha256(data).hexdigest())

    def stat(self, path: str) -> FileInfo:
        data = self.read(path)
        return FileInfo(path, len(data), hashlib.sha256(data).hexdigest())

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        data = self.files.get(path)
        if data is None:
            raise NotFound(f"no file {path} on disk {self.name}")
        if byte_range is None:
            return data
        if not 0 <= byte_range.start <= byte_range.stop <= len(data):
            raise Damaged(f"{self.name}:{path} has {len(data)} bytes; the range is not in it")
        return data[byte_range.start : byte_range.stop]

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        kept = MemoryDisk(self.name)
        kept.files[path] = self.read(path)
        return partial(kept.read, path)

    def location(self, path: str) -> Location | None:
        """No engine opens what is in the memory of this process."""
        self.stat(path)
        return None

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="use one that can be written")
        return MemoryTransaction(self)

    def changed(self, changes: builtins.list[Change]) -> Files:
        """A copy of the files as the changes leave it. Raises what one of them raises."""
        files = dict(self.files)
        for change in changes:
            change(files)
        return files

    def replace(self, changes: builtins.list[Change]) -> None:
        """What the changes leave becomes the disk, unless one of them raises."""
        with self._lock:
            self.files = self.changed(changes)


class MemoryTransaction(Transaction):
    """A list of functions on the dict."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._requirements: list[Change] = []
        self._changes: list[Change] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._finished = False

    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        content = data.read_bytes() if isinstance(data, Path) else data
        actual = hashlib.sha256(content).hexdigest()
        if sha256 is not None and actual != sha256.lower():
            raise Damaged(f"{path}: the bytes have SHA-256 {actual}, expected {sha256}")
        check_path(path)

        def change(files: Files) -> None:
            _check_free(files, path)
            files[path] = content

        self._add(change)
        return FileInfo(path, len(content), actual)

    def scratch(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="frostline-")
        return Path(self._scratch.name)

    def link(self, source: str, target: str) -> None:
        check_path(source), check_path(target)

        def change(files: Files) -> None:
            if source not in files:
                raise Conflict(f"{source} does not exist")
            _check_free(files, target)
            files[target] = files[source]

        self._add(change)

    def rename(self, source: str, target: str) -> None:
        check_path(source), check_path(target)
        if f"{target}/".startswith(f"{source}/"):
            raise Conflict(f"{source} cannot become {target}, which is within it")

        def change(files: Files) -> None:
            moved = _at_or_below(files, source)
            _check_free(files, target)
            for path in moved:
                files[target + path[len(source) :]] = files.pop(path)

        self._add(change)

    def remove(self, path: str) -> None:
        check_path(path)

        def change(files: Files) -> None:
            for name in _at_or_below(files, path):
                del files[name]

        self._add(change)

    def require(self, *, present: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> None:
        for path in (*present, *absent):
            check_path(path)

        def check(files: Files) -> None:
            for path in present:
                if not _exists(files, path):
                    raise Conflict(f"{path} is gone")
            for path in absent:
                if _exists(files, path):
                    raise Conflict(f"{path} exists already")

        self._requirements.append(check)

    def commit(self) -> int | None:
        self._check_open()
        if self._changes:
            self._disk.replace(self._requirements + self._changes)
        self.abandon()
        return None

    def abandon(self) -> None:
        self._finished = True
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _add(self, change: Change) -> None:
        self._check_open()
        self._changes.append(change)

    def _check_open(self) -> None:
        if self._finished:
            raise Refused("this transaction has ended", hint="begin another one")


def _exists(files: Files, path: str) -> bool:
    return path in files or any(name.startswith(f"{path}/") for name in files)


def _at_or_below(files: Files, path: str) -> list[str]:
    found = [name for name in files if name == path or name.startswith(f"{path}/")]
    if not found:
        raise Conflict(f"{path} does not exist")
    return found


def _check_free(files: Files, path: str) -> None:
    if _exists(files, path):
        raise Conflict(f"{path} exists already")
    for directory in paths.ancestors(path):
        if directory in files:
            raise Conflict(f"{path} cannot exist: {directory} is a file")
