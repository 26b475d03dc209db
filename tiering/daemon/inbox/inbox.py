"""The inbox of a store: looks, takes what is whole, brings it in; again and again, or once.

One at a time works on an inbox, on all machines that see its directory: a lock in `<inbox>/.lock`.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disks.host.locks import hold_lock
from oplog.errors import FrostlineError, UsageError, in_a_line
from tiering.catalog.freshness import Freshness
from tiering.config.settings import InboxConfig
from tiering.daemon.inbox import choice, records, table_inbox
from tiering.daemon.inbox.choice import Sight
from tiering.daemon.inbox.ingest import Ended, TableIngest
from tiering.daemon.inbox.reading import InboxStops
from tiering.daemon.inbox.table_inbox import Strange, TableInbox
from tiering.engine.store import Store

_LONGEST_REST_SECONDS = 60.0


class Round(msgspec.Struct):
    """What one look at the whole inbox did."""

    files: list[Ended] = msgspec.field(default_factory=list)
    rows: int = 0
    parts: list[str] = msgspec.field(default_factory=list)
    problems: list[Strange] = msgspec.field(default_factory=list)
    """What was left alone, and tables that could not be worked on."""

    @property
    def failed(self) -> list[Ended]:
        """The files that were put into `failed/`."""
        return [file for file in self.files if file.state == "failed"]


class Inbox:
    """The inbox. `clock` counts seconds, and never goes back. Several threads may work on it, one on a table."""

    def __init__(
        self,
        store: Store,
        settings: InboxConfig,
        stop: threading.Event | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `UsageError` where no inbox is configured."""
        self._store, self._settings, self._clock = store, settings, clock
        self._root = root_of(settings)
        self._stop = stop or threading.Event()
        self._sights: dict[str, dict[str, Sight]] = {}
        self._looking = threading.Lock()
        """Held by who changes what was seen."""
        self._begun: set[str] = set()
        """Tables that were looked at after the start: what a crash left of theirs is settled."""
        self._failures: dict[str, tuple[int, float]] = {}
        """By table: how often in a row its work failed, and until when it rests."""
        self.waiting: dict[str, str] = {}
        """Why tables could not be worked on at the last try, by name: they are tried again."""
        self._closed: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the inbox's lock. Raises `Locked`."""
        table_inbox.tables_of(self._root)
        lock = self._root / ".lock"
        with hold_lock(
            lock, resource=f"the inbox {self._root}", hint="a daemon, or 'frostline inbox run', works on it"
        ):
            yield

    def once(self, *, wait: Callable[[float], object] | None = None) -> Round:
        """Two looks, `stable_seconds` apart, and everything in that is whole by then. The lock is held."""
        self.look()
        (wait or self._stop.wait)(self._settings.stable_seconds)
        done = Round()
        while not self._stop.is_set():
            following = self.round(at_once=True)
            done.files += following.files
            done.rows += following.rows
            done.parts += following.parts
            done.problems = following.problems
            if not following.files:
                break
        return done

    def look(self) -> None:
        """See what is there, and take nothing."""
        for table in table_inbox.tables_of(self._root)[0]:
            self._see(table)

    def round(self, *, at_once: bool = False) -> Round:
        """One look at every table, and in with what is to be taken. A table that fails does not keep the others."""
        tables, strange = table_inbox.tables_of(self._root)
        done = Round(problems=list(strange))
        for table in tables:
            if self._stop.is_set():
                break
            if at_once or not self._rests(table.name):
                self._work_on(table, self._store, done, at_once=at_once)
        return done

    def round_of(self, table: TableInbox, store: Store) -> Round:
        """The same of one table, by a store that nobody else uses now."""
        done = Round()
        self._work_on(table, store, done, at_once=False)
        return done

    def _work_on(self, table: TableInbox, store: Store, done: Round, *, at_once: bool) -> None:
        try:
            self._table(table, store, done, at_once=at_once)
            self._failures.pop(table.name, None)
            self.waiting.pop(table.name, None)
        except InboxStops:
            pass
        except (FrostlineError, OSError) as error:
            problem = in_a_line(error)
            done.problems.append(Strange(records.shown(table.name), "", problem))
            self.waiting[table.name] = f"{records.shown(table.name)}: {problem}"
            times = self._failures.get(table.name, (0, 0.0))[0]
            rest = min(_LONGEST_REST_SECONDS, self._settings.poll_seconds * 2 ** min(times, 16))
            self._failures[table.name] = (times + 1, self._clock() + rest)

    def _rests(self, table: str) -> bool:
        return table in self._failures and self._clock() < self._failures[table][1]

    def _take_notice(self) -> None:
        """Of files that were closed: they need no second look, if they still are as the first one sees them."""
        while not self._closed.empty():
            table, name = self._closed.get()
            for file in TableInbox(self._root, table).listing()[0]:
                if file.name == name:
                    whole_since = self._clock() - self._settings.stable_seconds
                    with self._looking:
                        self._sights.setdefault(table, {})[name] = Sight(file.key, whole_since)

    def closed(self, table: str, name: str) -> None:
        """The writer of this file has closed it, or given it its name: its content is whole. From any thread."""
        self._closed.put((table, name))

    def is_idle(self) -> bool:
        """Whether a round would do nothing: no file is to be taken, and nothing is left of a crash. Opens no table."""
        return not self.due()[0]

    def due(self, busy: Container[str] = ()) -> tuple[list[TableInbox], list[Strange]]:
        """The tables of which a round would do something, but for those that somebody works on; and what is none.
        Opens no table."""
        self._take_notice()
        found = []
        tables, strange = table_inbox.tables_of(self._root)
        for table in tables:
            if table.name in busy or self._rests(table.name):
                continue
            files, now = self._see(table), self._clock()
            if table.name not in self._begun or choice.choose(files, self._sights[table.name], now, self._settings):
                found.append(table)
        return found, strange

    def _table(self, table: TableInbox, store: Store, done: Round, *, at_once: bool) -> None:
        found = self._see(table)
        done.problems += table.listing()[1]
        chosen = choice.choose(found, self._sights[table.name], self._clock(), self._settings, at_once=at_once)
        if not chosen and table.name in self._begun:
            return
        store.refresh(Freshness.CHANGES)
        ingest = TableIngest(store, table, self._stop)
        try:
            ingest.finish()
            if chosen:
                table.take(chosen)
                ingest.ingest()
            self._begun.add(table.name)
        except BaseException:
            self._begun.discard(table.name)
            raise
        finally:
            done.files += ingest.done.files
            done.rows += ingest.done.rows
            done.parts += ingest.done.parts

    def _see(self, table: TableInbox) -> list[choice.Found]:
        with self._looking:
            found = table.listing()[0]
            self._sights[table.name] = choice.look(self._sights.get(table.name, {}), found, self._clock())
        return found


def root_of(settings: InboxConfig) -> Path:
    """Where the inbox lies. Raises `UsageError` where none is configured."""
    if settings.path is None:
        raise UsageError("no inbox is configured", hint="set inbox.path, or FROSTLINE_INBOX__PATH")
    return Path(os.path.expanduser(settings.path))
