"""How long work reports that it goes on. The engine calls it; a terminal, a log or nothing at all listens.

    with progress.task("moving parts", items=12, size_bytes=840_000_000) as task:
        task.advance(items=1, size_bytes=70_000_000)

Calls are cheap, may come from any thread, and never raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from types import TracebackType
from typing import Protocol, Self, TypeVar

_R = TypeVar("_R")
_ROWS_AT_ONCE = 1000


class Task(Protocol):
    """One piece of work that is under way."""

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        """This much more is done."""

    def note(self, text: str) -> None:
        """What is being worked on now: a part, a file."""


class Progress(Protocol):
    """Where tasks are shown."""

    def task(
        self, title: str, *, items: int | None = None, size_bytes: int | None = None
    ) -> AbstractContextManager[Task]:
        """Begin a task; leaving the context ends it. Totals are None where they are not known yet."""


class Silent:
    """A progress, and a task, that shows nothing."""

    def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> Self:
        return self

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        return None

    def note(self, text: str) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


SILENT: Progress = Silent()


def watched(rows: Iterable[_R], task: Task) -> Iterator[_R]:
    """The rows; the task hears how many of them have gone by."""
    waiting = iter(rows)
    while some := list(islice(waiting, _ROWS_AT_ONCE)):
        yield from some
        task.advance(items=len(some))
