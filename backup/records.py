"""What verifications and drills found, kept in the repository: a record each, put once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from backup.copies import CopiesSeen
from backup.format import encoding, names
from backup.format.encoding import UnknownBackupFormat
from backup.format.header import DrillRecord, VerificationRecord, sealed
from backup.objects import document, put_once
from backup.storage import Storage
from disks.stores.base import ObjectInfo
from oplog.errors import Damaged, NotFound

_R = TypeVar("_R", VerificationRecord, DrillRecord)


def put(storage: Storage, record: VerificationRecord | DrillRecord) -> None:
    """Keep what a verification or a drill found."""
    put_once(storage.store, names.record_key(record.prefix, record.backup, record.time), sealed(record))


def keys(
    storage: Storage, kind: type[VerificationRecord] | type[DrillRecord] = VerificationRecord
) -> dict[str, list[ObjectInfo]]:
    """The records of this kind by backup id as a listing shows them, the newest last."""
    found: dict[str, list[ObjectInfo]] = {}
    for item in storage.store.list(kind.prefix):
        found.setdefault(item.key.split("/")[1], []).append(item)
    return found


def read(storage: Storage, listed: Sequence[ObjectInfo], kind: type[_R]) -> list[_R]:
    """The records; those that cannot be read are left out, as if nobody had looked. Copies on this machine do."""
    with storage.copies.of(kind.prefix, {info.key for info in listed}) as copied:
        records = storage.each(lambda info: _one(storage, info, kind, copied), listed)
    return [record for record in records if record is not None]


def newest(storage: Storage, backups: Iterable[str], kind: type[_R]) -> dict[str, _R]:
    """The newest record of each of these backups, by id."""
    listed = keys(storage, kind)
    wanted = [listed[backup][-1] for backup in dict.fromkeys(backups) if backup in listed]
    return {record.backup: record for record in read(storage, wanted, kind)}


def _one(storage: Storage, info: ObjectInfo, kind: type[_R], copied: CopiesSeen) -> _R | None:
    try:
        data = copied.get(info, lambda: document(storage.store, info))
        return encoding.unsealed(data, kind, f"{storage.name}{info.key}")
    except (NotFound, Damaged, UnknownBackupFormat):
        return None
