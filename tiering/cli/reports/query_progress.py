"""How far a long query is: percent by the engine's own count, bytes that were read, rows that came."""

import threading
from collections.abc import Generator, Iterable, Sized
from typing import TYPE_CHECKING, TypeVar

from disks.workers.progress import SILENT, Progress, Task
from tiering.config.units import counted, format_size

if TYPE_CHECKING:
    from tiering.query.query import QueryResult

FIRST_SECONDS = 1.0
"""A query that takes no longer shows nothing."""
_AGAIN_SECONDS = 0.25
_WHOLE = 100


Rows = TypeVar("Rows", bound=Sized)


def shown(batches: "Iterable[Rows]", result: "QueryResult", progress: Progress) -> "Generator[Rows]":
    """The batches of rows, those of the result; while they come, and before the first of them, progress is reported.

    A thread of its own reports it; it has ended when this has: by its last item, by an error, or by `close`.
    """
    seen = _Seen(result)
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(seen, progress, ended), name="query progress", daemon=True)
    if progress is not SILENT:
        teller.start()
    try:
        for batch in batches:
            seen.rows += len(batch)
            yield batch
    finally:
        ended.set()
        if teller.is_alive():
            teller.join()


class _Seen:
    """What a query has done, and how much of that was reported."""

    def __init__(self, result: "QueryResult") -> None:
        self._result = result
        self.rows = 0
        self._percent = 0
        self._read_bytes = 0

    def tell(self, task: Task) -> None:
        """Tell what is new. Of what several engine threads count, some looks see less than the one before."""
        share, read_bytes = self._result.done_so_far()
        percent = max(self._percent, int(_WHOLE * share)) if share is not None else self._percent
        read_bytes = max(self._read_bytes, read_bytes)
        task.note(f"{format_size(read_bytes)} read, {counted(self.rows, 'row')}")
        task.advance(items=percent - self._percent, size_bytes=read_bytes - self._read_bytes)
        self._percent, self._read_bytes = percent, read_bytes


def _tell(seen: _Seen, progress: Progress, ended: threading.Event) -> None:
    if ended.wait(FIRST_SECONDS):
        return
    with progress.task("percent of the query", items=_WHOLE) as task:
        seen.tell(task)
        while not ended.wait(_AGAIN_SECONDS):
            seen.tell(task)
        seen.tell(task)
