"""What a commit may do is decided for a run of new files at once; it must be what deciding file by file gives (I2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disks.file_table.table import FileTable
from oplog import paths, replay
from oplog.entry import Commit, Create, Link, Operation, Remove, Rename
from oplog.errors import Conflict
from oplog.kinds import OtherKind
from tests.turns import examples

PATHS = st.sampled_from(["a", "a/b", "a/b/c", "a/b/d", "a/e", "f", "f/g"])
OPERATIONS = st.one_of(
    *[PATHS.map(lambda path: new(path))] * 3,
    st.builds(Link, PATHS, PATHS),
    st.builds(Rename, PATHS, PATHS).filter(lambda rename: not f"{rename.target}/".startswith(f"{rename.source}/")),
    PATHS.map(Remove),
)


def commit(operations: tuple[Operation, ...], absent: tuple[str, ...] = ()) -> Commit:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return Commit(
        revision=2, previous="", writer="w", time=time, kind=OtherKind("test"), absent=absent, operations=operations
    )


def exists(files: set[str], path: str) -> bool:
    return any(f"{name}/".startswith(f"{path}/") for name in files)


def by_hand(files: set[str], operations: tuple[Operation, ...], absent: tuple[str, ...]) -> set[str] | None:
    """The paths after all operations, one after the other; None for a conflict."""
    if any(exists(files, path) for path in absent):
        return None
    for operation in operations:
        target = operation.path if isinstance(operation, Create | Remove) else operation.target
        source = operation.source if isinstance(operation, Link | Rename) else None
        if isinstance(operation, Remove):
            if not exists(files, target):
                return None
            files = {name for name in files if not f"{name}/".startswith(f"{target}/")}
            continue
        if source is not None and not (source in files or (isinstance(operation, Rename) and exists(files, source))):
            return None
        if exists(files, target) or not files.isdisjoint(paths.ancestors(target)):
            return None
        if isinstance(operation, Rename):
            moved = {name for name in files if f"{name}/".startswith(f"{source}/")}
            files = (files - moved) | {target + name[len(operation.source) :] for name in moved}
        else:
            files = files | {target}
    return files


def new(path: str) -> Create:
    return Create(path, 1, "00" * 32, f"key-{path}", None, None)


@example(set(), (new("f"), new("f/g")), ())
@example(set(), (new("f/g"), new("f")), ())
@example(set(), (new("a/b"), new("a/b")), ())
@example(set(), (new("f"), Rename("f", "a"), new("a/b")), ("a",))
@settings(max_examples=examples(400), deadline=None)
@given(st.sets(PATHS), st.lists(OPERATIONS, max_size=6).map(tuple), st.lists(PATHS, max_size=2).map(tuple))
def test_a_run_of_new_files_is_judged_as_one_by_one(
    before: set[str], operations: tuple[Operation, ...], absent: tuple[str, ...]
) -> None:
    before = {path for path in before if before.isdisjoint(paths.ancestors(path))}
    table = FileTable(None)
    try:
        table.insert([replay.FileRow(path, 1, "00" * 32, "k", None, None, 1) for path in sorted(before)])
        expected = by_hand(before, operations, absent)
        if expected is None:
            with pytest.raises(Conflict), table.write() as view:
                replay.execute(view, commit(operations, absent))
            expected = before
        else:
            with table.write() as view:
                replay.execute(view, commit(operations, absent))
        assert [row.path for row in table] == sorted(expected)
    finally:
        table.close()


def test_the_table_is_asked_little_about_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below a directory that must be absent: only the directories above it are looked for, once."""
    from disks.file_table.views import TableReader

    asked: list[str] = []

    def told(original: Callable[..., object]) -> Callable[..., object]:
        def ask(self: TableReader, path: str) -> object:
            asked.append(path)
            return original(self, path)

        return ask

    for name in ("get", "exists"):
        monkeypatch.setattr(TableReader, name, told(getattr(TableReader, name)))
    table = FileTable(tmp_path / "table.db")
    files = tuple(new(f"t/p{number // 2}/{number}") for number in range(100))
    with table.write() as view:
        replay.execute(view, commit(files, tuple(f"t/p{number}" for number in range(50))))
    assert len(asked) == 50 + 1
    table.close()
