"""The stamps of a local disk's newest transactions, each an empty file whose name says it all; where there are many
buckets, several files of one number and token.

<root>/.frostline/stamp-<number>-<token>-<journal>-<generation>[-<bucket>.<revision>…]

A transaction brings its stamp along: the file is staged with it, and takes its place while the transaction is carried
out. A copy of a disk has the stamps of its time. No bytes have to be synced, and no request is made for any of it.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

import msgspec

from disks.effects import fsync_directory, remove_file, rename, write_unsynced_file
from oplog.stamps import CommitStamp, KeptStamp, WriterState

_MOST = 64
_KEPT = 32
"""So many of the newest stay when there are more than the most."""
_BUCKETS_A_NAME = 3
"""The name of a file has 255 bytes."""
_NO_JOURNAL = "0" * 16
_NAME = re.compile(
    r"stamp-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{1,16})((?:-[0-9a-f]{32}\.[0-9a-f]{1,16})*)\Z"
)


class Stamps:
    """The stamps of one disk. The process that writes one holds the commit lock."""

    def __init__(self, own: Path) -> None:
        self._own = own

    def all(self) -> list[KeptStamp]:
        """Oldest first. Writes nothing."""
        return _found_in(self._own)

    def next(self, state: WriterState) -> KeptStamp:
        """The stamp of a transaction that follows the last one."""
        last = max((kept.stamp.number for kept in self.all()), default=0)
        return KeptStamp(CommitStamp(last + 1, secrets.token_hex(8)), state)

    def stage(self, kept: KeptStamp, staging: Path) -> None:
        """Put the stamp into the transaction's directory, which the caller makes durable, instead of an earlier one."""
        for before in _names_in(staging):
            remove_file(staging / before)
        _write(staging, kept)

    def take(self, committed: Path) -> None:
        """Give the disk the stamp that was staged with a committed transaction, if it has not got it yet. The caller
        makes the disk's own directory durable before the transaction counts as done. Where the disk was stamped above
        it meanwhile, the transaction is older than that, and its stamp is of no use."""
        last = max((kept.stamp.number for kept in self.all()), default=0)
        for name in _names_in(committed):
            if (match := _NAME.match(name)) and int(match[1], 16) >= last:
                rename(committed / name, self._own / name)

    def prune(self) -> None:
        """Remove the oldest where there are many."""
        by_number: dict[str, list[str]] = {}
        for name in sorted(_names_in(self._own)):
            by_number.setdefault(name[: len("stamp-") + 16], []).append(name)
        if len(by_number) > _MOST:
            self._remove([name for names in list(by_number.values())[:-_KEPT] for name in names])

    def begin_after(self, number: int, state: WriterState) -> CommitStamp:
        """Durably one stamp above the number and above all that there are, which go."""
        before = _names_in(self._own)
        above = max([number, *(kept.stamp.number for kept in self.all())])
        kept = KeptStamp(CommitStamp(above + 1, secrets.token_hex(8)), state)
        _write(self._own, kept)
        fsync_directory(self._own)
        self._remove(before)
        return kept.stamp

    def _remove(self, names: list[str]) -> None:
        for name in names:
            remove_file(self._own / name, missing_ok=True)


def _write(directory: Path, kept: KeptStamp) -> None:
    state = kept.state
    buckets = [f"-{identity.replace('-', '')}.{revision:x}" for identity, revision in sorted(state.buckets.items())]
    begin = f"stamp-{kept.stamp.number:016x}-{kept.stamp.token}-{state.journal or _NO_JOURNAL}-{state.generation:x}"
    for first in range(0, max(len(buckets), 1), _BUCKETS_A_NAME):
        name = begin + "".join(buckets[first : first + _BUCKETS_A_NAME])
        os.close(write_unsynced_file(directory / name, b""))


def _names_in(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.startswith("stamp-") and _NAME.match(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _found_in(directory: Path) -> list[KeptStamp]:
    found: dict[CommitStamp, KeptStamp] = {}
    for name in sorted(_names_in(directory)):
        if (match := _NAME.match(name)) is not None:
            kept = _kept(match)
            if (other := found.get(kept.stamp)) is not None:
                buckets = {**other.state.buckets, **kept.state.buckets}
                kept = KeptStamp(kept.stamp, msgspec.structs.replace(kept.state, buckets=buckets))
            found[kept.stamp] = kept
    return list(found.values())


def _kept(match: re.Match[str]) -> KeptStamp:
    pairs = (bucket.split(".") for bucket in match[5].split("-")[1:])
    buckets = {_with_dashes(identity): int(revision, 16) for identity, revision in pairs}
    journal = "" if match[3] == _NO_JOURNAL else match[3]
    state = WriterState(journal, int(match[4], 16), buckets=buckets)
    return KeptStamp(CommitStamp(int(match[1], 16), match[2]), state)


def _with_dashes(identity: str) -> str:
    return "-".join((identity[:8], identity[8:12], identity[12:16], identity[16:20], identity[20:]))
