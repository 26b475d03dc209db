"""What a local disk shows: its files, but for its own and for removed ones that readers still have open."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from disks.base import Fingerprint, check_path
from disks.local.hidden import HiddenFiles, lstat
from disks.stores.base import ByteRange
from oplog.errors import Damaged, NotFound

OWN_DIRECTORY = ".frostline"
_READ_BYTES = 1 << 20


class LocalTree:
    """The visible tree below `root`. Callers hold a lock that keeps it between two commits (`LocalCommits.view`)."""

    def __init__(self, name: str, root: Path, hidden: HiddenFiles) -> None:
        self.name = name
        self.root = root
        self.hidden = hidden
        self._root = str(root)

    def scan(self, directory: str) -> Iterator[tuple[os.DirEntry[str], bool]]:
        """Entries of a directory, with whether each is one. Raises `Damaged` at anything but files and directories."""
        if directory:
            check_path(directory)
        try:
            entries = os.scandir(f"{self._root}/{directory}")
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:  # one after the other: there may be a million, of which the first is enough
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

    def files(self, directory: str, hidden: dict[str, int]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Path and entry of every visible file below the directory, in no order."""
        for entry, is_directory in self.scan(directory):
            path = join(directory, entry.name)
            if is_directory:
                yield from self.files(path, hidden)
            elif hidden.get(path) != entry.inode():
                yield path, entry

    def shows(self, path: str, entry: os.DirEntry[str], is_directory: bool, hidden: dict[str, int]) -> bool:
        """Whether the entry is a visible file, or a directory with one below it."""
        if is_directory:
            return next(self.files(path, hidden), None) is not None
        return hidden.get(path) != entry.inode()

    def names(self, directory: str, hidden: dict[str, int]) -> list[str]:
        """What the directory shows, sorted; a directory's name ends with `/`."""
        return sorted(
            f"{entry.name}/" if is_directory else entry.name
            for entry, is_directory in self.scan(directory)
            if self.shows(join(directory, entry.name), entry, is_directory, hidden)
        )

    def file_names(self, directory: str, hidden: dict[str, int]) -> list[str]:
        """The visible files right in the directory, sorted."""
        return sorted(
            entry.name
            for entry, is_directory in self.scan(directory)
            if not is_directory and hidden.get(join(directory, entry.name)) != entry.inode()
        )

    def stat_file(self, path: str) -> os.stat_result:
        """The visible file. Raises `NotFound`."""
        try:
            found = os.lstat(f"{self._root}/{check_path(path)}")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"no file {path} on disk {self.name}") from error
        self._check_file(path, found, self.hidden.inodes())
        return found

    def _check_file(self, path: str, status: os.stat_result, hidden: dict[str, int]) -> None:
        if stat.S_ISDIR(status.st_mode) or hidden.get(path) == status.st_ino:
            raise NotFound(f"no file {path} on disk {self.name}")
        if not stat.S_ISREG(status.st_mode):
            raise _strange(self.root / path)

    def open(self, path: str, hidden: dict[str, int]) -> tuple[int, int]:
        """The descriptor and the size of a visible file. Raises `NotFound`."""
        check_path(path)
        try:
            descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"no file {path} on disk {self.name}") from error
        except OSError as error:
            if error.errno == errno.ELOOP:  # a symbolic link
                raise _strange(self.root / path) from error
            raise
        try:
            found = os.fstat(descriptor)
            self._check_file(path, found, hidden)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, found.st_size


class TreeNow:
    """The files visible now; the caller holds a lock that keeps them so."""

    def __init__(self, tree: LocalTree) -> None:
        self._tree = tree
        self._root = str(tree.root)
        self._hidden = tree.hidden.inodes()
        self._seen: dict[str, os.stat_result | None] = {}

    def is_file(self, path: str) -> bool:
        found = self._stat(path)
        return found is not None and stat.S_ISREG(found.st_mode) and self._hidden.get(path) != found.st_ino

    def files(self, directory: str) -> Iterator[str]:
        return (path for path, _ in self._tree.files(directory, self._hidden))

    def inode(self, path: str) -> int | None:
        found = self._stat(path)
        return None if found is None else found.st_ino

    def exists(self, path: str) -> bool:
        return self.is_file(path) or next(self.files(path), None) is not None

    def absolute(self, path: str) -> Path:
        return self._tree.root / path

    def _stat(self, path: str) -> os.stat_result | None:
        if path not in self._seen:
            parent = path.rpartition("/")[0]
            nowhere = parent and self._stat(parent) is None
            self._seen[path] = None if nowhere else lstat(f"{self._root}/{path}")
        return self._seen[path]


def fingerprint_of(file: str, settled_ns: int) -> Fingerprint | None:
    """The fingerprint of a file in the file system; None where there is none, and of one that was changed since then.

    The time of the last change to the inode cannot be set by anybody, and goes on with each write and rename.
    """
    try:
        found = os.lstat(file)
    except OSError:
        return None
    changed_ns, written_ns = found.st_ctime_ns, found.st_mtime_ns
    if changed_ns > settled_ns or written_ns > settled_ns or not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, written_ns, changed_ns


def read_whole(descriptor: int, size_bytes: int) -> bytes:
    """The bytes of an open file, which is closed. A file object would cost more than a small file."""
    try:
        pieces = [os.read(descriptor, size_bytes + 1)]
        while pieces[-1] and sum(map(len, pieces)) != size_bytes:
            pieces.append(os.read(descriptor, _READ_BYTES))
    finally:
        os.close(descriptor)
    return b"".join(pieces)


def read_range(descriptor: int, size_bytes: int, byte_range: ByteRange, path: Path) -> bytes:
    """The bytes of the range of an open file, which is closed. Raises `Damaged` when the file ends before."""
    with open(descriptor, "rb", buffering=0) as file:
        if not 0 <= byte_range.start <= byte_range.stop <= size_bytes:
            raise Damaged(
                f"{path} has {size_bytes} bytes; [{byte_range.start}, {byte_range.stop}) is not in it",
                hint="the file is shorter than its reader expects; run 'frostline fsck'",
            )
        pieces = []
        start = byte_range.start
        while start < byte_range.stop and (piece := os.pread(file.fileno(), byte_range.stop - start, start)):
            pieces.append(piece)
            start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def join(directory: str, name: str) -> str:
    """The path of a name in a directory; the root is the empty path."""
    return f"{directory}/{name}" if directory else name


def is_other_than_directory(path: Path) -> bool:
    """Whether something is there, and not a directory."""
    found = lstat(path)
    return found is not None and not stat.S_ISDIR(found.st_mode)


def _strange(path: Path) -> Damaged:
    return Damaged(f"{path} is not a regular file", hint="move it away")
