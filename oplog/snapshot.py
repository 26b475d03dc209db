"""Snapshots: the file table at a revision, so that a rebuild need not read the whole log.

snapshots/r<64 binary digits>.zst = zstd of JSON lines: a header, one array a file, and an end line with the count
and the SHA-256 of everything before it. A snapshot is a copy of what the log says; losing one costs time, no data.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec
import zstandard

from oplog import paths
from oplog.entry import now
from oplog.errors import AlreadyExists, Damaged, UsageError
from oplog.log import LogStore, OperationsLog
from oplog.replay import FileRow
from oplog.revision import SNAPSHOTS_PREFIX, parse_snapshot_key, snapshot_key

FORMAT = 2
_LINE_LIMIT_BYTES = 1 << 20
_TOTAL_LIMIT_BYTES = 64 << 30
_WINDOW_LIMIT_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. `digest` is that of the commit `revision`: the chain goes on from it."""

    format: int = FORMAT
    revision: int
    digest: str
    time: datetime


class _End(msgspec.Struct, frozen=True):
    files: int
    sha256: str


_DEFAULTS = b",[],false]"
"""How a row of one object ends: `more` and `read_only` are those of files that ClickHouse wrote."""

_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(Header)
_row_decoder = msgspec.json.Decoder(FileRow)
_end_decoder = msgspec.json.Decoder(_End)


def encode(revision: int, digest: str, rows: Iterable[FileRow]) -> bytes:
    """The snapshot's bytes; rows are taken one by one."""
    target = io.BytesIO()
    checksum = hashlib.sha256()
    files = 0
    with zstandard.ZstdCompressor(level=3).stream_writer(target, closefd=False) as stream:

        def write(line: bytes) -> None:
            checksum.update(line)
            stream.write(line)

        write(_encoder.encode(Header(revision=revision, digest=digest, time=now())) + b"\n")
        for row in rows:
            write(_line(row))
            files += 1
        stream.write(_encoder.encode(_End(files, checksum.hexdigest())) + b"\n")
    return target.getvalue()


def _line(row: FileRow) -> bytes:
    """The row as JSON; without the fields that files of this format leave at their defaults."""
    line = _encoder.encode(row)
    return (line[: -len(_DEFAULTS)] + b"]\n") if line.endswith(_DEFAULTS) else line + b"\n"


def decode(data: bytes, *, name: str) -> tuple[Header, Iterator[FileRow]]:
    """The header, and the rows as they are decompressed. Raises `Damaged`, at the latest after the last row: a caller
    keeps the rows only when the iterator ended by itself.
    """
    lines = _lines(data, name)
    first = next(lines, b"")
    try:
        header = _header_decoder.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(name, "no header") from error
    if header.format != FORMAT:
        raise UsageError(f"snapshot {name} has format {header.format}; this version reads {FORMAT}", hint="upgrade")
    return header, _rows(first, lines, name)


def _rows(first: bytes, lines: Iterator[bytes], name: str) -> Iterator[FileRow]:
    checksum = hashlib.sha256(first)
    last = ""
    for files, line in enumerate(lines):
        if line.startswith(b"{"):
            try:
                end = _end_decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _damaged(name, str(error)) from error
            if (end.files, end.sha256) != (files, checksum.hexdigest()) or next(lines, None) is not None:
                raise _damaged(name, "its checksum does not match")
            return
        checksum.update(line)
        try:
            row = _row_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(name, str(error)) from error
        if not paths.is_safe(row.path):
            raise _damaged(name, f"it names an unsafe path: {row.path!r}")
        if row.path <= last:
            raise _damaged(name, f"its files are not in path order: {row.path} comes after {last}")
        last = row.path
        yield row
    raise _damaged(name, "it is cut off")


def _lines(data: bytes, name: str) -> Iterator[bytes]:
    """Lines of the decompressed stream, newline included. Bounds each line, the total and the window: the bytes may be
    hostile, and a declared size is no limit."""
    pending = b""
    total = 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
    try:
        with decompressor.stream_reader(io.BytesIO(data)) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                total += len(chunk)
                *lines, pending = (pending + chunk).split(b"\n")
                if len(pending) > _LINE_LIMIT_BYTES or total > _TOTAL_LIMIT_BYTES:
                    raise _damaged(name, "it is larger than any real one")
                for line in lines:
                    yield line + b"\n"
    except zstandard.ZstdError as error:
        raise _damaged(name, str(error)) from error
    if pending:
        raise _damaged(name, "it is cut off")


def _damaged(name: str, why: str) -> Damaged:
    return Damaged(
        f"snapshot {name} cannot be read: {why}",
        hint="delete this snapshot: an older one, or the log alone, gives the same table",
    )


def write(store: LogStore, revision: int, digest: str, rows: Iterable[FileRow]) -> int:
    """Put the snapshot unless it exists; returns its size in bytes. The table at a revision is unique, so whoever wins
    the race wrote the same content."""
    data = encode(revision, digest, rows)
    try:
        store.put_if_absent(snapshot_key(revision), data, sha256=hashlib.sha256(data).digest())
    except AlreadyExists:
        pass
    return len(data)


def revisions(store: LogStore) -> list[int]:
    """The revisions that have a snapshot, ascending. One listing."""
    found = (parse_snapshot_key(item.key) for item in store.list(SNAPSHOTS_PREFIX))
    return [revision for revision in found if revision is not None]


def read(store: LogStore, revision: int) -> tuple[Header, Iterator[FileRow]]:
    """The snapshot of exactly this revision. Raises `NotFound`, `Damaged`."""
    key = snapshot_key(revision)
    header, rows = decode(store.get(key), name=f"{store.name}{key}")
    if header.revision != revision:
        raise _damaged(f"{store.name}{key}", f"it says it is revision {header.revision}")
    return header, rows


def read_confirmed(log: OperationsLog, revision: int) -> tuple[Header, Iterator[FileRow]]:
    """The same, of a snapshot that belongs to this log: its digest is the one in the chain. Raises `Damaged` also for
    one that is whole and was made of another log."""
    header, rows = read(log.store, revision)
    if not log.confirms(revision, header.digest):
        raise _damaged(f"{log.store.name}{snapshot_key(revision)}", "the log has another digest for its revision")
    return header, rows
