"""Reads a taken file whole before a row of it goes in: a bad line then fails this file, and nothing is half in."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa

from oplog.errors import FrostlineError, Transient
from tiering.config.settings import LimitsConfig
from tiering.daemon.inbox.choice import Found
from tiering.insert.inputs.path_steps import path_steps
from tiering.insert.inputs.source_files import source_of
from tiering.insert.inputs.sources import read_each
from tiering.insert.reshaping import Reshaping
from tiering.table.schema import TableDefinition

KEPT_BYTES = 128 * 1024 * 1024
"""A file whose rows take more than this is read again when they go in."""
_BLOCK = 1024 * 1024


class FileChanged(Exception):
    """The file changed, or went, while it was read. Not a failure: it is looked at again."""


class InboxStops(Exception):
    """The worker of the inbox has to end, within a file. What is taken stays so, and the next run goes on."""


class Readable(msgspec.Struct, frozen=True):
    """A file that can be read from its first row to its last. `batches` is None where they are too many to keep."""

    file: Found
    path: Path
    sha256: str
    rows: int
    batches: tuple[pa.RecordBatch, ...] | None
    kept_bytes: int
    limits: LimitsConfig

    def rows_of(self, definition: TableDefinition, stop: threading.Event) -> Iterator[pa.RecordBatch]:
        """The rows. Raises `Transient` for a file that is not any more what it was, and `InboxStops`."""
        if self.batches is not None:
            yield from self.batches
            return
        for batch in _rows(self.path, self.file, definition, self.limits):
            _go_on_unless(stop)
            yield batch
        try:
            check_unchanged(self.path, self.file)
        except FileChanged as error:
            raise Transient(
                f"{self.path} changed while its rows went in: {error}",
                hint="write each file under another name, and rename it when it is complete",
            ) from error


def digest_of(path: Path, name: str, definition: TableDefinition, stop: threading.Event) -> str:
    """SHA-256 of the bytes, and behind them of the table's columns that the directories of the name are: the same bytes
    elsewhere are other rows. Raises `FileChanged` for a file that is gone, and `InboxStops`."""
    digest = hashlib.sha256()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise FileChanged(error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        while data := stream.read(_BLOCK):
            _go_on_unless(stop)
            digest.update(data)
    columns = {column.name for column in definition.columns}
    for key, steps in sorted(path_steps(name).items()):
        if key in columns:
            digest.update(f"\0{key}\0{steps[0]}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def read(
    path: Path,
    file: Found,
    sha256: str,
    definition: TableDefinition,
    stop: threading.Event,
    limits: LimitsConfig,
) -> Readable:
    """The whole file, as the table's rows. Raises `UsageError`, which names the line, for what does not fit,
    `FileChanged` when somebody still writes to it, and `InboxStops`."""
    kept: list[pa.RecordBatch] | None = []
    rows = size_bytes = 0
    try:
        for batch in _rows(path, file, definition, limits):
            _go_on_unless(stop)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if kept is not None:
                kept.append(batch)
                if size_bytes > KEPT_BYTES:
                    kept = None
    except FrostlineError:
        check_unchanged(path, file)  # else what is wrong with it may only be that it is not whole
        raise
    check_unchanged(path, file)
    return Readable(file, path, sha256, rows, None if kept is None else tuple(kept), size_bytes if kept else 0, limits)


def _rows(path: Path, file: Found, definition: TableDefinition, limits: LimitsConfig) -> Iterator[pa.RecordBatch]:
    """Of the directories of a path only those below the table's own are columns."""
    source = replace(source_of(str(path), None), named=file.name).within(limits)
    for batches in read_each([source], Reshaping(definition)):
        yield from batches


def _go_on_unless(stop: threading.Event) -> None:
    if stop.is_set():
        raise InboxStops


def check_unchanged(path: Path, file: Found) -> None:
    """Raise `FileChanged` unless the file is the one that was found, and as it was."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise FileChanged("it is gone") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileChanged("it is not a file any more")
    if (status.st_ino, status.st_size, status.st_mtime_ns) != file.key:
        raise FileChanged(f"it had {file.size_bytes} bytes, and has {status.st_size}")
