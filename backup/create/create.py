"""Make a backup: hold an instant, send what is new, write the lists, claim and ask for everything, put the header.

The header is the commit point. Before it there are only objects that nobody names, which the next try uses; after it
the backup exists, with everything it names.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from backup.completeness import Flaw, missing, walk_backup
from backup.create import attempts
from backup.create.attempts import BackupAttempt
from backup.create.clickhouse import SentTree, Tree, trees_of, with_trees
from backup.create.instant import BlobSource, Instant, SourceFile, TableNow, one_instant
from backup.create.known import Known, Place, StayedInBucket, known_content
from backup.create.preview import preview
from backup.create.request import (
    CreateRequest,
    CreateResult,
    Ranges,
    begun,
    check_not_empty,
    check_tiers,
    not_held,
    ranges_of,
    table_words,
)
from backup.create.sending import NewFile, Sender, Sent
from backup.create.tree import PlacedFile, TreePart, partition_lists, totals
from backup.format import lists, names
from backup.format.encoding import UnknownBackupFormat
from backup.format.header import (
    BackupHeader,
    Cold,
    DiskEntry,
    NotHeld,
    PinnedDisk,
    TableEntry,
    TreeEntry,
    UnfinishedBackup,
)
from backup.format.lists import BlockRange, KeptPolicy, PartitionEntry, PartitionList, PinnedPart, TableList, TreeList
from backup.format.names import Ref
from backup.storage import Storage
from disks.config import ObjectDiskConfig
from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.effects import make_directory
from disks.host.locks import try_file_lock
from disks.kinds import as_disk, identity_of
from disks.object_disk.sharing.prefix import log_url
from oplog import pins
from oplog.entry import now
from oplog.errors import Damaged, Locked, NotFound
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.table import schema


class _Plan(msgspec.Struct):
    """Where each part's files are, or that they are to be sent."""

    places: dict[tuple[str, int], Place]
    new: list[NewFile] = msgspec.field(default_factory=list)
    files: dict[tuple[str, str, str], tuple[SourceFile, ...]] = msgspec.field(default_factory=dict)
    """(table uuid, part, disk) -> its files, `part.json` among them."""
    stayed: dict[tuple[str, int], StayedInBucket] = msgspec.field(default_factory=dict)
    pinned_bytes: int = 0


def create(
    storage: Storage, context: Context, request: CreateRequest, *, made: Callable[[BackupHeader], None]
) -> CreateResult:
    """Make the backup; `made` hears of it. Raises `AlreadyExists` for a name that this machine used, `Locked` while it
    makes another."""
    began = time.monotonic()
    state = context.config.state_directory / "backup" / storage.id
    if request.dry_run:
        return preview(storage, context, request, began)
    make_directory(state)
    with try_file_lock(state / "create.lock") as ours:
        if not ours:
            raise Locked(f"another backup to {storage.name} is being made here", hint="wait for it to finish")
        attempts.settle(storage, context, state / "attempts")
        mark = begun(storage, context, request)
        check_tiers(context, request)
        trees = trees_of(context, request.scope)
        request = replace(request, scope=with_trees(request.scope, trees))
        words = table_words(context, request.scope)
        attempt = BackupAttempt(id=mark.id, key=attempts.key_of(mark), disks=_pinned_disks(context, request))
        with attempts.attempt(storage, context, state / "attempts", mark, attempt) as scratch:
            headers, _ = storage.headers(remembered=True)  # after the mark: a collection knows how long it may matter
            known = known_content(storage, headers, words, context.clock())
            return _Making(storage, context, request, mark, known, headers, trees, scratch).run(began, made)


def _pinned_disks(context: Context, request: CreateRequest) -> tuple[str, ...]:
    if request.cold != "pin":
        return ()
    return tuple(name for name, disk in context.disks.items() if as_disk(disk, LoggedDisk) is not None)


