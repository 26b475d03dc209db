"""Snapshots: the file table at a revision, so that a rebuild need not read the whole log.

snapshots/r<64 binary digits>.zst = zstd of JSON lines: a header, one array a file, and an end line with the count
and the SHA-256 of everything before it. A snapshot is a copy of what the log says; losing one costs time, no data.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain

import msgspec
import zstandard

from oplog import bounds
from oplog.documents import not_written
from oplog.entry import now
from oplog.errors import AlreadyExists, Damaged, UsageError
from oplog.log import OperationsLog
from oplog.log_end import LogStore
from oplog.replay import FileRow
from oplog.revision import SNAPSHOTS_PREFIX, parse_snapshot_key, snapshot_key
from oplog.table_digest import TableDigest, line_of

FORMAT = 2
_LINE_LIMIT_BYTES = 1 << 20
_TOTAL_LIMIT_BYTES = 64 << 30
_WINDOW_LIMIT_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. `digest` is that of the commit `revision`: the chain goes on from it."""

    format: int = FORMAT
    revision: int
    digest: str
    time: datetime


class _End(msgspec.Struct, frozen=True):
    files: int
    sha256: str


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(SnapshotHeader)
_row_decoder = msgspec.json.Decoder(FileRow)
_end_decoder = msgspec.json.Decoder(_End)
_OBJECT = ord("{")


def encode(revision: int, digest: str, rows: Iterable[FileRow]) -> bytes:
    """The snapshot's bytes; rows are taken one by one. Raises `Refused` for rows that could not be read back."""
    data = _write(SnapshotHeader(revision=revision, digest=digest, time=now()), rows)
    try:
        deque(decode(data, name="written now")[1], maxlen=0)
    except (Damaged, UsageError) as error:
        raise not_written("snapshot", error.message) from error
    return data


def _write(header: SnapshotHeader, rows: Iterable[FileRow]) -> bytes:
    target = io.BytesIO()
    checksum = hashlib.sha256()
    files = 0
    with zstandard.ZstdCompressor(level=3).stream_writer(target, closefd=False) as stream:

        def write(line: bytes) -> None:
            checksum.update(line)
            stream.write(line)

        write(_encoder.encode(header) + b"\n")
        for row in rows:
            write(line_of(row))
            files += 1
        stream.write(_encoder.encode(_End(files, checksum.hexdigest())) + b"\n")
    return target.getvalue()


def decode(
    data: bytes, *, name: str, digest: TableDigest | None = None, safe: bool = True
) -> tuple[SnapshotHeader, Iterator[FileRow]]:
    """The header, and the rows during decompression. Raises `Damaged`, at the latest after the last row: a caller
    keeps the rows only when the iterator ended by itself. `digest` takes every row. Unless they are to be `safe`, paths
    and keys may be anything, and in any order: for who only compares them with what is known to be safe.
    """
    blocks = _blocks(data, name)
    block = next(blocks, b"")
    first, rest = block[: (size := block.find(b"\n") + 1)], block[size:]
    try:
        header = _header_decoder.decode(first)
    except bounds.UNREADABLE as error:
        raise _damaged(name, "no header") from error
    if header.format != FORMAT:
        raise UsageError(f"snapshot {name} has format {header.format}; this version reads {FORMAT}", hint="upgrade")
    fault = (
        bounds.fault_in_revision("revision", header.revision)
        or bounds.fault_in_digest("digest", header.digest)
        or bounds.fault_in_time("time", header.time)
    )
    if fault is not None:
        raise _damaged(name, fault)
    return header, _rows(first, chain([rest] if rest else [], blocks), name, digest, safe=safe)


def _rows(
    first: bytes, blocks: Iterator[bytes], name: str, digest: TableDigest | None, *, safe: bool
) -> Iterator[FileRow]:
    """The rows of whole lines, many at a time: what is done for each line by itself takes as long as the decoder."""
    checksum = hashlib.sha256(first)
    files, last = 0, ""
    for block in blocks:
        begin = block.rfind(b"\n", 0, -1) + 1
        is_end = block[begin] == _OBJECT
        text = block[:begin] if is_end else block
        checksum.update(text)
        lines = text.splitlines(keepends=True)
        try:
            rows = _row_decoder.decode_lines(text)
            end = _end_decoder.decode(block[begin:]) if is_end else None
        except bounds.UNREADABLE as error:
            raise _damaged(name, str(error)) from error
        if len(rows) != len(lines):
            raise _damaged(name, f"{len(lines)} lines are {len(rows)} files")
        if safe:
            last = _check_safe(rows, last, name)
        if digest is not None:
            digest.add_lines(lines)
        files += len(rows)
        yield from rows
        if end is not None:
            if (end.files, end.sha256) != (files, checksum.hexdigest()) or next(blocks, None) is not None:
                raise _damaged(name, "its checksum does not match")
            return
    raise _damaged(name, "it is cut off")


