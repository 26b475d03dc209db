"""Data files of parts, on whatever disk they lie, as files whose bytes were compared with what was written."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disks.stores.base import ByteRange
from oplog.errors import AccessDenied, Damaged, NotFound
from tiering.catalog.context import Context
from tiering.config.settings import Config
from tiering.parquet.checked_file import CheckedFile, HeldSections
from tiering.parquet.checked_local import LocalRead, check_local
from tiering.parquet.read_cache import CachedFile, ReadCache
from tiering.query.selection import FileMissing, SelectedFile
from tiering.table.part import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

    from tiering.catalog.catalog import StoredPart


class StoreReads:
    """What a statement asked disks for, footers too. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        """Those that were answered, however often they had to be sent."""
        self.bytes = 0

    def add(self, size_bytes: int) -> None:
        """One more request."""
        with self._lock:
            self.requests += 1
            self.bytes += size_bytes


def checked_file(
    context: Context,
    selected: SelectedFile,
    held: HeldSections | None = None,
    *,
    cache: ReadCache | None = None,
    kept_for_good: bool = False,
    counted: StoreReads | None = None,
) -> CheckedFile:
    """The file as it is now; with a cache, what is kept of it there, unless it is a local one. What its disk is asked
    for is `counted`.

    Raises `FileMissing`, and so does reading, when it is gone or shorter than it was; reading raises `Damaged` for
    bytes that are not those that were written.
    """
    try:
        read = context.disk(selected.stored.disk).reader(selected.path)
    except NotFound as error:
        raise FileMissing(f"{selected} is not complete: {selected.path} is missing", hint=selected.hint) from error

    def fetch(byte_range: ByteRange) -> bytes:
        try:
            data = read(byte_range)
        except (NotFound, Damaged) as error:
            raise FileMissing(f"{selected} cannot be read: {error.message}", hint=selected.hint) from error
        except AccessDenied as error:
            raise AccessDenied(f"{selected} cannot be read: {error.message}", hint=error.hint) from error
        if counted is not None:
            counted.add(len(data))
        return data

    cached = None
    if cache is not None and selected.local_path is None:
        cached = cached_file(cache, selected, for_good=kept_for_good)
    return CheckedFile(selected.file, fetch, label=_label(selected), hint=selected.hint, held=held, cached=cached)


def cached_file(cache: ReadCache, selected: SelectedFile, *, for_good: bool = False) -> CachedFile:
    """What is kept of a file of a bucket."""
    return cache.file(selected.stored.disk, selected.path, selected.file.sha256, for_good=for_good)


def open_file(
    context: Context,
    stored: StoredPart,
    file: DataFile,
    *,
    cache: ReadCache | None = None,
    counted: StoreReads | None = None,
) -> CheckedFile:
    """A data file of a part as a file object; every read is a ranged one, of bytes that are what was written."""
    selected = SelectedFile(stored, file, None, stored.part.schema_version)
    return checked_file(context, selected, cache=cache, counted=counted)


def read_schema(
    context: Context,
    stored: StoredPart,
    file: DataFile,
    *,
    cache: ReadCache | None = None,
    counted: StoreReads | None = None,
) -> pa.Schema:
    """The Arrow schema, with field ids, that the file itself states: one or two ranged reads."""
    import pyarrow.parquet as pq

    with open_file(context, stored, file, cache=cache, counted=counted) as source:
        return pq.read_schema(source)


def read_cache(config: Config) -> ReadCache | None:
    """What this machine keeps of objects that were read; None where it keeps none."""
    settings = config.read_cache
    if not settings.max_bytes:
        return None
    given = Path(settings.path).expanduser() if settings.path else config.state_directory / "read-cache"
    return ReadCache(given, settings.max_bytes)


def local_read(selected: SelectedFile, columns: Collection[int] | None, *, path: Path | None = None) -> LocalRead:
    """That somebody is about to read these columns, by their places, of a local file; None for all of them. `path`:
    where its bytes are, if not where it is."""
    path = path or selected.local_path
    assert path is not None
    return LocalRead(path, selected.file, _label(selected), selected.hint, columns)


def check_local_files(reads: Sequence[LocalRead]) -> None:
    """As `check_local`, but a file that is gone is `FileMissing`."""
    try:
        check_local(reads)
    except FileNotFoundError as error:
        read = next(read for read in reads if str(read.path) == str(error.filename))
        raise FileMissing(f"{read.label} is gone", hint=read.hint) from error


def _label(selected: SelectedFile) -> str:
    return f"{selected.file.name} of {selected}"
