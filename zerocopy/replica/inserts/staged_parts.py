"""Parts that are durable here and not yet in the table: between an insert's bytes and its word in Keeper.

    <table>/arriving/<part>/…      the part, whole, where no query and no other replica looks
    <table>/arriving/<part>.json   by which node of Keeper the insert holds its number

An insert that is killed leaves them. Whether it counted, Keeper knows: the multi that says so takes the number's node
away. So a process that finishes a dead insert first removes that node; from then on the multi cannot happen any more,
and what Keeper says of the part is final.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from disks.base import Disk, Transaction
from oplog import paths
from oplog.documents import Document
from oplog.errors import Damaged, Locked
from oplog.kinds import Inserted, Tidied
from tiering.catalog.context import Context
from tiering.catalog.new_parts import stage_part
from tiering.table.part import Part
from tiering.table.paths import part_name
from tiering.table.schema import TableDefinition
from zerocopy.replica.replica import Replica

ARRIVING = "arriving"


class ArrivalNote(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside an arriving part."""

    number: str
    """The node that holds its number."""


_document = Document("note of a part that is arriving", ArrivalNote)


def claim_of(part: str) -> str:
    """The claim under which somebody works on the arrival."""
    return f"{ARRIVING}-{part}"


def stage(transaction: Transaction, definition: TableDefinition, part: Part, directory: Path, number: str) -> None:
    """Put a part into the transaction as one that is arriving."""
    place = place_of(definition, part.name)
    stage_part(transaction, definition, part, directory, target=place)
    transaction.create(f"{place}.json", _document.encode(ArrivalNote(number=number)))


def take_in(context: Context, definition: TableDefinition, disk: Disk, names: Iterable[str]) -> None:
    """Make arrivals that Keeper knows of parts of the table."""
    reason = f"insert into {definition.full_name}"
    with disk.transaction(Inserted(), reason=reason, actor=context.actor) as transaction:
        transaction.require(present=(definition.path,))
        for name in names:
            place = place_of(definition, name)
            transaction.remove(f"{place}.json")
            transaction.rename(place, definition.part_directory(name))
        transaction.commit()


def discard(context: Context, definition: TableDefinition, disk: Disk, names: Iterable[str]) -> None:
    """Take arrivals away that Keeper knows nothing of, and never will."""
    reason = f"an insert into {definition.full_name} that did not count"
    with disk.transaction(Tidied(), reason=reason, actor=context.actor) as transaction:
        for name in names:
            place = place_of(definition, name)
            transaction.remove(f"{place}.json")
            transaction.remove(place)
        transaction.commit()


def arriving(context: Context, definition: TableDefinition) -> list[str]:
    """The parts that are arriving now, on every disk."""
    disks = map(context.disk, context.catalog.policy_disks(definition))
    return [part for disk in disks for part in _found(disk, definition)]


def is_arriving(context: Context, definition: TableDefinition, name: str) -> bool:
    """Whether the part is arriving now."""
    path = f"{place_of(definition, name)}.json"
    return any(context.disk(disk).exists(path) for disk in context.catalog.policy_disks(definition))


def settle(replica: Replica) -> list[str]:
    """Finish or undo what inserts of processes that are gone left here; one sentence a thing done."""
    context, definition = replica.context, replica.definition
    done: list[str] = []
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        for part in _found(disk, definition):
            try:
                with context.journal.claim(definition.uuid, [claim_of(part)], "recovery"):
                    if part in _found(disk, definition):
                        done.append(_settle(replica, disk, part))
            except Locked:  # its insert is alive
                continue
    return done


def _settle(replica: Replica, disk: Disk, part: str) -> str:
    context, definition, keeper = replica.context, replica.definition, replica.keeper
    path = f"{place_of(definition, part)}.json"
    try:
        number = _document.decode(disk.read(path)).number
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{disk.name}:{path} cannot be read: {error}",
            hint="remove this file and the part of the same name beside it",
        ) from error
    if not number.startswith(f"{replica.table.path}/block_numbers/") or not paths.is_safe(number[1:]):
        raise Damaged(
            f"{disk.name}:{path} names a node of something else",
            hint="remove this file and the part of the same name beside it",
        )
    keeper.delete(number)
    keeper.sync(replica.own.path)
    if keeper.exists(replica.own.part(part)):
        take_in(context, definition, disk, [part])
        return f"finished an insert of {part} into {definition.full_name}"
    discard(context, definition, disk, [part])
    return f"took back an insert of {part} into {definition.full_name}: Keeper never knew of it"


def _found(disk: Disk, definition: TableDefinition) -> list[str]:
    names: dict[str, set[str]] = defaultdict(set)
    for entry in disk.list(f"{definition.directory}/{ARRIVING}"):
        name = entry.rstrip("/").removesuffix(".json")
        if part_name(name) is not None:
            names[name].add(entry)
    return sorted(name for name, entries in names.items() if len(entries) > 1)


def place_of(definition: TableDefinition, part: str) -> str:
    """Where the part lies while it arrives."""
    return f"{definition.directory}/{ARRIVING}/{part}"
