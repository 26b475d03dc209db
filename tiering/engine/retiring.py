"""What a log among several of a prefix holds that nobody else does, before it is retired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.object_disk.references import clock_objection
from disks.object_disk.sharing import retiring
from disks.object_disk.sharing.other_log import OtherLog, other_logs
from disks.object_disk.sharing.writers import Retired
from oplog import pins
from oplog.errors import Damaged, NotFound, Refused, UsageError
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context


class AloneThere(msgspec.Struct, frozen=True):
    """Parts of a table with objects that no other log names."""

    table: str
    parts: tuple[str, ...]
    rows: int
    size_bytes: int
    """Of those objects."""


class Asked(msgspec.Struct):
    """What was found of a log."""

    disk: str
    log: str
    holder: str
    retired: Retired | None
    last_sign: datetime | None = None
    alone: list[AloneThere] = msgspec.field(default_factory=list)
    objects: int = 0
    """That its newest table names and no other log's does, whatever they are of."""
    size_bytes: int = 0
    pins: list[str] = msgspec.field(default_factory=list)
    """Backups and others that keep revisions of it."""
    unreadable: str | None = None
    """Why nobody can tell what it holds."""

    @property
    def holds_something(self) -> bool:
        return bool(self.objects or self.pins or self.unreadable)


def look(context: Context, disk: LoggedDisk, name: str) -> Asked:
    """Look at another log of the disk's prefix. Raises `UsageError`, `NotFound`, `Refused` where it is none to retire,
    and `Refused` for one that was written less than a day ago."""
    if disk.log_name is None:
        raise UsageError(
            f"disk {disk.name} has its prefix for itself",
            hint="only a log of several on one prefix can be retired: `log: NAME`",
        )
    if name == disk.log_name:
        raise Refused(f"{name} is the log of this machine", hint="run it on another machine that shares the prefix")
    others = other_logs(disk)
    if name not in others:
        raise NotFound(
            f"no log {name} below {disk.store.name}",
            hint=f"the others are: {', '.join(others)}" if others else "this machine's is the only one",
        )
    with closing(OtherLog(disk, name)) as log:
        found = Asked(disk.name, name, retiring.holder(log), retiring.retired_log(disk, name))
        if found.retired is not None:
            return found
        if objection := clock_objection(disk.store.clock_skew()):
            raise Refused(
                f"{objection}: it is unknown whether {name} was written lately",
                hint="set this machine's clock, or the store's, and run it again",
            )
        now = context.clock()
        found.last_sign = retiring.last_sign(log)
        try:
            found.pins = [pin.name for pin in pins.list_pins(log.store)]
            _fill(found, context, disk, log, now)
        except Damaged as error:
            found.unreadable = error.message
    if found.last_sign is not None and now - found.last_sign < retiring.QUIET:
        raise Refused(
            f"log {name} was written at {found.last_sign:%Y-%m-%d %H:%M} UTC: {found.holder or 'its machine'} lives",
            hint="a log can be retired when its machine has written nothing to it for 24 hours",
        )
    return found


def _fill(asked: Asked, context: Context, disk: LoggedDisk, log: OtherLog, now: datetime) -> None:
    log.refresh()
    with log.file_table.read() as view:
        sizes = dict(view.blobs())
    disk.refresh()
    for key in _named_elsewhere(disk, asked.log, now):
        sizes.pop(key, None)
    asked.objects, asked.size_bytes = len(sizes), sum(sizes.values())
    directories: dict[str, int] = {}
    with log.file_table.read() as view:
        for path, key in view.naming(sizes):
            directory = path.rpartition("/")[0]
            directories[directory] = directories.get(directory, 0) + sizes[key]
    catalog = Catalog(context.config, {disk.name: log})
    with closing(catalog):
        catalog.refresh(disks=())
        for definition in (*catalog.tables(), *(table.definition for table in catalog.dropped())):
            stored = [
                part
                for part in catalog.parts(definition, include_outdated=True)
                if f"{definition.directory}/{part.facts.name}" in directories
            ]
            if stored:
                size_bytes = sum(directories[f"{definition.directory}/{part.facts.name}"] for part in stored)
                names = tuple(part.facts.name for part in stored)
                rows = sum(part.facts.rows for part in stored)
                asked.alone.append(AloneThere(definition.full_name, names, rows, size_bytes))


def _named_elsewhere(disk: LoggedDisk, name: str, now: datetime) -> Iterator[str]:
    """The objects of the newest tables of all other logs that count."""
    with disk.file_table.read() as view:
        yield from (key for key, _ in view.blobs())
    for other in retiring.heeded_logs(disk, now=now):
        if other == name:
            continue
        with closing(OtherLog(disk, other)) as log:
            log.refresh()
            with log.file_table.read() as view:
                yield from (key for key, _ in view.blobs())
