"""The inbox beside the daemon's passes: a thread with a store of its own, as another process would have one.

So a pass that takes an hour keeps no file waiting, and a large file no move. Directory events wake it where the system
has them; it looks every `poll_seconds` all the same, for there are none over NFS.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oplog.errors import FrostlineError
from tiering.config.settings import InboxConfig
from tiering.daemon.inbox.inbox import Inbox, Round, root_of
from tiering.engine.store import Store

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers.api import BaseObserver

_REST_SECONDS = 10.0
"""After the whole inbox failed: it is not there, or somebody else works on it."""

log = logging.getLogger("frostline.inbox")


class InboxWorker:
    """Works from `begin` to `end`. `ended` gives what the rounds did, to whoever asks."""

    def __init__(self, open_store: Callable[[threading.Event], Store], settings: InboxConfig) -> None:
        self._open_store, self._settings = open_store, settings
        self._stop, self._wake = threading.Event(), threading.Event()
        self._rounds: queue.SimpleQueue[Round] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="inbox", daemon=True)
        self._said: list[str] = []
        self.trouble: tuple[str, ...] = ()
        """What keeps files from going in now, a sentence each. It is tried again."""

    def begin(self) -> None:
        """Start."""
        self._thread.start()

    def end(self) -> None:
        """Stop between two files, and wait for that."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def ended(self) -> list[Round]:
        """The rounds that did something, or met problems, since the last call."""
        found = []
        while not self._rounds.empty():
            found.append(self._rounds.get())
        return found

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with self._open_store(self._stop) as store:
                    self._rounds_of(Inbox(store, self._settings, self._stop))
            except (FrostlineError, OSError) as error:
                self.trouble = (str(error),)
                self._stop.wait(_REST_SECONDS)
            except Exception as error:
                log.exception("the inbox waits")
                self.trouble = (f"{type(error).__name__}: {error}",)
                self._stop.wait(_REST_SECONDS)

    def _rounds_of(self, inbox: Inbox) -> None:
        with inbox.alone():
            observer = self._observe(inbox)
            try:
                while not self._stop.is_set():
                    if not inbox.is_idle():
                        self._tell(inbox.round())
                    self.trouble = tuple(inbox.waiting.values())
                    self._wake.wait(self._settings.poll_seconds)
                    self._wake.clear()
            finally:
                if observer is not None:
                    observer.stop()
                    observer.join()

    def _tell(self, done: Round) -> None:
        """What is left alone is said once, not at every look; `trouble` is said by whoever asks for it."""
        left = [f"{item.table}/{item.file}: {item.what}" for item in done.problems if item.file]
        for problem in left:
            if problem not in self._said:
                log.warning("left alone: %s", problem)
        self._said = left
        for file in done.failed:
            log.warning("%s/%s failed: %s", file.table, file.file, file.error)
        if done.files:
            log.info("inbox: %d files, %d rows, %d failed", len(done.files), done.rows, len(done.failed))
        if done.files or done.problems:
            self._rounds.put(done)

    def _observe(self, inbox: Inbox) -> BaseObserver | None:
        """Directory events, where there are any. Without them it polls."""
        from watchdog.observers import Observer

        observer = Observer()
        try:
            observer.schedule(
                _events(root_of(self._settings), inbox, self._wake), str(root_of(self._settings)), recursive=True
            )
            observer.start()
        except OSError as error:  # no inotify watch is left
            log.info("the inbox is looked at every %g s: %s", self._settings.poll_seconds, error)
            return None
        return observer


def _events(root: Path, inbox: Inbox, wake: threading.Event) -> FileSystemEventHandler:
    from watchdog.events import FileSystemEventHandler

    class Handler(FileSystemEventHandler):
        """Files that were closed after writing, or renamed within the inbox, are whole."""

        def on_closed(self, event: FileSystemEvent) -> None:
            self._whole(event.src_path)

        def on_moved(self, event: FileSystemEvent) -> None:
            self._whole(event.dest_path)

        def _whole(self, path: bytes | str) -> None:
            steps = Path(os.fsdecode(path)).relative_to(root).parts
            if len(steps) == 2:
                inbox.closed(*steps)
                wake.set()

    return Handler()
