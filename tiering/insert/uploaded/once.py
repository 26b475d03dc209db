"""Marks in a table's directory that make a write of Spark go in once, for any number of tries: of jobs and streams.

<table>/job-<digest>.json                the job of this id
<table>/stream-<digest>.json             the stream of this name, and the query whose batches it takes
<table>/stream-<digest>-<batch>.json     its newest batch

The commit that brings the rows creates the mark, so there is one exactly when the rows are there.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec
from msgspec.structs import replace

from disks.base import Transaction
from disks.contracts.bucket_disk import LoggedDisk
from oplog.documents import Document
from oplog.errors import Refused
from tiering.table.schema import TableDefinition

REMEMBERED_JOBS = 1000
"""Of each table; older ids are forgotten, and a job of such an id would go in again."""


class JobMark(msgspec.Struct, frozen=True):
    """What a job's mark says."""

    job: str
    rows: int
    time: str


class StreamQuery(msgspec.Struct, frozen=True):
    """What a stream's mark says."""

    stream: str
    query: str


class BatchMark(msgspec.Struct, frozen=True):
    """What the mark of a stream's newest batch says."""

    stream: str
    batch: int
    rows: int
    time: str


_job_mark = Document("mark of a job", JobMark)
_stream_query = Document("mark of a stream", StreamQuery)
_batch_mark = Document("mark of a batch of a stream", BatchMark)


class OnceAJob(msgspec.Struct, frozen=True):
    """A job by the id that its user gave it."""

    job_id: str

    @property
    def id(self) -> str:
        """For the log."""
        return self.job_id

    @property
    def label(self) -> str:
        """For messages."""
        return f"job {self.job_id}"

    def is_done(self, disk: LoggedDisk, definition: TableDefinition) -> bool:
        """Whether it is in the table already."""
        return disk.exists(self._path(definition))

    def mark(
        self, transaction: Transaction, disk: LoggedDisk, definition: TableDefinition, rows: int, now: datetime
    ) -> None:
        """Add to the commit what says so. It is a `Conflict` when somebody else was first."""
        for forgotten in _oldest_jobs(disk, definition):
            transaction.remove(forgotten)
        note = JobMark(job=self.job_id, rows=rows, time=now.isoformat())
        transaction.create(self._path(definition), _job_mark.encode(note))

    def _path(self, definition: TableDefinition) -> str:
        return f"{definition.directory}/job-{_digest(self.job_id)}.json"


class OnceABatch(msgspec.Struct, frozen=True):
    """A batch of a stream. Batches come in order, so the newest one says what all before it are."""

    stream: str
    """Its name: while it stays, a query that starts over is noticed."""
    query: str
    """The id that Spark keeps in the checkpoint."""
    batch: int = -1
    """-1: not known yet."""
    takes_new: bool = False
    """Whether another query may take the stream over, from its own batch 0."""

    @property
    def id(self) -> str:
        """For the log."""
        return f"{self.stream} {self.batch}"

    @property
    def label(self) -> str:
        """For messages."""
        return f"batch {self.batch} of stream {self.stream}"

    def of(self, batch: int) -> OnceABatch:
        return replace(self, batch=batch)

    def is_done(self, disk: LoggedDisk, definition: TableDefinition) -> bool:
        """Whether it is in the table already. Raises `Refused` where another query wrote the stream before."""
        known = self._query(disk, definition)
        if known is not None and known != self.query and not self.takes_new:
            raise Refused(
                f"stream {self.stream} wrote to {definition.full_name} with another checkpoint than this one, so rows "
                "may be inserted twice",
                hint="give it the old checkpoint; option('new_checkpoint', 'accept') treats the next rows as "
                "new; option('stream', NAME) makes it a stream of its own",
            )
        newest = self._newest(disk, definition) if known == self.query else None
        return self.batch >= 0 and newest is not None and newest >= self.batch

    def mark(
        self, transaction: Transaction, disk: LoggedDisk, definition: TableDefinition, rows: int, now: datetime
    ) -> None:
        """As that of a job."""
        known, newest = self._query(disk, definition), self._newest(disk, definition)
        if known != self.query:
            if known is not None:
                transaction.remove(self._base(definition))
            transaction.create(self._base(definition), _stream_query.encode(StreamQuery(self.stream, self.query)))
        if newest is not None:  # a later batch takes it away when it commits, and so ends the commit of an earlier one
            transaction.remove(self._path(definition, newest))
        note = BatchMark(stream=self.stream, batch=self.batch, rows=rows, time=now.isoformat())
        transaction.create(self._path(definition, self.batch), _batch_mark.encode(note))

    def _query(self, disk: LoggedDisk, definition: TableDefinition) -> str | None:
        path = self._base(definition)
        return _stream_query.decode(disk.read(path)).query if disk.exists(path) else None

    def _newest(self, disk: LoggedDisk, definition: TableDefinition) -> int | None:
        begin = f"stream-{_digest(self.stream)}-"
        names = (name for name in disk.list(definition.directory) if name.startswith(begin))
        return max((int(name.removeprefix(begin).removesuffix(".json")) for name in names), default=None)

    def _base(self, definition: TableDefinition) -> str:
        return f"{definition.directory}/stream-{_digest(self.stream)}.json"

    def _path(self, definition: TableDefinition, batch: int) -> str:
        return f"{definition.directory}/stream-{_digest(self.stream)}-{batch}.json"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _oldest_jobs(disk: LoggedDisk, definition: TableDefinition) -> list[str]:
    """Marks to forget so that one more can be remembered."""
    names = [name for name in disk.list(definition.directory) if name.startswith("job-") and name.endswith(".json")]
    if len(names) < REMEMBERED_JOBS:
        return []
    paths = [f"{definition.directory}/{name}" for name in names]
    paths.sort(key=lambda path: disk.stat(path).revision or 0)
    return paths[: len(paths) - REMEMBERED_JOBS + 1]