def _check_safe(rows: Iterable[FileRow], last: str, name: str) -> str:
    """Raise `Damaged` for a row that no log can have, and for one that does not come after the one before, which is
    `last` at first. The path of the last one."""
    for row in rows:
        fault = _fault_in(row)
        if fault is not None:
            raise _damaged(name, fault)
        if row.path <= last:
            raise _damaged(name, f"its files are not in path order: {row.path} follows {last}")
        last = row.path
    return last


def _fault_in(row: FileRow) -> str | None:
    fault = (
        bounds.fault_in_path(row.path)
        or bounds.fault_in_count("the revision", row.revision)
        or bounds.fault_in_size("the size", row.size_bytes)
        or (bounds.fault_in_digest("the SHA-256", row.sha256) if row.sha256 else None)
        or (bounds.fault_in_key(row.path, row.key) if row.key is not None else None)
    )
    if fault is None and row.more:
        fault = _fault_in_more(row)
    return fault if fault is None else f"{fault} ({row.path!r})"


def _fault_in_more(row: FileRow) -> str | None:
    faults = (
        bounds.fault_in_key(row.path, key) or bounds.fault_in_size(f"the size of {key!r}", size_bytes)
        for key, size_bytes in (*row.blobs, *row.more)
    )
    return next((fault for fault in faults if fault is not None), None)


def _blocks(data: bytes, name: str) -> Iterator[bytes]:
    """The decompressed stream in blocks of whole lines. Bounds each line, the total and the window: the bytes may be
    hostile, and a declared size is no limit."""
    pending = b""
    total = 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
    try:
        with decompressor.stream_reader(io.BytesIO(data)) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                total += len(chunk)
                block = pending + chunk
                size = block.rfind(b"\n") + 1
                pending = block[size:]
                if len(pending) > _LINE_LIMIT_BYTES or total > _TOTAL_LIMIT_BYTES:
                    raise _damaged(name, "it is larger than any real one")
                if size:
                    yield block[:size]
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
    """Put the snapshot unless it exists; returns its size in bytes. The table at a revision is unique, so the winner of
    the race wrote the same content."""
    data = encode(revision, digest, rows)
    try:
        store.put_if_absent(snapshot_key(revision), data, sha256=hashlib.sha256(data).digest())
    except AlreadyExists:
        pass
    return len(data)


def revisions(store: LogStore) -> list[int]:
    """The revisions that have a snapshot, ascending; without those too large to be any. One listing."""
    listed = (item for item in store.list(SNAPSHOTS_PREFIX) if item.size_bytes <= bounds.LARGEST_SNAPSHOT_BYTES)
    found = (parse_snapshot_key(item.key) for item in listed)
    return [revision for revision in found if revision is not None]


def read(
    store: LogStore, revision: int, *, digest: TableDigest | None = None, safe: bool = True
) -> tuple[SnapshotHeader, Iterator[FileRow]]:
    """The snapshot of exactly this revision. Raises `NotFound`, `Damaged`. `digest` and `safe` as for `decode`."""
    key = snapshot_key(revision)
    header, rows = decode(store.get(key), name=f"{store.name}{key}", digest=digest, safe=safe)
    if header.revision != revision:
        raise _damaged(f"{store.name}{key}", f"it says it is revision {header.revision}")
    return header, rows


class Confirmed(msgspec.Struct, frozen=True):
    """A snapshot that belongs to its log. Its rows are to be read once, to their end."""

    header: SnapshotHeader
    rows: Iterator[FileRow]
    digest: TableDigest
    """Of the rows that were read."""
    is_proved: bool
    """The entry of its revision says what its files are, and they are compared with that."""


def read_confirmed(log: OperationsLog, revision: int, *, safe: bool = True) -> Confirmed:
    """The same, of a snapshot that belongs to this log: its digest is the one in the chain, and its files are those
    that the entry of its revision says, where it does. Raises `Damaged` also for one that is whole and is not that: at
    the latest after the last row. `safe` as for `decode`."""
    name, digest = f"{log.store.name}{snapshot_key(revision)}", TableDigest()
    header, rows = read(log.store, revision, digest=digest, safe=safe)
    expected = log.table_digest(revision, header.digest)
    if expected is None:
        raise _damaged(name, "the log has another digest for its revision")
    if not expected:
        return Confirmed(header, rows, digest, is_proved=False)
    return Confirmed(header, _compared(rows, digest, expected, name), digest, is_proved=True)


def _compared(rows: Iterator[FileRow], digest: TableDigest, expected: str, name: str) -> Iterator[FileRow]:
    yield from rows
    if digest.hex != expected:
        raise _damaged(name, "its files are not those that the log says: it contradicts the log")
