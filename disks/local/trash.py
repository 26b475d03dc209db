"""What a local disk's transactions removed, on its way out: no longer part of the tree, deleted here.

A few directories are deleted at once. Many are deleted in a thread of their own: a file system may take a millisecond
for each (one mounted with `discard` waits for the device), and a process that moved a hundred parts away need not wait
for that. One thread: removals from one directory wait for one another. A process that ends waits for its thread; what
a crash leaves the next opening deletes.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from contextlib import ExitStack
from pathlib import Path

from disks.effects import remove_tree, rename
from disks.host.locks import try_file_lock
from oplog.errors import FrostlineError

logger = logging.getLogger(__name__)

FEW = 16
"""Up to so many directories are deleted by the caller."""


class Trash:
    """The trash directory of one disk; several threads and processes may empty it side by side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._cleaner: threading.Thread | None = None
        self._requested = False

    def take(self, path: Path | str, transaction: str, name: str | None = None) -> None:
        """Rename it into the trash; nothing when it is gone. `name` is its own within the transaction, else a random
        one is taken."""
        try:
            rename(path, f"{self.path}/{transaction}-{name or secrets.token_hex(4)}")
        except FileNotFoundError:
            return

    def empty(self) -> list[str]:
        """Delete everything in it; the names of what was there."""
        names = sorted(os.listdir(self.path))
        for name in names:
            remove_tree(f"{self.path}/{name}")
        return names

    def empty_soon(self) -> None:
        """Delete everything in it: before this returns, or soon when there is much."""
        if len(os.listdir(self.path)) <= FEW:
            self.empty()
            return
        with self._lock:
            self._requested = True
            if self._cleaner is None:
                busy = ExitStack()  # from now on, not from when the thread runs: others may look in between
                busy.enter_context(try_file_lock(self.lock_path, shared=True))
                self._cleaner = threading.Thread(target=self._clean, args=(busy,), name="trash")
                self._cleaner.start()

    def wait(self) -> None:
        """Until what was to be deleted soon is deleted."""
        with self._lock:
            cleaner = self._cleaner
        if cleaner is not None:
            cleaner.join()

    @property
    def lock_path(self) -> Path:
        """Held shared while a thread empties the trash: what lies in it then is nobody's leftover."""
        return self.path.with_name("trash.lock")

    def _clean(self, busy: ExitStack) -> None:
        with busy:
            while self._is_wanted():
                try:
                    self.empty()
                except (OSError, FrostlineError) as error:
                    # It is out of the tree; the next commit or opening tries again.
                    logger.warning("%s cannot be emptied: %s", self.path, error)

    def _is_wanted(self) -> bool:
        """Whether somebody asked since the last time; if not, the thread has ended."""
        with self._lock:
            wanted, self._requested = self._requested, False
            if not wanted:
                self._cleaner = None
            return wanted
