"""The right to write to a bucket without conditional writes: one owner at a time, by objects that are only ever added.

    lease/<owner>-<number>.json     an owner's claim; each renewal adds one and deletes the one before it

The last claim of an owner counts, until the time in it and some grace for clocks that differ. Of two owners the one
whose first claim the store dates earlier wins; the other withdraws. Nothing depends on a delete: where Object Lock
keeps old claims, an owner that lets go or withdraws adds one that has ended.

An owner goes by a clock that nobody can set, and which counts while the machine sleeps; the time in a claim is for the
others, and they take the earlier of their own time and the store's. So a clock that jumps costs a wait, and no second
writer.

The promise is weaker than that of a conditional write: it needs clocks that agree within the grace when a claim is
made, and listings that show what was put. An owner that is stopped for minutes between its check and its put may
overwrite what its successor wrote. It looks at its clock right before the put, and after the put it looks whether the
lease was still its own, by the dates of the store, and acknowledges nothing otherwise; and who commits next looks
whether the last entry is still the one it knows.

Processes that share a state directory share the lease, for they commit one after the other under the lock of its table.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from disks.effects import make_directory, replace_file
from disks.host.clean_up import clean_up_owed
from disks.host.processes import boot_id
from disks.stores.base import ObjectInfo, ObjectStore
from oplog import bounds
from oplog.documents import Document
from oplog.entry import now
from oplog.errors import Damaged, FrostlineError, LeaseExpired, Locked, NotFound
from oplog.revision import LEASES_PREFIX

_TERM_SECONDS = 120.0
_GRACE_SECONDS = 30.0
_CLOCKS_APART = timedelta(minutes=15)
"""S3 takes no request from a machine whose clock is further off."""
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ENDED = datetime(1970, 1, 1, tzinfo=UTC)
_OLD = timedelta(days=1)
_TOLD = timedelta(days=30)
"""So long a claim stays that tells of an entry."""
_MOST_SWEPT = 100
_NAME = re.compile(rf"{LEASES_PREFIX}([0-9a-f]{{16}})-([0-9]{{1,18}})\.json\Z")


class LeaseClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. `since` is when the store dated the first claim of this tenure; None in the first itself."""

    owner: str
    number: int
    until: datetime
    holder: str
    since: datetime | None = None
    overslept: str = ""
    """Of one that has ended: the entry that its owner put after its turn was over, perhaps in the place of another."""

    @property
    def key(self) -> str:
        return f"{LEASES_PREFIX}{self.owner}-{self.number}.json"


class _Held(msgspec.Struct, frozen=True, kw_only=True):
    """Our own claim as this machine remembers it: the steady clock until when it is ours, and of which boot that is."""

    claim: LeaseClaim
    boot: str
    steady_until: float


def _fault_in(claim: LeaseClaim) -> str | None:
    fault = bounds.fault_in_time("until", claim.until)
    return fault or (bounds.fault_in_time("since", claim.since) if claim.since is not None else None)


_claim = Document("lease", LeaseClaim, fault=_fault_in)
_held = Document("lease as this machine remembers it", _Held)


