"""Every side effect of Frostline runs inside `op()`: the one place where a crash test can stop the process.

    with op("fs.rename", source, target):
        os.rename(source, target)

Outside of tests the hook is None and `op` costs one attribute read. A test installs a hook with `set_hook`; the hook
is called with the name and the arguments before the effect ("before") and after it ("after") and may raise, kill
the process or record. The durable file verbs below follow the order of DESIGN: file, fsync, rename, fsync directory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from disks.system_errors import of_the_system, read_only
from oplog.errors import FrostlineError

Hook = Callable[[Literal["before", "after"], str, tuple[object, ...]], None]

_hook: Hook | None = None

_SCANTY_BYTES = 128 * 1024
"""With less room SQLite cannot even make the files that it needs beside a database."""

_SYNCING_THREADS = 32
"""A file system makes durable together what is asked of it at once: alone each of many small files costs as much."""


def set_hook(hook: Hook | None) -> None:
    """Install the hook that sees every effect of this process, or remove it with None. For tests."""
    global _hook
    _hook = hook


class op:  # noqa: N801 - read as a verb; a class because a generator costs three times as much, and effects are many
    """Mark one side effect. What the system refuses becomes our error that names the path (`of_the_system`): a full
    disk `NoSpace`, one that is mounted read-only `ReadOnly`, a limit of the process `LimitReached`."""

    __slots__ = ("_args", "_name")

    def __init__(self, name: str, *args: object) -> None:
        self._name = name
        self._args = args

    def __enter__(self) -> None:
        if _hook is not None:
            try:
                _hook("before", self._name, self._args)
            except OSError as error:
                self._translate(error)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            self._translate(error)
        elif error is None and _hook is not None:
            _hook("after", self._name, self._args)

    def _translate(self, error: OSError) -> None:
        if error.errno == errno.EIO:  # the transaction around it undoes what was done, and passes it on
            return
        if (ours := of_the_system(error, self._args[0] if self._args else "")) is not None:
            raise ours from error


def why_not_writable(directory: Path) -> FrostlineError | None:
    """Why nothing can be written there: its file system, or that of the directory in which it would be made, is mounted
    read-only or full. None when neither is so. Writes nothing."""
    try:
        status = os.statvfs(nearest_directory(directory))
    except OSError:
        return None
    if status.f_flag & os.ST_RDONLY:
        return read_only(directory)
    if status.f_bavail * status.f_frsize < _SCANTY_BYTES:
        return of_the_system(OSError(errno.ENOSPC, "", str(directory)))
    return None


def nearest_directory(path: Path) -> Path:
    """The directory, or the one above it that exists: where it would be made."""
    return next(directory for directory in (path.absolute(), *path.absolute().parents) if directory.is_dir())


def fsync_directory(path: Path | str) -> None:
    """Make the directory's entries durable."""
    with op("fs.fsync_directory", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fsync_directories(directories: set[str]) -> None:
    """Make the entries of those that are still there durable, all at once; empties the set. An error is final, as that
    of `fsync_file`."""
    there = [directory for directory in sorted(directories) if os.path.isdir(directory)]
    if there:
        with op("fs.fsync_directory", *there):
            _together(_sync_directory, there)
    directories.clear()


def fsync_opened(files: Mapping[int, Path]) -> None:
    """Make the bytes of these open files, by their descriptors, durable, all at once, and close them. A failure is
    final for all of them: they must be written again."""
    try:
        if files:
            with op("fs.fsync", *files.values()):
                _together(os.fsync, list(files))
    finally:
        for descriptor in files:
            os.close(descriptor)


_S = TypeVar("_S")


def _together(sync: Callable[[_S], None], targets: Sequence[_S]) -> None:
    if len(targets) == 1:
        sync(targets[0])
        return
    with ThreadPoolExecutor(min(len(targets), _SYNCING_THREADS), thread_name_prefix="fsync") as pool:
        for _ in pool.map(sync, targets):
            pass


def _sync_directory(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # somebody emptied it and took it away meanwhile
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the file's bytes durable. A failure is final for that file: it must be written again, never re-synced."""
    with op("fs.fsync", path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


PRIVATE = 0o700
"""Mode of a state directory and of a local disk: nobody else reads rows, or holds a lock."""


def make_directory(path: Path, *, mode: int = 0o755) -> None:
    """Create the directory and its missing parents, each made durable in its parent. Nothing when it exists: who made
    it says who may look into it."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with op("fs.mkdir", path):
        path.mkdir(mode=mode, exist_ok=True)  # a careless umask must not open it to all
    fsync_directory(path.parent)


def make_directories(paths: Iterable[str]) -> None:
    """As `make_directory` of each. A directory that gets many of them is made durable once: all are durable in the
    end, and nothing is made in one that is not."""
    missing: dict[str, None] = {}
    there: set[str] = set()
    for path in paths:
        while path not in missing and path not in there:
            if os.path.isdir(path):
                there.add(path)
            else:
                missing[path] = None
                path = os.path.dirname(path)
    by_depth: dict[int, list[str]] = {}
    for path in missing:
        by_depth.setdefault(path.count("/"), []).append(path)
    for depth in sorted(by_depth):
        for path in by_depth[depth]:
            with op("fs.mkdir", path):
                try:
                    os.mkdir(path, mode=0o755)
                except FileExistsError:
                    if not os.path.isdir(path):
                        raise
        for parent in dict.fromkeys(map(os.path.dirname, by_depth[depth])):
            fsync_directory(parent)


def write_new_file(path: Path, data: bytes | memoryview) -> None:
    """Write and fsync a file that must not exist yet. The caller makes its directory durable."""
    fsync_opened({write_unsynced_file(path, data): path})


def write_unsynced_file(path: Path, data: bytes | memoryview) -> int:
    """Write a file that must not exist yet: its descriptor, for `fsync_opened`. It stays open, so that no failure to
    write it back goes unseen."""
    with op("fs.create", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with op("fs.write", path):
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def replace_file(path: Path, data: bytes) -> None:
    """Replace a small file atomically and durably: temporary name, fsync, rename, fsync directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove_file(temporary, missing_ok=True)
    write_new_file(temporary, data)
    rename(temporary, path)
    fsync_directory(path.parent)


def rename(source: Path | str, target: Path | str) -> None:
    """Rename within one file system. The caller makes both parents durable."""
    with op("fs.rename", source, target):
        os.rename(source, target)


def hard_link(source: Path, target: Path) -> None:
    """Give the file a second name. The caller makes the target's directory durable."""
    with op("fs.link", source, target):
        os.link(source, target)


def remove_file(path: Path, *, missing_ok: bool = False) -> None:
    """Remove one file. The caller makes its directory durable."""
    if missing_ok and not path.exists() and not path.is_symlink():
        return
    with op("fs.unlink", path):
        path.unlink(missing_ok=missing_ok)


def remove_tree(path: Path | str) -> None:
    """Remove a directory and everything below it, never following a symbolic link. Nothing when it is missing."""
    try:
        is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if is_directory:
        _remove_directory(os.fspath(path))
    else:
        _remove(os.unlink, "fs.unlink", os.fspath(path))


def remove_empty_directories(directory: Path, root: Path) -> None:
    """Remove the directory, and those above it, as long as nothing is in them; the root stays."""
    while directory != root and directory.is_relative_to(root):
        try:
            with op("fs.rmdir", directory):
                directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return  # not empty
        directory = directory.parent


def _remove_directory(path: str) -> None:
    try:
        with os.scandir(path) as found:
            entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    except FileNotFoundError:
        return
    for name, is_directory in entries:
        if is_directory:
            _remove_directory(f"{path}/{name}")
        else:
            _remove(os.unlink, "fs.unlink", f"{path}/{name}")
    _remove(os.rmdir, "fs.rmdir", path)


def _remove(remove: Callable[[str], None], name: str, path: str) -> None:
    """Another process may be removing the same: what is gone is gone."""
    with op(name, path):
        try:
            remove(path)
        except FileNotFoundError:
            pass
