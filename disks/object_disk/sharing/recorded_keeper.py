"""Where the marks of a prefix with several logs are kept: `marks/<number>.json`, only ever added.

    {"keeper": "9f…", "where": "zk1:2181,zk2:2181/frostline", "holder": "machine-a", "time": "2026-11-23T16:00:00Z"}

`keeper` is the random id that lies in that Keeper. It is empty in what a machine without one says when it begins a
prefix: the logs alone tell what is in use. That counts until the first machine marks anything, and never again.

The last record that names a Keeper counts, for everybody: nobody marks elsewhere, and nobody collects by other marks,
or by none. So a machine that has no Keeper, or another one, or one that lost its data, cannot take an object for free
that is held where it does not look.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from disks.object_disk.pending_deletes import INTENT_LIFETIME
from disks.stores.base import ObjectStore
from oplog import bounds
from oplog.documents import Document
from oplog.entry import now
from oplog.errors import AlreadyExists, Damaged, OutcomeUnknown, Refused
from oplog.revision import MARKS_PREFIX

_ATTEMPTS = 5
_SHOWN = 200
"""Characters: anybody who can write to the bucket may have put the record there."""
_KEY = re.compile(rf"{MARKS_PREFIX}([0-9]{{10}})\.json\Z")


class MarksKeeper(msgspec.Struct, frozen=True, kw_only=True):
    """One record."""

    keeper: str
    where: str
    """How the machine that wrote the record reaches that Keeper."""
    holder: str
    """The machine that said so."""
    time: datetime


class RecordedKeeper(NamedTuple):
    """A record, with its number, and since when it is there by the store's clock."""

    number: int
    record: MarksKeeper
    since: datetime


_document = Document("record of where marks are kept", MarksKeeper)


def recorded_keepers(prefix: ObjectStore) -> list[RecordedKeeper]:
    """All records, the oldest first: a listing, and a request each. Raises `Damaged`."""
    found = []
    for item in prefix.list(MARKS_PREFIX):
        if (match := _KEY.match(item.key)) is None:
            continue
        try:
            if item.size_bytes > bounds.LARGEST_NOTE_BYTES:
                raise ValueError(f"it has {item.size_bytes} bytes")
            place = _document.decode(prefix.get(item.key))
        except bounds.UNREADABLE as error:
            raise Damaged(
                f"{prefix.url(item.key)}, which says where marks are kept, cannot be read: {error}",
                hint="delete it, then run 'frostline replica audit --repair' on a machine that has the Keeper",
            ) from error
        found.append(RecordedKeeper(int(match[1]), place, item.modified))
    return found


def in_force(records: Sequence[RecordedKeeper]) -> RecordedKeeper | None:
    """The record that counts; None where none names a Keeper."""
    return next((record for record in reversed(records) if record.record.keeper), None)


def is_new(records: Sequence[RecordedKeeper], at: datetime) -> bool:
    """Whether marks were kept elsewhere, or not at all, so lately that a collection which knows no better may go on."""
    counts = in_force(records)
    return counts is not None and counts.number > records[0].number and at - counts.since < INTENT_LIFETIME


def objection(records: Sequence[RecordedKeeper], keeper: str | None, *, at: datetime, guard: timedelta) -> str | None:
    """Why a collection may not go by the logs and the marks in the Keeper with this id (empty: it has none; None: there
    is no Keeper); None when it may. Pure."""
    counts = in_force(records)
    if counts is None and keeper is not None:
        return (
            "nothing in the bucket says that its marks are in this Keeper: run 'frostline replica audit --repair' here"
        )
    if counts is None:
        return None if records else _NOTHING_SAID
    if keeper is None:
        return (
            f"marks in a Keeper ({_described(counts)}) hold objects here, and this configuration has no `keeper:`: "
            "collect on a machine that has it, or configure it here and run 'frostline replica audit'"
        )
    if keeper != counts.record.keeper:
        return elsewhere(counts)
    if (begins := collects_from(records, guard=guard)) is not None and at < begins:
        return (
            f"marks are kept in this Keeper since {counts.since:%Y-%m-%d %H:%M} UTC, and were in another one, or in "
            f"one that lost its data: gc goes on after its guard interval, from {begins:%Y-%m-%d %H:%M} UTC on"
        )
    return None


def collects_from(records: Sequence[RecordedKeeper], *, guard: timedelta) -> datetime | None:
    """From when on a collection may go by the marks in the Keeper that the records name, after they were in another
    one; None where they never were."""
    counts = in_force(records)
    if counts is None or all(one.record.keeper in ("", counts.record.keeper) for one in records):
        return None
    return counts.since + guard


_NOTHING_SAID = (
    "nothing in the bucket says whether machines hold its objects by marks in a Keeper: where one has `keeper:`, run "
    "'frostline replica audit' there and collect there; where none has, say so once with 'frostline gc --without-marks'"
)


def elsewhere(counts: RecordedKeeper) -> str:
    """The message for a configured Keeper that is not the one in the record."""
    return (
        f"the marks of this prefix are kept in another Keeper than the configured one ({_described(counts)}), or this "
        "one lost its data: correct `keeper:`; if it is right, run 'frostline replica audit --repair' here, and marks "
        "are kept in this one from then on"
    )


def _described(counts: RecordedKeeper) -> str:
    said = counts.record
    return f"{said.where[:_SHOWN]}, as {said.holder[:_SHOWN]} said at {said.time:%Y-%m-%d %H:%M} UTC"


def say(prefix: ObjectStore, keeper: str, where: str) -> list[RecordedKeeper]:
    """Put a record, unless the one that counts says the same; returns all records after that. Raises `Refused` when
    others keep saying something else."""
    for _ in range(_ATTEMPTS):
        found = recorded_keepers(prefix)
        counts = in_force(found)
        if (counts.record.keeper if counts else "") == keeper and found:
            return found
        number = found[-1].number + 1 if found else 1
        record = MarksKeeper(keeper=keeper, where=where, holder=socket.gethostname(), time=now())
        data = _document.encode(record)
        try:
            prefix.put_if_absent(f"{MARKS_PREFIX}{number:010d}.json", data, sha256=hashlib.sha256(data).digest())
        except (AlreadyExists, OutcomeUnknown):
            continue
    raise Refused(f"{prefix.name}: other machines keep saying where marks are kept", hint="run it again")


def record_without_marks(prefix: ObjectStore) -> None:
    """Say that no machine of the prefix marks anything. Nothing where it was said before. Raises `Refused` where one
    does."""
    counts = in_force(recorded_keepers(prefix))
    if counts is not None:
        raise Refused(
            f"{prefix.name}: marks in a Keeper hold objects here ({_described(counts)})",
            hint="run gc on a machine with that `keeper:` in its configuration",
        )
    say(prefix, "", "")
