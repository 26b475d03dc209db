"""The files, globs, objects and standard input that an insert names: which there are, their format and their bytes."""

from __future__ import annotations

import errno
import glob
import gzip
import io
import lzma
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa

from disks.system_errors import of_the_system
from oplog.errors import FrostlineError, NoSpace, NotFound, UsageError
from tiering.config.settings import LimitsConfig
from tiering.config.units import counted
from tiering.insert.inputs import web_sources
from tiering.insert.inputs.bucket_sources import SCHEME, BucketSources, RemoteFile
from tiering.insert.packed_streams import STREAMS, open_streams

FORMATS = ("parquet", "csv", "json", "arrow", "orc")
STDIN = "-"

ARROW_FILE = b"ARROW1"
"""What an Arrow IPC file begins with; a stream does not."""
BLOCK_BYTES = 8 * 1024 * 1024
"""Text is read and parsed in pieces of about this size."""
BATCH_ROWS = 131_072
"""Handed on at once."""
MOST_RECORD_BYTES = 256 * 1024 * 1024
"""Of text, in one record: what is longer has lost its line ends, or its closing quote, and would fill the memory."""

_ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".orc": "orc",
}
_CODECS = {".zst": "zstd", ".lz4": "lz4"}
_MAGICS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_OPENED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    **{compression: partial(open_streams, compression=compression) for compression in STREAMS},
}
"""Compressions of Python's own library. Files of several streams, one after the other, are read to their end."""
_BEGINNINGS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz"}
COMPRESSIONS = (*_OPENED, *_CODECS, ".zip")


def too_long(label: str, begin: int) -> UsageError:
    """What is said of a file whose record, which begins at that byte, does not end."""
    return UsageError(
        f"{label}: the record that begins at byte {begin:,} is longer than {MOST_RECORD_BYTES >> 20} MiB",
        hint="a line end or a closing quote is missing, or it is no text",
    )


def check_at_once(label: str, size_bytes: int, most_bytes: int, pieces: str) -> None:
    """Raises `UsageError` for pieces of a file that unpack to more than may be in memory."""
    if size_bytes > most_bytes:
        raise UsageError(
            f"{label}: {pieces} unpack to {size_bytes:,} bytes at once, and the limit is {most_bytes:,}",
            hint="write the file in smaller pages or batches, or set limits.decoded_bytes to more",
        )


def numbered_blocks(blocks: Iterable[bytes], first_line: int) -> Iterator[tuple[int, bytes]]:
    """Each block of whole lines with the number of its first."""
    line = first_line
    for block in blocks:
        yield line, block
        line += block.count(b"\n")


class Position(msgspec.Struct):
    """How far an input is read: of what is compressed, of the compressed bytes. It says so while it is open."""

    tell: Callable[[], int] = int


class SourceSpan(msgspec.Struct, frozen=True):
    """Bytes of a file that somebody reads while others read its other ones: what lies on an edge is read once, by who
    has the middle of it."""

    begin: int
    end: int
    of_bytes: int
    """Of the whole file."""

    def within(self, rows: Sequence[int]) -> range:
        """The row groups to read, of all of a file by their rows, which are taken for bytes in proportion."""
        total, before, chosen = sum(rows), 0, []
        for number, count in enumerate(rows):
            if count and self.begin <= (2 * before + count) * self.of_bytes // (2 * total) < self.end:
                chosen.append(number)
            before += count
        return range(chosen[0], chosen[-1] + 1) if chosen else range(0)


@dataclass(frozen=True, slots=True)
class InputSource:
    """One input: a path or `-`, its format and how it is compressed (one of `COMPRESSIONS`, or nothing)."""

    path: str
    format: str
    compression: str = ""
    open: Callable[[], RemoteFile] | None = None
    """Of an object in a bucket or a file of a web server."""
    at: Position = field(default_factory=Position, compare=False)
    delimiter: str = ","
    """Between the fields of CSV, once its header was seen."""
    span: SourceSpan | None = None
    """Of Parquet: what to read of it, where that is not all."""
    most_unpacked_bytes: int = LimitsConfig().unpacked_bytes
    """Of a compressed input that has to be unpacked whole."""
    most_decoded_bytes: int = LimitsConfig().decoded_bytes
    """Of what is in memory at once: pages of Parquet, a batch of Arrow."""
    named: str = ""
    """The path by which its directories are columns, where that is another one."""

    def within(self, limits: LimitsConfig) -> InputSource:
        """The same with these limits."""
        return replace(self, most_unpacked_bytes=limits.unpacked_bytes, most_decoded_bytes=limits.decoded_bytes)

    @property
    def label(self) -> str:
        return label_of(self.path)

    @property
    def is_here(self) -> bool:
        """Whether its bytes can be looked at without a request each: it lies on this machine, or is unpacked to it."""
        return self.open is None or bool(self.compression)

    @property
    def size_bytes(self) -> int | None:
        """Of a file of this machine; None of what is elsewhere, or a pipe."""
        return None if self.open is not None or self.path == STDIN else Path(self.path).stat().st_size


