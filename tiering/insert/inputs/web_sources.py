"""Files of web servers as what an insert reads: `http://…` and `https://…`.

In ranges where the server gives ranges: one that breaks off is asked for again. Of a server that does not, the file is
read from its beginning to its end, and kept in the temporary directory for formats that seek. Proxies and certificates
are those of the environment (`HTTPS_PROXY`, `SSL_CERT_FILE`).
"""

from __future__ import annotations

import http.client
import io
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from typing import IO, Any, NoReturn, TypeVar
from urllib.parse import urlsplit, urlunsplit

from disks.stores.wrappers.retry import Backoff
from oplog.errors import AccessDenied, FrostlineError, NotFound, Transient, UsageError
from tiering.config.settings import LimitsConfig
from tiering.insert.inputs.bucket_sources import RemoteFile

SCHEMES = ("http://", "https://")
_Answer = TypeVar("_Answer")
_MOST_RANGE_BYTES = 32 * 1024 * 1024
_PIECE_BYTES = 8 * 1024 * 1024
_ANSWER_SECONDS = 60.0
_TRIES = Backoff(attempts=6, total_seconds=60.0)
_BROKEN = (OSError, http.client.HTTPException)  # URLError is an OSError


def shown(url: str) -> str:
    """The URL as messages have it: what stands behind the `?` may be a signature."""
    return urlunsplit((*urlsplit(url)[:3], "", ""))


def check_url(url: str) -> None:
    """Raise `UsageError` for a URL that is not asked for."""
    parts = urlsplit(url)
    if not parts.hostname or "@" in parts.netloc:
        raise UsageError(
            f"{parts.scheme}://{parts.hostname or ''}… names no file of a web server",
            hint="write https://server/path/file.csv, without a password: messages show URLs",
        )


class WebFile(RemoteFile):
    """One file of a web server. Raises `NotFound` where there is none, `Transient` where nobody answers."""

    def __init__(self, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._url, self._label, self._sleep = url, shown(url), sleep
        self._answer: Any = None
        self._at = 0
        self._whole: IO[bytes] | None = None
        """All of it, in a file without a name, of a server without ranges: where it gives no length, or the format
        seeks."""
        first = self._asked({"Range": "bytes=0-0"})
        with first:
            self._ranges = first.status == http.client.PARTIAL_CONTENT and _total(first.headers) is not None
            size_bytes = _total(first.headers) if self._ranges else None
            self._version = _version(first.headers)
        if not self._ranges:
            self._answer = self._asked({})
            length = self._answer.headers.get("Content-Length")
            if length is None:
                self._whole = self._received(None)
            size_bytes = int(length) if self._whole is None else self._whole.seek(0, io.SEEK_END)
            self._version = _version(self._answer.headers)
        super().__init__(size_bytes or 0)

    def check_unchanged(self) -> None:
        """Raise `UsageError` where the file is another one now: parts of both may have been read."""
        if self._ranges:
            self._asked({"Range": "bytes=0-0"}, of_version=True).close()

    def close(self) -> None:
        if not self.closed and self._answer is not None:
            self._answer.close()
        if self._whole is not None:
            self._whole.close()
        super().close()

    def _bytes(self, start: int, stop: int) -> bytes:
        if self._ranges:
            starts = range(start, stop, _MOST_RANGE_BYTES)
            return b"".join(self._range(at, min(at + _MOST_RANGE_BYTES, stop)) for at in starts)
        if self._whole is None and start == self._at:
            data: bytes = self._read(self._answer, stop - start)
            self._at = stop
            return data
        if self._whole is None:
            self._answer.close()
            self._answer = self._asked({}, of_version=True)
            self._whole = self._received(self.size())
        self._whole.seek(start)
        return self._whole.read(stop - start)

    def _received(self, size_bytes: int | None) -> IO[bytes]:
        """The answer to its end, in the temporary directory."""
        whole = tempfile.TemporaryFile(prefix="frostline-")  # noqa: SIM115 - `close` closes it
        most_bytes = LimitsConfig().unpacked_bytes
        try:
            while size_bytes is None or whole.tell() < size_bytes:
                if size_bytes is None:
                    data = self._answer.read(_PIECE_BYTES)
                else:
                    data = self._read(self._answer, min(_PIECE_BYTES, size_bytes - whole.tell()))
                if not data:
                    break
                if whole.tell() + len(data) > most_bytes:
                    raise UsageError(
                        f"{self._label} has more than {most_bytes:,} bytes, and the server gives no ranges of it",
                        hint="download it, and insert the file",
                    )
                whole.write(data)
        except BaseException:
            whole.close()
            raise
        return whole

    def _range(self, start: int, stop: int) -> bytes:
        def get() -> bytes:
            with self._once({"Range": f"bytes={start}-{stop - 1}"}, of_version=True) as answer:
                if answer.status != http.client.PARTIAL_CONTENT:
                    raise UsageError(f"{self._label}: the server gives no ranges any more", hint="insert it again")
                return self._read(answer, stop - start)

        return self._tried(get)

    def _read(self, answer: Any, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            try:
                more = answer.read(size_bytes - len(data))
            except _BROKEN as error:
                raise Transient(f"{self._label} broke off: {error}", hint="insert it again") from error
            if not more:
                raise Transient(
                    f"{self._label} broke off {size_bytes - len(data):,} bytes too early", hint="insert it again"
                )
            data += more
        return bytes(data)

    def _asked(self, headers: dict[str, str], *, of_version: bool = False) -> Any:
        return self._tried(lambda: self._once(headers, of_version=of_version))

    def _tried(self, call: Callable[[], _Answer]) -> _Answer:
        failures = 0
        while True:
            try:
                return call()
            except Transient:
                failures += 1
                if failures >= _TRIES.attempts:
                    raise
                self._sleep(_TRIES.pause_seconds(failures, random.random()))

    def _once(self, headers: dict[str, str], *, of_version: bool) -> Any:
        request = urllib.request.Request(self._url, headers={"Accept-Encoding": "identity", **headers})
        try:
            answer = urllib.request.urlopen(request, timeout=_ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                _refuse(self._label, error.code, error.reason)
        except _BROKEN as error:
            why = getattr(error, "reason", error)
            raise Transient(f"{self._label} cannot be read: {why}", hint="check the URL and the network") from error
        if of_version and _version(answer.headers) != self._version:
            answer.close()
            raise UsageError(f"{self._label} was written again while it was read", hint="insert it again")
        return answer


def _refuse(label: str, code: int, reason: str) -> NoReturn:
    said = f"{label}: the server says {code} {reason}"
    found: type[FrostlineError] = UsageError
    if code in (404, 410):
        found = NotFound
    elif code in (401, 403, 407):
        found = AccessDenied
    elif code in (408, 425, 429) or code >= 500:
        found = Transient
    raise found(said, hint="check the URL")


def _total(headers: Message) -> int | None:
    """How large the file is, of an answer of a range."""
    with suppress(ValueError):
        return int((headers.get("Content-Range") or "").rpartition("/")[2])
    return None


def _version(headers: Message) -> tuple[str | None, ...]:
    return headers.get("ETag"), headers.get("Last-Modified")
