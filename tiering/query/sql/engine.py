"""Engines (DuckDB, in memory) that queries run on: one query at a time, kept for the next ones of the store.

An engine takes 15 ms to make and as long to learn the footers of many files again. So one whose query ended well is
given to the next. Nothing of a query is left in it but the empty tables over which it was planned: all else that a
query declares is in a transaction, which is rolled back. Before the first query sees a row, the engine is locked for
good: it opens no file but those that it was allowed then, which are files of this store's queries and of its read
cache, and takes no other setting but those by which statements are planned. A query that needs more files than that
gets another engine, and is planned again, for the moment of the transaction. So does one that needs no served files
where the engine has threads that wait for requests: computing with more than there are processors takes longer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from disks.host.locks import OwnedDirectory
from disks.host.scratch import task_scratch
from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.query.sql.column_types import text
from tiering.query.sql.planning import EmptyTables, connect

SERVED_SCHEME = "part"
SERVED_PREFIX = f"{SERVED_SCHEME}://"
"""Of the names of files that are served to the engine, which opens all others by itself."""
_PLANNING_SETTINGS = ("disabled_optimizers", "preserve_insertion_order")
_IDLE = 2
"""So many are kept: more were made for queries at a time."""
_QUERIES = 100
"""After so many an engine ends: it keeps footers, also of files that are gone."""
_ALLOWED_PATHS = 5_000
"""So many that one engine after the other is allowed more: each takes 26 microseconds."""
_lock = threading.Lock()
_ahead: list[_Ahead] = []
"""Engines that are being made, which no query has."""
_idle: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Engines of all stores that no query uses."""


class EngineOutgrown(Exception):
    """The engine cannot be allowed the files of the query any more: another one is there. Run the query once more."""


