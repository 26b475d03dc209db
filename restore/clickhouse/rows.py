"""From a ClickHouse bucket to the rows of a file table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disks.stores.base import ObjectStore
from disks.workers.parallel import HERE, Askers
from oplog.clickhouse.names import SCHEMA_VERSION
from oplog.clickhouse.replay import File, Replayed
from oplog.errors import NotFound
from oplog.replay import FileRow
from restore.clickhouse.bucket import ClickHouseTree, read_bucket, survey


def read_tree_of_bucket(
    store: ObjectStore,
    *,
    revision: int | None = None,
    askers: Askers = HERE,
) -> ClickHouseTree:
    """The tree at the revision; an empty one for a disk to which nothing was written yet.

    Raises what `read_bucket` does, and `NotFound` for a revision above the newest.
    """
    contents = survey(store)
    if contents.schema_version == SCHEMA_VERSION and not contents.log:
        return ClickHouseTree(store.name, contents, Replayed(), ours=True)
    tree = read_bucket(store, revision=revision, contents=contents, askers=askers)
    if revision is not None and revision > tree.head:
        raise NotFound(f"{store.name} has no revision {revision}", hint=f"the newest is {tree.head}")
    return tree


def rows_of(files: Iterable[File]) -> Iterator[FileRow]:
    """Their rows, in the same order. A file without an object is empty; what its hard links share is the path of the
    first of them, as `blob_set`. No digest is known."""
    first: dict[int, str] = {}
    for file in files:
        if file.blobs:
            key = file.blobs[0][0]
            yield FileRow(file.path, file.size_bytes, "", key, None, None, file.revision, file.blobs[1:])
        else:
            shared = first.setdefault(file.inode, file.path) if file.links > 1 else None
            yield FileRow(file.path, 0, "", None, b"", shared, file.revision)


def key_prefix(store: ObjectStore) -> str:
    """What stands before the disk's keys in its bucket, with the final slash: versions 1 and 5 of ClickHouse's metadata
    hold it. Empty for a directory that stands for a bucket."""
    url = store.url("x")
    return url.partition("://")[2].partition("/")[2].removesuffix("x") if url.startswith("s3://") else ""
