"""Rows that are counted while they go by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from disks.workers.progress import Task

_R = TypeVar("_R")
_STEP = 1000


class Watched(Generic[_R]):
    """Rows that tell a task how many of them have gone by."""

    def __init__(self, rows: Iterable[_R], task: Task) -> None:
        self._rows, self._task = rows, task

    def __iter__(self) -> Iterator[_R]:
        rows = iter(self._rows)
        while some := list(islice(rows, _STEP)):
            yield from some
            self._task.advance(items=len(some))
