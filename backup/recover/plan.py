"""What a restore would do: which parts of which backups make which table, and which disk each goes to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from backup.format.header import BackupHeader
from backup.format.lists import BlockRange, PartEntry, PartitionList, PinnedPart, TableList
from backup.recover.request import RestoreRequest
from oplog.errors import Conflict, Refused, UsageError
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.policy.placement import ordered_volumes
from tiering.table import part as part_format
from tiering.table.part import PartName
from tiering.table.schema import MoveToDisk, MoveToVolume, TableDefinition, TtlRule, split_table_name


class PlacedEntry(msgspec.Struct, frozen=True):
    """A part of a backup, the list that names it, and the disk that it goes to."""

    entry: PartEntry
    partition: PartitionList
    header: BackupHeader
    disk: str


class TablePlan(msgspec.Struct, frozen=True):
    """One table that will be."""

    source: str
    definition: TableDefinition
    """As it will be here: name, policy and rules fit; the uuid is still that of the backup."""
    parts: tuple[PlacedEntry, ...]
    ranges: tuple[BlockRange, ...]
    """`own`: of a machine whose backup is restored."""
    pins: tuple[PinnedPart, ...]
    pauses: tuple[str, ...]
    machines: tuple[str, ...]
    notes: tuple[str, ...]


class BackupTable(msgspec.Struct, frozen=True):
    """A table of one backup, read."""

    header: BackupHeader
    listed: TableList
    partitions: tuple[PartitionList, ...]


def plan_table(
    source: str, tables: Sequence[BackupTable], request: RestoreRequest, config: Config, usable: Mapping[str, bool]
) -> TablePlan:
    """Make one table of what the backups of a set have of it. `usable`: the disks that can be written, and whether each
    is remote. Raises `Refused`, `Conflict` or `UsageError` for what does not fit together."""
    uuids = {table.listed.table.uuid for table in tables}
    if len(uuids) > 1:
        raise Refused(
            f"{len(uuids)} machines have a table {source} of their own in this backup",
            hint="restore one of them by the backup's id ('frostline backup list'), the other with --map-table",
        )
    newest = max(tables, key=lambda table: (table.listed.table.version, table.header.taken))
    definition, notes = newest.listed.table, list[str]()
    policy_name = _policy_name(definition, request, config, notes)
    policy = config.policies[policy_name]
    database, name = split_table_name(request.target_name(source))
    if definition.is_replicated:
        notes.append(f"{definition.full_name} was replicated; it is restored as a table of this machine only")
    definition = msgspec.structs.replace(
        definition,
        keeper=msgspec.UNSET,
        database=database,
        name=name,
        policy=policy_name,
        ttl=tuple(_fitting(rule, policy, newest.listed.policy, notes) for rule in definition.ttl),
    )
    entries = () if request.schema_only else tuple(_entries(tables, request, policy, usable, notes))
    ranges = _ranges(tables)
    others = set() if request.schema_only else {listed.owner for listed in ranges if not listed.own}
    notes += [f"not held: what {name or 'another'} had of {source} on disks of its own" for name in sorted(others)]
    return TablePlan(
        source=source,
        definition=definition,
        parts=entries,
        ranges=ranges,
        pins=newest.listed.pins,
        pauses=newest.listed.pauses,
        machines=tuple(sorted({table.header.machine for table in tables})),
        notes=tuple(dict.fromkeys(notes)),
    )


def _policy_name(definition: TableDefinition, request: RestoreRequest, config: Config, notes: list[str]) -> str:
    if request.policy is not None:
        config.policy(request.policy)  # a word that is none is wrong, needed or not
    if definition.policy in config.policies:
        return definition.policy
    chosen = request.policy or (next(iter(config.policies)) if len(config.policies) == 1 else None)
    if chosen is None:
        raise UsageError(
            f"policy {definition.policy} of {definition.full_name} is not configured here",
            hint=f"use --policy and one of: {', '.join(sorted(config.policies))}",
        )
    notes.append(f"policy {definition.policy} is not configured here: {definition.full_name} follows {chosen}")
    return chosen


def _fitting(rule: TtlRule, policy: PolicyConfig, before: PolicyConfig | None, notes: list[str]) -> TtlRule:
    """The rule with a volume or disk that is here."""
    volumes = ordered_volumes(policy)
    match rule.action:
        case MoveToVolume(volume) if volume not in {known.name for known in volumes}:
            target = _volume_instead(volume, policy, before)
            notes.append(f"volume {volume} is not here: a rule moves to volume {target.name} instead")
            return msgspec.structs.replace(rule, action=MoveToVolume(target.name))
        case MoveToDisk(disk, False) if disk not in {name for known in volumes for name in known.disks}:
            notes.append(f"disk {disk} is not here: a rule that moves to it does nothing until it is")
            return msgspec.structs.replace(rule, action=MoveToDisk(disk, if_exists=True))
        case _:
            return rule


def _volume_instead(name: str, policy: PolicyConfig, before: PolicyConfig | None) -> VolumeConfig:
    """The volume that is as cold here as the named one was: the hottest for the hottest, the coldest for the rest."""
    volumes = ordered_volumes(policy)
    ranks = [volume.name for volume in ordered_volumes(before)] if before is not None else []
    rank = ranks.index(name) if name in ranks else len(volumes) - 1
    return volumes[0] if rank == 0 else volumes[-1] if rank == len(ranks) - 1 else volumes[min(rank, len(volumes) - 1)]


def _entries(
    tables: Sequence[BackupTable],
    request: RestoreRequest,
    policy: PolicyConfig,
    usable: Mapping[str, bool],
    notes: list[str],
) -> Iterable[PlacedEntry]:
    """The parts of all the backups, each once and without those that another one covers."""
    chosen: dict[str, tuple[PartEntry, PartitionList, BackupTable]] = {}
    for table in tables:
        for partition in table.partitions:
            if not request.scope.has(partition.partition):
                continue
            for entry in partition.parts:
                earlier = chosen.get(entry.name)
                if earlier is not None and _content(earlier[0]) != _content(entry):
                    raise Conflict(
                        f"two backups of {table.listed.table.full_name} hold different parts named {entry.name}",
                        hint="restore them one by one, by their ids and under two names (--map-table)",
                    )
                if earlier is None or table.header.taken > earlier[2].header.taken:
                    chosen[entry.name] = entry, partition, table
    active = part_format.active([PartName.parse(name) for name in chosen])
    for name in sorted(chosen, key=PartName.parse):
        if PartName.parse(name) in active:
            entry, partition, table = chosen[name]
            disk = target_disk(entry.disk, table, policy, usable, notes)
            yield PlacedEntry(entry, partition, table.header, disk)


def _content(entry: PartEntry) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((file.name, file.sha256) for file in entry.files))


def target_disk(
    disk: str, source: BackupTable, policy: PolicyConfig, usable: Mapping[str, bool], notes: list[str]
) -> str:
    """The disk that a part of `disk` goes to: the one of this name, else one of the same volume, else one that is as
    hot or as cold. Raises `Refused` when the policy has no disk that can be written."""
    here = [name for volume in ordered_volumes(policy) for name in volume.disks if name in usable]
    if disk in here:
        return disk
    if not here:
        raise Refused("no disk of the policy can be written", hint="'frostline disks' shows why")
    before = source.listed.policy
    volume = next((item.name for item in before.volumes if disk in item.disks), None) if before is not None else None
    same = next((item for item in policy.volumes if item.name == volume), None)
    if same is None and volume is not None:
        same = _volume_instead(volume, policy, before)
    named = [name for name in same.disks if name in usable] if same is not None else []
    if not named:
        remote = next((item.remote for item in source.header.disks if item.name == disk), False)
        alike = [name for name in here if usable[name] == remote]
        named = alike or ([here[-1]] if remote else [here[0]])
    notes.append(f"disk {disk} is not here: its parts go to {named[0]}")
    return named[0]


def _ranges(tables: Sequence[BackupTable]) -> tuple[BlockRange, ...]:
    merged: dict[int, BlockRange] = {}
    for table in tables:
        for listed in table.listed.ranges:
            earlier = merged.get(listed.index)
            if earlier is None or listed.own:
                merged[listed.index] = listed
    return tuple(merged[index] for index in sorted(merged))