class _Making:
    """One backup on its way."""

    def __init__(
        self,
        storage: Storage,
        context: Context,
        request: CreateRequest,
        mark: UnfinishedBackup,
        stored: Known,
        headers: Sequence[BackupHeader],
        trees: Sequence[Tree],
        scratch: Path,
    ) -> None:
        self._trees = trees
        self._storage, self._context, self._request = storage, context, request
        self._mark, self._stored, self._headers, self._scratch = mark, stored, headers, scratch
        self._workers = context.workers

    def run(self, began: float, made: Callable[[BackupHeader], None]) -> CreateResult:
        with one_instant(self._context, self._request.scope, self._stored.files, self._scratch) as instant:
            check_not_empty(instant.tables, self._headers, self._mark.machine, self._request)
            plan = planned(self._context, instant, self._stored, self._request.cold)
            buckets = {
                name: bucket.store
                for name, disk in self._context.disks.items()
                if (bucket := as_disk(disk, BucketDisk)) is not None
            }
            sender = Sender(self._storage, buckets, self._scratch)
            sent = sender.send(plan.new, self._workers, self._context.progress)
            plan.places.update(sent.places)
            ranges = ranges_of(self._context, instant.tables)
            tables = [self._put_table(table, plan, ranges[table.definition.uuid]) for table in instant.tables]
            trees = [self._put_tree(tree, plan, sender) for tree in self._trees]
            header = self._header(instant, tables, trees, sent, not_held(instant.tables, ranges))
            self._pin(header)
            self._storage.claim(header)
            self._probe(header)
            for pin in instant.pins.values():
                pin.check()
            self._storage.put_header(header)
            made(header)
        return _result(header, sent, plan, began)

    def _put_table(self, table: TableNow, plan: _Plan, ranges: Ranges) -> TableEntry:
        lists = list(partition_lists(_placed(stored, plan) for stored in table.parts))
        refs = self._storage.each(lambda file_list: self._put_list(file_list, self._storage.partition_list), lists)
        entries = tuple(
            PartitionEntry(file_list.partition, ref, *totals(file_list.parts))
            for file_list, ref in zip(lists, refs, strict=True)
        )
        described = _described(self._context, table, entries, ranges)
        return TableEntry(
            name=table.definition.full_name,
            uuid=table.definition.uuid,
            list=self._put_list(described, self._storage.table_list),
            partitions=len(entries),
            parts=sum(entry.parts for entry in entries),
            rows=sum(entry.rows for entry in entries),
            files=sum(entry.files for entry in entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
        )

    def _put_tree(self, tree: Tree, plan: _Plan, sender: Sender) -> TreeEntry:
        listed = SentTree(self._context, tree, self._stored, plan.places, sender, self._scratch).run()
        return TreeEntry(
            disk=tree.disk,
            directory=tree.directory,
            list=self._put_list(listed, self._storage.tree_list),
            parts=sum(1 for part in listed.parts if part.name),
            files=sum(len(part.files) for part in listed.parts),
            size_bytes=sum(file.size_bytes for part in listed.parts for file in part.files),
        )

    def _put_list(self, file_list: PartitionList | TableList | TreeList, read: Callable[[Ref], object]) -> Ref:
        """Put the list, unless it is there: read, for what is known of it may be a copy on this machine."""
        data = lists.packed(file_list)
        ref = self._stored.lists.get(hashlib.sha256(data).hexdigest())
        if ref is not None and ref.size_bytes == len(data):
            with suppress(Damaged, NotFound, UnknownBackupFormat):
                read(ref)
                return ref
        return self._storage.put_content(names.LISTS_PREFIX, data)

    def _header(
        self,
        instant: Instant,
        tables: Sequence[TableEntry],
        trees: Sequence[TreeEntry],
        sent: Sent,
        others: tuple[NotHeld, ...] = (),
    ) -> BackupHeader:
        plain = BackupHeader(
            id=self._mark.id,
            name=self._mark.name,
            machine=self._mark.machine,
            host=socket.gethostname(),
            actor=self._context.actor,
            tool=version("frostline"),
            taken=instant.taken,
            completed=now(),
            tags=self._request.tags,
            cold=self._request.cold,
            scope=self._request.scope.text,
            tables=tuple(tables),
            disks=_disks(self._context, instant.tables),
            pinned=self._pinned(instant) if self._request.cold == "pin" else (),
            not_held=others,
            left_out=instant.left_out,
            new_bytes=sent.new_bytes,
        )
        return plain.with_trees(trees)

    def _pinned(self, instant: Instant) -> tuple[PinnedDisk, ...]:
        return tuple(
            PinnedDisk(
                disk=name,
                url=log_url(config),
                endpoint_url=_without_password(config),
                revision=revision,
                pin=attempts.pin_name(self._mark.id),
            )
            for name, revision in sorted(instant.revisions.items())
            if (config := self._context.config.buckets()[name]) and revision > 0
        )

    def _pin(self, header: BackupHeader) -> None:
        for pinned in header.pinned:
            disk = as_disk(self._context.disk(pinned.disk), LoggedDisk)
            assert disk is not None
            holder = f"backup {header.name} ({header.id}) in {self._storage.name}"
            pins.create(disk.store, pinned.pin, pinned.revision, holder=holder, reason="a backup names its files")

    def _probe(self, header: BackupHeader) -> None:
        """Ask for all that the backup names, inherited or new: one listing. Raises `Damaged`. What it names is claimed
        by now: what is there, and not about to go, stays."""
        holdings, flaws = self._storage.holdings(to_count_on=True), list[Flaw]()
        for named in walk_backup(self._storage, holdings, header, flaws):
            flaws += [flaw] if (flaw := missing(holdings, named)) is not None else []
        if flaws:
            raise Damaged(
                f"while the backup was made {self._storage.name} changed: {flaws[0].text}; it was not completed",
                hint="run it again: what is there is not sent twice",
            )


def planned(context: Context, instant: Instant, known_content: Known, cold: Cold) -> _Plan:
    """What is to be sent, and where the rest is."""
    plan = _Plan(dict(known_content.files))
    for table in instant.tables:
        for stored in table.parts:
            document = instant.document(stored)
            own = document.file
            files = instant.files(context, stored, document)
            plan.files[_key(stored)] = (*files, own)
            if (own.sha256, own.size_bytes) not in plan.places:
                plan.new.append(NewFile(stored, own, document.data))
            for file in files:
                content = file.sha256, file.size_bytes
                if cold == "pin" and isinstance(file.source, BlobSource):
                    plan.stayed[content] = StayedInBucket(file.source.disk, file.source.key)
                    plan.pinned_bytes += file.size_bytes
                elif content not in plan.places:
                    plan.new.append(NewFile(stored, file))
    return plan


def _placed(stored: StoredPart, plan: _Plan) -> TreePart:
    files = tuple(
        PlacedFile(file.name, file.size_bytes, file.sha256, _place(file, plan)) for file in plan.files[_key(stored)]
    )
    return TreePart(stored.facts.name, stored.name.partition, stored.disk, stored.facts.rows, files)


def _place(file: SourceFile, plan: _Plan) -> Place:
    content = file.sha256, file.size_bytes
    if isinstance(file.source, BlobSource) and content in plan.stayed:
        return StayedInBucket(file.source.disk, file.source.key)
    return plan.places[content]


def _key(stored: StoredPart) -> tuple[str, str, str]:
    return stored.definition.uuid, stored.facts.name, stored.disk


def _described(context: Context, table: TableNow, partitions: tuple[PartitionEntry, ...], ranges: Ranges) -> TableList:
    definition = table.definition
    overrides = context.journal.overrides
    policy = context.config.policies.get(definition.policy)
    return TableList(
        definition=schema.encode(definition).decode(),
        policy=KeptPolicy.of(policy) if policy is not None else None,
        pins=tuple(
            sorted(
                (PinnedPart(pin.scope, pin.name, pin.volume, pin.actor) for pin in overrides.pins(definition.uuid)),
                key=lambda kept: (kept.scope, kept.name),
            )
        ),
        pauses=tuple(sorted(pause.kind for pause in overrides.pauses() if pause.table_uuid == definition.uuid)),
        ranges=tuple(BlockRange(index, ranges.owners[index], index in ranges.own) for index in sorted(ranges.owners)),
        partitions=partitions,
    )


def _disks(context: Context, tables: Sequence[TableNow]) -> tuple[DiskEntry, ...]:
    counts: dict[str, int] = {}
    for table in tables:
        for stored in table.parts:
            counts[stored.disk] = counts.get(stored.disk, 0) + 1
    return tuple(
        DiskEntry(
            name=name,
            identity=identity_of(context.disk(name)),
            remote=context.disk(name).capabilities.remote,
            parts=counts[name],
        )
        for name in sorted(counts)
    )


def _result(header: BackupHeader, sent: Sent, plan: _Plan, began: float) -> CreateResult:
    return CreateResult(
        name=header.name,
        id=header.id,
        tables=len(header.tables) + len(header.trees),
        parts=header.parts,
        files=header.files,
        bytes=header.size_bytes,
        new_bytes=sent.new_bytes,
        copied_server_side=sent.copied_server_side,
        pinned=plan.pinned_bytes,
        seconds=round(time.monotonic() - began, 3),
        verified=True,
        not_held=header.not_held,
        left_out=header.left_out,
    )


def _without_password(config: ObjectDiskConfig) -> str | None:
    """The endpoint, unless it holds credentials: no secret goes into a repository."""
    endpoint = config.endpoint_url
    return None if endpoint is None or "@" in urlsplit(endpoint).netloc else endpoint