class Lease:
    """The lease of one state directory. `hold` is called by one process at a time."""

    def __init__(
        self,
        store: ObjectStore,
        path: Path,
        *,
        term_seconds: float = _TERM_SECONDS,
        grace_seconds: float = _GRACE_SECONDS,
        settle_seconds: float = 2.0,
    ) -> None:
        self._store = store
        self._path = path
        self._term = timedelta(seconds=term_seconds)
        self._grace = timedelta(seconds=grace_seconds)
        self._settle_seconds = settle_seconds

    @property
    def used(self) -> bool:
        """Whether this state directory ever took the lease."""
        return self._path.exists()

    def hold(self) -> None:
        """Make sure that the lease is ours for the next minute. Raises `Locked` when it is somebody else's."""
        held, left_seconds = self._remembered(), self._left_seconds()
        if held is None or left_seconds <= 0:
            self.release()  # what ran out would keep us waiting for its grace
            self._acquire()
        elif left_seconds < self._term.total_seconds() / 2:
            mine = held.claim
            self._put(msgspec.structs.replace(mine, number=mine.number + 1, until=now() + self._term))
            self._store.delete([mine.key])

    def check(self) -> None:
        """Raise `Locked` unless the lease is still ours by our own clock. Sends nothing: for right before a put."""
        if self._left_seconds() <= 0:
            raise Locked(
                f"{self._store.name}: this machine stood still until its lease had run out; nothing was written",
                hint="run the command again: another machine may have written meanwhile",
            )

    def check_held(self, written: ObjectInfo) -> None:
        """The lease was ours when the store dated the entry; else `LeaseExpired`, and it is let go,
        with a word about the entry for everybody's `fsck`."""
        held = self._remembered()
        mine = held.claim if held is not None else None
        listed = {item.key: item.modified for item in self._store.list(LEASES_PREFIX)}
        ours = listed.get(mine.key) if mine is not None else None
        if mine is not None and ours is not None and written.modified <= ours + self._term + self._grace:
            began = mine.since or ours
            others = ((_parsed(key), modified) for key, modified in listed.items())
            if not any(owner != mine.owner and number > 1 and modified > began for (owner, number), modified in others):
                return
        replace_file(self._path, b"")
        if mine is not None:
            self._leave_word(mine, written.key)
        raise LeaseExpired(
            f"{self._store.name} takes one writer, and this machine was suspended until its lease ended: what it "
            "wrote may have replaced what another machine wrote",
            hint="before anything else, run 'frostline fsck' on both machines. With several machines use a store that "
            "has conditional writes, which prevent this",
        )

    def release(self) -> None:
        """Let others write at once. Nothing when it is not ours."""
        held = self._remembered()
        if held is not None:
            self._end(held.claim)
            replace_file(self._path, b"")

    def _left_seconds(self) -> float:
        held = self._remembered()
        return held.steady_until - _steady() if held is not None and held.boot == _boot() else 0.0

    def _leave_word(self, mine: LeaseClaim, key: str) -> None:
        """A claim that has ended, which stays for a month. Where it cannot be put, this machine alone knows."""
        with suppress(FrostlineError):
            _write(self._store, msgspec.structs.replace(mine, number=mine.number + 1, until=_ENDED, overslept=key))

    def _end(self, mine: LeaseClaim) -> None:
        """Take the claim away or, where it cannot be deleted, add one that has ended."""
        if any(error is not None for error in self._store.delete([mine.key]).values()):
            _write(self._store, msgspec.structs.replace(mine, number=mine.number + 1, until=_ENDED))

    def _acquire(self) -> None:
        self._refuse_if_held()
        holder = f"{socket.gethostname()}:{os.getpid()}"
        claim = LeaseClaim(owner=secrets.token_hex(8), number=1, until=now() + self._term, holder=holder)
        with clean_up_owed():
            _write(self._store, claim)
            try:
                time.sleep(self._settle_seconds)
                since = self._refuse_if_held(claim)
            except BaseException:
                self._end(claim)
                raise
        self._put(msgspec.structs.replace(claim, number=2, since=since))
        self._store.delete([claim.key])
        self._sweep()

    def _refuse_if_held(self, mine: LeaseClaim | None = None) -> datetime | None:
        """Raise `Locked` when another live claim comes before ours; returns when the store dated ours. A clock of ours
        that is ahead must not end the claims of others: the store's counts as well."""
        claims = self._claims()
        own = next((item for item, claim in claims if claim == mine), None)
        moment = now() if own is None else min(now(), own.modified)
        for item, other in claims:
            if item is own or other.until + self._grace < moment:
                continue
            if own is None or ((other.since or item.modified), item.key) < (own.modified, own.key):
                raise Locked(
                    f"{self._store.name} takes one writer; {other.holder} has it until {other.until:%H:%M:%S}Z",
                    hint="this store has no conditional writes; wait, or write from one machine only",
                )
        if mine is not None and own is None:
            raise Locked(f"{self._store.name}: the claim {mine.key} disappeared", hint="try again")
        return own.modified if own is not None else None

    def _claims(self) -> list[tuple[ObjectInfo, LeaseClaim]]:
        """The last claim of each owner, unless it is so old that it cannot count. Listed again when one went away
        meanwhile: its renewal may not have been in the listing."""
        while True:
            last: dict[str, tuple[int, ObjectInfo]] = {}
            for item in self._store.list(LEASES_PREFIX):
                owner, number = _parsed(item.key)
                if owner not in last or number > last[owner][0]:
                    last[owner] = (number, item)
            newest = max((item.modified for _, item in last.values()), default=now())
            cannot_count = min(now(), newest) - self._term - self._grace - _CLOCKS_APART
            try:
                return [(item, _read(self._store, item)) for _, item in last.values() if item.modified > cannot_count]
            except NotFound:
                continue

    def _sweep(self) -> None:
        """Delete what owners that died, or a lock, left long ago. Answers do not matter: the next one tries again."""
        old = [item for item in self._store.list(LEASES_PREFIX) if now() - item.modified > _OLD][:_MOST_SWEPT]
        telling = {item.key for item in old if now() - item.modified < _TOLD and self._tells(item)}
        self._store.delete([item.key for item in old if item.key not in telling])

    def _tells(self, info: ObjectInfo) -> bool:
        try:
            return bool(_read(self._store, info).overslept)
        except (Damaged, NotFound):
            return False

    def _put(self, claim: LeaseClaim) -> None:
        until = _steady() + self._term.total_seconds()  # before the put, which may take its time
        _write(self._store, claim)
        make_directory(self._path.parent)
        replace_file(self._path, _held.encode(_Held(claim=claim, boot=_boot(), steady_until=until)))

    def _remembered(self) -> _Held | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _held.decode(data)
        except msgspec.DecodeError:
            pass
        try:  # of a version that went by the wall clock: it has run out, and is ended
            return _Held(claim=_claim.decode(data), boot="", steady_until=0.0)
        except msgspec.DecodeError:
            return None


