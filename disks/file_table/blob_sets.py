"""Blob sets: what was written together for one directory, and the marks by which the logs of a prefix tell one another
which of them they use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol


class BlobReference(NamedTuple):
    """Files of a directory on a disk are blobs of this set."""

    blob_set: str
    directory: str


class NewSet(NamedTuple):
    """A blob set that is to be written: the keys of all its objects, and the directory that it is for."""

    blob_set: str
    keys: tuple[str, ...]
    directory: str

    @property
    def reference(self) -> BlobReference:
        return BlobReference(self.blob_set, self.directory)


class BlobMarks(Protocol):
    """Those of one log. Thread-safe. Every method may raise `Transient` where nobody answers."""

    def create(self, sets: Sequence[NewSet]) -> None:
        """Make new sets, each with the mark of this log, before anything of them is uploaded."""

    def add(self, references: Collection[BlobReference]) -> None:
        """Mark sets that are there already, before the commit that names them. Raises `NotFound` when a set is gone."""

    def missing(self, references: Collection[BlobReference], log: str | None = None) -> Collection[BlobReference]:
        """Which of the marks are not there: of this log, or of another one."""

    def seen(self, references: Collection[BlobReference]) -> Mapping[BlobReference, int]:
        """The marks that are there now, each with what `remove` wants to know them by."""

    def remove(self, seen: Mapping[BlobReference, int]) -> None:
        """Take marks away that are still as they were seen."""
