"""Marks that were lost, what puts them back, and what must hold wherever that was killed."""

from __future__ import annotations

from collections.abc import Iterator

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.sharing.prefix import store_identity
from oplog.revision import BLOBS_PREFIX, is_blob_key
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.marks import census
from zerocopy.marks.nodes import StoreNodes
from zerocopy.replica.connections import connections


def _disk(store: Store) -> LoggedDisk:
    disk = as_disk(store.disk("own"), LoggedDisk)
    assert disk is not None
    return disk


def damage(a: Store) -> None:
    """Of four sets that two logs name: one is gone, one lacks its marks, one lists no key."""
    keeper = connections(a.context).keeper
    nodes = StoreNodes(str(store_identity(_disk(a))))
    gone, unmarked, empty, _ = (nodes.blob_set(one.name) for one in census.sets(keeper, nodes))
    keeper.delete_tree(gone)
    for name in keeper.children(unmarked):
        keeper.delete(f"{unmarked}/{name}")
    keeper.set(empty, b"")


def repair(a: Store) -> None:
    audited = auditing.run(a.context, _disk(a), repairs=True)
    assert audited.clean, audited.differences


def violations(a: Store) -> Iterator[str]:
    """Before it is repaired again: gc may collect nothing while anything lacks; after it: all is marked and listed."""
    found = auditing.run(a.context, _disk(a), repairs=False, dry_run=True)
    marks = auditing.references(a.context, _disk(a))
    assert marks is not None
    if not found.clean and marks.objection() is None:
        yield f"gc may collect, and {len(found.differences)} differences are left"
    objects = {info.key for info in _disk(a).store.list(BLOBS_PREFIX) if is_blob_key(info.key)}
    repair(a)
    if marks.objection() is not None:
        yield f"gc may not collect: {marks.objection()}"
    if objects - set(marks.held()):
        yield f"{len(objects - set(marks.held()))} objects that nobody holds"
