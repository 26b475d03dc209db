"""One table's files into the table, each once, whatever stops it.

take (rename into `.taken`) -> read each whole -> write the batch down -> **insert** -> write down that it is in -> the
journal: these bytes are known -> reports, then files, into `done/` -> forget the batch. A batch that is written down
and not known to be in is inserted again: the insert skips the blocks that are. Where it could not (the table was
altered since), nothing is inserted, and its files go to `failed/` with the reason: no row twice, and no file lost.

A file can also kill the process, so that no reason is left. So an attempt is written down before the files are read,
and removed when it ends. Where two processes in a row were killed, the files go in one at a time, and one at which a
third is killed goes to `failed/`.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version

import msgspec
import pyarrow as pa

from oplog.errors import Damaged, FrostlineError, NoSpace, NotFound, UsageError
from tiering.daemon.inbox import reading, records
from tiering.daemon.inbox.choice import Found
from tiering.daemon.inbox.reading import FileChanged, Readable
from tiering.daemon.inbox.records import Attempt, Batch, BatchFile, report
from tiering.daemon.inbox.table_inbox import DONE, FAILED, SettledFile, TableInbox
from tiering.engine.store import Store
from tiering.insert.insert import InsertResult
from tiering.table.schema import TableDefinition

_KILLS_TOGETHER = 2
"""After so many the files of an attempt go in one at a time."""

log = logging.getLogger("frostline.inbox")


class Ended(msgspec.Struct, frozen=True):
    """What became of one file: `done`, `duplicate` or `failed`."""

    table: str
    file: str
    state: str
    rows: int = 0
    error: str = ""


class IngestResult(msgspec.Struct):
    """What one run did."""

    files: list[Ended] = msgspec.field(default_factory=list)
    rows: int = 0
    parts: list[str] = msgspec.field(default_factory=list)
    unfinished: list[str] = msgspec.field(default_factory=list)
    """Files that were still written to: they wait again."""


class TableIngest:
    """The files of one table. The caller holds the inbox's lock."""

    def __init__(self, store: Store, inbox: TableInbox, stop: threading.Event | None = None) -> None:
        """Raises `NotFound` when there is no table of this name."""
        self._store, self._inbox = store, inbox
        self._definition: TableDefinition = store.definition(inbox.name)
        self._stop = stop or threading.Event()
        self._deferred = False
        """Whether files wait for another one with their bytes: to be its duplicates, if it goes in."""
        self._stuck: FrostlineError | OSError | None = None
        """Why a file that brings no rows could not be put aside. It stays taken."""
        self._kills = 0
        """How many processes in a row were killed at what is taken."""
        self.done = IngestResult()

    def finish(self) -> None:
        """Bring what a crash left to its end: the batch that was going in, and files that were taken."""
        killed = self._inbox.killed()
        batch = self._inbox.batch()
        if killed is not None:
            self._kills = killed.kills
        with self._attempt(batch.files[0].name if batch is not None and len(batch.files) == 1 else None):
            if killed is not None and batch is not None and batch.state == "begun" and self._kills > _KILLS_TOGETHER:
                self._give_up(batch, f"{self._kills} processes in a row were killed at it")
            elif batch is not None:
                self._go_on(batch)
            if killed is not None and killed.name is not None and self._kills > _KILLS_TOGETHER:
                self._fail_the_killer(killed.name)
        self.ingest()

    @contextmanager
    def _attempt(self, name: str | None = None) -> Iterator[None]:
        """While it lasts, a process that ends was killed at what is taken, or at the one file. Nothing where nothing is
        taken."""
        if not self._inbox.taken():
            yield
            self._inbox.forget_attempt()
            return
        name_hex = None if name is None else records.name_hex(name)
        self._inbox.write_attempt(Attempt(kills=self._kills, name_hex=name_hex))
        try:
            yield
        except BaseException:
            with suppress(FrostlineError, OSError):
                self._inbox.forget_attempt()
            raise
        self._inbox.forget_attempt()

    def _fail_the_killer(self, name: str) -> None:
        """The process was killed while it worked on this file alone."""
        file = next((file for file in self._inbox.taken() if file.name == name), None)
        if file is not None:
            why = f"{self._kills} processes in a row were killed at it, the last one when it was read alone"
            hint = (
                "it may need more memory than there is: check the system log, split the file or write it"
                " again; 'frostline inbox retry' tries it unchanged"
            )
            self._put_aside(name, FAILED, "failed", sha256=self._digest(file), error=why, hint=hint)

    def ingest(self) -> None:
        """Put everything that is taken into the table. Raises what an insert raises, and `InboxStops`; what is taken
        then stays so, and the next run goes on."""
        if not self._definition.settings.deduplication_window and self._inbox.taken():
            raise UsageError(
                f"table {self._definition.full_name} has deduplication_window 0: after a crash it would be unknown"
                " whether a file is in",
                hint="insert its files yourself, or create the table with a deduplication_window",
            )
        self._deferred = True
        while self._deferred and not self._stop.is_set():
            self._deferred = False
            files = self._inbox.taken()
            for some in [[file] for file in files] if self._kills >= _KILLS_TOGETHER else [files]:
                with self._attempt(some[0].name if len(some) == 1 else None):
                    for group in self._groups(self._readable(some)):
                        self._insert(group)
                        if self._stop.is_set():
                            return
        if self._stuck is not None:
            raise self._stuck

    # Reading

    def _readable(self, files: Sequence[Found]) -> Iterator[Readable]:
        """Which of the taken files can be read, one after the other. The rest is put aside, or back."""
        hashed: list[tuple[Found, str]] = []
        for file in files:
            try:
                hashed.append((file, self._digest(file)))
            except FileChanged as error:
                self._wait(file, error)
        known = self._store.context.journal.ingested.names_of(self._definition.uuid, [digest for _, digest in hashed])
        now: set[str] = set()
        for file, digest in hashed:
            if digest in now:
                self._deferred = True
                continue
            now.add(digest)
            if digest in known:
                self._put_aside(file.name, DONE, "duplicate", sha256=digest, of=known[digest], rows=0, parts=[])
                continue
            if not records.is_text(file.name):
                why, hint = "its name is not UTF-8 text", "rename it, and let it land again"
                self._put_aside(file.name, FAILED, "failed", sha256=digest, error=why, hint=hint)
                continue
            try:
                readable = self._read(file, digest)
            except FileChanged as changed:
                self._wait(file, changed)
            except NoSpace:  # in the temporary directory, which says nothing of the file
                raise
            except FrostlineError as wrong:
                self._fail(file.name, digest, wrong)
            else:
                yield readable

    def _groups(self, files: Iterable[Readable]) -> Iterator[list[Readable]]:
        """Files that go in together: never more than one block holds, so that they are in all or none; a file with more
        goes alone."""
        group: list[Readable] = []
        for file in files:
            rows = sum(one.rows for one in group) + file.rows
            size_bytes = sum(one.kept_bytes for one in group) + file.kept_bytes
            full = rows > self._definition.settings.insert_block_rows or size_bytes > reading.KEPT_BYTES
            if group and (full or file.batches is None):
                yield group
                group = []
            group.append(file)
            if file.batches is None:
                yield group
                group = []
        if group:
            yield group

    # Inserting

    def _insert(self, group: list[Readable]) -> None:
        batch = Batch(
            id=uuid.uuid4().hex,
            table_uuid=self._definition.uuid,
            schema_version=self._definition.schema_version,
            settings=records.what_decides(self._definition),
            made_by=made_by(),
            begun=self._store.context.clock(),
            files=tuple(
                BatchFile(
                    name_hex=records.name_hex(one.file.name),
                    sha256=one.sha256,
                    size_bytes=one.file.size_bytes,
                    rows=one.rows,
                )
                for one in group
            ),
        )
        self._inbox.write_batch(records.batch_document.encode(batch))
        try:
            self._put_in(batch, group)
        except (UsageError, Damaged) as error:
            self._refused(group, error)

    def _refused(self, group: list[Readable], error: FrostlineError) -> None:
        """The table does not take the batch. One block is in or not, so nothing is: each file is tried alone."""
        self._inbox.forget_batch()
        if len(group) > 1:
            for one in group:
                self._insert([one])
            return
        self._fail(group[0].file.name, group[0].sha256, error)

    def _put_in(self, batch: Batch, group: list[Readable]) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            for one in group:
                yield from one.rows_of(self._definition, self._stop)

        result = self._store.table(self._definition.full_name).insert(rows())
        self._is_in(batch, result)

    def _is_in(self, batch: Batch, result: InsertResult) -> None:
        settled = msgspec.structs.replace(batch, state="in", parts=result.parts, again=result.duplicate_rows)
        self._inbox.write_batch(records.batch_document.encode(settled))
        self.done.rows += result.rows
        self.done.parts += result.parts
        self._settle(settled)

    def _settle(self, batch: Batch) -> None:
        """The rows are in: say so, and put the files aside."""
        names = {file.sha256: records.shown(file.name) for file in batch.files}
        self._store.context.journal.ingested.note(self._definition.uuid, names)
        ends = []
        for file in batch.files:
            facts = {
                "rows": file.rows,
                "bytes": file.size_bytes,
                "sha256": file.sha256,
                "parts": list(batch.parts),
                "batch": {"id": batch.id, "files": len(batch.files), "rows_in_before": batch.again},
            }
            ends.append(SettledFile(file.name, DONE, self._report("done", file.name, **facts)))
        self._inbox.settle(ends)
        self._inbox.forget_batch()
        for file in batch.files:
            self._note(file.name, "done", rows=file.rows)

    # After a crash

    def _go_on(self, batch: Batch) -> None:
        if batch.state == "in":
            self._settle(batch)
            return
        why = records.why_not_again(batch, self._definition, made_by())
        files: list[Readable] = []
        taken = {file.name: file for file in self._inbox.taken()}
        for expected in batch.files if not why else ():
            try:
                files.append(self._as_it_was(expected, taken))
            except (FrostlineError, FileChanged) as error:
                why = f"{records.shown(expected.name)}: {error}"
                break
        if not why:
            self._put_in(batch, files)
            return
        self._give_up(batch, why)

    def _give_up(self, batch: Batch, why: str) -> None:
        """Put the files of a batch aside of which nobody can tell whether it is in."""
        taken = {file.name for file in self._inbox.taken()}
        for expected in batch.files:
            if expected.name in taken:
                self._end(
                    expected.name,
                    FAILED,
                    "failed",
                    sha256=expected.sha256,
                    error=f"the process ended while the file went in, and it is unknown whether it is in: {why}",
                    hint="check with a query whether its rows are in the table; 'frostline inbox "
                    "retry' inserts them, or remove the file",
                )
        self._inbox.forget_batch()

    def _as_it_was(self, expected: BatchFile, taken: dict[str, Found]) -> Readable:
        """The file of a batch, when it still has the bytes that it had."""
        file = taken.get(expected.name)
        if file is None:
            raise NotFound("it is gone")
        if self._digest(file) != expected.sha256:
            raise Damaged("its bytes are others now")
        return self._read(file, expected.sha256)

    def _read(self, file: Found, sha256: str) -> Readable:
        path, limits = self._inbox.taken_path / file.name, self._store.context.config.limits
        return reading.read(path, file, sha256, self._definition, self._stop, limits)

    def _digest(self, file: Found) -> str:
        return reading.digest_of(self._inbox.taken_path / file.name, file.name, self._definition, self._stop)

    # Ends

    def _wait(self, file: Found, error: FileChanged) -> None:
        log.info("%s: %s is not whole: %s", self._inbox.name, records.shown(file.name), error)
        self.done.unfinished.append(records.shown(file.name))
        self._inbox.put_back(file.name)

    def _fail(self, name: str, digest: str, error: FrostlineError) -> None:
        """Put the file aside with what is wrong with it, which names it as it was called when it landed."""
        message = error.message.replace(f"{self._inbox.taken_path / name}", records.shown(name))
        self._put_aside(name, FAILED, "failed", sha256=digest, error=message, hint=error.advice)

    def _put_aside(self, name: str, directory: str, state: str, **facts: object) -> None:
        """As `_end`, but that there is no room for its report keeps no other file from going in."""
        try:
            self._end(name, directory, state, **facts)
        except (FrostlineError, OSError) as error:
            self._stuck = self._stuck or error

    def _end(self, name: str, directory: str, state: str, **facts: object) -> None:
        """Put one file aside that brings no rows."""
        self._inbox.settle([SettledFile(name, directory, self._report(state, name, **facts))])
        self._note(name, state, error=str(facts.get("error", "")))

    def _note(self, name: str, state: str, *, rows: int = 0, error: str = "") -> None:
        self.done.files.append(Ended(self._inbox.name, records.shown(name), state, rows, error))

    def _report(self, state: str, name: str, **facts: object) -> bytes:
        clock: Callable[[], object] = self._store.context.clock
        return report(state, at=clock(), table=self._inbox.name, file=name, **facts)  # type: ignore[arg-type]


def made_by() -> str:
    """The programs that decide which bytes rows become."""
    return f"frostline {version('frostline')} with pyarrow {pa.__version__}"
