"""Which files of a table an answer needs, and where they lie: pruned by `part.json`, before anything is read.

No engine is known here: whatever reads Parquet from paths and stores can be given a `Selection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from disks.base import Location
from oplog.errors import Damaged, DiskUnreachable, NotFound
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.stored import described
from tiering.table.part import DataFile, Part
from tiering.table.pruning import TRUE, Predicate, matching_files
from tiering.table.schema import TableDefinition

LOOKS = 4
"""So often an answer is begun: parts that several move and merge at once may go each time."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class SelectedFile:
    """A file that may hold rows of the answer, and where it lies."""

    stored: StoredPart
    file: DataFile
    location: Location | None
    """None when only the disk can read it."""
    schema_version: int
    """Of the part, whose description need not be held for it."""

    @property
    def path(self) -> str:
        return self.stored.path(self.file.name)

    @cached_property
    def local_path(self) -> Path | None:
        """Of a file of this machine that an engine can open by itself."""
        scheme, _, path = self.location.url.partition("://") if self.location else ("", "", "")
        return Path(path) if scheme == "file" else None

    @property
    def hint(self) -> str:
        """What to do when it is gone or broken."""
        return f"run 'frostline fsck {self.stored.disk} --read-data'; no partial result is given"

    def __str__(self) -> str:
        where = f" ({self.location.url if self.location else self.path})"
        return f"part {self.stored.facts.name} of {self.stored.definition.full_name} on disk {self.stored.disk}{where}"


class Selection(msgspec.Struct, frozen=True):
    """What is left of a table after pruning."""

    files: tuple[SelectedFile, ...]
    parts_read: int
    parts_pruned: int


class FileMissing(Damaged):
    """A file of the answer is not where the catalog says: moved or merged meanwhile, or gone."""


def begin_again(context: Context, begin: Callable[[], _T]) -> _T:
    """What `begin` gives, which chooses parts and opens their files, and hands out no row. Where one was moved or
    merged between, the disks are looked at again and it starts over; `FileMissing` for one that is really gone."""
    for _ in range(LOOKS - 1):
        try:
            return begin()
        except FileMissing:
            context.catalog.refresh()
    return begin()


def select_files(
    context: Context,
    definition: TableDefinition,
    parts: Iterable[StoredPart],
    predicate: Predicate = TRUE,
    *,
    left_out: int = 0,
) -> Selection:
    """The files that may match, without reading any, when so many parts were `left_out` already. Raises `FileMissing`
    when a part is not on its disk any more."""
    selected: list[SelectedFile] = []
    read, pruned = 0, left_out
    for stored, part in _described(parts):
        files = matching_files(predicate, part, definition)
        if not files:
            pruned += 1
            continue
        read += 1
        version = part.schema_version
        selected.extend(
            SelectedFile(stored, file, _location(context, stored, file, version), version) for file in files
        )
    _check_apart(selected)
    return Selection(tuple(selected), read, pruned)


def _described(parts: Iterable[StoredPart]) -> Iterator[tuple[StoredPart, Part]]:
    try:
        yield from described(parts)
    except NotFound as error:  # its `part.json` was not kept, and is not there any more
        raise FileMissing(error.message, hint="run 'frostline fsck'; no partial result is given") from error


def _check_apart(selected: Iterable[SelectedFile]) -> None:
    """Raise `Damaged` for an object that is data of two parts: its rows would count twice."""
    places: dict[str, SelectedFile] = {}
    for file in selected:
        if file.location is not None and (first := places.setdefault(file.location.url, file)) is not file:
            raise Damaged(
                f"{first} and {file} are one object: its rows would count twice",
                hint="run 'frostline fsck'; something other than Frostline changed the bucket",
            )


def _location(context: Context, stored: StoredPart, file: DataFile, schema_version: int) -> Location | None:
    path = stored.path(file.name)
    disk = context.disk(stored.disk)
    if disk.unreachable:
        what = f"part {stored.facts.name} of {stored.definition.full_name}"
        raise DiskUnreachable(f"{what} is needed: {disk.unreachable}", hint="try again when the bucket answers")
    try:
        location = disk.location(path)
    except NotFound as error:
        missing = SelectedFile(stored, file, None, schema_version)
        raise FileMissing(f"{missing} is not complete: {path} is missing", hint=missing.hint) from error
    is_opened = location is not None and (location.s3 is not None or location.url.startswith("file://"))
    return location if is_opened else None


def hold_leases(context: Context, parts: Iterable[StoredPart], stack: ExitStack) -> None:
    """Keep the files of the parts in place until the stack is closed."""
    for name in sorted({stored.disk for stored in parts}):
        stack.enter_context(context.disk(name).read_lease())