def _steady() -> float:
    """Seconds by a clock that nobody sets; it counts while the machine sleeps, and is that of all processes."""
    return time.clock_gettime(_STEADY)


def _boot() -> str:
    """Which run of this machine the steady clock is of; on systems that do not say, which process."""
    return boot_id() or f"process {os.getpid()}"


def _parsed(key: str) -> tuple[str, int]:
    """Owner and number; a name of another form is its own owner, so it is read and reported."""
    found = _NAME.match(key)
    return (found[1], int(found[2])) if found else (key, 0)


def overslept(store: ObjectStore) -> Iterator[LeaseClaim]:
    """The claims whose owners put an entry after their turn was over. Raises `Damaged` for one that cannot be read."""
    for item in store.list(LEASES_PREFIX):
        try:
            claim = _read(store, item)
        except NotFound:  # it was renewed meanwhile
            continue
        if claim.overslept:
            yield claim


def _read(store: ObjectStore, info: ObjectInfo) -> LeaseClaim:
    try:
        if info.size_bytes > bounds.LARGEST_NOTE_BYTES:
            raise ValueError(f"it has {info.size_bytes} bytes")
        return _claim.decode(store.get(info.key))
    except bounds.UNREADABLE as error:
        raise Damaged(f"lease {store.name}{info.key} cannot be read: {error}", hint="delete it") from error


def _write(store: ObjectStore, claim: LeaseClaim) -> None:
    data = _claim.encode(claim)
    store.put(claim.key, data, sha256=hashlib.sha256(data).digest())
