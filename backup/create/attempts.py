"""What a backup that is being made leaves behind when it is killed, and how the next one takes it away.

<state>/backup/<repository>/attempts/<random>/attempt.json   the id of the backup, and the buckets that it pins
unfinished/<id>.json in the repository                       that it is being made

The directory's owner is the process, as a lock beside it tells. A pin without an end is put just before the header, so
a backup whose header is there always has its pins; one without a header loses them here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from backup.format import names
from backup.format.header import UnfinishedBackup
from backup.storage import Storage
from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import fsync_directory, remove_tree, replace_file
from disks.host.clean_up import clean_up_owed
from disks.host.locks import OwnedDirectory, abandoned, sweep
from disks.kinds import as_disk
from oplog import pins
from oplog.documents import Document
from oplog.errors import FrostlineError
from tiering.catalog.context import Context

logger = logging.getLogger(__name__)
_NOTE = "attempt.json"


class BackupAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that is being made on this machine."""

    id: str
    key: str
    """Where its header will be."""
    disks: tuple[str, ...]
    """Those that it pins for good."""


_document = Document("note of a backup that is being made", BackupAttempt)


def pin_name(backup_id: str) -> str:
    """What the pin of a backup is called in the bucket of each disk."""
    return f"backup-{backup_id}"


@contextmanager
def attempt(
    storage: Storage, context: Context, directory: Path, mark: UnfinishedBackup, made: BackupAttempt
) -> Iterator[Path]:
    """A backup is being made while it lasts; gives a directory for what is on its way. However it ends, what it pinned
    stays only if its header is there."""
    own = OwnedDirectory(directory)
    try:
        # durable before the mark and the pins: after a power cut too, the next backup knows what to take away
        replace_file(own.path / _NOTE, _document.encode(made))
        fsync_directory(directory)
        storage.mark_unfinished(mark)
        yield own.path
    finally:
        with clean_up_owed():
            try:
                _settle(storage, context, made)
                remove_tree(own.path)
            except (FrostlineError, OSError) as error:  # the next backup of this machine does it
                logger.warning("the next backup removes what backup %s left: %s", made.id, error)
            own.release()


def settle(storage: Storage, context: Context, directory: Path) -> None:
    """Take away what killed backups of this machine left: their pins and marks. What they sent stays, and is used."""
    for left in abandoned(directory):
        try:
            made = _document.decode((left / _NOTE).read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            continue  # killed before it had begun
        _settle(storage, context, made)
    sweep(directory)


def _settle(storage: Storage, context: Context, made: BackupAttempt) -> None:
    if not storage.is_complete(made.key):
        for name in made.disks:
            disk = context.disks.get(name)
            if disk is not None and (logged := as_disk(disk, LoggedDisk)) is not None:
                pins.release(logged.store, pin_name(made.id))
    storage.forget_mark(made.id)


def key_of(mark: UnfinishedBackup) -> str:
    """Where the header of the backup will be."""
    return names.header_key(mark.name, mark.machine, mark.id)