def label_of(path: str) -> str:
    """What messages call an input."""
    if path == STDIN:
        return "standard input"
    return web_sources.shown(path) if path.startswith(web_sources.SCHEMES) else path


def find_sources(
    paths: Sequence[str], file_format: str | None = None, buckets: BucketSources | None = None
) -> list[InputSource]:
    """The inputs named by paths, globs, `-`, URLs of web servers and, with `buckets`, of objects. Raises `NotFound` for
    what is not there, `UsageError` for a format that is neither given nor known by the ending. Reads nothing."""
    if file_format is not None and file_format not in FORMATS:
        raise UsageError(f"no such format: {file_format!r}", hint=f"formats are {', '.join(FORMATS)}")
    found: list[InputSource] = []
    for path in paths:
        if buckets is not None and path.startswith(SCHEME):
            found.extend(source_of(url, file_format, opener) for url, opener in buckets.find(path))
        elif path.startswith(web_sources.SCHEMES):
            web_sources.check_url(path)
            found.append(source_of(path, file_format, partial(web_sources.WebFile, path)))
        else:
            found.extend(source_of(match, file_format) for match in _matches(path))
    if not found:
        raise UsageError("nothing to insert", hint="name files, a glob or '-' for standard input")
    if buckets is not None:
        found = [source.within(buckets.limits) for source in found]
    return found


def _matches(path: str) -> list[str]:
    if path == STDIN or Path(path).is_file():
        return [path]
    if Path(path).is_dir():
        raise UsageError(f"{path} is a directory", hint=f"name its files, such as '{path.rstrip('/')}/*.parquet'")
    matches = sorted(match for match in glob.glob(path, recursive=True) if Path(match).is_file())
    if not matches:
        raise NotFound(
            f"no such file: {path}", hint="check the path; quote globs, so that the shell does not expand them"
        )
    return matches


