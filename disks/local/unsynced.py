"""The staged files of a transaction that are not durable yet: they become so together."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from disks.effects import fsync_opened
from disks.host.file_system import sync_all, watch

OPEN_FILES = 128
"""So many stay open, and each is synced: a file system does that in little more than the time of one. Of more than
these the whole file system is synced, where that tells of every failure: it also waits for what others write."""
_CLOSED_FILES = 4096
_UNSYNCED_BYTES = 64 << 20


class UnsyncedFiles:
    """Files as they were written, of several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Path] = {}
        self._closed = 0
        self._bytes = 0
        self._directory = Path()
        self._watching: int | None = None

    def begin(self, directory: Path) -> None:
        """They will lie in this directory; none has been written."""
        self._directory, self._watching = directory, watch(directory)

    def add(self, descriptor: int, path: Path, size_bytes: int) -> None:
        """One more, which is closed when it is durable, or when the file system tells what becomes of it. Makes them
        durable where they are many."""
        spilled: list[int] = []
        with self._lock:
            self._open[descriptor] = path
            self._bytes += size_bytes
            if len(self._open) >= OPEN_FILES and self._watching is not None:
                spilled = list(self._open)
                self._closed += len(spilled)
                self._open.clear()
            is_full = len(self._open) >= OPEN_FILES or self._closed >= _CLOSED_FILES or self._bytes > _UNSYNCED_BYTES
        for one in spilled:
            os.close(one)
        if is_full:
            self.sync()

    def sync(self) -> None:
        """Make all durable. An error is final for all of them: they must be written again."""
        with self._lock:
            opened, closed = self._open, self._closed
            self._open, self._closed, self._bytes = {}, 0, 0
        if not closed:
            fsync_opened(opened)
            return
        try:
            assert self._watching is not None
            sync_all(self._watching, self._directory)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def close(self) -> None:
        """Let go of what is not durable."""
        with self._lock:
            opened, self._open = self._open, {}
            watching, self._watching = self._watching, None
        for descriptor in (*opened, *(() if watching is None else (watching,))):
            os.close(descriptor)
