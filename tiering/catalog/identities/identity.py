"""Is each disk the one that its name stands for? Compares what the places show with what the journal knows.

A disk is *fresh* when it has no id and the journal does not know it; *broken* when the journal knows another id than
the place shows, when two names show one, when a person gave it up, or when it is older than somebody has seen it. A
broken disk is taken out (`BrokenDisk`), so nothing can be written there.
Tables that may have parts there are not whole: nothing of them is answered (unless a gap is asked for), merged, moved.
A new journal knows nothing, and accepts the disks in their present state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import BucketDisk, ClickHouseLogDisk, LoggedDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.identity import not_there, read_object
from disks.kinds import as_disk, identity_of, stamps_of
from disks.object_disk.sharing.writers import take_over
from disks.stores.time_budget import time_budget
from disks.wrappers.broken import BrokenDisk
from oplog.entry import GENESIS_DIGEST
from oplog.errors import DiskUnreachable, FrostlineError, NoSpace, ReadOnly, Refused, Transient
from oplog.stamps import CommitStamp, WriterState
from oplog.table_digest import TableDigest
from tiering.catalog.identities import notes
from tiering.catalog.identities.ages import Ages, Older
from tiering.catalog.identities.faults import (
    Fault,
    is_cloned,
    is_older_copy,
    named,
    parts_lacking,
    was_given_up,
    without_id,
)
from tiering.journal.journal import Journal
from tiering.journal.known_disks import Holding, KnownDisk
from tiering.table.paths import STORE_DIRECTORY, directory_of
from tiering.table.schema import TABLE_FILE

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 4.0


class Identities:
    """The disks of a store, each looked at under its name; `disks` changes in place when one breaks or comes back."""

    def __init__(self, disks: dict[str, Disk], places: Mapping[str, str], journal: Journal) -> None:
        """`places` says where each disk of the configuration lies; `disks` may be some of them."""
        self.disks = disks
        self.faults: tuple[Fault, ...] = ()
        self._real = dict(disks)
        self._places = places
        self._journal = journal
        self._records: dict[str, KnownDisk] = {}
        self._shown: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._adopted: set[str] = set()
        self._unsure: set[str] = set()
        """Disks of which nobody could tell whether they were given up."""
        self._ages = Ages(journal)
        self._written: dict[str, str] = {}
        """The ids of disks that this process writes to."""

    @property
    def behind(self) -> str:
        """What shows that the journal is an older copy of itself, in a sentence; it goes on from there. Else empty."""
        return self._ages.behind

    def look(self) -> None:
        """Compare all disks with what is known. Notes ids that are new here; writes to no disk."""
        self._records = self._journal.disks.all()
        self._given_up, self._adopted = self._journal.disks.decided()
        self._ages.begin()
        found = {name: self._examine(name, disk) for name, disk in self._real.items()}
        faults = {fault.disk: fault for fault in found.values() if fault is not None}
        self._look_for_notes(faults)
        self._twice(faults)
        self._unconfigured(faults)
        for name, disk in self._real.items():
            fault = faults.get(name)
            if fault is not None:
                self.disks[name] = BrokenDisk(disk, fault.error)
                continue
            self.disks[name] = disk
            self._take(name, disk)
        self._try(self._ages.judge_journal)
        self.faults = tuple(faults.values())

    def compare(self, holdings: Mapping[str, Mapping[str, Holding]], unsure: Iterable[str]) -> None:
        """After the catalog was read: `holdings` by disk. Fewer parts of a table than were counted on a disk that is
        no bucket, or fewer rows, are a fault; a disk without a fault is counted again. Tables in `unsure` have parts
        that cannot be read: the fault says so."""
        faults = [fault for fault in self.faults if fault.whole_disk]
        sceptical = set(unsure)
        lacking = {fault.disk: fault for fault in self.lacking(holdings, sceptical)}
        for name, known in self._records.items():
            if name not in self.disks or self.disks[name].broken is not None:
                continue
            held = holdings.get(name, {})
            if name in lacking:
                faults.append(lacking[name])
            elif not sceptical and (not known.counted or dict(held) != known.holdings):
                self._count(known, held)
        for name in holdings:
            if name not in self._records:  # of a version without ids, or read-only
                self._try(
                    partial(self._journal.disks.note, name, "", self.disks[name].kind, self._places.get(name, ""))
                )
        self.faults = tuple(faults)

    def lacking(self, holdings: Mapping[str, Mapping[str, Holding]], unsure: Collection[str]) -> Iterator[Fault]:
        """The disks, other than buckets, that hold less of a table than was counted, while nobody wrote there. An older
        copy of a disk may have as many parts, or more, that were merged since, and fewer rows. What left a bucket,
        its log tells."""
        for name, known in self._records.items():
            disk = self.disks.get(name)
            if disk is None or disk.broken is not None or not known.counted or as_disk(disk, BucketDisk) is not None:
                continue
            held = holdings.get(name, {})
            lost = {
                uuid: before
                for uuid, before in known.holdings.items()
                if uuid not in unsure and _is_less(held.get(uuid), before)
            }
            if lost and self._is_current(known):
                yield parts_lacking(name, self.location(name), lost, held)

    def record(self, name: str) -> KnownDisk | None:
        """What the journal knows of the disk."""
        return self._records.get(name)

    def shown(self, name: str) -> str | None:
        """The id that the place shows."""
        return self._shown.get(name)

    def at_place(self, name: str) -> str | None:
        """The id that the place itself has now: what this machine keeps of a bucket is not asked."""
        logged = as_disk(self._real[name], LoggedDisk)
        return self.shown(name) if logged is None else read_object(logged.store)

    @property
    def journal(self) -> Journal:
        """What is known of them."""
        return self._journal

    def with_real(self, name: str) -> dict[str, Disk]:
        """The disks, this one as its place shows it, with its faults."""
        return {**self.disks, name: self._real[name]}

    def kept(self, name: str) -> Mapping[str, Disk]:
        """The disks with this one as this machine keeps it, not as it is now; none where it keeps nothing."""
        disk = as_disk(self._real[name], LoggedDisk) if name in self._real else None
        if disk is None:
            return {}
        disk.work_offline(DiskUnreachable(f"disk {name} is not asked"))
        return {**self.disks, name: disk}

    def is_shared(self, name: str) -> bool:
        """Whether other machines may write to the disk as well."""
        return self._real[name].capabilities.shared

    def location(self, name: str) -> str:
        """Where the configuration has the disk; empty when it has none of the name."""
        return self._places.get(name, "")

    def is_empty(self, name: str) -> bool:
        """Whether the place of a disk without an id holds nothing either."""
        disk = self._real[name]
        if (logged := as_disk(disk, LoggedDisk)) is not None:
            return logged.log.first_revision() is None
        if (bucket := as_disk(disk, BucketDisk)) is not None:
            return next(iter(bucket.store.list()), None) is None
        return not disk.list("")

    def has_tables(self, name: str) -> bool:
        """Whether tables lie at its place, with an id or without one: a copy of a disk's files may lack that."""
        disk = self._real[name]
        if (logged := as_disk(disk, LoggedDisk)) is not None:
            return logged.log.first_revision() is not None
        return bool(disk.list(STORE_DIRECTORY))

    @property
    def is_begun(self) -> bool:
        """Whether there is a store: somebody has written to a disk, here or elsewhere. What cannot be asked, may be
        one. Costs nothing where the journal knows a disk, else a listing a bucket."""
        return bool(self._records or self._shown) or not all(self._is_unwritten(name) for name in self._real)

    def _is_unwritten(self, name: str) -> bool:
        try:
            with time_budget(_PATIENCE_SECONDS):
                return self.is_empty(name)
        except FrostlineError:
            return False

    def decide(self, verb: str, name: str, actor: str) -> list[str]:
        """Note what a person says of the disk; the next `look` goes by it. What this machine keeps of a bucket that is
        given up goes first: it would be taken for what the bucket has. In sentences, which disks could not be told that
        another one was given up, or was adopted."""
        if verb == "replace" and (logged := as_disk(self._real[name], LoggedDisk)) is not None:
            logged.replace_cache(tuple, 0, GENESIS_DIGEST, table_digest=TableDigest().hex, proved=True)
            self._shown.pop(name, None)
        if verb == "adopt" and (logged := as_disk(self._real[name], LoggedDisk)) is not None:
            take_over(logged)
        failures, former = list[str](), ""
        if verb == "adopt" and any(fault.disk == name and fault.needs_new_identity for fault in self.faults):
            failures, former = self.mark_clones(actor), self._shown[name]
            # The journal first: after the disk has another id nothing shows any more that the journal is a clone's.
            self._journal.renew()
            self._shown[name] = self._identified(name).renew_identity()
        known, shown = self.record(name), self._shown.get(name)
        if known is None:
            known = KnownDisk(name=name, id=shown or "", kind=self._real[name].kind, location=self.location(name))
        is_empty = known.counted and not any(held.parts for held in known.holdings.values())
        if verb != "adopt" and (is_empty or self._has_other_name(known)):
            known = msgspec.structs.replace(known, id="")  # it held nothing, or stays under the other name
        others = [
            disk
            for other, disk in self._real.items()
            if other != name
            and other in self._shown
            and _can_be_told(self.disks[other])
            and as_disk(disk, ClickHouseLogDisk) is None
        ]
        stamp, furthest = None, 0
        if verb == "adopt" and shown is not None:
            furthest = self._ages.furthest(shown)
            disk = self._identified(name)
            self._ages.note(disk)  # its stamps go, and with them what they say of others
            disk.stamp_commits(self._state_for(disk), lambda stamp: None)
            stamp = disk.restamp(furthest) or next((one.stamp for one in reversed(disk.stamps())), None)
        self._journal.disks.decide(verb, known, shown, self.location(name), actor, stamp=stamp, accepted=furthest)
        failures += notes.withdraw_given_up(others, shown, actor) if verb == "adopt" and shown is not None else []
        for identity in {known.id, former} - {"", shown}:
            failures += notes.note_given_up(others, identity, actor)
        return failures

    def _identified(self, name: str) -> IdentifiedDisk:
        """A disk that shows an id."""
        disk = as_disk(self._real[name], IdentifiedDisk)
        assert disk is not None
        return disk

    def is_fresh(self, name: str) -> bool:
        """Whether nobody has written to the disk yet, as far as can be told."""
        if name in self._shown or self._tables(name):
            return False
        try:
            return not self.disks[name].list(STORE_DIRECTORY)
        except FrostlineError:
            return False

    def _is_current(self, record: KnownDisk) -> bool:
        """Whether nobody began to write since `look`."""
        now = self._journal.disks.all().get(record.name)
        return now is not None and now.changes == record.changes

    def _examine(self, name: str, disk: Disk) -> Fault | None:
        self._shown.pop(name, None)
        try:
            with time_budget(_PATIENCE_SECONDS):
                shown = identity_of(disk)
        except Transient:  # what cannot be reached is answered for by what is known of it
            return None
        except FrostlineError as error:
            return Fault(name, "other", error, self._tables(name))
        if shown is not None:
            self._shown[name] = shown
            if shown in self._given_up:
                return self._was_given_up(name)
        known = self._records.get(name)
        if known is not None and not known.id and self._is_elsewhere(name, known):
            return self._without_its_tables(name, known, shown)
        if known is None or not known.id or shown == known.id:
            older = self._ages.why_older(disk, shown) if shown is not None else None
            return self._older(name, older) if older is not None else None
        reason = not_there(name, self.location(name), known.id, shown)
        if shown is None and self._has_tables(name):
            reason = without_id(name, self.location(name), known.id)
        return Fault(name, "missing" if shown is None else "other", reason, self._tables(name))

    def _has_tables(self, name: str) -> bool:
        try:
            with time_budget(_PATIENCE_SECONDS):
                return self.has_tables(name)
        except FrostlineError:
            return False

    def _look_for_notes(self, faults: dict[str, Fault]) -> None:
        """Ask the other disks about those that this machine does not know yet: were they given up? While one of them
        cannot be asked, it does not get to know them, and asks again at the next look."""
        self._unsure.clear()
        known = {disk.id for disk in self._records.values()}
        for name, shown in self._shown.items():
            if shown in known or name in faults:
                continue
            others = [disk for other, disk in self._real.items() if other != name and other not in faults]
            noted = notes.is_given_up(others, shown)
            if noted:
                faults[name] = self._was_given_up(name)
            elif noted is None or len(others) + 1 < len(self._places):
                self._unsure.add(name)

    def compare_ages(self) -> bool:
        """After the buckets were looked at: take out the disks that are older than the logs, or other disks, have seen
        them, and those that another disk says were given up, though the journal knows them. Whether there are such."""
        usable = {name: disk for name, disk in self.disks.items() if disk.broken is None and not disk.unreachable}
        faults = {name: self._older(name, why) for name, why in self._ages.compare(usable, self._shown).items()}
        self._try(self._ages.judge_journal)
        faults.update({name: self._was_given_up(name) for name in usable if self._is_noted(name, usable)})
        # Comes last: a home that got another id gave up the one that this home still goes by.
        faults.update({name: self._older(name, older) for name, older in self._cloned(usable)})
        for name, fault in faults.items():
            self.disks[name] = BrokenDisk(self._real[name], fault.error)
            self.faults = (*self.faults, fault)
        return bool(faults)

    def _cloned(self, usable: Mapping[str, Disk]) -> Iterator[tuple[str, Older]]:
        """The disks that have a mark of another home which goes by their id."""
        logged = [disk for disk in usable.values() if as_disk(disk, LoggedDisk) is not None]
        for name, disk in usable.items():
            if name not in self._shown or as_disk(disk, LoggedDisk) is not None:
                continue
            if by := notes.is_cloned(logged, self._shown[name], stamps_of(disk)):
                yield name, Older(f"has a mark of another home on disk {by}", is_clone=True)

    def _is_noted(self, name: str, usable: Mapping[str, Disk]) -> bool:
        """Whether another disk says that this one was given up. A note that nobody can take away from its disk does not
        count once a person has adopted the disk here."""
        if (shown := self._shown.get(name)) is None:
            return False
        is_adopted = shown in self._adopted
        others = [disk for other, disk in usable.items() if other != name and not (is_adopted and disk.read_only)]
        return bool(notes.is_given_up(others, shown))

    def _was_given_up(self, name: str) -> Fault:
        error = was_given_up(name, self.location(name), self._shown[name])
        return Fault(name, "given_up", error, self._tables(name))

    def _older(self, name: str, older: Older) -> Fault:
        error = (is_cloned if older.is_clone else is_older_copy)(name, self.location(name), older.why)
        may_be_clone = (older.is_clone or older.may_be_clone) and not self._real[name].read_only
        return Fault(
            name,
            "cloned" if older.is_clone else "older",
            error,
            self._tables(name),
            needs_new_identity=may_be_clone,
        )

    def mark_clones(self, actor: str) -> list[str]:
        """Let other homes that use the id of a disk here find it out. In sentences, which disks have no mark."""
        failures: list[str] = []
        for fault in self.faults:
            if fault.needs_new_identity and (stamps := stamps_of(self._real[fault.disk])):
                logged = [
                    disk for disk in self.disks.values() if as_disk(disk, LoggedDisk) is not None and _can_be_told(disk)
                ]
                identity, is_older = self._shown[fault.disk], fault.kind == "older"
                failures += notes.mark_clone(logged, identity, stamps[-1].stamp, actor, is_older=is_older)
        return failures

    def _is_elsewhere(self, name: str, record: KnownDisk) -> bool:
        """Whether a disk that has no id is not known by its place either, and the tables that had parts on it are not
        there. What cannot be asked, is answered for as ever."""
        if record.location == self._places.get(name, "") or not any(held.parts for held in record.holdings.values()):
            return False
        try:
            return not any(self._real[name].exists(directory_of(uuid, TABLE_FILE)) for uuid in record.holdings)
        except FrostlineError:
            return False

    def _without_its_tables(self, name: str, record: KnownDisk, shown: str | None) -> Fault:
        error = (DiskUnreachable if shown is None else Refused)(
            f"disk {name} is not at {self._places.get(name, '')}: none of {named(record.holdings.values())} is there,"
            f" which it had at {record.location}",
            hint=f"correct the configuration; if this is the right disk: 'frostline disk adopt {name}'",
        )
        return Fault(name, "missing" if shown is None else "other", error, self._tables(name))

    def _twice(self, faults: dict[str, Fault]) -> None:
        for name, shown in self._shown.items():
            others = [other for other, same in self._shown.items() if same == shown and other != name]
            if others:
                both = " and ".join(f"{one} ({self._places.get(one, '')})" for one in sorted((name, *others)))
                error = Refused(
                    f"one disk has two names: {both} both show disk {shown}",
                    hint="take one of them out of the configuration; copies of a disk are not disks",
                )
                faults[name] = Fault(name, "twice", error, self._tables(name))

    def _unconfigured(self, faults: dict[str, Fault]) -> None:
        for name, known in self._records.items():
            tables = self._tables(name)
            if name in self._places or not (tables or not known.counted) or self._has_other_name(known):
                continue
            held = f"parts of {named(known.holdings.values())} were there" if known.counted else "it was written to"
            error = Refused(
                f"disk {name} ({known.location}) is not configured any more, and {held}",
                hint=f"bring it back into the configuration; if it is gone for good: 'frostline disk forget {name}'",
            )
            faults[name] = Fault(name, "unconfigured", error, tables, any_table=not known.counted)

    def _has_other_name(self, record: KnownDisk) -> bool:
        """Whether the disk is there after all: it was renamed."""
        return bool(record.id) and any(shown == record.id for name, shown in self._shown.items() if name != record.name)

    def _take(self, name: str, disk: Disk) -> None:
        """A disk that is well: note what is new of it, and watch its writes."""
        known, shown, place = self._records.get(name), self._shown.get(name), self._places.get(name, "")
        if (
            shown is not None
            and name not in self._unsure
            and (known is None or (known.id, known.location) != (shown, place))
        ):
            known = known or KnownDisk(name=name, id=shown, kind=disk.kind, location=place)
            known = self._records[name] = msgspec.structs.replace(known, id=shown, location=place)
            self._try(partial(self._journal.disks.note, name, shown, disk.kind, place))
        if shown is not None and (stamps := stamps_of(disk)):
            self._try(partial(self._journal.disks.note_stamp, shown, stamps[-1].stamp))
        expected = known.id or None if known is not None else None
        if (identified := as_disk(disk, IdentifiedDisk)) is not None:
            identified.watch(expected, partial(self._begin, name, disk.kind, place))
            identified.stamp_commits(self._state_for(disk), partial(self._committed, name))

    def _begin(self, name: str, kind: str, location: str, identity: str) -> None:
        self._written[name] = identity
        self._journal.disks.begin_writing(name, identity, kind, location)

    def _committed(self, name: str, stamp: CommitStamp) -> None:
        if (identity := self._written.get(name)) is not None:
            self._try(partial(self._journal.disks.note_stamp, identity, stamp))

    def _state_for(self, disk: Disk) -> Callable[[], WriterState]:
        if as_disk(disk, LoggedDisk) is not None:
            return self._state
        identities = {*self._shown.values(), *(known.id for known in self._records.values())}
        return lambda: self._ages.state_to_keep(self._state(), identities)

    def _state(self) -> WriterState:
        return self._ages.state(self._real, {**self._shown, **self._written})

    def _count(self, record: KnownDisk, held: Mapping[str, Holding]) -> None:
        self._try(partial(self._journal.disks.count, record.name, record.changes, held))

    def _try(self, write: Callable[[], None]) -> None:
        """What is only noted for the next time may fail: reading needs no journal that can be written."""
        try:
            write()
        except (NoSpace, ReadOnly) as error:
            logger.info("the disks are not noted in the journal: %s", error.message)
        except FrostlineError as error:
            logger.warning("the disks are not noted in the journal: %s", error.message)

    def _tables(self, name: str) -> frozenset[str]:
        known = self._records.get(name)
        return frozenset(known.holdings) if known is not None else frozenset()


def _can_be_told(disk: Disk) -> bool:
    return disk.broken is None and not disk.read_only and not disk.unreachable


def _is_less(now: Holding | None, before: Holding) -> bool:
    return now is None or now.parts < before.parts or now.rows < before.rows
