"""Random files, links, renames and removes; then any commit is undone: it takes back exactly what that commit did, or
says no and does nothing. Guards I2, I6 and I7.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from disks.config import ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from oplog.errors import Conflict, Refused
from oplog.kinds import OtherKind
from restore.history.diff import diff
from restore.history.undo import undo
from tests.turns import examples
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.engine.store import Store

NAMES = st.sampled_from(["a", "d/a", "d/f/b"])
DIRECTORIES = st.sampled_from(["d", "d/f", "g"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("rename"), NAMES | DIRECTORIES, NAMES | DIRECTORIES),
    st.tuples(st.just("remove"), NAMES | DIRECTORIES),
)
COMMITS = st.lists(st.lists(STEPS, min_size=1, max_size=2), min_size=4, max_size=12)
"""Few names and many commits, so that they meet."""


def commit(disk: ObjectDisk, steps: list[tuple[object, ...]]) -> None:
    """One transaction; what does not fit the tree is refused as a whole."""
    try:
        with disk.transaction(OtherKind("work")) as transaction:
            for step in steps:
                match step:
                    case ("create", str(path), int(number)):
                        transaction.create(path, b"%d" % number if number % 2 else b"{%d}" % number)
                    case ("link", str(source), str(target)):
                        transaction.link(source, target)
                    case ("rename", str(source), str(target)):
                        transaction.rename(source, target)
                    case ("remove", str(path)):
                        transaction.remove(path)
            transaction.commit()
    except Conflict:
        pass


def tree(disk: ObjectDisk, revision: int | None = None) -> dict[str, bytes]:
    if revision is None:
        return {info.path: disk.read(info.path) for info in disk.walk()}
    table = disk.table_at(revision)
    try:
        return {
            row.path: row.inline if row.inline is not None else disk.store.get(row.key or "") for row in table.rows()
        }
    finally:
        table.close()


def take_back(store: Store, disk: ObjectDisk, revision: int) -> int | None:
    """Undo it and compare with the model; the undo's revision, None when it was refused or nothing was to do."""
    before, after, now, head = tree(disk, revision - 1), tree(disk, revision), tree(disk), disk.revision
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    try:
        _, done = undo(store.context, disk, revision)
    except Refused:
        assert (tree(disk), disk.revision) == (now, head)
        return None
    expected = {path: data for path, data in now.items() if path not in changed}
    expected |= {path: before[path] for path in changed if path in before}
    assert tree(disk) == expected
    if done is None:
        assert disk.revision == head
        return None
    assert done == disk.revision == head + 1
    assert all(now.get(path) == after.get(path) for path in changed), "what came later was overwritten"
    return done


@settings(max_examples=examples(60), deadline=None)
@given(COMMITS, st.data())
def test_an_undo_reverses_one_commit_and_nothing_else(
    commits: list[list[tuple[object, ...]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as home:
        config = Config(
            state_path=str(Path(home) / "state"),
            disks={"s3": ObjectDiskConfig(url=f"memory://{uuid.uuid4()}", snapshot_every_commits=3)},
            policies={"cold": PolicyConfig(volumes=(VolumeConfig(name="cold", disks=("s3",)),))},
        )
        with Store.open(config) as store:
            disk = store.object_disk("s3")
            for steps in commits:
                commit(disk, steps)
            if not disk.revision:
                return
            revision = data.draw(st.integers(1, disk.revision))
            now = tree(disk)
            done = take_back(store, disk, revision)
            found = diff(disk, max(disk.revision - 1, 0), disk.revision, paths=True)
            if done is not None:
                assert {path for _, path, _ in found.paths} == {
                    path for path in {*now, *tree(disk)} if now.get(path) != tree(disk).get(path)
                }
                again = take_back(store, disk, done)
                assert again is not None, "nothing came between"
                assert tree(disk) == now
