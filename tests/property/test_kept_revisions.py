"""What all kept revisions name together is what each of them names, replayed on its own (I4, P33)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from disks.garbage import kept_revisions
from disks.garbage.kept_revisions import tables_at
from disks.garbage.live_references import collect_references, named_anew
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.history import past_at
from disks.object_disk.references import Blobs, Inventory, inventory
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from oplog import pins, snapshot
from oplog.errors import Conflict
from oplog.kinds import Inserted
from oplog.replay import FileRow
from oplog.revision import BLOBS_PREFIX, commit_key
from tests.turns import examples

NOW = datetime.now(UTC)
NAMES = ["a/x", "a/y", "b/x"]
names = st.sampled_from(NAMES)
directories = st.sampled_from(["a", "b", "c", "d"])
steps = st.one_of(
    st.tuples(st.just("create"), names, names),
    st.tuples(st.just("remove"), st.sampled_from(["a/x", "b/x", "a", "b", "d"]), names),
    st.tuples(st.just("link"), st.sampled_from(["a/x", "b/x"]), st.sampled_from(["a/z", "d/z"])),
    st.tuples(st.just("rename"), directories, directories),
    st.tuples(st.just("bring back"), st.integers(0, 30), st.sampled_from([*NAMES, "a/w"])),
)
histories = st.lists(st.lists(steps, min_size=1, max_size=3), min_size=2, max_size=14)


class Aged(MemoryStore):
    """Its objects were written as many days ago as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.days: dict[str, int] = {}

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            yield ObjectInfo(info.key, info.size_bytes, NOW - timedelta(days=self.days.get(info.key, 0)))


class Doubted(Blobs):
    """A listing that was compared with the table elsewhere: only some of it is in question."""

    def __init__(self, blobs: Iterator[ObjectInfo], numbers: set[int]) -> None:
        super().__init__(blobs)
        self._doubtful = {key for number, key in enumerate(self.keys()) if number in numbers}

    @property
    def doubtful(self) -> set[str]:  # type: ignore[override]  # as `ComparedBlobs` has it
        return self._doubtful


def written(disk: ObjectDisk, history: list[list[tuple[str, int | str, str]]]) -> None:
    """The history, as far as its steps fit. What was created once may come back, as an undo brings it."""
    made: list[FileRow] = []
    for entry in history:
        created: list[str] = []
        try:
            with disk.transaction(Inserted()) as transaction:
                for step, one, other in entry:
                    match step:
                        case "create":
                            transaction.create(str(one), b"bytes")
                            created.append(str(one))
                        case "remove":
                            transaction.remove(str(one))
                        case "link":
                            transaction.link(str(one), other)
                        case "rename":
                            transaction.rename(str(one), other)
                        case _ if made:
                            row = made[int(one) % len(made)]
                            transaction.adopt(row.at(other, 0))
                transaction.commit()
        except Conflict:
            continue
        made += [row for path in created if (row := disk.file_table.get(path)) is not None]


def one_by_one(disk: ObjectDisk, found: Inventory, revisions: list[int], base: int) -> set[str]:
    """What each of the revisions names, and all that was named after the last."""
    keys: set[str] = set()
    for revision in [*revisions, base]:
        with closing(past_at(disk.log, found, revision, strict=True)) as past:
            keys |= past.keys()
            past.named.clear()
            if revision == base:
                past.advance()
                keys |= past.named
    return keys


@example(
    history=[
        [("create", "a/x", "")],
        [("create", "b/x", "")],
        [("link", "b/x", "d/z")],
        [("remove", "b/x", "")],
        [("remove", "d/z", "")],
        [("create", "a/y", "")],
    ],
    snapshots=set(),
    pinned={1, 4},
    old=6,
    cut=0,
    entry_bytes=0,
    among=None,
)
@given(
    history=histories,
    snapshots=st.sets(st.integers(1, 14)),
    pinned=st.sets(st.integers(1, 14)),
    old=st.integers(0, 14),
    cut=st.integers(0, 14),
    entry_bytes=st.sampled_from([0, 300, 10_000]),
    among=st.none() | st.sets(st.integers(0, 30)),
)
@settings(max_examples=examples(300), deadline=None)
def test_together_they_name_what_each_names(
    history: list[list[tuple[str, int | str, str]]],
    snapshots: set[int],
    pinned: set[int],
    old: int,
    cut: int,
    entry_bytes: int,
    among: set[int] | None,
) -> None:
    """Whatever there is of snapshots, and whatever an entry is taken to cost."""
    store = Aged()
    with tempfile.TemporaryDirectory() as home, mock.patch.object(kept_revisions, "_ENTRY_BYTES", entry_bytes):
        disk = ObjectDisk("s3", store, Path(home), snapshot_every_commits=0)
        written(disk, history)
        head = disk.revision
        if head == 0:
            return
        store.days = {commit_key(revision): 9 for revision in range(1, old + 1)}
        for revision in sorted(snapshots & set(range(1, head + 1))):
            with closing(past_at(disk.log, inventory(store.list()), revision)) as past:
                snapshot.write(store, revision, past.digest, past.rows())
        there = set(snapshot.revisions(store))
        cut = max((revision for revision in there if revision <= min(cut, old)), default=0)
        store.delete([commit_key(revision) for revision in range(1, cut)])
        found = inventory(store.list())
        base = min(old, head)
        kept = sorted(revision for revision in pinned if revision < base and (revision >= cut or revision in there))
        for revision in kept:
            pins.create(store, f"backup-{revision}", revision, holder="test")
        expected = one_by_one(disk, found, kept, base)
        if among is not None:
            blobs = Doubted(store.list(BLOBS_PREFIX), among)
            found, expected = replace(found, blobs=blobs), expected & blobs.doubtful
        evidence = collect_references(disk, found, now=NOW, retention=timedelta(days=1))
        assert evidence.keys == expected
        assert (evidence.base, evidence.pinned) == (base, tuple(kept))
        assert evidence.proved <= {0, *there}
        together: set[str] = set()
        each: set[str] = set()
        before = None
        with closing(tables_at(disk.log, found, [*kept, base])) as tables:
            for revision, past in zip([*kept, base], tables, strict=True):
                together |= named_anew(past, found, gone_on=past is before)
                with closing(past_at(disk.log, found, revision)) as alone:
                    each |= alone.keys(found.blobs.doubtful)
                assert (past.revision, together) == (revision, each)
                before = past
        disk.close()
