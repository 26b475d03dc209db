"""Files of an ingest that its tasks open themselves: who reads which bytes of them, and that each is the file that was
listed. Their rows come as `insert` reads them, by the same code.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pyarrow as pa

from oplog.errors import FrostlineError, NotFound, Refused
from tiering.insert.inputs.source_files import InputSource, SourceSpan, reading, source_of
from tiering.insert.inputs.sources import read_each
from tiering.insert.reshaping import Reshaping
from tiering.insert.uploaded.once_files import fingerprint

_SCHEME = "file:"
_OWN_FORMATS = ("parquet", "orc")
"""What tasks read without Spark: these say their types themselves, and divide into pieces that many tasks can read."""


class IngestFile(msgspec.Struct, frozen=True):
    """A file that is to go in."""

    url: str
    """A URL with the scheme by which Spark opens it."""
    format: str
    delimiter: str
    size_bytes: int
    changed: float
    """When, as a file of this machine or Hadoop says it: in seconds, or in whole milliseconds."""
    named: str = ""
    """The path by which its user named it, where that is not the place."""

    @property
    def fingerprint(self) -> tuple[str, str]:
        return fingerprint(self.url, self.size_bytes, self.changed)

    @property
    def is_read_by_tasks(self) -> bool:
        """Whether tasks open it themselves, and not Spark."""
        return self.format in _OWN_FORMATS and self.url.startswith(_SCHEME)

    @property
    def source(self) -> InputSource:
        """The file as `insert` names it; tasks can open it where they read it themselves."""
        return replace(source_of(self.url.removeprefix(_SCHEME), self.format), named=self.named)

    def is_as_listed(self, facts: os.stat_result) -> bool:
        """Whether that is still the file, by size and time."""
        times = (facts.st_mtime, facts.st_mtime_ns // 1_000_000)
        return facts.st_size == self.size_bytes and self.changed in times


class FileShare(msgspec.Struct, frozen=True):
    """What a task reads of a file."""

    file: IngestFile
    span: SourceSpan | None = None
    """None: all of it."""


def shares_of(files: Sequence[IngestFile], tasks: int) -> list[tuple[FileShare, ...]]:
    """For each of at most so many tasks what it reads: as many bytes as the others, one file after another. Parquet is
    divided wherever the bytes of a task end, and then the row groups say who reads which; all else goes to who has the
    middle of it. Of each file all is read, and nothing twice."""
    sizes = [max(file.size_bytes, 1) for file in files]  # an empty one is opened too: that is an error
    total, begin = sum(sizes), 0
    ends = [total * number // tasks for number in range(1, tasks + 1)]
    shares: list[list[FileShare]] = [[] for _ in ends]
    for file, size in zip(files, sizes, strict=True):
        first = next(task for task, end in enumerate(ends) if end > begin)
        last = next(task for task, end in enumerate(ends) if end >= begin + size)
        if first == last:
            shares[first].append(FileShare(file))
        elif file.format != "parquet" or file.source.compression:
            middle = begin + size // 2
            shares[next(task for task, end in enumerate(ends) if end > middle)].append(FileShare(file))
        else:
            edges = [begin, *ends[first:last], begin + size]
            for task, start, end in zip(range(first, last + 1), edges, edges[1:], strict=False):
                shares[task].append(FileShare(file, SourceSpan(start - begin, end - begin, size)))
        begin += size
    return [tuple(share) for share in shares if share]


def rows_of(shares: Iterable[FileShare], reshaping: Reshaping) -> Iterator[pa.RecordBatch]:
    """The rows, as batches to write. Raises `UsageError` as an insert of the files does, `NotFound` where this machine
    does not see one, and `Refused` for one that is another than was listed, at the latest after its last row."""
    for share in shares:
        source = replace(share.file.source, span=share.span)
        with _as_listed(share.file, source):
            for batches in read_each([source], reshaping):
                yield from batches


@contextmanager
def _as_listed(file: IngestFile, source: InputSource) -> Iterator[None]:
    """Before and after the file is read; and where it cannot be, first of all whether it was written again."""
    _check_listed(file, source)
    try:
        yield
    except FrostlineError:
        _check_listed(file, source)
        raise
    _check_listed(file, source)


def _check_listed(file: IngestFile, source: InputSource) -> None:
    with reading(source):
        try:
            facts = os.stat(source.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(
                f"{source.label} is not there on {socket.gethostname()}",
                hint="all executors must see the files where the driver does, as on a file system that they share; or "
                "give a URL that Spark opens, such as s3a://",
            ) from error
    if not file.is_as_listed(facts):
        raise Refused(
            f"{source.label} was written again while it was ingested: nothing of its batch went in",
            hint="run it again when nothing writes to the files",
        )
