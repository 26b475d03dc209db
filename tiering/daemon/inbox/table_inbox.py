"""One table's directory of the inbox, and every change to it.

    <inbox>/<db.table>/NAME               files that land; taken when they are whole. `region=eu/NAME` too: directories
                                          `key=value` are columns, and stand before the name wherever the file goes
    <inbox>/<db.table>/.taken/NAME        taken: nobody else's any more
    <inbox>/<db.table>/.batch.json        which of them are going in, and whether they are in
    <inbox>/<db.table>/.attempt.json      that taken files are worked on, and how many processes were killed at that
    <inbox>/<db.table>/done/, failed/     afterwards, each with NAME.report.json

Symbolic links are not followed, neither here nor to here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

import msgspec

from disks import effects
from oplog.errors import AlreadyExists, NotFound, Refused
from tiering.daemon.inbox.choice import Found, in_order, is_candidate, is_column
from tiering.daemon.inbox.records import Attempt, Batch, after_kill, attempt_document, decode_batch, shown

TAKEN, DONE, FAILED = ".taken", "done", "failed"
BATCH_FILE = ".batch.json"
ATTEMPT_FILE = ".attempt.json"
REPORT = ".report.json"
_NEXT = ".next"
"""The ending of a file that is being written. What a crash leaves of it is written over."""
_NAME_BYTES = 255


class Strange(msgspec.Struct, frozen=True):
    """Something in the inbox that is left alone, and why."""

    table: str
    file: str
    what: str


class SettledFile(msgspec.Struct, frozen=True):
    """A file that is to go to `done/` or `failed/`, and the report that goes with it."""

    name: str
    directory: str
    report: bytes


class TableInbox:
    """The directory of one table. `name` is the table's."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = root / name

    @property
    def taken_path(self) -> Path:
        """Where taken files lie."""
        return self.path / TAKEN

    def listing(self) -> tuple[list[Found], list[Strange]]:
        """The files that have landed, and what is none."""
        found, strange = _files(self.path)
        return in_order(found), [Strange(self.name, shown(name), what) for name, what in strange]

    def taken(self) -> list[Found]:
        """Those that were taken, in name order. What has become something else than a file is not among them."""
        if not self.taken_path.is_dir() or self.taken_path.is_symlink():
            return []
        return in_order(_files(self.taken_path, all_names=True)[0])

    def take(self, files: Iterable[Found]) -> None:
        """Take the files; one that is gone, or whose name is taken already, is left out. Durable when it returns."""
        self._make(TAKEN)
        moved = [file.name for file in files]
        self._make_above(TAKEN, moved)
        for name in moved:
            target = self.taken_path / name
            if not os.path.lexists(target):
                _rename(self.path / name, target)
        self._sync_above(("", TAKEN), moved)

    def put_back(self, name: str) -> None:
        """Let the file wait again: it is not whole after all. It stays taken where its name has landed again."""
        if not os.path.lexists(self.path / name):
            self._make_above("", [name])
            _rename(self.taken_path / name, self.path / name)
            self._sync_above(("", TAKEN), [name])

    def batch(self) -> Batch | None:
        """What is going in; None when nothing is. Raises `Damaged`."""
        path = self.path / BATCH_FILE
        try:
            return decode_batch(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def write_batch(self, data: bytes) -> None:
        """Write down what is going in, or that it is. Durable when it returns."""
        self._write(BATCH_FILE, data)

    def forget_batch(self) -> None:
        """It is settled."""
        effects.remove_file(self.path / BATCH_FILE)
        effects.fsync_directory(self.path)

    def killed(self) -> Attempt | None:
        """The attempt that a killed process left; None when there is none."""
        try:
            return after_kill((self.path / ATTEMPT_FILE).read_bytes())
        except FileNotFoundError:
            return None

    def write_attempt(self, attempt: Attempt) -> None:
        """Write down which files are worked on. Durable when it returns."""
        self._write(ATTEMPT_FILE, attempt_document.encode(attempt))

    def forget_attempt(self) -> None:
        """It ended, well or not: this process was not killed. Nothing where none is written down."""
        files = [self.path / name for name in (ATTEMPT_FILE, f"{ATTEMPT_FILE}{_NEXT}")]
        if there := [path for path in files if path.exists()]:
            for path in there:
                effects.remove_file(path, missing_ok=True)
            effects.fsync_directory(self.path)

    def _write(self, name: str, data: bytes) -> None:
        following = self.path / f"{name}{_NEXT}"
        effects.remove_file(following, missing_ok=True)
        effects.write_new_file(following, data)
        effects.rename(following, self.path / name)
        effects.fsync_directory(self.path)

    def settle(self, files: Sequence[SettledFile]) -> None:
        """Put taken files into `done/` or `failed/`: first all reports, durable, then the files. Called again after a
        crash, it does the rest."""
        directories = sorted({file.directory for file in files})
        for directory in directories:
            self._make(directory)
            self._make_above(directory, [file.name for file in files if file.directory == directory])
        names = {(file.directory, file.name): self._free(file.directory, file.name) for file in files}
        there = [file for file in files if os.path.lexists(self.taken_path / file.name)]
        for file in there:
            report = self.path / file.directory / f"{names[file.directory, file.name]}{REPORT}"
            effects.remove_file(report, missing_ok=True)
            effects.write_new_file(report, file.report)
        for directory in directories:
            self._sync_above((directory,), [file.name for file in there if file.directory == directory])
        for file in there:
            target = self.path / file.directory / names[file.directory, file.name]
            _rename(self.taken_path / file.name, target)
        self._sync_above(("", TAKEN, *directories), [file.name for file in there])

    def retry(self, name: str, *, dry_run: bool = False) -> None:
        """Bring a failed file back to where it landed. Raises `NotFound`, and `AlreadyExists` for a name that has
        landed again."""
        failed = self.path / FAILED
        steps = name.split(os.sep)[:-1]
        if not all(map(is_column, steps)) or name.endswith(REPORT) or not _is_file_below(failed, name):
            raise NotFound(f"no failed file {shown(name)!r} of {self.name}", hint="'frostline inbox status' lists them")
        if os.path.lexists(self.path / name):
            raise AlreadyExists(
                f"{self.path / name} has landed meanwhile", hint="wait until it is taken, or remove one of the two"
            )
        if dry_run:
            return
        effects.remove_file(failed / f"{name}{REPORT}", missing_ok=True)
        self._make_above("", [name])
        _rename(failed / name, self.path / name)
        self._sync_above(("", FAILED), [name])

    def finished(self, directory: str) -> list[str]:
        """The files in `done/` or `failed/`, without their reports."""
        path = self.path / directory
        if not path.is_dir() or path.is_symlink():
            return []
        names = {file.name for file in _files(path, all_names=True)[0]}
        return sorted(name for name in names if not (name.endswith(REPORT) and name.removesuffix(REPORT) in names))

    def _free(self, directory: str, name: str) -> str:
        """The name that the file gets there: its own, or with a number when an earlier file has it. A report alone is
        what a crash left of this very file."""
        above, _, own = name.rpartition(os.sep)
        path, number, free = self.path / directory / above, 1, own
        while os.path.lexists(path / free) or len(os.fsencode(f"{free}{REPORT}")) > _NAME_BYTES:
            number += 1
            free = f"{os.fsdecode(os.fsencode(own)[: _NAME_BYTES - 40])}.{number}"
        return os.path.join(above, free)

    def _make(self, directory: str) -> None:
        path = self.path / directory
        if path.is_symlink():
            raise Refused(f"{path} is a symbolic link: files do not leave the inbox", hint="remove the link")
        effects.make_directory(path)

    def _make_above(self, directory: str, names: Iterable[str]) -> None:
        """The directories of these names, in one of the inbox's."""
        for above in _above(names):
            self._make(os.path.join(directory, above))

    def _sync_above(self, directories: Sequence[str], names: Iterable[str]) -> None:
        """These directories of the inbox, and those of the names in them that exist."""
        inner = _above(names)
        for directory in directories:
            for above in reversed(inner):
                if (self.path / directory / above).is_dir():
                    effects.fsync_directory(self.path / directory / above)
        for directory in directories:
            if directory:
                effects.fsync_directory(self.path / directory)
        if "" in directories:
            effects.fsync_directory(self.path)


def tables_of(root: Path) -> tuple[list[TableInbox], list[Strange]]:
    """The directories of the inbox, by name. Raises `NotFound` where there is no inbox, `Refused` for a link."""
    if root.is_symlink():
        raise Refused(f"the inbox {root} is a symbolic link", hint="set inbox.path to where it leads")
    tables, strange = [], []
    try:
        with os.scandir(root) as entries:
            for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
                if entry.is_dir(follow_symlinks=False):
                    tables.append(TableInbox(root, entry.name))
                elif not entry.name.startswith("."):
                    what = "not in a directory that is named after a table"
                    strange.append(Strange("", shown(entry.name), _why_not(entry) or what))
    except FileNotFoundError:
        raise NotFound(f"there is no inbox {root}", hint=f"make it: mkdir -p {root}/DB.TABLE") from None
    return [table for table in tables if not table.name.startswith(".")], strange


def _files(path: Path, *, all_names: bool = False, above: str = "") -> tuple[list[Found], list[tuple[str, str]]]:
    found, strange = [], []
    with os.scandir(path / above) as entries:
        for entry in entries:
            name = os.path.join(above, entry.name)
            if is_column(entry.name) and entry.is_dir(follow_symlinks=False):
                inner = _files(path, all_names=all_names, above=name)
                found += inner[0]
                strange += inner[1]
                continue
            if not all_names and not is_candidate(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append(Found(name, status.st_size, status.st_mtime_ns, status.st_ino))
            elif not (stat.S_ISDIR(status.st_mode) and name in (DONE, FAILED)):
                strange.append((name, _why_not(entry) or "not a file"))
    return found, strange


def _why_not(entry: os.DirEntry[str]) -> str:
    return "a symbolic link: it is not followed" if entry.is_symlink() else ""


def _above(names: Iterable[str]) -> list[str]:
    """The directories of the names, each after those that it lies in."""
    found = {str(above) for name in names for above in PurePath(name).parents if above.name}
    return sorted(found, key=lambda above: above.count(os.sep))


def _is_file_below(path: Path, name: str) -> bool:
    """Whether it is a file, in directories that are no links."""
    try:
        above = [os.lstat(path / step).st_mode for step in _above([name])]
        return all(map(stat.S_ISDIR, above)) and stat.S_ISREG(os.lstat(path / name).st_mode)
    except (FileNotFoundError, ValueError):
        return False


def _rename(source: Path, target: Path) -> None:
    """Nothing when the source is gone: its writer took it away."""
    try:
        effects.rename(source, target)
    except FileNotFoundError:
        pass
