"""Progress on stderr: bars on a terminal, else one line every 10 seconds; for programs, lines of JSON."""

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from disks.workers.progress import Progress, Silent, Task
from tiering.config.escaping import visible
from tiering.config.units import format_size

LINE_EVERY_SECONDS = 10.0
DOCUMENT_EVERY_SECONDS = 1.0


def choose(*, quiet: bool, no_progress: bool, as_json: bool = False) -> Progress:
    """Bars, lines or nothing, by the terminal and the options; documents for scripts."""
    if as_json:
        return Documents()
    if quiet or no_progress:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


class _CountedTask:
    """What a task has done so far, told by text. Change its numbers under its lock."""

    def __init__(
        self,
        title: str,
        items: int | None,
        size_bytes: int | None,
        write: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        self._title, self._items, self._size_bytes = title, items, size_bytes
        self._write, self._clock = write, clock
        self._done_items = self._done_bytes = 0
        self._began = self._last = clock()
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        return None


class Lines:
    """For logs and pipes: a line every 10 s while a task runs; nothing for what is done sooner."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write or (lambda text: print(visible(text), file=sys.stderr, flush=True))
        self._clock = clock

    def task(
        self, title: str, *, items: int | None = None, size_bytes: int | None = None
    ) -> AbstractContextManager[Task]:
        return _LineTask(title, items, size_bytes, self._write, self._clock)


class _LineTask(_CountedTask):
    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        with self._lock:
            self._done_items += items
            self._done_bytes += size_bytes
            now = self._clock()
            if now - self._last < LINE_EVERY_SECONDS:
                return
            self._last = now
            text = self._text()
        self._write(text)

    def _text(self) -> str:
        pieces = []
        if self._items is not None or self._done_items:
            pieces.append(f"{self._done_items:,}" + (f" of {self._items:,}" if self._items is not None else ""))
        if self._done_bytes or (
            self._size_bytes is not None and not self._done_items
        ):  # else no byte goes through here
            total = f" of {format_size(self._size_bytes)}" if self._size_bytes is not None else ""
            pieces.append(format_size(self._done_bytes) + total)
        return f"{self._title}: {', '.join(pieces) or 'still at work'}"

    def __enter__(self) -> "_LineTask":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Documents:
    """For programs: `{"progress": {…}}` on a line when a task begins, each second that it advances, and when it ends.

    Numbers that are not known are null; `state` is `begun`, `running`, `done` or `failed`.
    """

    def __init__(
        self, write: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write or (lambda text: print(text, file=sys.stderr, flush=True))
        self._clock = clock

    def task(
        self, title: str, *, items: int | None = None, size_bytes: int | None = None
    ) -> AbstractContextManager[Task]:
        return _DocumentTask(title, items, size_bytes, self._write, self._clock)


class _DocumentTask(_CountedTask):
    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        with self._lock:
            self._done_items += items
            self._done_bytes += size_bytes
            if self._clock() - self._last >= DOCUMENT_EVERY_SECONDS:
                self._tell("running")

    def _tell(self, state: str) -> None:
        self._last = self._clock()
        document = {
            "task": self._title,
            "state": state,
            "items": self._items,
            "items_done": self._done_items,
            "bytes": self._size_bytes,
            "bytes_done": self._done_bytes,
            "seconds": round(self._last - self._began, 3),
        }
        self._write(json.dumps({"progress": document}))

    def __enter__(self) -> "_DocumentTask":
        with self._lock:
            self._tell("begun")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._tell("done" if kind is None else "failed")


class Bars:
    """For people: one bar a task, removed when it is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: Any = None
        self._open_tasks = 0

    def task(
        self, title: str, *, items: int | None = None, size_bytes: int | None = None
    ) -> AbstractContextManager[Task]:
        return _BarTask(self, title, items, size_bytes)

    def begin(self, title: str, total: int | None, *, by_bytes: bool) -> Any:
        """A row for the task; returns its id."""
        with self._lock:
            if self._live is None:
                self._live = _new_display()
                self._live.start()
            self._open_tasks += 1
            return self._live.add_task(visible(title), total=total, by_bytes=by_bytes, note="")

    def update(self, row: Any, **changes: Any) -> None:
        live = self._live
        if live is not None:
            live.update(row, **changes)

    def end(self, row: Any) -> None:
        """Take the row away, and the display with the last one."""
        with self._lock:
            self._live.remove_task(row)
            self._open_tasks -= 1
            if self._open_tasks == 0:
                self._live.stop()
                self._live = None


class _BarTask:
    def __init__(self, bars: Bars, title: str, items: int | None, size_bytes: int | None) -> None:
        self._bars, self._title = bars, title
        self._by_bytes = size_bytes is not None
        self._total = size_bytes if self._by_bytes else items
        self._row: Any = None

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        self._bars.update(self._row, advance=size_bytes if self._by_bytes else items)

    def note(self, text: str) -> None:
        self._bars.update(self._row, note=visible(text))

    def __enter__(self) -> "_BarTask":
        self._row = self._bars.begin(self._title, self._total, by_bytes=self._by_bytes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.end(self._row)


def _new_display() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.progress import Task as RichTask
    from rich.text import Text

    class Amount(ProgressColumn):
        """Items or bytes done, of how many, and how fast."""

        def render(self, task: RichTask) -> Text:
            by_bytes = task.fields.get("by_bytes", False)
            done = format_size(task.completed) if by_bytes else f"{int(task.completed):,}"
            total = "" if task.total is None else f"/{format_size(task.total) if by_bytes else f'{int(task.total):,}'}"
            speed = f"  {format_size(task.speed)}/s" if by_bytes and task.speed else ""
            return Text(f"{done}{total}{speed}")

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        Amount(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
