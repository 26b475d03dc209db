"""What a daemon says on standard error, one line an event: as text for people, or as JSON for what collects logs.

A `LogStream` makes lines of all that the process's Python code writes there: records of `logging`, remarks that are
printed, failures of threads, warnings. A line of JSON is one object, a traceback inside it. In text a traceback keeps
its lines.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

from tiering.config.escaping import visible
from tiering.config.secrets import without_passwords

LogFormat = Literal["text", "json"]

_FIELDS = "frostline_fields"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger("frostline")


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` of a record: what its object of JSON carries beside the message, such as `where` or `job`."""
    return {_FIELDS: values}


class TextLines(logging.Formatter):
    """One record, one line; a traceback keeps its lines. What passes is shown as it may be."""

    def __init__(self, form: str = _TEXT) -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return visible(super().formatMessage(record))


class JsonLines(logging.Formatter):
    """One record of any content, one object in one line of ASCII: `time` (RFC 3339), `level`, `logger`, `message`,
    the fields that the record has and those of the process, and for an exception `exception` and `traceback`."""

    def __init__(self, **always: Any) -> None:
        """`always`: fields of every line."""
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        event: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, trace = record.exc_info
            event["exception"] = "".join(traceback.format_exception_only(kind, error)).strip()
            event["traceback"] = "".join(traceback.format_exception(kind, error, trace))
        return json.dumps(_covered(event), default=str)  # ASCII: names of files may be no text


def _covered(value: Any) -> Any:
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, dict):
        return {str(key): _covered(one) for key, one in value.items()}
    return [_covered(one) for one in value] if isinstance(value, list | tuple) else value


class LogStream(io.TextIOBase):
    """In place of `sys.stderr` from `begin` to `end`: each line that is printed becomes an event. Thread-safe."""

    def __init__(self, form: LogFormat, *, is_fixed: bool = False, **always: Any) -> None:
        """`is_fixed`: whatever a configuration says. `always`: fields of every line of JSON, such as the job that the
        process runs."""
        self._to: TextIO = sys.stderr
        self._is_fixed = is_fixed
        self._always = always
        self._started = ""
        self._lock = threading.RLock()
        self._before: tuple[Any, ...] | None = None
        self._use(form)

    def begin(self) -> None:
        """Take the place of `sys.stderr`, of the handlers that write there, and of those who print failures."""
        root = logging.getLogger()
        self._before = (list(root.handlers), threading.excepthook, sys.unraisablehook)
        root.handlers[:] = [one for one in root.handlers if not isinstance(one.formatter, TextLines)]
        root.addHandler(_Handler(self))
        sys.stderr = self
        threading.excepthook, sys.unraisablehook = _thread_failed, _unraisable
        logging.captureWarnings(True)

    def end(self) -> None:
        """Everything as it was before `begin`."""
        if self._before is not None:
            sys.stderr = self._to
            logging.getLogger().handlers[:], threading.excepthook, sys.unraisablehook = self._before
            logging.captureWarnings(False)
            self._before = None

    def configured(self, form: LogFormat) -> None:
        """The configuration says this form: use it from now on."""
        if not self._is_fixed:
            self._use(form)

    def _use(self, form: LogFormat) -> None:
        self.form = form
        self.formatter = JsonLines(**self._always) if form == "json" else TextLines()

    def write(self, text: str) -> int:
        """Printed text; what has no end of line yet waits for it."""
        with self._lock:
            *lines, self._started = (self._started + text).split("\n")
            for line in lines:
                if line.strip():
                    self.event(logging.INFO, line)
        return len(text)

    def event(self, level: int, message: str, **more: Any) -> None:
        """Write an event; `more` are its fields."""
        record = logging.LogRecord(log.name, level, "", 0, "%s", (message,), None)
        setattr(record, _FIELDS, more)
        self.written(self.formatter.format(record))

    def written(self, line: str) -> None:
        """Write a whole line, at once: processes of jobs write to the same file. One that cannot be written, for its
        disk is full or its reader gone, is lost: it must not end the work that it tells of."""
        with self._lock, suppress(OSError):
            self._to.write(line + "\n")
            self._to.flush()

    def flush(self) -> None:
        with suppress(OSError):
            self._to.flush()

    def fileno(self) -> int:
        return self._to.fileno()

    def isatty(self) -> bool:
        return False  # no bars of progress between the lines


class _Handler(logging.Handler):
    def __init__(self, stream: LogStream) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.written(self.stream.formatter.format(record))
        except Exception:  # noqa: BLE001  as logging's own handlers: a line that cannot be written ends nothing
            self.handleError(record)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:
        name = failed.thread.name if failed.thread is not None else "?"
        log.error("thread %s failed", name, exc_info=_info(failed.exc_type, failed.exc_value, failed.exc_traceback))


def _unraisable(failed: Any) -> None:
    what = failed.err_msg or "an exception without a caller to report to"
    log.error("%s: %r", what, failed.object, exc_info=_info(failed.exc_type, failed.exc_value, failed.exc_traceback))


def _info(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return kind, error if error is not None else kind(), trace
