"""Rows that cannot be taken: kept in a file, up to a limit, while the others go in.

The file has one JSON object a line: `source`, `line` or `row` (counted from 1), `problem`, and `text`, the record as it
was, or `values`, of formats without lines. It is written row by row, and is empty when all rows were good.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import pyarrow as pa

from oplog.errors import LimitReached, UsageError

_Found = TypeVar("_Found")
_Record = TypeVar("_Record")


class BadRows:
    """A context manager: leaving it closes the file. Without a path nothing is kept, only counted."""

    def __init__(self, most: int, path: Path | None) -> None:
        self.count = 0
        self._most = most
        self._path = path
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._stream = self._path.open("w", encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"bad rows cannot be kept in {self._path}: {error.strerror}", hint="name a file that can be written"
                ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, source: str, position: dict[str, int], problem: str, content: dict[str, Any]) -> None:
        """Keep one. Raises `LimitReached` when there are more than were allowed."""
        self.count += 1
        if self._stream is not None:
            record = {"source": source, **position, "problem": problem, **content}
            self._stream.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
            self._stream.flush()
        if self.count > self._most:
            kept = f"{self._path} has them" if self._path is not None else "a dry run keeps none"
            raise LimitReached(
                f"more than {self._most} bad rows; the last one: {source}: {problem}",
                hint=f"{kept}; rows before may be in already, and a repeated insert skips them",
            )


def salvage(
    records: Sequence[_Record],
    take: Callable[[Sequence[_Record]], _Found],
    bad: Callable[[_Record, str], None],
) -> Iterator[_Found]:
    """What `take` makes of the records but those that it cannot take by themselves: `bad` gets these, in order."""
    try:
        found = take(records)
    except (pa.ArrowException, UsageError) as error:
        if len(records) == 1:
            bad(records[0], str(error).splitlines()[0])
            return
        middle = len(records) // 2
        yield from salvage(records[:middle], take, bad)
        yield from salvage(records[middle:], take, bad)
    else:
        yield found
