"""When this machine last looked where the log in the bucket ends, for who may go by what was seen a while ago.

    <state>/disks/<name>/looked

Written by a look that ended well, in place, into the file that it made when it began. Nobody goes by it

* after a commit of this machine has begun: that removes the file before it puts its entry, for a process that dies then
  leaves the entry in the bucket and not in the file table. So a look begins while nobody here commits;
* when the state came from a copy: then the file is another one, or was changed another time than it says. Nor is an
  older look gone by that takes the place of the newest one, whatever number the system gives its file: the file table
  has the name of the newest. Of a file table that is older it tells by the revision;
* after a start of the machine, since the file may have been written and the file table not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from disks.effects import op, remove_file
from disks.host.moment import Moment
from disks.host.processes import boot_id
from oplog.documents import Document
from oplog.errors import FrostlineError

_WRITTEN_SECONDS = 1.0
"""So far the time that the file says it was written at may be from the one that the system says."""


class _Look(msgspec.Struct, frozen=True):
    began: tuple[float, float]
    """On both clocks (`Moment`)."""
    written: float
    boot: str
    inode: int
    name: str
    """No other look has it."""
    revision: int
    """Which the log ended with."""


_NAME = "look"
"""Beside the rows of the file table: the name of the look that began last."""
_document = Document("record of the last scan of a bucket", _Look)


class LastLook:
    """The file. Where it cannot be written, nobody goes by a look."""

    def __init__(self, state_path: Path) -> None:
        self._file = state_path / "looked"
        self._began: tuple[Moment, str, int] | None = None

    def begin(self) -> dict[str, str]:
        """A look begins. Call it while nobody on this machine can commit. Returns what the file table is to remember:
        nobody goes by the look before it does."""
        self.abandon()
        try:
            remove_file(self._file, missing_ok=True)
            with op("fs.create", self._file):
                descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except (OSError, FrostlineError):
            return {}
        name = os.urandom(8).hex()
        self._began = Moment(), name, descriptor
        return {_NAME: name}

    def end(self, revision: int) -> None:
        """It ended well: the log ends with this revision, and the table has it."""
        if self._began is None:
            return
        (began, name, descriptor), self._began = self._began, None
        try:
            inode = os.fstat(descriptor).st_ino
            look = _Look((began.wall, began.steady), Moment().wall, _boot(), inode, name, revision)
            with op("fs.write", self._file):
                os.write(descriptor, _document.encode(look))
        except (OSError, FrostlineError):
            return
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """It did not end well."""
        if self._began is not None:
            os.close(self._began[-1])
            self._began = None

    def void(self) -> None:
        """Nobody goes by it any more."""
        remove_file(self._file, missing_ok=True)

    def age_seconds(self, state: Mapping[str, str]) -> float:
        """How long ago the newest look began that a file table has which says this of itself; infinite when there is
        none."""
        try:
            with self._file.open("rb") as file:
                look = _document.decode(file.read())
                status = os.fstat(file.fileno())
        except (OSError, msgspec.MsgspecError):
            return math.inf
        is_the_file = status.st_ino == look.inode and status.st_ctime_ns == status.st_mtime_ns
        is_then = abs(status.st_mtime - look.written) <= _WRITTEN_SECONDS
        is_newest = look.name == state.get(_NAME) and 0 < look.revision <= int(state.get("revision", "0"))
        if not (is_the_file and is_then and is_newest and look.boot == _boot()):
            return math.inf
        return Moment(*look.began).age_seconds


def _boot() -> str:
    """Which start of the machine this is; every question has another answer where nothing tells."""
    return boot_id() or os.urandom(8).hex()
