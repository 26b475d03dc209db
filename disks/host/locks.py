"""File locks between processes, files that name their holder, and what tells whether an owner still lives.

flock(2) belongs to the open file, so it goes with the process however that ends. Two threads that open the lock file
each exclude one another as two processes do.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import secrets
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from disks.effects import PRIVATE, fsync_directory, make_directory, op, remove_file, remove_tree
from disks.host.processes import described
from disks.system_errors import of_the_system
from oplog.errors import Locked, NoSpace

_POLL_SECONDS = 0.01
_SAID_AFTER_SECONDS = 2.0
_LOOK_SECONDS = 0.001
_FLOCK = "hhqqi4x"
"""`struct flock`: type, whence, start, length, process."""
_SET, _ASK = getattr(fcntl, "F_OFD_SETLK", None), getattr(fcntl, "F_OFD_GETLK", None)
_NOT_HERE = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What systems and file systems without such locks answer."""

logger = logging.getLogger(__name__)


@contextmanager
def file_lock(path: Path, *, shared: bool = False, timeout_seconds: float = 60.0) -> Iterator[None]:
    """Hold the lock of this file, created when missing. Raises `Locked` after the timeout.

    Where nothing can be created because the file system is mounted read-only, a missing file needs no lock: nobody
    writes here.
    """
    descriptor = _open(path)
    if descriptor is None:
        yield
        return
    try:
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        wait_for_lock(descriptor, path, mode, timeout_seconds=timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def wait_for_lock(descriptor: int, path: Path, mode: int, *, timeout_seconds: float) -> None:
    """Lock the open file; who holds it is said on stderr when that takes long. Raises `Locked` after the timeout."""
    began, is_said = time.monotonic(), False
    while not try_lock(descriptor, mode):
        waited = time.monotonic() - began
        if waited >= timeout_seconds:
            raise Locked(f"{path} is held by {holder_of(descriptor)}", hint="wait for it to finish, then try again")
        if waited >= _SAID_AFTER_SECONDS and not is_said:
            logger.warning("waiting for the lock %s: it is held by %s", path, holder_of(descriptor))
            is_said = True
        time.sleep(_POLL_SECONDS)


def holder_of(descriptor: int) -> str:
    """Who holds the lock of the open file: process id, command, and since when it runs, as far as the system says."""
    try:
        status = os.fstat(descriptor)
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        lines = []
    for fields in map(str.split, lines):
        if len(fields) >= 8 and fields[1] == "FLOCK" and fields[5] == file and fields[4].isdigit():
            return described(int(fields[4]))
    return "another process"


@contextmanager
def try_file_lock(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold the lock of this file if nobody is in the way; yields whether we do. Never waits."""
    descriptor = _open(path)
    if descriptor is None:
        yield True
        return
    try:
        yield try_lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int | None:
    """The lock file; None when it is missing on a file system that is mounted read-only. Raises `NoSpace`."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)  # who may not write here may not hold us up
    except OSError as error:
        if error.errno != errno.EROFS:
            raise of_the_system(error) or error from None
    try:
        return os.open(path, os.O_RDONLY | flags)  # enough for flock
    except FileNotFoundError:
        return None


def try_lock(descriptor: int, mode: int) -> bool:
    """Lock the open file, shared or exclusively (`fcntl.LOCK_SH`, `LOCK_EX`), if that takes no waiting."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def hold_lock(path: Path, *, resource: str, hint: str, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive flock on the file, which names our process id. Raises `Locked` naming the holder's.

    The kernel releases it when the process dies; the file itself stays. Where the disk is full, it may name nobody.
    """
    make_directory(path.parent, mode=PRIVATE)
    with op("fs.create", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if wait:
            wait_for_lock(descriptor, path, fcntl.LOCK_EX, timeout_seconds=math.inf)
        elif not _take(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            who = described(int(holder)) if holder.isdigit() else holder_of(descriptor)
            raise Locked(f"{resource} is held by {who} ({path})", hint=hint)
        with suppress(NoSpace), op("fs.write", path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> int | None:
    """The process id that holds the lock file now, or None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if try_lock(descriptor, fcntl.LOCK_SH):
            return None
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Take the lock; False when somebody holds it. A process that only looks, as `lock_holder` does, shares it for a
    moment: that is waited for."""
    while not try_lock(descriptor, fcntl.LOCK_EX):
        if not try_lock(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_LOOK_SECONDS)
    return True


class OwnedDirectory:
    """A new directory below `parent` whose owner is this process, as a lock beside it (`<name>.owner`) tells.

    The lock is taken before the directory appears, so `sweep` never takes a newborn for a leftover.
    """

    def __init__(self, parent: Path) -> None:
        make_directory(parent)
        self.name = secrets.token_hex(8)
        self.path = parent / self.name
        self._owner_path = parent / f"{self.name}.owner"
        self._descriptor = self._own()
        try:
            with op("fs.mkdir", self.path):
                self.path.mkdir()
        except BaseException:
            self.release()
            raise

    def _own(self) -> int:
        while True:
            with op("fs.create", self._owner_path):
                descriptor = os.open(self._owner_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                if os.fstat(descriptor).st_ino == self._owner_path.stat().st_ino:
                    return descriptor
            except FileNotFoundError:
                pass  # a sweep took the file for a leftover between our open and our lock
            os.close(descriptor)

    def release(self) -> None:
        """Give up ownership; the directory has been moved away or removed."""
        try:
            remove_file(self._owner_path, missing_ok=True)
        finally:
            if self._descriptor >= 0:  # an error above may bring us here once more
                os.close(self._descriptor)
                self._descriptor = -1

    def remove(self) -> None:
        """Remove the directory with its content, and the lock."""
        try:
            remove_tree(self.path)
        finally:
            self.release()


def abandoned(parent: Path) -> list[Path]:
    """The owned directories below `parent` whose owner is gone: what `sweep` would remove. Changes nothing."""
    if not parent.is_dir():
        return []
    directories = [path for path in sorted(parent.iterdir()) if path.is_dir()]
    return [path for path in directories if not _is_held(path.with_name(f"{path.name}.owner"))]


def _is_held(owner: Path) -> bool:
    """Whether a living process holds the lock of this file."""
    try:
        descriptor = os.open(owner, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def sweep(parent: Path) -> list[str]:
    """Remove the owned directories below `parent` whose owner is gone; their names."""
    if not parent.is_dir():
        return []
    removed: list[str] = []
    names = {entry.name.removesuffix(".owner") for entry in parent.iterdir()}
    for name in sorted(names):
        owner = parent / f"{name}.owner"
        if not (parent / name).exists() and not owner.exists():
            continue
        with try_file_lock(owner) as dead:
            if dead:
                if (parent / name).exists():
                    remove_tree(parent / name)
                    removed.append(name)
                remove_file(owner, missing_ok=True)
    if removed:
        fsync_directory(parent)
    return removed


class Owners:
    """Whether who wrote a name down still lives, told by a lock on one byte of a file that all of them share: one
    owner's place among them; it asks for the others as well. The file stays when all are gone.

    The kernel gives the lock back when its holder ends, however that ends, and shows it to everybody who can open the
    file: also to processes of another container, to which the holder's process id means nothing, or somebody else.

    The locks are those of open file descriptions (fcntl(2), F_OFD_SETLK): they distinguish threads and other handles of
    one process, and closing another handle gives none back. Where a system has none, nobody is known to live by this.
    """

    def __init__(self, path: Path, name: str) -> None:
        """`name` is a number in hexadecimal digits that nobody else has."""
        self._path, self._name = path, name
        self._held: weakref.finalize[[int], Owners] | None = None
        """Closes the file: at `end`, and when nobody has this object any more."""

    def begin(self) -> None:
        """Be alive, until the process ends or `end`. Raises `NoSpace` and `ReadOnly` where the file cannot be made."""
        if self._held is None and _SET is not None:
            descriptor = self._opened()
            self._held = weakref.finalize(self, os.close, descriptor)
            try:
                fcntl.fcntl(descriptor, _SET, _byte_lock(fcntl.F_WRLCK, self._name))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                return os.open(self._path, flags)
            except FileNotFoundError:
                with op("fs.create", self._path):
                    return os.open(self._path, flags | os.O_CREAT, 0o600)
        except OSError as error:
            raise of_the_system(error) or error from None

    def lives(self, name: str) -> bool:
        """Whether another owner, of this name, is known to live."""
        if _ASK is None:
            return False
        try:
            with self._path.open("rb") as file:
                answer = fcntl.fcntl(file, _ASK, _byte_lock(fcntl.F_WRLCK, name))
        except (OSError, ValueError):  # no such file or lock, or no such name
            return False
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def end(self) -> None:
        """Be gone."""
        held, self._held = self._held, None
        if held is not None:
            held()


def _byte_lock(kind: int, name: str) -> bytes:
    """On the byte that stands for the name: 60 bits of it, so that two never meet."""
    return struct.pack(_FLOCK, kind, os.SEEK_SET, int(name[:15], 16), 1, 0)
