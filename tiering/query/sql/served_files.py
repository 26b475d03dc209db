"""Files of a query that the engine does not open by itself: it reads them through their disks, whole sections that were
compared with what was written.

So its reads of cold parts go through our stores (limits, retries, certificates, answers that are the whole object). A
read that fails is remembered, and the engine learns no more than that.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from fsspec.spec import AbstractFileSystem

from disks.host.ranged_file import RangedFile
from tiering.parquet.checked_file import CheckedFile
from tiering.query.filesystem import FileInfo
from tiering.query.sql.engine import SERVED_PREFIX, SERVED_SCHEME
from tiering.query.sql.read_ahead import ReadAhead, ScannedFiles

_THREADS = 16
_numbers = itertools.count()
"""Of all files that were ever served: an engine keeps the footers of files by their names, for later queries, too."""
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
"""The engine wants a time; a file of a part never changes."""


class ServedFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files of one query. They are added before the engine asks for them."""

    protocol = SERVED_SCHEME
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, CheckedFile] = {}
        self._ahead = ReadAhead()
        self._lock = threading.Lock()
        self.failure: Exception | None = None
        """Why a read failed; the first one, if several did."""
        self.bytes_read = 0
        """Of columns; what follows them in a file does not count."""

    def add(self, file: CheckedFile) -> str:
        """Where the engine finds the file from now on."""
        path = f"{SERVED_PREFIX}{next(_numbers)}.parquet"
        self._files[path] = file
        return path

    def begin(self, scans: Sequence[ScannedFiles], *, reads_ahead: bool) -> None:
        """Read what follows the columns of each file, side by side, and begin to read what the scans will need. Raises
        what reading raises: a file that is gone is found, though the engine might not come to it."""
        if not self._files:
            return
        for scan in scans:
            if reads_ahead and not scan.is_filtered:
                self._ahead.start(scan)
        self._read_tails()
        for scan in scans:
            if reads_ahead and scan.is_filtered:
                self._ahead.start(scan)

    def close(self) -> None:
        """End what is read ahead."""
        self._ahead.close()

    def _read_tails(self) -> None:
        with ThreadPoolExecutor(min(_THREADS, len(self._files)), thread_name_prefix="tails") as pool:
            for _ in pool.map(lambda file: file.pieces(file.size() - 1, file.size()), self._files.values()):
                pass

    def glob(self, path: str, **options: Any) -> list[str]:
        """The path alone: nothing in it stands for anything else."""
        return [path]

    def info(self, path: str, **options: Any) -> FileInfo:
        return {"name": path, "size": self._find(path).size(), "type": "file"}

    def modified(self, path: str) -> datetime:
        return _NEVER

    def _find(self, path: str) -> CheckedFile:
        try:
            return self._files[path if path.startswith(SERVED_PREFIX) else SERVED_PREFIX + path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            raise PermissionError("parts are only read")
        return _ServedFile(self, self._find(path))

    def read(self, file: CheckedFile, start: int, stop: int) -> bytes:
        """For the files that were opened."""
        self._ahead.reach(file, start)
        try:
            data = b"".join(file.pieces(start, stop))
        except Exception as error:  # noqa: BLE001 - whatever it is, the query ends with it
            with self._lock:
                self.failure = self.failure or error
            raise OSError("a part cannot be read") from None
        with self._lock:
            if stop <= file.size() - (file.tail_bytes or 0):
                self.bytes_read += len(data)
        return data


class _ServedFile(RangedFile):
    """The engine sets the position and reads in one go, but its threads share a file: each has its own position."""

    def __init__(self, files: ServedFiles, file: CheckedFile) -> None:
        self._positions: dict[int, int] = {}
        super().__init__(file.size())
        self._files = files
        self._file = file

    @property
    def _position(self) -> int:
        return self._positions.get(threading.get_ident(), 0)

    @_position.setter
    def _position(self, value: int) -> None:
        self._positions[threading.get_ident()] = value

    def _bytes(self, start: int, stop: int) -> bytes:
        return self._files.read(self._file, start, stop)
