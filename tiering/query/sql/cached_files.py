"""Files of buckets of which the read cache has all that a statement reads: the engine opens what is kept of them.

Served (`sql.served_files`), such bytes go through Python one chunk after the other; so the engine is given the cache's
own file, which has them at the same places. It is opened here first, and the engine opens it by that descriptor: it
stays this file, though another process lets it go from the cache meanwhile, and nobody makes holes in it. What the
statement reads is then compared with what was written, as of local files. A file that is not there, has a hole or a
wrong bit in these columns, is served, and so fetched.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tiering.parquet.checked_local import LocalRead, unchecked_bytes, which_are_whole
from tiering.parquet.read_cache import CachedFile, ReadCache
from tiering.parquet.sections import bytes_beside_columns, bytes_of_columns, stated_sections
from tiering.query.checked_parts import cached_file, local_read
from tiering.query.selection import SelectedFile

_DESCRIPTORS = Path("/proc/self/fd")
"""Where Linux has the files that this process holds open, as files to open; elsewhere all are served."""
_DESCRIPTORS_SHARE = 0.25
"""Of those that this process may have: the engine opens each file once more."""


class _Held(NamedTuple):
    read: LocalRead
    link: Path
    """By which the engine opens it."""
    column_bytes: int


class CachedFiles:
    """Those of one query. `close` ends it."""

    def __init__(self, directory: Path) -> None:
        """In `directory` the engine may open every file."""
        self._directory = directory
        self._descriptors: dict[str, int | None] = {}
        """By key: a file that two tables read is the same for both."""
        self._links: set[Path] = set()
        self._held: dict[int, _Held] = {}
        """By the `id` of the selected file."""

    def hold(
        self, cache: ReadCache, selected: Sequence[tuple[SelectedFile, Collection[int]]], limit_bytes: int
    ) -> None:
        """Keep those whose columns, by their places in the file, are there as they were written; none where more than
        `limit_bytes` would have to be compared. The selected files must stay as long as this."""
        if not _DESCRIPTORS.is_dir():
            return
        most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _DESCRIPTORS_SHARE)
        files: list[tuple[SelectedFile, CachedFile, LocalRead]] = []
        size_bytes = 0
        for file, columns in selected:
            cached = cached_file(cache, file)
            descriptor = self._descriptor(cached, most)
            if descriptor is None:
                continue
            read = local_read(file, columns, path=_DESCRIPTORS / str(descriptor))
            unchecked = unchecked_bytes([read])
            if not unchecked or _is_filled(descriptor, read):
                files.append((file, cached, read))
                size_bytes += unchecked
        if size_bytes > limit_bytes:
            return
        looked_at = which_are_whole([read for _, _, read in files])
        for (file, cached, read), is_whole in zip(files, looked_at, strict=True):
            if is_whole:
                self._link(file, cached, read)

    def path(self, file: SelectedFile) -> Path | None:
        """Where the engine finds what is kept; None for a file that has to be served."""
        held = self._held.get(id(file))
        return held.link if held else None

    def bytes_of(self, file: SelectedFile) -> int:
        """How long the columns are that were compared; 0 where it is not kept."""
        held = self._held.get(id(file))
        return held.column_bytes if held else 0

    def are_whole(self) -> bool:
        """Whether everything is still as it was when it was compared."""
        return all(which_are_whole([held.read for held in self._held.values()]))

    def close(self) -> None:
        """Hold nothing any more."""
        for link in self._links:
            with suppress(FileNotFoundError):
                link.unlink()
        for descriptor in self._descriptors.values():
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()
        self._links.clear()
        self._held.clear()

    def _descriptor(self, cached: CachedFile, most: int) -> int | None:
        if cached.key not in self._descriptors and len(self._descriptors) < most:
            self._descriptors[cached.key] = cached.open()
        return self._descriptors.get(cached.key)

    def _link(self, file: SelectedFile, cached: CachedFile, read: LocalRead) -> None:
        link = self._directory / f"{cached.key}.parquet"
        if link not in self._links:
            link.symlink_to(read.path)
            self._links.add(link)
        column_bytes = bytes_of_columns(file.file, read.columns or ())
        self._held[id(file)] = _Held(read, link, column_bytes)
        cached.use(column_bytes + bytes_beside_columns(file.file))


def _is_filled(descriptor: int, read: LocalRead) -> bool:
    """Whether the file is long enough and has no hole in what is wanted, as far as its file system tells: so that a
    file that is there in part is not compared up to its first hole."""
    if os.fstat(descriptor).st_size != read.file.size_bytes:
        return False
    columns = set(read.columns or ())
    wanted = [one for one in stated_sections(read.file) if one.column is None or one.column in columns]
    with suppress(OSError):  # it tells of no holes
        return all(os.lseek(descriptor, one.start, os.SEEK_HOLE) >= one.stop for one in wanted)
    return True
