"""A file table in memory, for tests of what reads any table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from oplog.errors import Conflict
from oplog.replay import FileRow


class MemoryTable:
    """A `FileTable` in a dict."""

    def __init__(self, rows: Iterable[FileRow] = ()) -> None:
        self._rows = {row.path: row for row in rows}

    def get(self, path: str) -> FileRow | None:
        return self._rows.get(path)

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self._rows)

    def insert(self, rows: Sequence[FileRow]) -> None:
        for row in rows:
            if row.path in self._rows:
                raise Conflict(f"{row.path} exists already")
            self._rows[row.path] = row

    def rename(self, source: str, target: str, revision: int) -> int:
        moved = self._take(source)
        self.insert([row.at(target + row.path[len(source) :], revision) for row in moved])
        return len(moved)

    def remove(self, path: str) -> int:
        return len(self._take(path))

    def rows(self, directory: str = "") -> Iterator[FileRow]:
        prefix = f"{directory}/" if directory else ""
        return iter([self._rows[path] for path in sorted(self._rows) if path.startswith(prefix)])

    def _take(self, path: str) -> list[FileRow]:
        taken = [name for name in self._rows if name == path or name.startswith(f"{path}/")]
        return [self._rows.pop(name) for name in taken]
