"""A transaction of a local disk: files are staged and made durable together, and one rename commits them."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from disks.base import FileInfo, Transaction, check_path
from disks.effects import (
    fsync_directory,
    hard_link,
    make_directory,
    remove_file,
    remove_tree,
    rename,
    write_new_file,
    write_unsynced_file,
)
from disks.host.locks import OwnedDirectory
from disks.local.copied import copy_file
from disks.local.plan import CommitPlan, commit_record
from disks.local.unsynced import UnsyncedFiles
from oplog.errors import Conflict, Damaged, Refused
from oplog.kinds import CommitKind

RECORD = "record.json"
"""The name of the record of a sealed transaction, beside `files/`."""


class LocalTransaction(Transaction):
    """Staged files and the operations to apply at commit."""

    def __init__(self, parent: Path, commit: Callable[[LocalTransaction], None], kind: CommitKind, reason: str) -> None:
        """Stages below `parent`; `commit` renames what `seal` returns, or raises."""
        self._parent = parent
        self._commit = commit
        self._kind = kind
        self._reason = reason
        self._operations: list[tuple[str, str, str | int]] = []
        self._present: list[str] = []
        self._absent: list[str] = []
        self._staging: OwnedDirectory | None = None
        self._staged = 0
        self._unsynced = UnsyncedFiles()
        self._lock = threading.Lock()
        self._finished = False

    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        check_path(path)
        self._check_open()
        number, staged = self._next_staged()
        if isinstance(data, bytes):
            actual = hashlib.sha256(data).hexdigest()
            descriptor = write_unsynced_file(staged, data)
            size = len(data)
        elif self._staging is not None and data.is_relative_to(self._staging.path / "scratch"):
            rename(data, staged)
            actual = _digest(staged) if sha256 is not None else ""
            descriptor = os.open(staged, os.O_RDONLY)
            size = os.fstat(descriptor).st_size
        else:
            descriptor, size, actual = copy_file(data, staged)
        self._sync_soon(descriptor, staged, size)
        if sha256 is not None and actual != sha256.lower():
            remove_file(staged)
            raise Damaged(f"{path}: the bytes have SHA-256 {actual}, expected {sha256}", hint="the source is damaged")
        with self._lock:
            self._operations.append(("create", path, number))
        return FileInfo(path, size, actual or None)

    def scratch(self) -> Path:
        with self._lock:
            path = self._own_staging().path / "scratch"
        make_directory(path)
        return path

    def link(self, source: str, target: str) -> None:
        self._add("link", source, target)

    def rename(self, source: str, target: str) -> None:
        if f"{check_path(target)}/".startswith(f"{check_path(source)}/"):
            raise Conflict(f"{source} cannot become {target}, which is within it")
        self._add("rename", source, target)

    def remove(self, path: str) -> None:
        self._add("remove", path, path)

    def require(self, *, present: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> None:
        self._check_open()
        self._present.extend(map(check_path, present))
        self._absent.extend(map(check_path, absent))

    def commit(self) -> int | None:
        self._check_open()
        if self._operations:
            self._sync()  # before anybody has to wait for the commit
            self._commit(self)
            assert self._staging is not None
            self._staging.release()
            self._staging = None
        self.abandon()
        return None

    def abandon(self) -> None:
        self._finished = True
        self._unsynced.close()
        if self._staging is not None:
            self._staging.remove()
            self._staging = None

    @property
    def only_removes(self) -> bool:
        """Whether it makes room and brings nothing."""
        return all(verb == "remove" for verb, _, _ in self._operations)

    def plan(self, plan: CommitPlan) -> CommitPlan:
        """Apply the operations to the plan in order. Raises `Conflict`."""
        plan.require(self._present, self._absent)
        for verb, first, second in self._operations:
            match verb, second:
                case "create", int():
                    plan.create(second, first)
                case "link", str():
                    plan.create(self._stage_link(plan, first), second)
                case "rename", str():
                    plan.rename(first, second)
                case _:
                    plan.remove(first)
        return plan

    def seal(self, plan: CommitPlan, stage: Callable[[Path], None]) -> Path:
        """Make the staged files, the record and what `stage` puts beside them durable; the directory is ready to be
        renamed."""
        staging = self._own_staging().path
        remove_tree(staging / "scratch")
        files = staging / "files"
        if files.is_dir():
            fsync_directory(files)
        record = staging / RECORD
        remove_file(record, missing_ok=True)
        write_new_file(record, commit_record.encode(plan.record(self._kind.word, self._reason)))
        stage(staging)
        fsync_directory(staging)
        return staging

    def _stage_link(self, plan: CommitPlan, source: str) -> int:
        number, staged = self._next_staged()
        arriving = plan.staged_number(source)
        if arriving is not None:
            hard_link(staged.with_name(str(arriving)), staged)
            return number
        present = plan.present_file(source)
        if present is None:
            raise Conflict(f"{source} does not exist")
        hard_link(present, staged)
        return number

    def _own_staging(self) -> OwnedDirectory:
        if self._staging is None:
            self._staging = OwnedDirectory(self._parent)
            self._unsynced.begin(self._staging.path)
        return self._staging

    def _next_staged(self) -> tuple[int, Path]:
        with self._lock:
            files = self._own_staging().path / "files"
            if self._staged == 0:
                make_directory(files)
            self._staged += 1
            return self._staged, files / str(self._staged)

    def _sync_soon(self, descriptor: int, staged: Path, size_bytes: int) -> None:
        try:
            self._unsynced.add(descriptor, staged, size_bytes)
        except BaseException:
            self._finished = True
            raise

    def _sync(self) -> None:
        """Make the staged files durable. One that failed is never tried again: the transaction ends."""
        try:
            self._unsynced.sync()
        except BaseException:
            self._finished = True
            raise

    def _add(self, verb: str, first: str, second: str) -> None:
        self._check_open()
        self._operations.append((verb, check_path(first), check_path(second)))

    def _check_open(self) -> None:
        if self._finished:
            raise Refused("this transaction has ended", hint="begin a new one")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
