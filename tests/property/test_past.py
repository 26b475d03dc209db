"""A table that starts from a snapshot goes through the log as one that starts from the empty disk (I7, P38)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks.file_table import sorted_run
from disks.file_table.sorted_run import SortedRun
from disks.object_disk.history import TableAsOf
from disks.stores.memory import MemoryStore
from oplog import entry, snapshot
from oplog.entry import GENESIS_DIGEST, Commit, Create, Link, Operation, Remove, Rename
from oplog.errors import Damaged, NoSpace
from oplog.kinds import Moved
from oplog.log import OperationsLog
from oplog.paths import below
from oplog.replay import FileRow
from oplog.revision import commit_key, snapshot_key
from tests.turns import examples

PATHS = ["a", "a-", "a-/b", "a/b", "a/b/c", "a/b/d", "a/b-", "a/e", "a0", "b", "é", "é/f"]
paths = st.sampled_from(PATHS)
creates = st.builds(Create, paths, st.just(3), st.just("ab" * 32), key=st.sampled_from(["k1", "k2", None]))
operations = st.one_of(
    creates,
    st.builds(Link, paths, paths),
    st.builds(Rename, paths, paths).filter(lambda rename: not f"{rename.target}/".startswith(f"{rename.source}/")),
    paths.map(Remove),
)
first = st.lists(creates, min_size=3, max_size=len(PATHS), unique_by=lambda create: create.path)
later = st.lists(st.lists(operations, min_size=1, max_size=3), min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def _small_blocks() -> Iterator[None]:
    """Blocks of two rows, and a filter that says of many a path that it may be there."""
    with mock.patch.object(sorted_run, "_BLOCK_ROWS", 2), mock.patch.object(sorted_run, "_FILTER_BITS", 16):
        yield


def written(history: Sequence[Sequence[Operation]]) -> OperationsLog:
    """The log, with a snapshot at each revision; its last entry may not fit those before."""
    store, previous = MemoryStore(), GENESIS_DIGEST
    log = OperationsLog(store)
    for revision, steps in enumerate(history, 1):
        time = datetime(2026, 1, 1, tzinfo=UTC)
        commit = Commit(
            revision=revision, previous=previous, writer="w", time=time, kind=Moved(), operations=tuple(steps)
        )
        put(store, commit_key(revision), entry.encode(commit))
        with closing(TableAsOf(log)) as past:
            try:
                past.advance(revision)
            except Damaged:
                return log
            previous = past.digest
            put(store, snapshot_key(revision), snapshot.encode(revision, previous, past.table.rows()))
    return log


def put(store: MemoryStore, key: str, data: bytes) -> None:
    store.put(key, data, sha256=hashlib.sha256(data).digest())


def state(past: TableAsOf) -> tuple[object, ...]:
    """All that a past tells, without making a table of it."""
    return (
        past.revision,
        past.digest,
        list(past.rows()),
        past.count() - len(list(past.rows())),
        list(past.stored()),
        [past.get(path) for path in PATHS],
        sorted(past.blobs()),
        past.keys(),
        past.keys({"k2"}),
        past.removed,
        past.named,
        past.moved_in,
    )


@given(first, later)
@settings(max_examples=examples(200), deadline=None)
def test_from_any_snapshot_the_log_leads_to_the_same_tables(
    first: list[Operation], later: list[list[Operation]]
) -> None:
    log = written([first, *later])
    last = max(log.revisions(0))
    for start in snapshot.revisions(log.store):
        for as_table_at in (None, start, start + 1):
            with closing(TableAsOf(log)) as known, closing(TableAsOf(log, start)) as past:
                known.advance(start)
                known.named.clear()
                known.moved_in.clear()
                known.removed, past.removed = set(), set()
                for revision in range(start, last + 1):
                    faults = [fault_of(one, revision) for one in (known, past)]
                    assert faults[0] == faults[1]
                    if faults[0] is not None:
                        break
                    assert state(past) == state(known)
                    there = list(known.rows())
                    assert past.holds(iter(there))
                    for other in (
                        (there[1:], there[:-1], [*there, there[-1]], [there[-1], *there[1:-1]]) if there else ()
                    ):
                        assert past.holds(other) is (other == there)
                    if revision == as_table_at:
                        assert list(past.table.rows()) == list(known.rows())


def fault_of(past: TableAsOf, revision: int) -> str | None:
    try:
        past.advance(revision)
    except Damaged as error:
        return error.message
    return None


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("r+b")  # noqa: SIM115 - the run closes it
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **options: full)
    with pytest.raises(NoSpace, match="for a temporary table") as caught:
        SortedRun([FileRow("a", 1, "00" * 32, "k", None, None, 1)])
    assert "TMPDIR" in caught.value.hint
    assert full.closed


rows = st.lists(paths, unique=True).map(
    lambda names: [FileRow(name, 1, "00" * 32, f"key of {name}", None, None, 1) for name in sorted(names)]
)


@given(rows, st.lists(st.tuples(paths, st.booleans()), max_size=6))
@settings(max_examples=examples(200), deadline=None)
def test_rows_are_there_until_they_are_taken(there: list[FileRow], taken: list[tuple[str, bool]]) -> None:
    left = {row.path: row for row in there}
    with closing(SortedRun(there)) as run:
        for path, with_all_below in taken:
            start, stop = below(path)
            names = [name for name in left if name == path or (with_all_below and start <= name < stop)]
            assert [row.path for row in (run.take(path) if with_all_below else run.take_file(path))] == names
            left = {name: row for name, row in left.items() if name not in names}
            assert list(run.rows()) == list(left.values())
            assert [run.get(name) for name in PATHS] == [left.get(name) for name in PATHS]
