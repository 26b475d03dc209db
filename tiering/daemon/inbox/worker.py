"""The inbox beside the daemon's passes: threads with stores of their own, as other processes would have them.

So a pass that takes an hour keeps no file waiting, a large file no move, and a table that is slow no other: up to four
are worked on side by side, each by one thread. Directory events wake it where the system
has them; it looks every `poll_seconds` all the same, for there are none over NFS.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from oplog.errors import FrostlineError
from tiering.config.settings import InboxConfig
from tiering.daemon.inbox.choice import is_column
from tiering.daemon.inbox.inbox import Inbox, Round, root_of
from tiering.daemon.inbox.table_inbox import Strange, TableInbox
from tiering.engine.store import Store

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers.api import BaseObserver

_TABLES_AT_ONCE = 4
_REST_SECONDS = 10.0
"""After the whole inbox failed: it is not there, or somebody else works on it."""

log = logging.getLogger("frostline.inbox")
_emitters_log = logging.getLogger("watchdog.observers.inotify")


class InboxWorker:
    """Works from `begin` to `end`. `ended` gives the caller what the rounds did."""

    def __init__(self, open_store: Callable[[threading.Event], Store], settings: InboxConfig) -> None:
        self._open_store, self._settings = open_store, settings
        self._stop, self._wake = threading.Event(), threading.Event()
        self._rounds: queue.SimpleQueue[Round] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="inbox", daemon=True)
        self._said: dict[str, list[str]] = {}
        """By table: what it leaves alone, as it was said."""
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
                    self._rounds_of(Inbox(store, self._settings, self._stop), store)
            except (FrostlineError, OSError) as error:
                self.trouble = (str(error),)
                self._stop.wait(_REST_SECONDS)
            except Exception as error:
                log.exception("the inbox waits")
                self.trouble = (f"{type(error).__name__}: {error}",)
                self._stop.wait(_REST_SECONDS)

    def _rounds_of(self, inbox: Inbox, store: Store) -> None:
        busy: dict[str, Future[Round]] = {}
        with inbox.alone(), _Stores(store, lambda: self._open_store(self._stop)) as stores:
            observer = self._observe(inbox)
            pool = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="inbox table")
            try:
                while not self._stop.is_set():
                    tables, strange = inbox.due(busy)
                    self._say("", strange)
                    for table in tables:
                        busy[table.name] = pool.submit(self._round_of, inbox, table, stores)
                    self._wake.wait(self._settings.poll_seconds)
                    self._wake.clear()
                    for name in [name for name, work in busy.items() if work.done()]:
                        self._tell(name, busy.pop(name).result())
                    self.trouble = tuple(inbox.waiting.values())
                    if not busy:
                        stores.close_spare()
            finally:
                pool.shutdown()
                if observer is not None:
                    end_observer(observer)
            for name, work in busy.items():
                self._tell(name, work.result())

    def _round_of(self, inbox: Inbox, table: TableInbox, stores: _Stores) -> Round:
        if self._stop.is_set():
            return Round()
        with stores.borrowed() as store:
            done = inbox.round_of(table, store)
        if done.files:  # there may be more
            self._wake.set()
        return done

    def _tell(self, table: str, done: Round) -> None:
        self._say(table, done.problems)
        for file in done.failed:
            log.warning("%s/%s failed: %s", file.table, file.file, file.error)
        if done.files:
            log.info("inbox: %d files, %d rows, %d failed", len(done.files), done.rows, len(done.failed))
        if done.files or done.problems:
            self._rounds.put(done)

    def _say(self, table: str, problems: list[Strange]) -> None:
        """Files left alone are logged once, not at every look; `trouble` has the rest for callers that ask."""
        left = [f"{item.table}/{item.file}: {item.what}" for item in problems if item.file]
        for problem in left:
            if problem not in self._said.get(table, ()):
                log.warning("left alone: %s", problem)
        self._said[table] = left

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


def end_observer(observer: BaseObserver) -> None:
    """No more events. A file that comes in that moment finds watchdog's thread ended, which it logs as an error."""

    def expected(record: logging.LogRecord) -> bool:
        return False

    _emitters_log.addFilter(expected)
    try:
        observer.stop()
        observer.join()
    finally:
        _emitters_log.removeFilter(expected)


class _Stores:
    """A store for each thread that needs one now. Thread-safe."""

    def __init__(self, first: Store, open_store: Callable[[], Store]) -> None:
        """`first` belongs to the caller."""
        self._free, self._open_store = [first], open_store
        self._spare = ExitStack()
        self._first = first
        self._lock = threading.Lock()

    @contextmanager
    def borrowed(self) -> Iterator[Store]:
        """One that nobody else has. Raises what opening another one raises."""
        with self._lock:
            store = self._free.pop() if self._free else self._spare.enter_context(self._open_store())
        try:
            yield store
        finally:
            with self._lock:
                self._free.append(store)

    def close_spare(self) -> None:
        """Close all but the first; the caller knows that none is in use."""
        with self._lock:
            self._spare.close()
            self._free = [self._first]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close_spare()


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
            if len(steps) >= 2 and all(map(is_column, steps[1:-1])):
                inbox.closed(steps[0], os.path.join(*steps[1:]))
                wake.set()

    return Handler()
