"""Files of a disk in a bucket, each made or taken away by a commit of its own."""

from __future__ import annotations

from disks.contracts.bucket_disk import BucketDisk
from oplog.kinds import Dropped, Inserted


def put(disk: BucketDisk, path: str, data: bytes = b"some bytes") -> str:
    """Create one file in one commit; its blob."""
    with disk.transaction(Inserted()) as transaction:
        info = transaction.create(path, data)
        transaction.commit()
    assert info.key is not None
    return info.key


def remove(disk: BucketDisk, path: str) -> None:
    with disk.transaction(Dropped()) as transaction:
        transaction.remove(path)
        transaction.commit()
