"""What inserts and merges share: how a new part goes into a transaction, and how an insert keeps merges away."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

from disks.base import Disk, Transaction
from disks.contracts.bucket_disk import BucketTransaction
from oplog.errors import Locked, Transient
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.index.rows import DiskTable
from tiering.table import part as parts_format
from tiering.table.part import PART_FILE, Part, range_of
from tiering.table.schema import TableDefinition

INSERT_CLAIM = "insert-from-"
"""A claim of this name, a block number and a random suffix says: blocks from this number on may be on their way."""


DIGEST_CLAIM = "digest-"
"""A claim of this name, a partition and a digest says: a part of these bytes is being committed."""
_LOOK_AGAIN_SECONDS = 0.02


@contextmanager
def digests_claimed(
    context: Context, definition: TableDefinition, blocks: Iterable[tuple[str, Iterable[str]]]
) -> Iterator[None]:
    """While it lasts nobody else on this machine commits a part with a block of these, each a partition and digests.
    Waits for a commit that is under way."""
    names = {f"{DIGEST_CLAIM}{partition}-{digest}" for partition, digests in blocks for digest in digests}
    with ExitStack() as claimed:
        while True:
            try:
                claimed.enter_context(context.journal.claim(definition.uuid, names, "insert"))
                break
            except Locked:
                time.sleep(_LOOK_AGAIN_SECONDS)
        yield


def stage_part(
    transaction: Transaction,
    definition: TableDefinition,
    part: Part,
    directory: Path,
    *,
    target: str | None = None,
    is_compared: bool = False,
) -> None:
    """Put a written part's files and its `part.json` into the transaction; the files are in the scratch directory.
    `target`: where they go, if not to the part's own place. `is_compared`: what was written has the digests of the
    part, which else is looked at once more.

    The commit then needs the table's `table.json` on the disk: a table dropped meanwhile gets no part back.
    """
    transaction.require(present=(definition.path,), absent=definition.barred_by)
    target = target or definition.part_directory(part.name)
    description = parts_format.encode(part)
    if isinstance(transaction, BucketTransaction):
        sizes = {f"{target}/{file.name}": file.size_bytes for file in part.files}
        transaction.reserve({**sizes, f"{target}/{PART_FILE}": len(description)})
    for file in part.files:
        sha256 = None if is_compared else file.sha256
        transaction.create(f"{target}/{file.name}", directory / file.name, sha256=sha256)
    transaction.create(f"{target}/{PART_FILE}", description)


def check_plain(disk: Disk, definition: TableDefinition) -> None:
    """Raise `Transient` where the disk knows by now that the table is replicated: what was begun before does not
    count."""
    if any(map(disk.exists, definition.barred_by)):
        raise Transient(
            f"{definition.full_name} was made a replicated table meanwhile",
            hint="run it again: what went in before is skipped",
        )


def first_block_on_its_way(claims: Iterable[str]) -> int | None:
    """The lowest block number that an insert may still bring, from a table's claims; None when none is on its way."""
    pending = [
        int(name.removeprefix(INSERT_CLAIM).partition("-")[0]) for name in claims if name.startswith(INSERT_CLAIM)
    ]
    return min(pending, default=None)


def with_several_writers(sums: Mapping[str, DiskTable]) -> list[str]:
    """The partitions in which `repeated` may find pairs, among parts that are this together: not those that one machine
    wrote all of."""
    ranges: dict[str, set[int]] = defaultdict(set)
    for whole in sums.values():
        for partition, found in whole.partitions.items():
            ranges[partition] |= found.highest.keys()
    return sorted(partition for partition, indexes in ranges.items() if len(indexes) > 1)


def repeated(parts: Iterable[StoredPart]) -> list[tuple[StoredPart, StoredPart]]:
    """Pairs of parts that two machines wrote and that hold an inserted block of the same bytes: the same data went in
    on both, where neither could know of the other's. Nothing is wrong with either; whether one is too many, only a
    person can say."""
    everything = [stored for stored in parts if stored.definition.settings.deduplication_window]
    writers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for stored in everything:
        writers[stored.definition.uuid, stored.name.partition].add(range_of(stored.name.min_block))
    by_digest: dict[tuple[str, str, str], list[StoredPart]] = defaultdict(list)
    for stored in everything:
        if len(writers[stored.definition.uuid, stored.name.partition]) > 1:
            for digest in stored.part.digests:
                by_digest[stored.definition.uuid, stored.name.partition, digest].append(stored)
    pairs = {
        (one.definition.uuid, one.name, other.name): (one, other)
        for group in by_digest.values()
        for one, other in combinations(group, 2)
        if range_of(one.name.min_block) != range_of(other.name.min_block)
    }
    return [pairs[key] for key in sorted(pairs)]
