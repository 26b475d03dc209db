"""A bucket's listing, cut into ranges of keys that are listed side by side and compared where they are listed.

Keys are `r<64 binary digits>-file-<32 letters>`, so objects sort by the revision they were uploaded for. The lister of
a range gets along with it the blobs that are expected there, and answers with what differs only: what is missing, what
has another size, what nobody expected. The keys of a large bucket never come together in one process, but packed.

What is expected only keeps the answers small. That nothing names an object is decided by the one who asked, from all of
the references (`disks.garbage.live_references`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter

import msgspec
import zstandard
from msgspec.structs import replace

from disks.file_table.views import TableReader
from disks.object_disk.references import (
    EARLIEST_SANE,
    Blobs,
    Inventory,
    NamesBlobs,
    compare_listings,
    disagreement,
    inventory,
    late,
)
from disks.stores.base import ObjectInfo, ObjectStore
from disks.workers.runner import OpensStore, Remote
from oplog.errors import Damaged
from oplog.revision import BLOBS_PREFIX, commit_key, is_blob_key

RANGE_KEYS = 50_000
"""Keys that one range is expected to have: 50 requests, and a megabyte of expectations."""
_LOG_RANGE = 50_000
_LOG_RANGES = 2_000
"""Entries beyond these, or one with a number out of reach, are all in the last range."""
_CHUNK_PAIRS = 2_000

_Pair = tuple[str, int]
_encoder = msgspec.msgpack.Encoder()
_pairs = msgspec.msgpack.Decoder(list[_Pair])
_seen = msgspec.msgpack.Decoder(list[tuple[str, int, float]])


class ObjectKeyRange(msgspec.Struct, frozen=True):
    """The keys in (after, until], with the blobs that are expected among them, packed."""

    store: OpensStore
    after: str
    until: str | None
    """None: to the end."""
    expected: bytes
    twice: bool = False
    """List it a second time, and compare the two."""


class RangeListing(msgspec.Struct):
    """What listing a range showed."""

    blobs: int = 0
    size_bytes: int = 0
    """Of all blobs of the range."""
    others: list[ObjectInfo] = msgspec.field(default_factory=list)
    """What is no blob."""
    unexpected: bytes = b""
    """Blobs that nobody expected, or not with this size, packed: there may be as many as were removed in a day."""
    missing: list[str] = msgspec.field(default_factory=list)
    """Expected blobs that the listing does not show."""
    repeated: str | None = None
    """A blob that it showed twice."""
    newest: datetime = EARLIEST_SANE
    disagreement: str | None = None
    """Why the second listing and the first cannot both be complete."""
    appeared: list[ObjectInfo] = msgspec.field(default_factory=list)
    """Blobs that the second listing shows and the first does not."""


# Cutting


def pack(pairs: Sequence[_Pair]) -> bytes:
    """Keys with sizes in bytes, small: their letters are random, so about 25 bytes each."""
    return zstandard.ZstdCompressor(level=1).compress(_encoder.encode(pairs))


def unpack(packed: bytes) -> list[_Pair]:
    """The reverse of `pack`."""
    return _pairs.decode(zstandard.ZstdDecompressor().decompress(packed))


def pack_seen(infos: Iterable[ObjectInfo]) -> bytes:
    """Keys with sizes and times."""
    seen = [(info.key, info.size_bytes, info.modified.timestamp()) for info in infos]
    return zstandard.ZstdCompressor(level=1).compress(_encoder.encode(seen))


def unpack_seen(packed: bytes) -> Iterator[ObjectInfo]:
    """The reverse of `pack_seen`."""
    for key, size_bytes, modified in _seen.decode(zstandard.ZstdDecompressor().decompress(packed)):
        yield ObjectInfo(key, size_bytes, datetime.fromtimestamp(modified, UTC))


UNKNOWN_BYTES = -1
"""Expected with any size: the answer is the size that the listing shows."""


def in_key_order(table: TableReader) -> Iterator[_Pair]:
    """The blobs of the table, each once, in key order. One to which several sizes are given is of unknown size."""
    yield from once_each((key, size_bytes) for key, size_bytes, _ in table.blobs_by_key())


def once_each(pairs: Iterable[_Pair]) -> Iterator[_Pair]:
    """The same of blobs that are named more than once, in key order."""
    for key, blobs in groupby(pairs, itemgetter(0)):
        sizes = {size_bytes for _, size_bytes in blobs}
        yield key, sizes.pop() if len(sizes) == 1 else UNKNOWN_BYTES


def cut_ranges(
    store: OpensStore, expected: Iterable[_Pair], *, head: int = 0, twice: bool = False, keys: int = RANGE_KEYS
) -> Iterator[ObjectKeyRange]:
    """Ranges that together are all keys, each with about as many blobs; `expected` in key order. `head` is about where
    the log ends, whose entries are listed in ranges of revisions."""
    after = ""
    for revision in range(_LOG_RANGE, min(head, _LOG_RANGE * _LOG_RANGES), _LOG_RANGE):
        until = commit_key(revision)
        yield ObjectKeyRange(store, after, until, pack([]), twice)
        after = until
    yield ObjectKeyRange(store, after, BLOBS_PREFIX, pack([]), twice)
    after = BLOBS_PREFIX
    chunk: list[_Pair] = []
    for pair in expected:
        if len(chunk) == keys:
            yield ObjectKeyRange(store, after, chunk[-1][0], pack(chunk), twice)
            after, chunk = chunk[-1][0], []
        chunk.append(pair)
    yield ObjectKeyRange(store, after, None, pack(chunk), twice)


# Listing


def list_range(key_range: ObjectKeyRange) -> RangeListing:
    """List the range, once or twice, and compare it with what is expected there. Raises `Damaged` for a store that
    shows keys from before the range."""
    listing = RangeListing()
    blobs = Blobs()
    for info in _listed(key_range):
        if is_blob_key(info.key):
            blobs.add(info)
        else:
            listing.others.append(info)
    listing.blobs, listing.size_bytes, listing.repeated = len(blobs), blobs.total_bytes, blobs.repeated
    expected = dict(unpack(key_range.expected))
    listing.unexpected = pack_seen(info for info in blobs if expected.get(info.key) != info.size_bytes)
    listing.missing = [key for key in expected if blobs.size_of(key) is None]
    listing.newest = blobs.newest
    if key_range.twice:
        listing.disagreement, listing.appeared = compare_listings(blobs, _listed(key_range))
    return listing


def _listed(key_range: ObjectKeyRange) -> Iterator[ObjectInfo]:
    store = key_range.store.open()
    for info in store.list(start_after=key_range.after):
        if info.key <= key_range.after:
            raise Damaged(f"{store.name}: asked for what follows {key_range.after!r}, the listing shows {info.key!r}")
        if key_range.until is not None and info.key > key_range.until:
            return
        yield info


# Putting together


class ComparedBlobs:
    """The blobs of a listing in ranges, as `Blobs` of a whole one. What was expected and is there with its size is
    counted, and nothing else is known of it."""

    def __init__(self, ranges: Sequence[ObjectKeyRange], listings: Sequence[RangeListing]) -> None:
        self._ranges = ranges
        self._count = sum(listing.blobs for listing in listings)
        self.total_bytes = sum(listing.size_bytes for listing in listings)
        self.repeated = next((listing.repeated for listing in listings if listing.repeated is not None), None)
        self._unexpected = Blobs(info for listing in listings for info in unpack_seen(listing.unexpected))
        self.missing = {key for listing in listings for key in listing.missing}
        """What was expected and is not listed."""

    def __len__(self) -> int:
        return self._count

    @property
    def doubtful(self) -> Collection[str]:
        """What nobody expected."""
        return self._unexpected.keys()

    def outside(self, referenced: Collection[str]) -> Iterator[ObjectInfo]:
        """Those that are not referenced, in the order of the listing. What was expected counts as referenced."""
        return self._unexpected.outside(referenced)

    def lacking(self, table: NamesBlobs) -> set[str]:
        """The blobs of the table that the listing does not show with their size, whether they were expected or not."""
        lost: set[str] = set()
        for number, chunks in self._by_range(table.blobs()).items():
            expected = dict(unpack(self._ranges[number].expected)) if number >= 0 else {}
            for pairs in map(unpack, chunks):
                lost.update(key for key, size_bytes in pairs if self._size_of(key, expected) != size_bytes)
        return lost

    def _size_of(self, key: str, expected: Mapping[str, int]) -> int | None:
        if key in self.missing:
            return None
        there = self._unexpected.size_of(key)
        return expected.get(key) if there is None else there

    def _by_range(self, pairs: Iterable[_Pair]) -> dict[int, list[bytes]]:
        """The pairs by the number of their range, packed: they need no order, and no more memory than what is expected.
        A pair that is in no range has the number -1."""
        after = [one.after for one in self._ranges]
        pending: dict[int, list[_Pair]] = defaultdict(list)
        chunks: dict[int, list[bytes]] = defaultdict(list)
        for pair in pairs:
            number = bisect_left(after, pair[0]) - 1
            pending[number].append(pair)
            if len(pending[number]) == _CHUNK_PAIRS:
                chunks[number].append(pack(pending.pop(number)))
        for number, rest in pending.items():
            chunks[number].append(pack(rest))
        return chunks

    def sizes(self, keys: Collection[str]) -> dict[str, int]:
        """Those of the keys that are listed, whether they were expected or not, with their sizes in bytes."""
        found = self._unexpected.sizes(keys)
        asked = {key for key in keys if key not in found and key not in self.missing}
        if asked:
            found |= {key: size for one in self._ranges for key, size in unpack(one.expected) if key in asked}
        return found


def list_whole(store: ObjectStore, *, twice: bool = False) -> tuple[Inventory, str | None]:
    """The bucket's inventory and, with `twice`, why two listings of it disagree, if they do."""
    found = inventory(store.list())
    assert isinstance(found.blobs, Blobs)
    return found, disagreement(found.blobs, store.list()) if twice else None


