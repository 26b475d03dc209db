"""Reads objects of a repository, and of buckets that a backup pins, and compares them with their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from backup.completeness import Flaw, NamedFile
from backup.format import packs
from backup.format.lists import InPack
from disks.stores.base import ByteRange, ObjectStore
from oplog.errors import Damaged, NotFound

_PIECE_BYTES = 16 * 1024 * 1024


class ObjectToRead(msgspec.Struct, frozen=True):
    """One object, and the files of backups that lie in it: the same file once, even if several name it."""

    key: str
    size_bytes: int
    sha256: str
    """Of the object as it is stored."""
    files: tuple[NamedFile, ...]


def read_object(store: ObjectStore, target: ObjectToRead) -> list[Flaw]:
    """What is wrong with it: nothing, when every byte is what was written. It is damaged when it was so twice: a bit
    may flip on the way."""
    return _read_once(store, target) and _read_once(store, target)


def _read_once(store: ObjectStore, target: ObjectToRead) -> list[Flaw]:
    try:
        if isinstance(target.files[0].file.at, InPack):
            return _read_pack(store, target)
        same = _digest(store, target) == target.sha256
    except (NotFound, Damaged) as error:
        flaws = [named.flaw(f"cannot be read: {error.message}") for named in target.files]
        return [replace(flaw, unread=isinstance(error, NotFound)) for flaw in flaws]
    return [] if same else [named.flaw("is not what was written: its SHA-256 differs") for named in target.files]


def _digest(store: ObjectStore, target: ObjectToRead) -> str:
    digest = hashlib.sha256()
    for start in range(0, target.size_bytes, _PIECE_BYTES):
        digest.update(store.get(target.key, ByteRange(start, min(start + _PIECE_BYTES, target.size_bytes))))
    return digest.hexdigest()


def _read_pack(store: ObjectStore, target: ObjectToRead) -> list[Flaw]:
    """A changed byte makes the pack damaged; the files that it touches are named, or all of them when it is none's."""
    data = store.get(target.key)
    if len(data) == target.size_bytes and hashlib.sha256(data).hexdigest() == target.sha256:
        return _against_index(data, target)
    touched = [named for named in target.files if not _is_sound(data, named)]
    return [
        named.flaw("is not what was written: the file's bytes in the pack differ") for named in touched or target.files
    ]


def _against_index(data: bytes, target: ObjectToRead) -> list[Flaw]:
    """What a list says of files that the pack, which is whole, does not hold so: a list that no backup would write."""
    end = len(data) - packs.TAIL_BYTES
    start = end - packs.index_length(data[max(end, 0) :], target.key)
    held = {
        (entry.sha256, entry.size_bytes, entry.offset, entry.length, entry.compressed)
        for entry in packs.read_index(data[max(start, 0) : end], len(data), target.key)
    }
    return [named.flaw("does not hold the file there") for named in target.files if _in_pack(named) not in held]


def _in_pack(named: NamedFile) -> tuple[str, int, int, int, bool]:
    at = named.file.at
    assert isinstance(at, InPack)
    return named.file.sha256, named.file.size_bytes, at.offset, at.length, at.compressed


def _is_sound(data: bytes, named: NamedFile) -> bool:
    at = named.file.at
    assert isinstance(at, InPack)
    stored = data[at.offset : at.offset + at.length]
    try:
        content = packs.content(stored, compressed=at.compressed, size_bytes=named.file.size_bytes, where=named.key)
    except Damaged:
        return False
    return hashlib.sha256(content).hexdigest() == named.file.sha256


def slice_of(key: str, slices: int) -> int:
    """Which of so many shares of all objects the object belongs to; the same at every verification."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % slices


def next_slice(done: Sequence[int], slices: int) -> int:
    """The share to read next, when these were read before, the oldest first: one that never was, else the one that was
    read longest ago."""
    last = {number: position for position, number in enumerate(done) if 0 <= number < slices}
    return min(range(slices), key=lambda number: (last.get(number, -1), number))
