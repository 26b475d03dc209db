"""How a local disk's transactions become visible: one rename commits, then the record is carried out, by whoever comes.
The steps, and what a crash after each leaves:

    staging/<tx>/files/…        a directory that nobody owns: the next opening removes it
    staging/<tx>/record.json    the same
    rename to committed/<tx>    all of it, to be carried out before anybody looks         <- the commit point
    moves and removals          part of it is done; an inode that is not at its source was moved before
    the mark `moved`            the same, and no removal is repeated
    arrivals take their paths   those that are still in files/ have not
    rename to trash/<tx>        something to delete

Removed files that readers may still have open are hidden, and deleted when nobody reads.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from disks.effects import (
    fsync_directory,
    make_directory,
    op,
    remove_file,
    rename,
    replace_file,
    write_new_file,
)
from disks.host.locks import file_lock, try_file_lock
from disks.local.plan import CommitPlan, CommitRecord, Rename, has_chains
from disks.local.transaction import RECORD, LocalTransaction
from disks.local.trash import Trash
from disks.local.tree import LocalTree, TreeNow, inode_of, is_other_than_directory
from oplog import paths
from oplog.errors import Damaged, NoSpace

logger = logging.getLogger(__name__)

_MOVED = "moved"


class LocalCommits(LocalTree):
    """A tree that changes by transactions, shared by the processes of one machine."""

    def __init__(self, name: str, root: Path, *, read_only: bool, lock_timeout_seconds: float) -> None:
        super().__init__(name, root)
        self.read_only = read_only
        self.lock_timeout_seconds = lock_timeout_seconds
        self._staging, self._committed, self._trash = (self._own / part for part in ("staging", "committed", "trash"))
        self._ready = False
        self._bin = Trash(self._trash)

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
            plan = transaction.plan(CommitPlan(TreeNow(self)))
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
            self._bin.empty_soon()

    def _roll_forward_all(self) -> list[tuple[str, str]]:
        with self._committing():
            return self._roll_forward_pending()

    def _roll_forward_pending(self) -> list[tuple[str, str]]:
        """Finish committed transactions; there is at most one unless steps failed. Holds the commit lock."""
        if not any(os.scandir(self._committed)):
            return []
        with file_lock(self._own / "view.lock", timeout_seconds=self.lock_timeout_seconds):
            return [(path.name, self._roll_forward(path)) for path in sorted(self._committed.iterdir())]

    def _roll_forward(self, committed: Path) -> str:
        """Do what the record says and has not been done. Twice is as good as once."""
        try:
            record = msgspec.json.decode((committed / RECORD).read_bytes(), type=CommitRecord)
        except (msgspec.DecodeError, FileNotFoundError) as error:
            raise Damaged(
                f"{committed / RECORD} cannot be read: {error}",
                hint="move the directory away and run 'frostline fsck'",
            ) from error
        touched: set[str] = set()
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
                touched.add(str(target.parent))
        _fsync_all(touched)
        for parent in {move.source.rpartition("/")[0]: None for move in record.moves}:
            self._prune(self.root / parent)
        rename(committed, self._trash / committed.name)
        fsync_directory(self._committed)
        return record.kind

    def _do_moves(self, moves: tuple[Rename, ...], committed: Path, touched: set[str]) -> None:
        """Every rename and removal that has not been done. What readers may still open is hidden, all at once."""
        chained = has_chains(moves)
        with try_file_lock(self._own / "readers.lock") as idle:
            hiding: dict[str, int] = {}
            for number, move in enumerate(moves):
                mark = f"{committed}/{_MOVED}-{number}"
                if chained and os.path.exists(mark):
                    continue
                if move.target is not None:
                    self._hide(hiding, committed.name)
                self._do_move(move, number, committed.name, touched, hiding=None if idle else hiding)
                if chained:
                    self._hide(hiding, committed.name)
                    _fsync_all(touched)
                    self._mark(Path(mark))
            self._hide(hiding, committed.name)

    def _do_move(
        self, move: Rename, number: int, transaction: str, touched: set[str], *, hiding: dict[str, int] | None
    ) -> None:
        source = f"{self._root}/{move.source}"
        if inode_of(source) != move.inode:
            return  # done before
        if move.target is None:
            if hiding is None:
                self._throw_away(source, transaction, f"m{number}")
            else:
                files = {name: entry.inode() for name, entry in self._files(move.source, self._hidden())}
                hiding.update(files or {move.source: move.inode})
        else:
            target = self.root / move.target
            self._displace_hidden(move.source, transaction)
            self._make_way(move.target, transaction)
            make_directory(target.parent)
            rename(source, target)
            touched.add(str(target.parent))
        touched.add(os.path.dirname(source))

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

    def _throw_away(self, path: Path | str, transaction: str, name: str | None = None) -> None:
        """Rename it into the trash; `name` is its own within the transaction, else a random one is taken."""
        try:
            rename(path, f"{self._bin.path}/{transaction}-{name or secrets.token_hex(4)}")
        except FileNotFoundError:
            return

    def _make_way(self, path: str, transaction: str) -> None:
        """Throw away what is at the path, or is a file where it needs a directory: the commit found nothing visible
        there, so it is hidden, or an empty directory."""
        for directory in paths.ancestors(path):
            if is_other_than_directory(self.root / directory):
                self._displace_hidden(directory, transaction)
        self._displace_hidden(path, transaction)
        if inode_of(self.root / path) is not None:
            self._throw_away(self.root / path, transaction)

    def _displace_hidden(self, path: str, transaction: str) -> None:
        """Throw hidden files at or below the path away although readers may want them: the path is needed. They leave
        the hidden records too, also when a crash threw them away before."""
        for record in self._hidden_records():
            hidden = msgspec.json.decode(record.read_bytes(), type=dict[str, int])
            displaced = [name for name in hidden if name == path or name.startswith(f"{path}/")]
            for name in displaced:
                if inode_of(self.root / name) == hidden.pop(name):
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

    def _sweep_hidden(self) -> list[str]:
        """Delete hidden files when nobody reads, and what a killed writer of a record left. Holds the commit lock."""
        for leftover in sorted((self._own / "hidden").glob(".*.tmp")):
            remove_file(leftover, missing_ok=True)
        records = self._hidden_records()
        if not records:
            return []
        deleted: list[str] = []
        with try_file_lock(self._own / "readers.lock") as idle:
            if not idle:
                return []
            for record in records:
                hidden = msgspec.json.decode(record.read_bytes(), type=dict[str, int])
                gone = [path for path, inode in hidden.items() if inode_of(self.root / path) == inode]
                self._delete_hidden(gone, record.stem)
                deleted += gone
                remove_file(record, missing_ok=True)
        return deleted

    def _delete_hidden(self, gone: list[str], transaction: str) -> None:
        """Delete the files, durably: else a power cut brings them back when their record is gone. A directory with
        nothing else in it goes whole, which is one rename and, for all of them together, one fsync."""
        touched: set[str] = set()
        by_directory: dict[Path, list[str]] = {}
        for path in gone:
            by_directory.setdefault((self.root / path).parent, []).append(path)
        for directory, files in by_directory.items():
            if directory != self.root and len(os.listdir(directory)) == len(files):
                self._throw_away(directory, transaction)
                touched.add(str(directory.parent))
                continue
            for path in files:
                remove_file(self.root / path, missing_ok=True)
            touched.add(str(directory))
        emptied = sorted(touched)
        _fsync_all(touched)
        for name in emptied:
            self._prune(Path(name))


def _fsync_all(directories: set[str]) -> None:
    for directory in sorted(directories):
        if os.path.isdir(directory):
            fsync_directory(directory)
    directories.clear()
