"""What moves and merges cost in requests and bytes, before they are made, and what that is in money. Pure.

A move to a bucket sends one PUT a data file (several above the multipart threshold) and shares its batch's one commit;
`part.json` rides in the commit. A move from a bucket reads each file in one request or in ranges, and its removal
shares one commit. A merge in a bucket reads each input in ranges and sends each output file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import TypeVar

import msgspec

from tiering.config.settings import PricesConfig
from tiering.policy.plan import Move
from tiering.table.part import Part, PartFiles

T = TypeVar("T")

BATCH_PARTS = 250
"""Parts of one table and target that share a commit: each commit takes a request and some ten writes of the journal."""
BATCH_BYTES = 10 * 1024**3
_BATCHES_TO_TAPER = 4
_SMALLEST_PIECE = 15
WHOLE_FILE_BYTES = 8 * 1024 * 1024
"""Remote files up to this size are read in one request, larger ones in ranges of `RANGE_BYTES`."""
RANGE_BYTES = 16 * 1024 * 1024
MULTIPART_BYTES = 256 * 1024 * 1024
_MULTIPART_PIECE_BYTES = 64 * 1024 * 1024


class Cost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Requests and bytes that cross the network. `put` and `get` are the expensive and the cheap class of S3."""

    put: int = 0
    get: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def requests(self) -> int:
        return self.put + self.get

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            put=self.put + other.put,
            get=self.get + other.get,
            bytes_up=self.bytes_up + other.bytes_up,
            bytes_down=self.bytes_down + other.bytes_down,
        )


def price(cost: Cost, prices: PricesConfig) -> float:
    """What the requests and the bytes that leave the bucket cost, in the currency of the prices."""
    return (
        cost.put / 1000 * prices.put_per_1000
        + cost.get / 1000 * prices.get_per_1000
        + cost.bytes_down / 1e9 * prices.down_per_gb
    )


def price_of_storage(bytes_by_disk: Mapping[str, int], prices: PricesConfig, remote: Set[str]) -> float:
    """What the bytes on each disk cost in a month. `remote` are the buckets' disks."""
    return sum(size / 1e9 * gb_month(disk, prices, remote) for disk, size in bytes_by_disk.items())


def gb_month(disk: str, prices: PricesConfig, remote: Set[str]) -> float:
    """What 10^9 bytes on the disk cost in a month."""
    return prices.disks.get(disk, prices.storage_gb_month if disk in remote else prices.local_gb_month)


class PlanCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a plan: of each move, in its order, and of the commits they share."""

    moves: tuple[Cost, ...]
    commits: int

    @property
    def total(self) -> Cost:
        return sum(self.moves, Cost()) + Cost(put=self.commits)


def estimate(moves: Sequence[Move], part_of: Callable[[Move], Part | PartFiles | None], remote: Set[str]) -> PlanCost:
    """What the moves cost. `part_of` finds a move's part (None counts as one file); `remote` are the buckets' disks."""
    return PlanCost(
        moves=tuple(_of_one(move, part_of(move), remote) for move in moves),
        commits=sum(_commits(batch, remote) for batch in batches(moves, lambda move: move)),
    )


def batches(items: Sequence[T], move_of: Callable[[T], Move]) -> list[list[T]]:
    """The moves in the batches that run: one table and target a batch, bounded in parts and bytes, order kept."""
    groups: dict[tuple[str, str], list[list[T]]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for item in items:
        move = move_of(item)
        key = (move.table_uuid, move.target)
        group = groups.setdefault(key, [[]])
        size = sizes.get(key, 0)
        if group[-1] and (len(group[-1]) >= BATCH_PARTS or size + move.bytes > BATCH_BYTES):
            group.append([])
            size = 0
        group[-1].append(item)
        sizes[key] = size + move.bytes
    return [batch for group in groups.values() for batch in _tapered(group)]


def _tapered(group: list[list[T]]) -> list[list[T]]:
    """Of many batches the first and the last in pieces. What comes before the first upload (a look at every part) and
    after the last one (commit, removal of the sources) overlaps with no other batch, so it should be little."""
    if len(group) < _BATCHES_TO_TAPER:
        return group
    first, *whole, last = group
    return [*_cut(first, reversed(_halves(len(first)))), *whole, *_cut(last, _halves(len(last)))]


def _halves(count: int) -> list[int]:
    """Half of it, half of the rest, and so on."""
    sizes = []
    while count > _SMALLEST_PIECE:
        sizes.append(-(-count // 2))
        count //= 2
    return [*sizes, count]


def _cut(batch: list[T], sizes: Iterable[int]) -> Iterator[list[T]]:
    rest = iter(batch)
    return (list(islice(rest, size)) for size in sizes)


def _of_one(move: Move, part: Part | PartFiles | None, remote: Set[str]) -> Cost:
    sizes = [file.size_bytes for file in part.files] if part is not None else [move.bytes]
    cost = Cost()
    if move.target in remote:
        cost += Cost(put=sum(map(uploads, sizes)), bytes_up=sum(sizes))
    if move.source in remote:
        cost += Cost(get=sum(map(downloads, sizes)), bytes_down=sum(sizes))
    return cost


def _commits(batch: list[Move], remote: Set[str]) -> int:
    sources = {move.source for move in batch if move.source in remote and not move.keep_source}
    return (batch[0].target in remote) + len(sources)


def uploads(size: int) -> int:
    """The write requests that a file of this size takes."""
    if size <= MULTIPART_BYTES:
        return 1
    return 2 + -(-size // _MULTIPART_PIECE_BYTES)


def downloads(size: int) -> int:
    """The read requests that a file of this size takes."""
    return 1 if size <= WHOLE_FILE_BYTES else -(-size // RANGE_BYTES)
