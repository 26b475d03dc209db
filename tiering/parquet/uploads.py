"""Data files of a part from a local directory into a bucket, for a commit that somebody else makes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from disks.object_disk.blobs import put_blob
from disks.stores.base import ObjectStore
from tiering.table.part import DataFile

TRANSFERS = 4
"""Objects that one task sends, or fetches, side by side."""


class UploadedFile(msgspec.Struct, frozen=True):
    """A data file, and the object that holds it."""

    file: DataFile
    key: str


def upload_files(
    store: ObjectStore, files: Iterable[DataFile], directory: Path, target: str, *, revision: int
) -> tuple[UploadedFile, ...]:
    """Upload the files of the directory under fresh keys, in their order; `target` is where they will lie on the disk.

    Raises as `disks.object_disk.blobs.put_blob`.
    """

    def upload(file: DataFile) -> UploadedFile:
        key = put_blob(store, f"{target}/{file.name}", directory / file.name, file.sha256, revision=revision)
        return UploadedFile(file, key)

    with ThreadPoolExecutor(TRANSFERS, "upload") as pool:
        return tuple(pool.map(upload, files))
