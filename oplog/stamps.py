"""Whether a disk, a journal or a log is older than somebody has seen it. Pure; no I/O.

A disk, the journal and a bucket may each be set back to an older copy. So each transaction carries how far the others
were when it was made (`WriterState`): on a local disk in the name of its stamp, in a bucket in its entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from oplog import bounds

_T = TypeVar("_T")

_WORD = re.compile(r"[0-9a-f]{16}\Z")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
MOST_NAMED = 256
"""Local disks, or buckets, of one machine that an entry may name."""
_MOST_REMEMBERED = 4096
"""Journals, or disks, that anybody ever wrote of."""


class CommitStamp(msgspec.Struct, frozen=True, array_like=True):
    """One transaction of a local disk. Numbers go up by one; the token is random, so that of two copies that were both
    written to each shows that it is not the other."""

    number: int
    token: str


class WriterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the disks and the journal of a machine were when it wrote something: at least so far."""

    journal: str = ""
    """The id of its journal."""
    generation: int = 0
    """Of the journal: goes up with whatever it must not forget."""
    disks: dict[str, CommitStamp] = {}
    """By the id of a local disk: its last transaction."""
    buckets: dict[str, int] = {}
    """By the id of a disk with a log: its newest revision."""

    def fault(self) -> str | None:
        """What is wrong with one that was read from a bucket; None when nothing is."""
        if self.journal and not _WORD.match(self.journal):
            return f"{self.journal[:80]!r} is no id of a journal"
        if max(len(self.disks), len(self.buckets)) > MOST_NAMED:
            return f"it names more than {MOST_NAMED} disks"
        for identity in (*self.disks, *self.buckets):
            if not _ID.match(identity):
                return f"{identity[:80]!r} is no id of a disk"
        if any(not _WORD.match(stamp.token) for stamp in self.disks.values()):
            return "a stamp of a disk has no token"
        numbers = (self.generation, *self.buckets.values(), *(stamp.number for stamp in self.disks.values()))
        return next((fault for number in numbers if (fault := bounds.fault_in_count("a state", number))), None)


class KeptStamp(msgspec.Struct, frozen=True):
    """A transaction, and what its writer knew of the other disks and of the journal."""

    stamp: CommitStamp
    state: WriterState


class SeenStates(msgspec.Struct, frozen=True, omit_defaults=True):
    """The furthest that anybody has seen of each journal and each disk."""

    journals: dict[str, int] = {}
    disks: dict[str, CommitStamp] = {}
    buckets: dict[str, int] = {}

    def beside(self, state: WriterState) -> SeenStates:
        """These, and what a writer has seen."""
        journals = {state.journal: state.generation} if state.journal else {}
        return self.joined(SeenStates(journals, state.disks, state.buckets))

    def joined(self, other: SeenStates) -> SeenStates:
        """The further of both."""
        return SeenStates(
            _further(self.journals, other.journals, lambda generation: generation),
            _further(self.disks, other.disks, lambda stamp: stamp.number),
            _further(self.buckets, other.buckets, lambda revision: revision),
        )


def _further(current: Mapping[str, _T], seen: Mapping[str, _T], number: Callable[[_T], int]) -> dict[str, _T]:
    both = dict(current)
    for identity, state in seen.items():
        before = both.get(identity)
        if (before is None and len(both) < _MOST_REMEMBERED) or (before is not None and number(before) < number(state)):
            both[identity] = state
    return both


def is_older(stamps: Sequence[CommitStamp], seen: CommitStamp) -> bool:
    """Whether a disk that shows these stamps, the oldest first, is not the one, or a later state of the one, that had
    `seen` as its last. A disk keeps its newest stamps only: what was before them is believed."""
    if not stamps or stamps[-1].number < seen.number:
        return True
    return stamps[0].number <= seen.number and seen not in stamps