class Engine:
    """One engine, of one query at a time."""

    def __init__(self, allowed: frozenset[str] = frozenset()) -> None:
        """`allowed`: the files that it will be allowed beside those of its first query."""
        self._allowed = allowed
        self._is_locked = False
        self._queries = 0
        self._is_ordered = True  # as it begins
        self._threads = os.cpu_count() or 1
        self._may_serve = self._is_served = False
        self.is_left = False
        """The query had to take another one, and later ones may have it."""
        self.empty_tables = EmptyTables()
        own = task_scratch("frostline-query")
        self._remove_scratch = weakref.finalize(self, _remove, own, os.getpid())
        self.kept_directory = own.path / "kept"
        self.kept_directory.mkdir()
        scratch = str(own.path)
        memory_bytes = max(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
        self.connection: duckdb.DuckDBPyConnection = connect(
            {
                "threads": self._threads,
                "memory_limit": f"{memory_bytes // (1 << 20)}MiB",
                "temp_directory": scratch,
                "extension_directory": scratch,
                "secret_directory": scratch,
                "home_directory": scratch,
            }
        )

    def begin(self, *, ordered: bool) -> None:
        """Begin a query. Rows that a statement does not sort come in no particular order unless `ordered`."""
        self._queries += 1
        if ordered != self._is_ordered:
            self.connection.execute(f"SET preserve_insertion_order = {str(ordered).lower()}")
            self._is_ordered = ordered
        self.connection.execute("BEGIN")

    def allow(
        self, context: Context, paths: Collection[str], served: Any = None, cache_directory: Path | None = None
    ) -> None:
        """From now on nothing can be read but these local files, those of the store's cache, to which links in
        `kept_directory` lead, and those that are served, by a file system of fsspec where there are any, nor can
        anything be set that changes this. Raises `EngineOutgrown`."""
        threads = max(os.cpu_count() or 1, context.workers if served is not None else 1)
        if not self._fits(paths, threads, serves=served is not None):
            self.is_left = self._allowed.issuperset(paths)
            allowed = self._allowed if len(self._allowed) + len(paths) <= _ALLOWED_PATHS else frozenset()
            _put_next(context, allowed, lambda engine: engine._fits(paths, threads, serves=served is not None))
            raise EngineOutgrown
        self._serve(served)
        if self._is_locked:
            return
        self._allowed = self._allowed.union(paths)
        execute = self.connection.execute
        execute(f"SET allowed_paths = [{', '.join(map(text, self._allowed))}]")
        directories = [f"{self.kept_directory}/"]
        if cache_directory is not None:  # the engine looks at the link, and at where it leads
            directories.append(f"{cache_directory.resolve()}/")
        if served is not None:  # the engine takes this for a directory of its own unless it knows the file system
            directories.append(SERVED_PREFIX)
            self._may_serve = True
        execute(f"SET allowed_directories = [{', '.join(map(text, directories))}]")
        if threads != self._threads:  # more than compute wait for requests
            execute(f"SET threads = {threads}")
            self._threads = threads
        execute("SET enable_external_access = false")
        execute(f"SET allowed_configs = [{', '.join(map(text, _PLANNING_SETTINGS))}]")
        execute("SET lock_configuration = true")
        self._is_locked = True

    def _fits(self, paths: Collection[str], threads: int, *, serves: bool) -> bool:
        """Whether a query of these local files can have it, as far as it is locked."""
        if not self._is_locked:
            return True
        return self._allowed.issuperset(paths) and self._threads == threads and (self._may_serve or not serves)

    def _serve(self, served: Any) -> None:
        if served is not None:
            self.connection.register_filesystem(served)
            self._is_served = True

    def give_back(self, context: Context) -> None:
        """Keep it for the next query: this one ended well, or has another engine, and nothing of it is left."""
        try:
            self.connection.execute("ROLLBACK")
            if self._is_served:
                self.connection.unregister_filesystem(SERVED_SCHEME)
                self._is_served = False
        except duckdb.Error:
            self.close()
            return
        if self._queries < _QUERIES and self._is_locked and len(context.idle_engines) < _IDLE:
            _keep(context, self, is_next=not self.is_left)
            self.is_left = False
        else:
            self.close()

    def close(self) -> None:
        """End it, with what it left on the disk."""
        self.connection.close()
        self._remove_scratch()


@contextmanager
def engine_ahead() -> Iterator[None]:
    """Make an engine, in a thread of its own, for the first query inside: what is done before it needs none of what
    that takes."""
    ahead = _Ahead()
    with _lock:
        _ahead.append(ahead)
    try:
        yield
    finally:
        _end_ahead(ahead)


class _Ahead(threading.Thread):
    """An engine that is being made."""

    def __init__(self) -> None:
        super().__init__(name="engine", daemon=True)
        self._engine: Engine | None = None
        self.start()

    def run(self) -> None:
        with suppress(duckdb.Error, OSError):  # the query that needs one makes it, and reports what is wrong
            self._engine = Engine()

    def take(self) -> Engine | None:
        """It, once."""
        self.join()
        engine, self._engine = self._engine, None
        return engine


def take_engine(context: Context) -> Engine:
    """An engine that no query uses."""
    with _lock:
        ahead = _ahead.pop() if _ahead else None
    if ahead is not None and (made := ahead.take()) is not None:
        return made
    with _lock:
        while context.idle_engines:
            engine = context.idle_engines.pop()
            if isinstance(engine, Engine) and engine in _idle:
                _idle.remove(engine)
                return engine
    return Engine()


def _keep(context: Context, engine: Engine, *, is_next: bool = True) -> None:
    with _lock:
        context.idle_engines.insert(len(context.idle_engines) if is_next else 0, engine)
        _idle.add(engine)


def _put_next(context: Context, allowed: frozenset[str], fits: Callable[[Engine], bool]) -> None:
    """Give the next query an engine that fits: an idle one, or a new one, which may read the `allowed` files and those
    of its first query."""
    with _lock:
        fitting = next((engine for engine in context.idle_engines if isinstance(engine, Engine) and fits(engine)), None)
        if fitting is not None:
            context.idle_engines.remove(fitting)
            context.idle_engines.append(fitting)
    if fitting is None:
        _keep(context, Engine(allowed))


def _remove(scratch: OwnedDirectory, pid: int) -> None:
    if os.getpid() == pid:  # and not a process that was forked from the one that made it
        with suppress(FrostlineError, OSError):
            scratch.remove()


def _end_ahead(ahead: _Ahead) -> None:
    """End it, if no query has it."""
    with _lock:
        if ahead in _ahead:
            _ahead.remove(ahead)
    if (engine := ahead.take()) is not None:
        engine.close()


def _end_before_a_fork() -> None:
    """An engine has threads, which are not in the new process: it would crash where the engine ends there."""
    while _ahead:
        _end_ahead(_ahead[0])
    _lock.acquire()
    for engine in list(_idle):
        engine.close()
    _idle.clear()


os.register_at_fork(before=_end_before_a_fork, after_in_parent=_lock.release, after_in_child=_lock.release)
