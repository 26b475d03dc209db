"""How a local disk's transactions become visible: one rename commits, then the next process carries out the record.
The steps, and what a crash after each leaves:

    staging/<tx>/files/…        a directory that nobody owns: the next opening removes it
    staging/<tx>/record.json    the same
    rename to committed/<tx>    all of it, to be carried out before anybody looks         <- the commit point
    its stamp takes its place   the same, and the disk shows the transaction as its last
    moves and removals          part of it is done; an inode that is not at its source was moved before
    the mark `moved`            the same, and no removal is repeated
    arrivals take their paths   those that are still in files/ have not
    a line in `changes`         all of it; without the line others look at more than they need to
    rename to trash/<tx>        something to delete

Removed files that readers may still have open are hidden, and deleted when nobody reads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from disks.effects import (
    PRIVATE,
    fsync_directories,
    fsync_directory,
    make_directories,
    make_directory,
    remove_empty_directories,
    rename,
    write_new_file,
)
from disks.host.file_system import sync_all, watch
from disks.host.locks import file_lock, try_file_lock
from disks.host.reserve import Reserve
from disks.local.changes import Changes
from disks.local.hidden import HiddenFiles, inode_of
from disks.local.plan import CommitPlan, CommitRecord, LocalRename, commit_record, has_chains
from disks.local.stamps import Stamps
from disks.local.transaction import RECORD, LocalTransaction
from disks.local.trash import Trash
from disks.local.tree import OWN_DIRECTORY, LocalTree, TreeNow, is_other_than_directory
from oplog import paths
from oplog.errors import Damaged, NoSpace
from oplog.stamps import CommitStamp, WriterState

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

MANY_ARRIVALS = 128
"""Of more files their directories become durable with the whole file system, where that tells of every failure."""
_MOVED = "moved"


class LocalCommits:
    """The commits of one disk, one after the other, whichever process of this machine makes them; between two of them
    the tree stands still."""

    def __init__(self, name: str, root: Path, *, reserve: Reserve, lock_timeout_seconds: float) -> None:
        own = root / OWN_DIRECTORY
        self.staging = own / "staging"
        self.committed = own / "committed"
        self.trash = Trash(own / "trash")
        self.changes = Changes(root, own)
        self.stamps = Stamps(own)
        self.writer_state: Callable[[], WriterState] = WriterState
        """How far the state of this machine is, which each transaction carries."""
        self.hidden = HiddenFiles(root, own, self.trash, self.changes)
        self.tree = LocalTree(name, root, self.hidden)
        self.lock_timeout_seconds = lock_timeout_seconds
        self._name = name
        self._root = root
        self._own = own
        self._commit_lock = own / "commit.lock"
        self._view_lock = own / "view.lock"
        self._reserve = reserve
        self._ready = False

    def prepare(self) -> None:
        """Make the disk's own directories. A reader does not: below the mount point of a disk that is not
        mounted they would be one more disk."""
        if self._ready:
            return
        make_directory(self.staging.parent.parent, mode=PRIVATE)
        for directory in (self.staging, self.committed, self.trash.path, self.hidden.directory):
            make_directory(directory)
        self._ready = True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else commits while it is held."""
        with file_lock(self._commit_lock, timeout_seconds=self.lock_timeout_seconds):
            yield

    def alone_if_idle(self) -> AbstractContextManager[bool]:
        """The same if nobody is in the way; yields whether it is so. Never waits."""
        return try_file_lock(self._commit_lock)

    @contextmanager
    def view(self) -> Iterator[LocalTree]:
        """The tree between commits, never in the middle of one. Finishes a commit that a crash interrupted."""
        if self.hidden.is_held:
            yield self.tree
            return
        with ExitStack() as stack:
            while self.committed.is_dir():
                lock = file_lock(self._view_lock, shared=True, timeout_seconds=self.lock_timeout_seconds)
                stack.enter_context(lock)
                if not any(os.scandir(self.committed)):
                    break
                stack.close()
                self.finish()
            yield self.tree

    def commit(self, transaction: LocalTransaction) -> CommitStamp | None:
        """Check the transaction against the tree as it is, and make it visible. Its stamp; None where it is committed,
        but not in place yet. Raises `Conflict`."""
        state = self.writer_state()
        with self.alone():
            self._roll_forward_pending()
            plan = transaction.plan(CommitPlan(TreeNow(self.tree)))
            stamp = self.stamps.next(state)
            seal = partial(transaction.seal, plan, partial(self.stamps.stage, stamp))
            in_place = True
            staging = self._rescued(seal) if transaction.only_removes else seal()
            committed = self.committed / staging.name
            with file_lock(self._view_lock, timeout_seconds=self.lock_timeout_seconds):
                rename(staging, committed)
                fsync_directory(self.committed)
                try:
                    self._roll_forward(committed)
                except (OSError, NoSpace) as error:
                    # Committed and durable: the next process to read the disk tries again, and reports it.
                    in_place = False
                    logger.error("disk %s: %s is committed but not in place yet: %s", self._name, staging.name, error)
            self.hidden.sweep()
            self.trash.empty_soon()
            self._reserve.make()
        return stamp.stamp if in_place else None

    def make_room(self) -> None:
        """Give the reserve up, where the disk is full, for a transaction that frees more than it brings."""
        self._reserve.make_room()

    def _rescued(self, step: Callable[[], _T]) -> _T:
        """The step, which can be repeated: once more, without the reserve, where the disk is full."""
        try:
            return step()
        except NoSpace:
            if not self._reserve.give_up():
                raise
            return step()

    def finish(self) -> list[tuple[str, str]]:
        """Carry out what is committed and not in place yet; name and kind of each transaction."""
        with self.alone():
            return self._roll_forward_pending()

    def _roll_forward_pending(self) -> list[tuple[str, str]]:
        """Finish committed transactions; there is at most one unless steps failed. Holds the commit lock."""
        if not any(os.scandir(self.committed)):
            return []
        with file_lock(self._view_lock, timeout_seconds=self.lock_timeout_seconds):
            return [(path.name, self._roll_forward(path)) for path in sorted(self.committed.iterdir())]

    def _roll_forward(self, committed: Path) -> str:
        """Do what the record says and has not been done. Twice is as good as once; it is committed, so that it may use
        the reserve."""
        return self._rescued(partial(self._carry_out, committed))

    def _carry_out(self, committed: Path) -> str:
        try:
            record = commit_record.decode((committed / RECORD).read_bytes())
        except (msgspec.DecodeError, FileNotFoundError) as error:
            raise Damaged(
                f"{committed / RECORD} cannot be read: {error}",
                hint="move the directory away and run 'frostline fsck'",
            ) from error
        self.stamps.take(committed)  # before the rest: the file system makes it durable with that, and the sync is free
        with self.changes.noted(record.moved_paths(), [arrival.path for arrival in record.arrivals]):
            self._put_in_place(record, committed)
        fsync_directory(self._own)
        self.stamps.prune()
        rename(committed, self.trash.path / committed.name)
        fsync_directory(self.committed)
        return record.kind

    def _put_in_place(self, record: CommitRecord, committed: Path) -> None:
        watching = watch(committed) if len(record.arrivals) > MANY_ARRIVALS else None
        try:
            self._move_and_arrive(record, committed, watching)
        finally:
            if watching is not None:
                os.close(watching)

    def _move_and_arrive(self, record: CommitRecord, committed: Path, watching: int | None) -> None:
        touched: set[str] = set()
        if not (committed / _MOVED).exists():
            self._do_moves(record.moves, committed, touched)
            if record.moves:
                fsync_directories(touched)
            if record.moves and record.arrivals:
                _mark(committed / _MOVED)
        files = f"{committed}/files"
        staged = set(os.listdir(files)) if record.arrivals and os.path.isdir(files) else set[str]()
        arrivals = [arrival for arrival in record.arrivals if str(arrival.number) in staged]
        targets = {arrival.number: f"{self._root}/{arrival.path}" for arrival in arrivals}
        self._make_ways([arrival.path for arrival in arrivals], committed.name)
        make_directories(map(os.path.dirname, targets.values()))
        for number, target in targets.items():
            rename(f"{files}/{number}", target)
            touched.add(os.path.dirname(target))
        if watching is not None:
            sync_all(watching, committed)
            touched.clear()
        fsync_directories(touched)
        for parent in {move.source.rpartition("/")[0]: None for move in record.moves}:
            remove_empty_directories(self._root / parent, self._root)

    def _do_moves(self, moves: tuple[LocalRename, ...], committed: Path, touched: set[str]) -> None:
        """Every rename and removal that has not been done. What readers may still open is hidden, all at once."""
        chained = has_chains(moves)
        with try_file_lock(self.hidden.readers_lock) as idle:
            hiding: dict[str, int] = {}
            for number, move in enumerate(moves):
                mark = f"{committed}/{_MOVED}-{number}"
                if chained and os.path.exists(mark):
                    continue
                if move.target is not None:
                    self.hidden.hide(hiding, committed.name)
                self._do_move(move, number, committed.name, touched, hiding=None if idle else hiding)
                if chained:
                    self.hidden.hide(hiding, committed.name)
                    fsync_directories(touched)
                    _mark(Path(mark))
            self.hidden.hide(hiding, committed.name)

    def _do_move(
        self, move: LocalRename, number: int, transaction: str, touched: set[str], *, hiding: dict[str, int] | None
    ) -> None:
        source = f"{self._root}/{move.source}"
        if inode_of(source) != move.inode:
            return  # done before
        if move.target is None:
            if hiding is None:
                self.trash.take(source, transaction, f"m{number}")
            else:
                files = {name: entry.inode() for name, entry in self.tree.files(move.source, self.hidden.inodes())}
                hiding.update(files or {move.source: move.inode})
        else:
            target = self._root / move.target
            self.hidden.displace(move.source, transaction)
            self._make_way(move.target, transaction)
            make_directory(target.parent)
            rename(source, target)
            touched.add(str(target.parent))
        touched.add(os.path.dirname(source))

    def _make_ways(self, arriving: Sequence[str], transaction: str) -> None:
        """`_make_way` of many. Nothing is in the way below a directory that is not there; and, where nothing is hidden,
        no directory's place is taken: the commit looked."""
        if self.hidden.records():
            for path in arriving:
                self._make_way(path, transaction)
            return
        there: dict[str, bool] = {"": True}
        for path in arriving:
            above = ""
            for directory in paths.ancestors(path):
                if directory not in there:
                    there[directory] = there[above] and inode_of(f"{self._root}/{directory}") is not None
                above = directory
            if there[above]:
                self._make_way(path, transaction)

    def _make_way(self, path: str, transaction: str) -> None:
        """Throw away what is at the path, or is a file where it needs a directory: the commit found nothing visible
        there, so it is hidden, or an empty directory."""
        for directory in paths.ancestors(path):
            if is_other_than_directory(self._root / directory):
                self.hidden.displace(directory, transaction)
        self.hidden.displace(path, transaction)
        if inode_of(self._root / path) is not None:
            self.trash.take(self._root / path, transaction)


def _mark(mark: Path) -> None:
    write_new_file(mark, b"")
    fsync_directory(mark.parent)
