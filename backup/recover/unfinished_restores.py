"""Tables that a restore was bringing to their disks when its process ended, and that nobody went on with: nothing shows
their parts, for `table.json` comes last. And the scratch stores of drills whose process ended.

<state>/backup/<repository>/restores/<what>.json   such a table, from before its first part until it is there
<state>/backup/<repository>/drills/<random>        the scratch store of a drill, while its process lives
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.effects import remove_file
from disks.host import locks
from disks.kinds import as_disk
from oplog.documents import Document
from oplog.errors import FrostlineError, Locked
from oplog.kinds import Tidied
from oplog.paths import is_safe
from tiering.catalog.context import Context
from tiering.config.settings import Config
from tiering.table.schema import TABLE_FILE

KEPT = timedelta(hours=24)
"""So long the same command goes on where it was; then what it had brought goes."""

logger = logging.getLogger(__name__)


class Unrevealed(msgspec.Struct, frozen=True):
    """A table that is being restored."""

    uuid: str
    table: str
    actor: str
    begun: datetime
    reserved: bool = True
    """Nobody else restores a table of this uuid to this store's buckets; no part is brought before."""


document = Document("note of a restore from a backup", Unrevealed)


def folder(config: Config, repository: str) -> Path:
    """Where the restores from a repository are noted."""
    return config.state_directory / "backup" / repository / "restores"


def drills(config: Config, repository: str) -> Path:
    """Where drills of backups in a repository have their scratch stores."""
    return config.state_directory / "backup" / repository / "drills"


def noted(path: Path) -> Unrevealed | None:
    """What is noted there; None for nothing, and for what cannot be read."""
    try:
        return document.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def under_way(config: Config, now: datetime) -> dict[str, str]:
    """The tables whose restore the same command still ends, by uuid: it goes on here, or its process ended within a
    day."""
    notes = [noted(path) for path in sorted(folder(config, "*").parent.parent.glob("*/restores/*.json"))]
    return {note.uuid: note.table for note in notes if note is not None and now - note.begun < KEPT}


def sweep(context: Context) -> list[str]:
    """Take away the parts of restores that ended a day ago without a table, and what killed drills left. A sentence
    each.

    The proof: no disk has its `table.json`, all disks can be asked, nobody restores a table of this name here, and what
    lies in a bucket was brought by us. Else they stay.
    """
    done: list[str] = []
    for scratch in sorted(drills(context.config, "*").parent.parent.glob("*/drills")):
        done += [f"took away the scratch store {name} of a drill that was killed" for name in locks.sweep(scratch)]
    for path in sorted(folder(context.config, "*").parent.parent.glob("*/restores/*.json")):
        note = noted(path)
        if note is None or context.clock() - note.begun < KEPT:
            continue
        try:
            with context.journal.claim("tables", [note.table], "recovery"):
                if take_away(context, note):
                    remove_file(path, missing_ok=True)
                    done.append(f"removed the files of an abandoned restore of {note.table}")
        except Locked:
            continue
        except (FrostlineError, OSError) as error:
            logger.warning("what is left of a restore of %s is left for the next start: %s", note.table, error)
    return done


def take_away(context: Context, note: Unrevealed) -> bool:
    """Whether all of it could go, and went."""
    directory = f"store/{note.uuid[:3]}/{note.uuid}"
    disks = list(context.disks.values())
    if not is_safe(directory) or context.faults or any(disk.unreachable or disk.broken for disk in disks):
        return False
    if any(disk.exists(f"{directory}/{TABLE_FILE}") for disk in disks):
        return False
    having = [disk for disk in disks if disk.list(directory)]
    if any(disk.read_only or not _is_ours(disk, directory, note) for disk in having):
        return False
    for disk in having:
        reason = f"an abandoned restore of {note.table}"
        with disk.transaction(Tidied(), reason=reason, actor=context.actor) as transaction:
            transaction.remove(directory)
            transaction.commit()
    return True


def _is_ours(disk: Disk, directory: str, note: Unrevealed) -> bool:
    """Whether all of it was brought by that restore: another machine may restore the same backup to the same bucket."""
    if as_disk(disk, BucketDisk) is None:
        return True
    log = as_disk(disk, LoggedDisk)
    if log is None:
        return False
    revisions = {info.revision for info in log.walk(directory)}
    return all(revision is not None and _made_by(log, revision) == note.actor for revision in revisions)


def _made_by(disk: LoggedDisk, revision: int) -> str | None:
    return next((found.commit.actor for found in disk.entries(revision - 1, revision)), None)
