"""What tests of transfers ask of a bucket."""

from __future__ import annotations

from disks.object_disk.disk import ObjectDisk
from oplog.revision import parse_blob_key
from tests.integration.rebuilding import objects

TABLE = "store/aaa/t0"


def content(disk: ObjectDisk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


def blobs(disk: ObjectDisk) -> list[str]:
    return [key for key in objects(disk) if parse_blob_key(key) is not None]