def list_ranges(
    remote: Remote, ranges: Sequence[ObjectKeyRange], *, title: str, stop: threading.Event | None = None
) -> tuple[Inventory, str | None]:
    """The same, listed by others. An object that appears while they list may be left out, as in any listing.
    `stop` as in `Runner.run`."""
    answers: dict[int, RangeListing] = {}

    remote.runner.run(list_range, ranges, title=title, on_done=answers.__setitem__, stop=stop)
    if len(answers) != len(ranges):  # what nobody listed would look as if nothing was missing there
        raise Damaged(f"{title}: only {len(answers)} of {len(ranges)} ranges of keys were listed")
    listings = [answers[index] for index in range(len(ranges))]
    blobs = ComparedBlobs(ranges, listings)
    everything_else = inventory(info for listing in listings for info in listing.others)
    twice = any(key_range.twice for key_range in ranges)
    return replace(everything_else, blobs=blobs), _disagreement(blobs, listings) if twice else None


def compare_blobs(remote: Remote, expected: Iterable[_Pair], *, title: str) -> tuple[int, dict[str, int | None]]:
    """How many blobs the bucket has, as others list it, and those that it does not show as expected (in key
    order): with the size that it shows, None for what is missing. What nobody expected is among them."""
    ranges = [
        key_range for key_range in cut_ranges(remote.store, once_each(expected)) if key_range.after
    ]  # without the log's objects
    listed, _ = list_ranges(remote, ranges, title=title)
    assert isinstance(listed.blobs, ComparedBlobs)
    return len(listed.blobs), {**dict.fromkeys(listed.blobs.missing), **listed.blobs.sizes(listed.blobs.doubtful)}


def _disagreement(blobs: ComparedBlobs, listings: Sequence[RangeListing]) -> str | None:
    """What the ranges say, and what only all of them together can: what appeared must be new."""
    if blobs.repeated is not None:
        return f"the first listing shows object {blobs.repeated} twice"
    objections = (listing.disagreement for listing in listings if listing.disagreement is not None)
    appeared = (info for listing in listings for info in listing.appeared)
    return next(objections, None) or late(appeared, max(listing.newest for listing in listings))
