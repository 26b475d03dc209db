"""One session of an engine (DuckDB), for one query: what it declares is seen by this query alone, and not kept.

A statement is planned over empty tables first (`sql.planning`), which says which columns and rows of each table it
uses. Then views over the files that are left take the place of the empty tables. Local files the engine opens by
itself, after those columns were compared with what was written, and so what the read cache has whole of others; all
else, and local ones of which there is too much to look at before the first row, it reads through `sql.served_files`. A
column that the plan did not name is an error in the view, so that nothing that was not compared can get into an answer.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from disks.system_errors import files_to_open
from oplog.errors import Damaged, FrostlineError, Transient
from tiering.catalog.context import Context
from tiering.parquet.checked_file import HeldSections
from tiering.parquet.checked_local import unchecked_bytes
from tiering.parquet.sections import bytes_of_columns
from tiering.query.checked_parts import StoreReads, check_local_files, checked_file, local_read, read_cache
from tiering.query.selection import SelectedFile
from tiering.query.sql.cached_files import CachedFiles
from tiering.query.sql.cold_reads import ColdRead, cold_reads, fitting
from tiering.query.sql.column_types import engine_names, identifier, text
from tiering.query.sql.engine import Engine, take_engine
from tiering.query.sql.errors import engine_error, sql_error
from tiering.query.sql.fetched_files import FetchedFiles
from tiering.query.sql.file_places import FilePlace, by_version, file_names, file_places, leaves_read
from tiering.query.sql.plain_answers import AnswerColumns
from tiering.query.sql.plan import Access
from tiering.query.sql.plan_shapes import Summary
from tiering.query.sql.planning import EmptyTables, HeldColumn, declare, selected
from tiering.query.sql.read_ahead import LEAST_WINDOW_BYTES, WINDOW_BYTES, ScannedFiles
from tiering.query.sql.stated_rows import first_files, stated_rows
from tiering.table.names import alike
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa

    from tiering.query.sql.served_files import ServedFiles

BATCH_ROWS = 65_536
_AHEAD = 2
"""Batches that are made before they are asked for."""
_LOOK_SECONDS = 0.2
_LIMITED_BYTES = 32 * 1024 * 1024
"""More than this is not compared ahead for a statement that stops after some rows."""
_GLOB_CHARACTERS = frozenset("*?[]\\")
"""In a path they would stand for other files."""
_Table = tuple[TableDefinition, Sequence[SelectedFile], Access]


class SqlSession:
    """Not thread-safe, but for `share_done` and `bytes_read`."""

    def __init__(
        self, context: Context, closing: ExitStack, *, ordered: bool = True, allow_files: bool = False
    ) -> None:
        """`closing` ends the session. Rows that a statement does not sort come in no particular order unless `ordered`.
        What may read local files gets an engine of its own, which nobody has after it."""
        self._context = context
        self._engine = Engine() if allow_files else take_engine(context)
        self._is_shared = not allow_files
        self._files: Collection[str] = ()
        self._is_whole = False
        """The statement ended well, so that another query may have the engine."""
        closing.callback(self._end)
        self._cache = read_cache(context.config)
        if self._cache is not None:
            closing.callback(self._cache.close)
        self._kept = CachedFiles(self._engine.kept_directory)
        closing.callback(self._kept.close)
        self._fetched = FetchedFiles(self._engine.kept_directory)
        closing.callback(self._fetched.close)
        closing.callback(self._end_served)
        self._served: ServedFiles | None = None
        """What the engine does not open by itself; None where it opens all."""
        self._engine.begin(ordered=ordered)
        self._local: list[tuple[SelectedFile, list[int]]] = []
        self._local_bytes = 0
        self._known_places: dict[tuple[str, int], dict[int, FilePlace]] = {}
        self._stated: dict[str, tuple[str, dict[int, HeldColumn | None]]] = {}
        """By the names of tables, rows of files that are not read."""
        self.asked = StoreReads()
        self.will_ask = 0, 0
        """Requests and bytes at most, before the statement runs: of what is in the cache in part, too."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """In a transaction, so that it is the same moment for planning and for the statement."""
        return self._engine.connection

    @property
    def empty_tables(self) -> EmptyTables:
        """Over which the engine plans, while nothing is declared in the transaction."""
        return self._engine.empty_tables

    @property
    def bytes_read(self) -> int:
        """Of column data, as far as known now: of local files, the columns that may be read."""
        return (
            self._local_bytes + self._fetched.bytes_read + (self._served.bytes_read if self._served is not None else 0)
        )

    @property
    def share_done(self) -> float | None:
        """How much of the statement is computed, 0 to 1; None where the engine does not know. From any thread."""
        try:
            percent: float = self.connection.query_progress()
        except duckdb.Error:  # it has ended
            return None
        return percent / 100 if percent >= 0 else None

    def open(
        self,
        tables: Mapping[str, _Table],
        *,
        stops_early: bool,
        summary: Summary | None = None,
        rows_enough: int | None = None,
        runs: bool = True,
        local_files: Collection[str] = (),
        may_mean: Callable[[str], bool] = bool,  # any name
    ) -> None:
        """Give the tables these rows, for good: nothing else can be read from now on but these `local_files`. All that
        the engine will read of tables is there and is what was written, or will be compared as it is read; where the
        statement does not run, and is explained, nothing is fetched. Columns that are not read are left out where the
        statement does not mean any of their name. Raises `FileMissing`, `Damaged`, and `EngineOutgrown`: then the
        statement has to be planned by a new session."""
        with self.translated():
            if summary is not None:
                tables = {name: self._without_stated(name, table, summary) for name, table in tables.items()}
            first: dict[int, Collection[int]] = {}
            if rows_enough is not None:
                tables, first = _first(tables, rows_enough)
            files = [file for _, members, _ in tables.values() for file in members if _opens_itself(file)]
            self._files = local_files
            opened = sum(len(members) for _, members, _ in tables.values())
            # The engine keeps about half of them open at once.
            serve_local = opened > files_to_open() // 2 or not self._compare(tables, stops_early)
            if first or not (runs and stops_early):
                cold = self._cold(tables, first)
                self.will_ask = sum(read.requests for read in cold), sum(read.size_bytes for read in cold)
                if runs:
                    self._fetched.fetch(fitting(cold, self._fetched.room_bytes, files_to_open() // 4))
            if any(
                self._path(file, serve_local) is None
                for _, members, access in tables.values()
                for file in members
                if access.columns or file.local_path is not None
            ):
                from tiering.query.sql.served_files import ServedFiles  # with fsspec, which local files do not need

                self._served = ServedFiles()
            paths = {*(str(file.local_path) for file in files), *local_files}
            cache_directory = self._cache.directory if self._cache is not None else None
            self._engine.allow(self._context, paths, self._served, cache_directory)
            window_bytes = max(LEAST_WINDOW_BYTES, WINDOW_BYTES // max(1, len(tables)))
            scans = [ScannedFiles(definition, access, window_bytes) for definition, _, access in tables.values()]
            shown = [_shown(scan.definition, scan.access, may_mean) for scan in scans]
            views = [
                (scan.definition, name, self._rows(name, scan, tables[name][1], columns, serve_local), columns)
                for name, scan, columns in zip(tables, scans, shown, strict=True)
            ]
            if self._served is not None and runs:
                self._served.begin(scans, reads_ahead=not stops_early)
            for definition, name, rows, columns in views:
                declare(self.connection, definition, name, rows, columns)

    def batches(self, statement: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The answer, once. It is made by a thread of its own, so that a signal or the end of the iteration stop it."""
        from tiering.query.sql.answers import conformed

        for batch in self._answered(lambda: self.connection.sql(statement).to_arrow_reader(BATCH_ROWS)):
            yield conformed(batch, schema)

    def rows(self, statement: str, columns: AnswerColumns) -> Iterator[list[list[Any]]]:
        """As `batches`, of an answer of plain columns, whose rows are JSON values."""

        def fetched() -> Iterator[Any]:
            cursor = self.connection.execute(columns.asked(statement))
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield rows

        for rows in self._answered(fetched):
            yield columns.rows_of(rows)

    def _answered(self, pieces: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        made: queue.Queue[Any] = queue.Queue(_AHEAD)
        given_up = threading.Event()
        maker = threading.Thread(target=self._make, args=(pieces, made, given_up), name="query", daemon=True)
        maker.start()
        try:
            while True:
                try:
                    item = made.get(timeout=_LOOK_SECONDS)
                except queue.Empty:  # a signal that came just before the wait began does not end it
                    continue
                if item is None:
                    maker.join()
                    self._is_whole = True
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            given_up.set()
            while maker.is_alive():
                self.connection.interrupt()
                _drain(made)
                maker.join(_LOOK_SECONDS / 10)

    def explained(self, statement: str) -> list[tuple[str, str]]:
        """The engine's plan."""
        with self.translated():
            lines: list[tuple[str, str]] = self.connection.execute(f"EXPLAIN {statement}").fetchall()
        self._is_whole = True
        return lines

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the engine's errors inside as `FrostlineError`s."""
        try:
            yield
        except FrostlineError:
            raise
        except Exception as error:
            if not isinstance(error, (duckdb.Error, RuntimeError, OSError)) and not _is_of_arrow(error):
                raise
            raise self._error_of(error) from None

    def _end_served(self) -> None:
        if self._served is not None:
            self._served.close()

    def _end(self) -> None:
        if (self._is_whole or self._engine.is_left) and self._is_shared:
            self._engine.give_back(self._context)
        else:
            self._engine.close()

    def _make(self, pieces: Callable[[], Iterable[Any]], made: queue.Queue[Any], given_up: threading.Event) -> None:
        def put(piece: Any) -> None:
            while not given_up.is_set():
                try:
                    made.put(piece, timeout=_LOOK_SECONDS)
                    return
                except queue.Full:
                    continue

        try:
            with self.translated():
                for piece in pieces():
                    if given_up.is_set():
                        return
                    put(piece)
            put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            put(error)

    def _error_of(self, error: Exception) -> Exception:
        if self._served is not None and self._served.failure is not None:
            return self._served.failure
        if not isinstance(error, (duckdb.BinderException, duckdb.ConversionException, duckdb.OutOfRangeException)):
            # Was what the engine stumbled over as it was written? It was, before it began.
            try:
                check_local_files([local_read(file, None) for file, _ in self._local])
            except Damaged as damage:
                return damage
            except OSError:  # what refuses to open them now refused the engine, too
                return engine_error(error)
            if not self._kept.are_whole():
                return Transient(
                    "the read cache lost bytes while they were read", hint="run it again: they are fetched then"
                )
        return sql_error(error) if self._files else engine_error(error)

    # ---- tables

    def _compare(self, tables: Mapping[str, _Table], stops_early: bool) -> bool:
        """Compare what will be read of local files, and of what the cache has of others. False when there is more of
        local ones than should be read ahead."""
        self._local = []
        cached: list[tuple[SelectedFile, list[int]]] = []
        for definition, files, access in tables.values():
            for version, members in by_version(files).items():
                local = [file for file in members if _opens_itself(file)]
                remote = [file for file in members if file.local_path is None] if access.columns else []
                if local or (remote and self._cache is not None):
                    places = self._places(definition, version, (local or remote)[0])
                    wanted = leaves_read(definition, access, places)
                    self._local += [(file, wanted) for file in local]
                    cached += [(file, wanted) for file in remote]
        reads = [local_read(file, wanted) for file, wanted in self._local]
        left_bytes = (_LIMITED_BYTES if stops_early else _quarter_of_memory()) - unchecked_bytes(reads)
        if left_bytes < 0:
            self._local = []
            return False
        check_local_files(reads)
        if self._cache is not None and cached:
            self._kept.hold(self._cache, cached, left_bytes)
        self._local_bytes += sum(bytes_of_columns(file.file, wanted) for file, wanted in self._local)
        self._local_bytes += sum(self._kept.bytes_of(file) for file, _ in cached)
        return True

    def _without_stated(self, name: str, table: _Table, summary: Summary) -> _Table:
        """Without the files of which `part.json` says all that is wanted."""
        definition, files, access = table
        left, stated = stated_rows(files, definition, access, summary)
        if stated is not None:
            self._stated[name] = stated.source(definition, counts=summary.counts)
        return definition, left, access

    def _cold(self, tables: Mapping[str, _Table], first: Mapping[int, Collection[int]]) -> list[ColdRead]:
        """What the statement reads of files in buckets that the engine does not have from the cache."""
        reads: list[ColdRead] = []
        for definition, files, access in tables.values():
            remote = [file for file in files if not _opens_itself(file) and self._kept.path(file) is None]
            for version, members in by_version(remote if access.columns else ()).items():
                places = self._places(definition, version, members[0])
                opened = partial(checked_file, self._context, held=HeldSections(0), cache=self._cache)
                reads += cold_reads(members, partial(opened, counted=self.asked), definition, access, places, first)
        return reads

    def _places(self, definition: TableDefinition, version: int, file: SelectedFile) -> dict[int, FilePlace]:
        if (key := (definition.full_name, version)) not in self._known_places:
            self._known_places[key] = file_places(
                self._context, definition, version, file, cache=self._cache, counted=self.asked
            )
        return self._known_places[key]

    def _rows(
        self, name: str, scan: ScannedFiles, files: Sequence[SelectedFile], shown: Sequence[int], serve_local: bool
    ) -> str:
        """The rows of the files with the table's columns that are `shown`, in its order and types."""
        definition = scan.definition
        reads = list(self._reads(scan, files, serve_local))
        compared = scan.access.columns
        if compared:
            found: list[tuple[str, Mapping[int, HeldColumn | None]]] = [*reads]
            found += [self._stated[name]] if name in self._stated else []
            pieces = [selected(definition, source, sources, compared, shown) for source, sources in found]
            return _united(pieces, len(shown)) if pieces else selected(definition, "range(0)", {}, compared, shown)
        # Of a union the engine always reads a column, and none of these was compared: it is a union of bare rows.
        bare = " UNION ALL ".join(f"SELECT 1 FROM {source}" for source, _ in reads)
        return selected(definition, f"({bare})", None, compared, shown)

    def _reads(
        self, scan: ScannedFiles, files: Sequence[SelectedFile], serve_local: bool
    ) -> Iterator[tuple[str, dict[int, HeldColumn]]]:
        """Where the engine finds the rows, and what a column id is there."""
        if not scan.access.columns:  # how many rows an object has, part.json says: nobody asks the bucket
            yield f"range({sum(file.file.rows for file in files if file.local_path is None)})", {}
            files = [file for file in files if file.local_path is not None]
        for version, members in by_version(files).items():
            places = self._places(scan.definition, version, members[0])
            names = file_names(scan.definition, places)
            urls = [self._url(scan, file, places, serve_local) for file in members]
            # Where names are the same but for their case, the engine could take one column of a file for another.
            are_alike = alike(column.name for column in scan.definition.columns) is not None
            for group in [[url] for url in urls] if are_alike else [urls]:
                yield (
                    f"read_parquet([{', '.join(map(text, group))}], can_have_nan = true, hive_partitioning = false, "
                    f"union_by_name = false) AS f({', '.join(map(identifier, names))})",
                    {number: HeldColumn(names[place.column], place.held) for number, place in places.items()},
                )

    def _url(self, scan: ScannedFiles, file: SelectedFile, places: Mapping[int, FilePlace], serve_local: bool) -> str:
        if (path := self._path(file, serve_local)) is not None:
            return str(path)
        served = checked_file(self._context, file, scan.held, cache=self._cache, counted=self.asked)
        scan.add(served, places)
        assert self._served is not None
        return self._served.add(served)

    def _path(self, file: SelectedFile, serve_local: bool) -> Path | None:
        """Where the engine opens the file by itself; None where it is served."""
        if _opens_itself(file):
            return None if serve_local else file.local_path
        return self._kept.path(file) or self._fetched.path(file)


def _shown(definition: TableDefinition, access: Access, may_mean: Callable[[str], bool]) -> list[int]:
    """The places of the columns that the statement has to find; to declare one takes as long as to read a thousand
    rows. At least one, for there is no table without."""
    names = engine_names(definition)
    shown = [
        place
        for place, column in enumerate(definition.columns)
        if place in access.columns or may_mean(names[column.name])
    ]
    return shown or [0]


def _united(pieces: Sequence[str], columns: int) -> str:
    """The rows of all pieces. Where it needs none of its columns any more, as `count(*)` above a filter, the engine
    reads the first one of a union, which may be none that was compared: so that is a constant."""
    if len(pieces) == 1:
        return pieces[0]
    names = ", ".join(f"c{place}" for place in range(columns))
    union = " UNION ALL ".join(f"SELECT 0, * FROM ({piece})" for piece in pieces)
    return f"SELECT {names} FROM ({union}) AS united(bare, {names})"


def _first(tables: Mapping[str, _Table], rows_enough: int) -> tuple[Mapping[str, _Table], dict[int, Collection[int]]]:
    """Of the only table as few files, and by their ids row groups, as have rows enough, where that is known."""
    ((name, (definition, files, access)),) = tables.items()
    found = first_files(files, definition, access, rows_enough) if access.columns else None
    return ({name: (definition, found[0], access)}, found[1]) if found is not None else (tables, {})


def _opens_itself(file: SelectedFile) -> bool:
    """Whether the engine opens the file by its path."""
    return file.local_path is not None and not _GLOB_CHARACTERS & set(str(file.local_path))


def _is_of_arrow(error: Exception) -> bool:
    """None is raised before Arrow was imported."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(error, arrow.ArrowException)


def _quarter_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def _drain(made: queue.Queue[Any]) -> None:
    while True:
        try:
            made.get_nowait()
        except queue.Empty:
            return
