"""Taking back what a drop of a replicated table took: the parts that this machine kept come again as new ones.

    alone     a node of the partition's own, of this session                             nothing: it goes with it
    look      the log is taken over and done; whose rows the table has does not come     nothing
    insert    each file as it is, by the steps of an insert                              <- the commit point of each
    forget    the kept directories go                                                    they go when their time is over

The old names do not return: the drop is in the log, and applies to every replica that reads it later. A new part
remembers which part it was and the blocks in it, so that no other replica's copy, nor a merge of it, comes again."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from disks.contracts.directory_disk import DirectoryDisk
from disks.kinds import as_disk
from oplog.errors import AlreadyExists, FrostlineError, Locked, Transient
from restore.history import partitions
from restore.history.partitions import DetachedPart
from restore.rebuild.duplicates import presence
from restore.rebuild.elsewhere import present_parts
from tiering.catalog import retained_drops
from tiering.catalog.context import Context
from tiering.insert import attach_files
from tiering.insert.attach_files import FittingFile
from tiering.insert.insert import How
from tiering.table.schema import TableDefinition
from zerocopy.execution.queue import pull, queue
from zerocopy.replica import entries
from zerocopy.replica.replica import Replica


def attach(context: Context, definition: TableDefinition, partition: str, how: How) -> list[DetachedPart]:
    """Take in again what is kept of the partition; returns it. `how` parts go into the table. The queue was just worked
    off. Raises as an attach to a plain table does, `Locked` or `Transient` where another replica may have rows that are
    not here, and `PartlyDone` when parts came, and others have rows that are there already."""
    replica = Replica.open(context, definition)
    with _alone(replica, partition):
        _check_up_to_date(replica, partition)
        context.catalog.refresh()
        coming = partitions.sound(context, definition, partition, partitions.attachable(context, definition, partition))
        names = {found.part.name for found in coming}
        with context.journal.claim(definition.uuid, names, "attach"):
            files = [file for found in coming for file in _files(context, definition, found)]
            attach_files.attach_files(context, definition, files, how)
        context.catalog.refresh()
        staying = list(present_parts(context, definition))
        by_disk: dict[str, list[str]] = defaultdict(list)
        for found in coming:
            there = presence(found.part, staying)
            if there is None or not there.has_all_rows:
                raise Transient(
                    f"rows of {found.part.name} of {definition.full_name} came from elsewhere meanwhile",
                    hint="run it again to take back the rest",
                )
            by_disk[found.disk].append(found.path)
        for name, paths in by_disk.items():
            retained_drops.forget(context.disk(name), paths, context.actor)
        partitions.check_none_left_out(context, definition, partition)
    return coming


def _files(context: Context, definition: TableDefinition, detached: DetachedPart) -> Iterator[FittingFile]:
    """Its files as what they bring."""
    disk = as_disk(context.disk(detached.disk), DirectoryDisk)
    if disk is None:
        raise Locked(f"{detached.path} of disk {detached.disk} is in no directory", hint="drain it to a local disk")
    for number, file in enumerate(detached.part.files, 1):
        path = disk.local_path(f"{detached.path}/{file.name}")
        fitting = attach_files.look_at(path, definition, context.config.limits.decoded_bytes)
        yield attach_files.taken_back(fitting, detached.part, number)


@contextmanager
def _alone(replica: Replica, partition: str) -> Iterator[None]:
    """While it lasts no other replica takes back parts of the partition. Raises `Locked`."""
    keeper, table = replica.keeper, replica.table
    node = table.merging(entries.whole_range(partition, 0, 0))
    keeper.make_path(table.all_merging)
    try:
        keeper.create(node, uuid.uuid4().hex.encode(), ephemeral=True)
    except AlreadyExists as error:
        raise Locked(
            f"another replica is taking back partition {partition} of {replica.definition.full_name}",
            hint="wait until that is done: this replica then fetches the parts",
        ) from error
    try:
        yield
    finally:
        with suppress(FrostlineError):  # nobody answers: the node goes with the session
            keeper.delete(node)


def _check_up_to_date(replica: Replica, partition: str) -> None:
    """Raise `Transient` while something of the partition is agreed upon and not done here: its rows may be those."""
    replica.keeper.sync(replica.table.path)
    pull(replica)
    waiting = [one for one in queue(replica) if any(name.partition == partition for name in one.entry.touches)]
    if waiting:
        raise Transient(
            f"{waiting[0].entry.brings} of {replica.definition.full_name} is not here yet, and may have the same rows",
            hint="run it again after 'frostline replica sync'; 'frostline replica queue' shows what it waits for",
        )
