"""From a transaction to the operations of ClickHouse's log: a trial on the file table, which is rolled back."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from disks.file_table.table import FileTable
from disks.file_table.views import TableWriter
from oplog import replay
from oplog.clickhouse import writing
from oplog.clickhouse.writing import LogStep
from oplog.entry import Commit, Create, Link, Remove, Rename


class _Tried(Exception):
    pass


def plan(table: FileTable, draft: Commit, staging: str, groups: Mapping[str, int]) -> list[LogStep]:
    """The operations to log, in order. `groups` tells in which group a blob was staged. Raises `Conflict` when the
    draft does not fit the table."""
    steps: list[LogStep] = []
    created: dict[int, list[str]] = {}

    def publish() -> None:
        for group in sorted(created):
            steps.extend(writing.publish(staging, group, created[group]))
        created.clear()

    try:
        with table.write() as view:
            replay.check_preconditions(view, draft)
            for operation in draft.operations:
                if isinstance(operation, Create):
                    assert operation.key is not None
                    created.setdefault(groups[operation.key], []).append(operation.path)
                else:
                    publish()
                    steps.extend(_steps(view, operation, f"{draft.writer[:16]}_{len(steps)}"))
                replay.execute(view, msgspec.structs.replace(draft, present=(), absent=(), operations=(operation,)))
            publish()
            raise _Tried
    except _Tried:
        return steps


def _steps(view: TableWriter, operation: Link | Rename | Remove, mark: str) -> list[LogStep]:
    match operation:
        case Link(source=source, target=target):
            return [writing.link(source, target)]
        case Remove(path=path):
            return [writing.remove(path, mark, is_file=view.get(path) is not None)]
        case Rename(source=source, target=target):
            is_file = view.get(source) is not None
            parent = target.rpartition("/")[0]
            if not parent or view.has_directory(parent):
                return [writing.rename(source, target, is_file=is_file)]
            files = [source] if is_file else [row.path for row in view.rows(source)]
            return writing.rename_to_new_directory(source, target, files, mark, is_file=is_file)


def blobs_below(view: TableWriter, path: str) -> list[str]:
    """The blobs of a file, or of all files below a directory."""
    one = view.get(path)
    return [key for row in ([one] if one is not None else view.rows(path)) for key, _ in row.blobs]
