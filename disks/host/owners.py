"""Whether who wrote a name down still lives, told by a lock on one byte of a file that all of them share.

The kernel gives the lock back when its holder ends, however that ends, and shows it to everybody who can open the file:
also to processes of another container, to which the holder's process id means nothing, or somebody else.

The locks are those of open file descriptions (fcntl(2), F_OFD_SETLK): they distinguish threads and other handles of one
process, and closing another handle gives none back. Where a system has none, nobody is known to live by this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from pathlib import Path

from disks.effects import op
from disks.system_errors import of_the_system

_FLOCK = "hhqqi4x"
"""`struct flock`: type, whence, start, length, process."""
_SET, _ASK = getattr(fcntl, "F_OFD_SETLK", None), getattr(fcntl, "F_OFD_GETLK", None)
_NOT_HERE = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What systems and file systems without such locks answer."""


class Owners:
    """One owner's place among them; it asks for the others as well. The file stays when all are gone."""

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
                fcntl.fcntl(descriptor, _SET, _lock(fcntl.F_WRLCK, self._name))
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
                answer = fcntl.fcntl(file, _ASK, _lock(fcntl.F_WRLCK, name))
        except (OSError, ValueError):  # no such file or lock, or no such name
            return False
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def end(self) -> None:
        """Be gone."""
        held, self._held = self._held, None
        if held is not None:
            held()


def _lock(kind: int, name: str) -> bytes:
    """On the byte that stands for the name: 60 bits of it, so that two never meet."""
    return struct.pack(_FLOCK, kind, os.SEEK_SET, int(name[:15], 16), 1, 0)