def files_below(directory: str) -> list[str]:
    """The data files of a directory and of those in it, by their names. Names that begin with `.` or `_` are those of
    programs that write such directories. Raises `NotFound` where there are none."""
    below = [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
    found = [str(path) for path in below if not any(step[0] in "._" for step in path.relative_to(directory).parts)]
    if not found:
        raise NotFound(f"no files in {directory}", hint="name a file, or a directory of files")
    return found


def source_of(path: str, file_format: str | None, opener: Callable[[], RemoteFile] | None = None) -> InputSource:
    """The input at a path, by its name. Raises `UsageError` as `find_sources`."""
    if path == STDIN:
        if file_format is None:
            raise UsageError("standard input needs a format", hint=f"use --format {'|'.join(FORMATS)}")
        return InputSource(path, file_format)
    label = label_of(path)
    suffixes = [suffix.lower() for suffix in Path(label).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    known = file_format or (_ENDINGS.get(suffixes[-1]) if suffixes else None)
    if known is None and compression == ".zip":
        known = _format_inside(path, opener)
    if known is None:
        raise UsageError(f"{label}: the format is not clear from the name", hint=f"use --format {'|'.join(FORMATS)}")
    return InputSource(path, known, compression, opener)


def _format_inside(path: str, opener: Callable[[], RemoteFile] | None) -> str | None:
    try:
        with ExitStack() as stack:
            named = stack.enter_context(opener()) if opener is not None else path
            archive = stack.enter_context(zipfile.ZipFile(named))
            return _ENDINGS.get(Path(_only_member(archive, path)).suffix.lower())
    except (zipfile.BadZipFile, OSError) as error:
        raise of_the_system(error, label_of(path)) or UsageError(
            f"{label_of(path)} is not a readable zip file: {error}"
        ) from error


def _only_member(archive: zipfile.ZipFile, path: str) -> str:
    members = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(members) != 1:
        raise UsageError(
            f"{label_of(path)} holds {counted(len(members), 'file')}",
            hint="a zip file to insert holds exactly one; unpack it",
        )
    return members[0]


_UNREADABLE = (
    *(OSError, EOFError, ValueError, NotImplementedError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, gzip.BadGzipFile, pa.ArrowException),
)
"""What libraries raise for input that is cut, damaged or none of its format."""


@contextmanager
def reading(source: InputSource) -> Iterator[None]:
    """Turn what libraries raise for unreadable input into an error that names the file."""
    try:
        yield
    except FrostlineError:
        raise
    except PermissionError as error:
        raise UsageError(f"{source.label} cannot be read: {error.strerror}", hint="check its permissions") from error
    except RecursionError as error:
        raise UsageError(f"{source.label} is nested too deep", hint="leave the deepest columns out") from error
    except MemoryError as error:
        raise UsageError(
            f"{source.label} needs more memory than there is", hint="write it in smaller row groups, batches or records"
        ) from error
    except _UNREADABLE as error:
        if isinstance(error, (OSError, pa.ArrowException)) and (refused := of_the_system(error, source.label)):
            raise refused from error
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{source.label} cannot be read as {source.format}: {text}",
            hint="is the file complete? --format says which format it has",
        ) from error


@contextmanager
def open_binary(source: InputSource, stdin: IO[bytes] | None, *, seekable: bool = False) -> Iterator[Any]:
    """The decompressed bytes of the input; `seekable` ones of a compressed input or a pipe are unpacked into the
    temporary directory. Raises `UsageError` for one that is larger than its limit, `NoSpace`."""
    with ExitStack() as stack:
        raw: Any
        file = stack.enter_context(source.open()) if source.open is not None else None
        # Who seeks says which bytes it wants; all else reads on and on, in large pieces.
        named: Any = source.path if file is None else io.BufferedReader(file, BLOCK_BYTES)
        if source.path == STDIN:
            raw = _standard_input(stdin if stdin is not None else sys.stdin.buffer)
            seekable = seekable or (source.format == "arrow" and raw.peek(6)[:6] == ARROW_FILE)
        elif source.compression == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(named))
            raw = stack.enter_context(archive.open(_only_member(archive, source.path)))
            source.at.tell = archive.fp.tell if archive.fp is not None else int
        elif source.compression in _OPENED:
            packed = stack.enter_context(open(named, "rb")) if file is None else named
            raw = stack.enter_context(_OPENED[source.compression](packed))
            source.at.tell = packed.tell
        elif source.compression in _CODECS:
            packed = pa.OSFile(source.path) if file is None else pa.PythonFile(named, mode="r")
            source.at.tell = packed.tell
            raw = stack.enter_context(pa.CompressedInputStream(packed, _CODECS[source.compression]))
        elif file is not None:
            yield pa.PythonFile(file if seekable else named, mode="r")
            file.check_unchanged()
            return
        else:
            # Never mapped: reading a file that somebody makes shorter would then end the process (SIGBUS).
            plain = stack.enter_context(pa.OSFile(source.path))
            source.at.tell = plain.tell
            yield plain
            return
        if seekable:
            yield pa.PythonFile(stack.enter_context(_unpacked(raw, source)), mode="r")
        else:
            yield raw if isinstance(raw, pa.NativeFile) else _ReadOnce(raw, mode="r")
        if file is not None:
            file.check_unchanged()


class _ReadOnce(pa.PythonFile):  # type: ignore[misc]
    """Arrow takes every Python file for one that seeks."""

    def seekable(self) -> bool:
        return False


def _unpacked(raw: Any, source: InputSource) -> IO[bytes]:
    """A file without a name, which goes when it is closed."""
    unpacked = tempfile.TemporaryFile(prefix="frostline-")  # noqa: SIM115 - closed by who gets it
    try:
        while data := raw.read(BLOCK_BYTES):
            if unpacked.tell() + len(data) > source.most_unpacked_bytes:
                raise UsageError(
                    f"{source.label} has more than {source.most_unpacked_bytes:,} bytes unpacked, the limit of "
                    f"{source.format} that has to be unpacked whole",
                    hint="set limits.unpacked_bytes to more, or unpack the file first",
                )
            try:
                unpacked.write(data)
                unpacked.flush()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise NoSpace(
                    f"{source.label} cannot be unpacked into {tempfile.gettempdir()}: {error.strerror}",
                    hint="make room there, or set TMPDIR to a directory that has some",
                ) from error
    except BaseException:
        unpacked.close()
        raise
    unpacked.seek(0)
    return unpacked


def _standard_input(stdin: Any) -> io.BufferedReader:
    """Standard input, decompressed: it has no name that tells, so its first bytes do."""
    given = stdin if hasattr(stdin, "peek") else io.BufferedReader(stdin)
    start = given.peek(6)[:6]
    for beginning, compression in _BEGINNINGS.items():
        if start.startswith(beginning):
            return io.BufferedReader(_OPENED[compression](given))
    start = start[:4]
    if start in _MAGICS:
        plain = pa.CompressedInputStream(pa.PythonFile(given, mode="r"), _MAGICS[start])
        return io.BufferedReader(plain)
    return given
