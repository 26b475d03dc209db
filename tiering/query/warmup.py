"""Read parts of a bucket into the read cache before anybody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from disks.workers.parallel import in_parallel
from oplog.errors import LimitReached, UsageError
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.config.units import format_size
from tiering.parquet.read_cache import ReadCache
from tiering.query.checked_parts import checked_file, read_cache
from tiering.query.selection import hold_leases, select_files
from tiering.table.schema import TableDefinition

_STEP_BYTES = 4 * 1024 * 1024


class WarmUp(msgspec.Struct, frozen=True):
    """What is in the cache now, or would be."""

    files: int
    bytes: int
    fetched_bytes: int
    """Of them, those that were not there."""


def cache_of(context: Context) -> ReadCache:
    """The read cache of this machine. Raises `UsageError` where there is none."""
    cache = read_cache(context.config)
    if cache is None:
        hint = "set read_cache.max_bytes in the configuration, such as 20GiB"
        raise UsageError("no read cache is configured", hint=hint)
    return cache


def warm_up(
    context: Context, definition: TableDefinition, parts: Sequence[StoredPart], *, dry_run: bool = False
) -> WarmUp:
    """Keep all that these parts have in buckets, as if a query had read it twice.

    Raises `LimitReached` when it is more than the cache may hold, before anything is read, `Damaged` for bytes that are
    not what was written, and what keeping raises, such as `NoSpace`.
    """
    cache = cache_of(context)
    with ExitStack() as leases:
        hold_leases(context, parts, leases)
        chosen = [file for file in select_files(context, definition, parts).files if file.local_path is None]
        size_bytes = sum(file.file.size_bytes for file in chosen)
        if size_bytes > cache.room_bytes:
            raise LimitReached(
                f"{definition.full_name} has {format_size(size_bytes)} to read, and the read cache has room for "
                f"{format_size(cache.room_bytes)}",
                hint="choose a partition with --partition, or raise read_cache.max_bytes",
            )
        if dry_run:
            return WarmUp(len(chosen), size_bytes, size_bytes)
        leases.callback(cache.close)
        with context.progress.task("reading ahead", items=len(chosen), size_bytes=size_bytes) as task:

            def read(number: int) -> None:
                file = checked_file(context, chosen[number], cache=cache, kept_for_good=True)
                for start in range(0, file.size(), _STEP_BYTES):
                    stop = min(start + _STEP_BYTES, file.size())
                    file.pieces(start, stop)
                    task.advance(size_bytes=stop - start)
                task.advance(items=1)

            in_parallel(read, len(chosen), context.workers)
        if cache.failure is not None:
            raise cache.failure
        return WarmUp(len(chosen), size_bytes, cache.missed_bytes)
