"""Copies of a bucket's parts on disks of this machine: what `move --keep-source`, or a move that was interrupted, left.

Such a copy is valid while the bucket has the part. When a commit takes the part away, the copy is outdated, unless the
commit returns the part to this machine (a move back, the undo of the move) or sets it aside because it is damaged. Only
the log of the bucket proves that. The journal lists which parts may be such copies, so that few are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.entry import Commit, Rename
from oplog.errors import DiskUnreachable, FrostlineError, Transient
from oplog.kinds import Moved, SetAside, Tidied, Undone
from tiering.policy.part_events import event
from tiering.table.schema import TableDefinition


class ListedCopies(Protocol):
    """What the journal knows of such copies."""

    def parts(self) -> Mapping[str, Collection[str]]:
        """The parts of which there may be one, by the uuid of their table."""

    def kept_between(self, table_uuid: str, part: str) -> Collection[str]:
        """The disks that have the part since its last move, if that left a copy; else none."""


class CopyState(msgspec.Struct, frozen=True):
    """What the buckets say of a part that a disk of this machine has and no bucket."""

    kind: Literal["valid", "outdated", "unexplained"]
    """Unexplained: a bucket had the part, and its log does not tell what became of it. The copy counts."""
    why: str = ""
    is_proved: bool = False
    """Whether the logs say so; else the journal alone does, while a bucket cannot be asked."""
    is_merged: bool = False
    """Whether a merge took the part away: its rows went on in another one."""

    @property
    def is_settled(self) -> bool:
        """Whether the logs tell all of it."""
        return self.is_proved and self.kind != "unexplained"


VALID = CopyState("valid", is_proved=True)


class CopyHistory(msgspec.Struct, frozen=True):
    """What one bucket says of a copy, or of a part that was made from it."""

    state: CopyState
    bucket: str = ""
    """Its id; empty where its log was not read."""
    history: Sequence[Commit] = ()
    """Its commits that touched the part."""

    def is_before(self, other: CopyHistory) -> bool:
        """Whether a writer of the other history had seen the end of this one. No clock tells it: two machines have
        two."""
        if not self.history:
            return False
        if self.bucket == other.bucket:
            return bool(other.history) and self.history[-1].revision < other.history[-1].revision
        return any(commit.state.buckets.get(self.bucket, 0) >= self.history[-1].revision for commit in other.history)


class SourceCopies:
    """The copies that this machine's journal lists, and their states; each is looked up once a revision."""

    def __init__(self, disks: Mapping[str, Disk], listed: ListedCopies) -> None:
        self._disks = disks
        self._listed = listed
        self._parts: Mapping[str, Collection[str]] = {}
        self._states: dict[str, tuple[tuple[int | None, ...], CopyState]] = {}
        """By the directory of the part: the revisions of the buckets, and the state then."""

    def look(self) -> None:
        """Read the list again."""
        self._parts = self._listed.parts()

    def parts(self, definition: TableDefinition) -> frozenset[str]:
        """The parts of the table that may be such copies."""
        listed = self._parts.get(definition.uuid, ())
        return frozenset(listed) if listed and self.follows(definition) else frozenset()

    def follows(self, definition: TableDefinition) -> bool:
        """Whether the logs of the buckets say what becomes of copies here. Of those of a replica, Keeper does."""
        return not definition.is_replicated or not any(
            disk.exists(definition.replica_path) for name, disk in self._disks.items() if self.is_local(name)
        )

    def is_local(self, disk: str) -> bool:
        """Whether no other machine has the disk."""
        return not self._disks[disk].capabilities.shared

    def state(self, definition: TableDefinition, part: str) -> CopyState:
        """Of a part that no bucket here has."""
        buckets = [logged for disk in self._disks.values() if (logged := as_disk(disk, LoggedDisk)) is not None]
        directory = definition.part_directory(part)
        revisions = tuple(bucket.revision if bucket.broken is None else None for bucket in buckets)
        known = self._states.get(directory)
        if known is None or known[0] != revisions or not known[1].is_proved:
            known = self._states[directory] = revisions, self._find(buckets, definition, part)
        return known[1]

    def is_outdated(self, definition: TableDefinition, part: str) -> bool:
        """Whether it is such a copy, of a part that a commit took off its bucket for good."""
        return part in self.parts(definition) and self.state(definition, part).kind == "outdated"

    def _find(self, buckets: Iterable[LoggedDisk], definition: TableDefinition, part: str) -> CopyState:
        if any(disk.broken is not None for disk in self._disks.values()):
            return CopyState("valid")  # what lies there nobody knows
        between = self._listed.kept_between(definition.uuid, part)
        kept = any(map(self._is_shared, between))
        directory = definition.part_directory(part)
        accounts: list[CopyHistory] = []
        for bucket in buckets:
            try:
                if bucket.unreachable:
                    raise DiskUnreachable(bucket.unreachable)
                account = copy_history(bucket, directory, self._is_shared, kept=kept)
            except (
                Transient
            ) as error:  # the cached table knows that the bucket lacks the part, the journal that it had it
                if bucket.name in between:
                    return CopyState("outdated", error.message)
                continue
            except FrostlineError as error:
                account = CopyHistory(CopyState("unexplained", error.message))
            if account is not None:
                accounts.append(account)
        if accounts:
            return last_of(accounts)
        return CopyState("unexplained", "no log says what happened to it", is_proved=True) if kept else VALID

    def _is_shared(self, disk: str) -> bool | None:
        """None of a disk that this machine does not have."""
        return self._disks[disk].capabilities.shared if disk in self._disks else None


