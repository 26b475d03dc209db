"""Which names the commits of a local disk touched, for who knows what a directory had before: it looks at those only.

<root>/.frostline/changes        a line a commit: each directory above what it touched, with its state before and after
                                 and the names in it
<root>/.frostline/changes.old    the lines before those

Every commit gives these directories a time of its own, finer than the clock that the kernel takes times from: whatever
happens to one afterwards, by whomever and however soon, leaves another state. What was touched between two states is
known where the lines lead from one to the other without a gap. A hand, a crash, a line that is lost or torn leave a
gap, and then nothing is known. So nothing here is synced, and no commit fails because of it.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import msgspec

from disks.base import Fingerprint
from disks.effects import op, rename
from oplog import paths
from oplog.documents import Document
from oplog.errors import FrostlineError

_FILE_BYTES = 256 * 1024
"""A longer file becomes the one before."""
_NAMES = 2048
"""A commit that touches more in a directory leaves a gap: all of it is looked at then."""
_TROUBLE = (OSError, FrostlineError)

State = tuple[int, int, int, int, int]
"""Device, inode, links and both times of a directory, in nanoseconds: which names it has."""


class _Touched(msgspec.Struct, frozen=True, array_like=True):
    """What a commit did to a directory."""

    directory: str
    before: State
    after: State | None
    """None for a gap: its time could not be set, or it is gone."""
    names: tuple[str, ...]


_document = Document("line of what commits touched", tuple[_Touched, ...])


class Changes:
    """The lines of one disk. A caller that notes one holds the commit lock."""

    def __init__(self, root: Path, own: Path) -> None:
        self._root = str(root)
        self._file = own / "changes"
        self._older = own / "changes.old"

    @contextmanager
    def noted(self, touched: Iterable[str], arriving: Iterable[str] = ()) -> Iterator[None]:
        """Around what changes these paths and no others; where something is `arriving` a file is in the end. Where it
        fails or the process dies, the process that carries it out again notes all of them. A directory touched as a
        whole, and is still there for readers, gets another time as well: what is put into it later does not go on from
        what it had."""
        names: dict[str, set[str]] = defaultdict(set)
        whole = list(touched)
        for path in chain(whole, arriving):
            for directory in paths.ancestors(path):
                names[directory].add(path[len(directory) + 1 :].partition("/")[0])
        before: dict[str, State] = {}
        for directory in names:  # after those above it
            above = directory.rpartition("/")[0]
            if (not above or above in before) and (state := self.state(directory)) is not None:
                before[directory] = state
        yield
        left = (path for path in whole if path not in before and self.state(path) is not None)
        after = self._stamped([*before, *left])
        found = [
            _Touched(directory, state, after.get(directory), tuple(sorted(names[directory])))
            if len(names[directory]) <= _NAMES
            else _Touched(directory, state, None, ())
            for directory, state in before.items()
        ]
        if found:
            self._append(found)

    def state(self, directory: str) -> State | None:
        """That of the directory now; None where there is none."""
        try:
            found = os.lstat(f"{self._root}/{directory}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISDIR(found.st_mode):
            return None
        return found.st_dev, found.st_ino, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns

    def between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        """The names in the directory that were touched between these two states; None where there is a gap."""
        wanted, found = after, set[str]()
        if wanted == before:
            return found
        for touched in self._lately(directory):
            if touched.after != wanted:
                return None
            found.update(touched.names)
            wanted = touched.before
            if wanted == before:
                return found
        return None

    def has_left(self, directory: str, state: Fingerprint) -> bool:
        """Whether this is the state in which the last commit left it: any change since would show."""
        return next((touched.after == state for touched in self._lately(directory)), False)

    def _stamped(self, directories: Sequence[str]) -> Mapping[str, State]:
        """Their states, each with a time that none had before; without those that have only the kernel's."""
        after: dict[str, State] = {}
        try:
            with op("fs.utime", *(f"{self._root}/{directory}" for directory in directories)):
                for directory in directories:
                    if (state := self._stamp(directory)) is not None:
                        after[directory] = state
        except _TROUBLE:
            return {}
        return after

    def _stamp(self, directory: str) -> State | None:
        path, now_ns = f"{self._root}/{directory}", time.time_ns()
        try:
            os.utime(path, ns=(now_ns, now_ns))
        except FileNotFoundError:  # it went with what was removed
            return None
        except PermissionError:  # it is another user's
            os.utime(path)
            return None
        state = self.state(directory)
        return state if state is not None and state[3] == now_ns else None

    def _append(self, touched: Sequence[_Touched]) -> None:
        data = _document.encode(tuple(touched))
        line = b"\n%08x %s\n" % (zlib.crc32(data), data)  # the first end of line ends what a power cut has torn
        try:
            if self._file.exists() and self._file.stat().st_size > _FILE_BYTES:
                rename(self._file, self._older)
            with op("fs.write", self._file):
                descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    os.write(descriptor, line)
                finally:
                    os.close(descriptor)
        except _TROUBLE:  # what the directories show now is in no line
            return

    def _lately(self, directory: str) -> Iterator[_Touched]:
        """What commits did to the directory, the last one first, up to a line that cannot be read."""
        quoted = msgspec.json.encode(directory)
        for file in (self._file, self._older):
            try:
                lines = file.read_bytes().split(b"\n")
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                if quoted in line:
                    yield from (touched for touched in _read(line) if touched.directory == directory)


def _read(line: bytes) -> Sequence[_Touched]:
    """What a line says; nothing for one without its checksum, which leaves a gap."""
    try:
        data = line[9:]
        return _document.decode(data) if int(line[:8], 16) == zlib.crc32(data) else ()
    except (ValueError, msgspec.MsgspecError):
        return ()
