"""Is a disk, or the journal, older than somebody has seen it? Each may be set back to a copy, alone or with others.

    a local disk    by the journal, which notes each transaction there, and by the logs
    a bucket        by the stamps of local disks and by the logs of others; and by its file table, when that is opened
    the journal     by the stamps of local disks and by the logs

What is compared was seen before: a stamp is read from the journal before the disk is asked for its own, a revision from
a stamp or a log before the bucket is asked once more. So that somebody who writes meanwhile is never taken for a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.kinds import as_disk, stamps_of
from oplog.errors import FrostlineError
from oplog.stamps import CommitStamp, KeptStamp, SeenStates, WriterState, is_older
from tiering.journal.journal import Journal


class Older(NamedTuple):
    """What shows that a disk is not the one that somebody has seen."""

    why: str
    is_clone: bool = False
    """A log has seen another transaction of a number: another home has a copy of the disk, and writes to it."""
    may_be_clone: bool = False
    """A log shows it, and the journal does not: the disk and the journal were set back, or another home has a copy of
    both and has written more."""


class Ages:
    """What was seen of the disks of a store, and of its journal."""

    def __init__(self, journal: Journal) -> None:
        self.behind = ""
        """What shows that the journal is an older copy of itself; it goes on from there."""
        self._journal = journal
        self._stamps: dict[str, CommitStamp] = {}
        self._accepted: dict[str, int] = {}
        self._seen = SeenStates()

    def begin(self) -> None:
        """A new look: what the journal says, before any disk is asked."""
        self._stamps = self._journal.disks.stamps()
        self._accepted = self._journal.disks.accepted()
        self._seen = SeenStates()

    def why_older(self, disk: Disk, identity: str) -> Older | None:
        """What shows that the disk with this id is older than the journal has seen it. Notes what its stamps say of
        others."""
        kept = self.note(disk)
        if (seen := self._stamps.get(identity)) is None or not is_older([one.stamp for one in kept], seen):
            return None
        return Older(_why([one.stamp for one in kept], seen, "this machine"))  # no other home has this journal

    def note(self, disk: Disk) -> Sequence[KeptStamp]:
        """Remember what the stamps of the disk say of others. The stamps."""
        kept = stamps_of(disk)
        for one in kept:
            self._seen = self._seen.beside(one.state)
        return kept

    def judge_journal(self) -> None:
        """Let the journal go on from where it was seen, when that is further than it is."""
        journal, generation = self._journal.generation()
        if (seen := self._seen.journals.get(journal, 0)) > generation and self._journal.go_on_from(seen):
            self.behind = (
                f"the journal is an older copy of itself: it is at {generation}, and was seen at {seen}. Pauses, pins"
                " and history since are gone, and block numbers begin in a range of their own"
            )
            self._journal.file.notices.append(self.behind)

    def compare(self, disks: Mapping[str, Disk], shown: Mapping[str, str]) -> dict[str, Older]:
        """The disks, of those that can be asked, that are older than logs and stamps have seen them, and what shows it.
        The buckets were looked at since `begin`."""
        readable: dict[str, Disk] = {}
        for name, disk in disks.items():
            try:
                identified = as_disk(disk, IdentifiedDisk)
                self._seen = self._seen.joined(identified.seen() if identified is not None else SeenStates())
            except FrostlineError:  # the command that needs it reports it; its end of log is unknown
                continue
            readable[name] = disk
        found: dict[str, Older] = {}
        for name, disk in readable.items():
            if (identity := shown.get(name)) is None:
                continue
            older = (
                self._bucket(disk, identity) if as_disk(disk, LoggedDisk) is not None else self._local(disk, identity)
            )
            if older is not None:
                found[name] = older
        return found

    def _local(self, disk: Disk, identity: str) -> Older | None:
        seen = self._seen.disks.get(identity)
        if seen is None or seen.number <= self._accepted.get(identity, 0):
            return None
        stamps = [one.stamp for one in stamps_of(disk)]
        if not is_older(stamps, seen):
            return None
        return Older(_why(stamps, seen, "the log in a bucket"), is_clone=_has_another(stamps, seen), may_be_clone=True)

    def _bucket(self, disk: Disk, identity: str) -> Older | None:
        seen = self._seen.buckets.get(identity, 0)
        logged = as_disk(disk, LoggedDisk)
        if logged is None or seen <= self._accepted.get(identity, 0) or logged.revision >= seen:
            return None
        # Another log may name a revision that came after this bucket was looked at, and a power cut may have taken what
        # this machine had written down of it.
        try:
            disk.refresh()
        except FrostlineError:  # as above
            return None
        if logged.revision >= seen:
            return None
        why = f"ends at revision {logged.revision}, and was seen at revision {seen} when another disk was written to"
        return Older(why)

    def furthest(self, identity: str) -> int:
        """The highest number (of a bucket: revision) that anybody has seen of the disk."""
        known = self._stamps.get(identity)
        seen = self._seen.disks.get(identity)
        numbers = [stamp.number for stamp in (known, seen) if stamp is not None]
        return max([0, *numbers, self._seen.buckets.get(identity, 0)])

    def state(self, disks: Mapping[str, Disk], identities: Mapping[str, str]) -> WriterState:
        """How far all of it is now. Sends no request."""
        journal, generation = self._journal.generation()
        stamps: dict[str, CommitStamp] = {}
        buckets: dict[str, int] = {}
        for name, identity in identities.items():
            logged = as_disk(disks[name], LoggedDisk)
            try:
                if logged is not None:
                    if revision := logged.revision_at_hand():
                        buckets[identity] = revision
                elif kept := stamps_of(disks[name]):
                    stamps[identity] = kept[-1].stamp
            except (FrostlineError, OSError):  # the command that needs it reports it
                continue
        return WriterState(journal, generation, stamps, buckets)

    def state_to_keep(self, state: WriterState, identities: Iterable[str]) -> WriterState:
        """The state for a stamp of a local disk: of a bucket of these that was seen further than it is, how far that
        was, until a person has accepted it. What shows that the bucket is older must outlive the stamps that go. An
        entry of a log says only how far each log is: the numbers of lost revisions are given again."""
        buckets = dict(state.buckets)
        for identity in identities:
            if (seen := self._seen.buckets.get(identity, 0)) > max(
                buckets.get(identity, 0), self._accepted.get(identity, 0)
            ):
                buckets[identity] = seen
        return msgspec.structs.replace(state, buckets=buckets)


def _has_another(stamps: list[CommitStamp], seen: CommitStamp) -> bool:
    """Whether a disk that is older has another transaction of the number that was seen."""
    return bool(stamps) and stamps[-1].number >= seen.number


def _why(stamps: list[CommitStamp], seen: CommitStamp, who: str) -> str:
    shown = f"transaction {stamps[-1].number}" if stamps else "no transaction"
    if _has_another(stamps, seen):
        return f"has another transaction {seen.number} than {who} has seen there"
    return f"shows {shown}, and {who} has seen transaction {seen.number} there"
