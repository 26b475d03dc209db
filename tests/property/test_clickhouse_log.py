"""Random transactions on a disk with ClickHouse's log: at every revision a rebuild gives what the disk showed then.

Guards I2, I6, I7, I8, P37. The model is a dict (`MemoryDisk`): what it refuses the disk refuses as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks.base import Disk
from disks.clickhouse.disk import ClickHouseDisk
from disks.memory import MemoryDisk
from disks.stores.memory import MemoryStore
from oplog.clickhouse.names import parse_key
from oplog.errors import Conflict
from oplog.kinds import OtherKind
from restore.clickhouse.bucket import read_tree_of_bucket
from restore.clickhouse.rebuild import rebuild
from restore.clickhouse.tree import rows_of
from tests.turns import examples

SEGMENT = st.sampled_from(["a", "b", "shadow", "é"])
PATH = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)
STEP: st.SearchStrategy[tuple[str, ...]] = st.one_of(
    st.tuples(st.just("create"), PATH),
    st.tuples(st.just("create"), PATH),
    st.tuples(st.just("link"), PATH, PATH),
    st.tuples(st.just("rename"), PATH, PATH),
    st.tuples(st.just("remove"), PATH),
)
TRANSACTION = st.tuples(st.lists(STEP, min_size=1, max_size=4), st.booleans())


def attempt(disk: Disk, steps: list[tuple[str, ...]], number: int, *, commit: bool) -> int | str | None:
    """The revision, or `conflict`; None for what was abandoned, and on disks without revisions."""
    try:
        with disk.transaction(OtherKind("work")) as transaction:
            for verb, *paths in steps:
                data = [f"{number}:{paths[0]}".encode()] if verb == "create" else []
                getattr(transaction, verb)(*paths, *data)
            return transaction.commit() if commit else None
    except Conflict:
        return "conflict"


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


@settings(max_examples=examples(60), deadline=None)
@given(work=st.lists(TRANSACTION, min_size=1, max_size=12))
def test_every_revision_is_rebuilt_as_it_was(
    work: list[tuple[list[tuple[str, ...]], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place: Path = tmp_path_factory.mktemp("disk")
    store, model = MemoryStore("model"), MemoryDisk()
    disk = ClickHouseDisk("s3", store, place / "state", lease_settle_seconds=0.0)
    history: dict[int, dict[str, str | None]] = {}
    for number, (steps, commit) in enumerate(work):
        expected = attempt(model, steps, number, commit=commit)
        got = attempt(disk, steps, number, commit=commit)
        assert not commit or (got == "conflict") == (expected == "conflict")
        assert content(disk) == content(model)
        if isinstance(got, int):
            assert got > max(history, default=0)
            history[got] = {info.path: info.key for info in disk.walk()}
    for revision, then in history.items():
        tree = read_tree_of_bucket(store, revision=revision)
        assert {row.path: row.key for row in rows_of(tree.files.values())} == then
        assert (tree.ours, tree.findings) == (True, [])
    names = [parse_key(item.key) for item in store.list()]
    numbers = [name.revision for name in names if name is not None]
    assert len(numbers) == len(set(numbers))
    other = ClickHouseDisk("s3", store, place / "other", read_only=True)
    if history:
        rebuild(other, apply=True)
        assert content(other) == content(model)
    disk.close()
    other.close()