def last_of(accounts: Sequence[CopyHistory]) -> CopyState:
    """What the bucket says that had the part last."""
    last = [
        account.state
        for account in accounts
        if not any(account.is_before(other) for other in accounts if other is not account)
    ]
    last = last or [account.state for account in accounts]  # logs that contradict each other
    last = [state for state in last if state.kind != "unexplained"] or last
    if len({state.kind for state in last}) < 2:
        return last[0]
    said = "; ".join(state.why for state in last)
    return CopyState("unexplained", f"the logs do not say what came last: {said}", is_proved=True)


_IS_GONE: Mapping[bool | None, Literal["valid", "outdated", "unexplained"]] = {
    True: "outdated",
    False: "valid",
    None: "unexplained",
}
"""Of a part that a commit took off the bucket for good: by whether what is here is a copy of that, if it is known."""


def copy_history(
    bucket: LoggedDisk, directory: str, is_shared: Callable[[str], bool | None], *, kept: bool
) -> CopyHistory | None:
    """What became of the part in this directory by the log of a bucket: `state_after` of what is kept of it."""
    history = [entry.commit for entry in bucket.commits().touching(directory, until=bucket.revision)]
    if (state := state_after(history, directory, is_shared, kept=kept)) is None:
        return None
    why = f"{state.why}, by revision {history[-1].revision} of {bucket.name}"
    return CopyHistory(replace(state, why=why), bucket.identity() or bucket.name, history)


def state_after(
    history: Iterable[Commit], directory: str, is_shared: Callable[[str], bool | None], *, kept: bool
) -> CopyState | None:
    """The state of a copy after the commits of one bucket that touched the part, those that are kept. None where
    they say nothing of it. `is_shared`: of the name of a disk, None where this machine has none of this name; `kept`:
    the journal knows that it was left as a copy.

    What counts is whose the copy is: this machine's own part from a move back on, the bucket's from an arrival on.
    A part that a restore, an undo or an attach brings back in between changes nothing of that.
    """
    is_copy = True if kept else None
    last: CopyState | None = None
    for commit in history:
        seen = event(commit, directory)
        if seen is None:
            continue
        if seen.arrived:
            last = None
            is_copy = True if seen.verb in ("inserted", "merged", "moved in") else is_copy
        elif _returns(commit, is_shared):
            is_copy, last = False, CopyState("valid", seen.text, True)
        elif isinstance(commit.kind, Moved):
            is_known = is_shared(commit.kind.moved_to) is not None  # a bucket, whose log tells the rest
            last = None if is_known else CopyState("unexplained", f"{seen.text}, a disk that is not configured", True)
        elif _is_damaged(commit, directory):
            last = CopyState("valid", "set aside as damaged", True)
        else:
            is_merged = seen.verb == "merged away" or isinstance(commit.kind, Tidied)
            last = CopyState(_IS_GONE[is_copy], seen.text, is_proved=True, is_merged=is_merged)
    return last


def _returns(commit: Commit, is_shared: Callable[[str], bool | None]) -> bool:
    """Whether the commit that takes the part away leaves it to this machine."""
    match commit.kind:
        case Moved(moved_to=target):
            return is_shared(target) is False
        case Undone(undone=verb):
            return verb == str(Moved.__struct_config__.tag)
        case _:
            return False


def _is_damaged(commit: Commit, directory: str) -> bool:
    """Whether a check set the part aside: under another name than a person does."""
    name = directory.rpartition("/")[2]
    return isinstance(commit.kind, SetAside) and any(
        isinstance(step, Rename) and step.source == directory and step.target.rpartition("/")[2] != name
        for step in commit.operations
    )


class _Nothing:
    """Of a machine without a journal."""

    def parts(self) -> Mapping[str, Collection[str]]:
        return {}

    def kept_between(self, table_uuid: str, part: str) -> Collection[str]:
        return ()


NOTHING_LISTED: ListedCopies = _Nothing()
