"""Plans a read: which files and row groups of a table may hold rows of the answer, and who reads what.

It runs where the driver is. The store is opened, and nothing of it is changed. What comes out is picklable and enough
for an executor, and its objects stay: as long as the retention of the bucket when that covers the lease, else by a pin
of the lease's length; files on local disks by a second name (`disks.local.held_files`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.host.processes import nearest_ancestor
from disks.kinds import as_disk
from disks.stores.address import StoreAddress
from oplog import pins
from oplog.errors import Refused, UsageError
from restore.rebuild.held_revision import require_clock
from spark_tiering.reading.read_options import ReadOptions
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context, wall_clock
from tiering.config.reading import load
from tiering.config.units import counted
from tiering.engine.opening import make_context
from tiering.engine.store import Store
from tiering.query.sql_filter import parse_filter
from tiering.table.part import ColumnRange, DataFile
from tiering.table.pruning import Predicate, matching_files, rows_may_match
from tiering.table.schema import TableDefinition

LEAST_BYTES = 4 * 1024 * 1024
"""A task of less is not worth starting."""
OPEN_COST_BYTES = 1024 * 1024
"""What opening an object costs, as bytes that could be read instead."""
LOCAL_OPEN_COST_BYTES = 64 * 1024
"""The same where files lie in a directory: no request, half a millisecond. A task costs tens of them."""
LOCAL_HINT = (
    "move them to the bucket ('frostline move … --to-volume …'); or option('local_disks', 'skip') leaves them out, and "
    "'shared' says that every executor sees the same directories"
)


class Piece(msgspec.Struct, frozen=True):
    """Row groups of a data file, and where its bytes are."""

    label: str
    """For messages: the part and where it lies."""
    size_bytes: int
    """Of the whole file."""
    sha256: str
    row_groups: tuple[int, ...] | None
    """None for all."""
    wanted_bytes: int
    """Of the row groups."""
    group_bytes: tuple[int, ...]
    """Of each row group of the file."""
    store: StoreAddress | None = None
    key: str = ""
    path: str = ""
    """Of a local file."""
    file: DataFile | None = None
    """What `part.json` says of the bytes, and no more."""
    schema_version: int = 0
    """Of the table, when the file was written."""


class PlannedScan(msgspec.Struct, frozen=True):
    """A planned read."""

    definition: TableDefinition
    shares: tuple[tuple[Piece, ...], ...]
    """What each task reads, in the order of the table's parts."""
    until: datetime
    """So long everything can be read."""
    predicate: Predicate
    """Which rows are selected."""


class Chosen(msgspec.Struct, frozen=True):
    """The files of a table that may hold rows of the answer, and how long they can be read."""

    definition: TableDefinition
    pieces: tuple[Piece, ...]
    until: datetime
    predicate: Predicate


def read_definition(options: ReadOptions) -> TableDefinition:
    """The table as it is, or was at the revision."""
    with opened_store(options) as store:
        return definition_of(store, options)


def definition_of(store: Store, options: ReadOptions) -> TableDefinition:
    """The same of a store that is open."""
    revision = asked_revision(store, options)
    with _as_of(store, revision) as context:
        return context.catalog.table(options.table)


def plan_scan(options: ReadOptions) -> PlannedScan:
    """Prune, hold what is left, and divide it. Raises `Refused` for rows that the executors could not reach."""
    with opened_store(options) as store:
        found = choose_files(store, options)
    shares = divide(found.pieces, options.partition_bytes, options.cores)
    return PlannedScan(found.definition, shares, found.until, found.predicate)


def choose_files(store: Store, options: ReadOptions) -> Chosen:
    """Prune, and hold what is left. Raises `Refused` for rows that the executors could not reach."""
    until = datetime.now(UTC) + options.lease
    revision = _pinned_revision(store, options, until)
    with _as_of(store, revision) as context:
        definition, predicate, chosen = _matching(context, options)
        pieces = list(_pieces(context, definition, chosen, predicate))
        return Chosen(definition, tuple(_held(context, chosen, pieces, until)), until, predicate)


def places(store: Store, options: ReadOptions) -> Counter[str]:
    """The files of such a read on each disk; nothing is held. Raises `Refused` as `choose_files` does."""
    revision = asked_revision(store, options)
    with _as_of(store, revision) as context:
        _, _, chosen = _matching(context, options)
    return Counter(stored.disk for stored, files in chosen for _ in files)


def _as_of(store: Store, revision: int | None) -> AbstractContextManager[Context]:
    """The store at the revision, or as it is."""
    return nullcontext(store.context) if revision is None else store.past(revision)


def _matching(context: Context, options: ReadOptions) -> tuple[TableDefinition, Predicate, list[_Chosen]]:
    """The files that may hold rows of the answer, and that the executors reach. Of a part that is also in a bucket
    they read the copy there, unless they reach the disks of this machine."""
    definition = context.catalog.table(options.table)
    reachability.check_certain(context, definition)
    context.catalog.check_readable(definition)
    predicate = parse_filter(options.filter, definition)
    parts = context.catalog.parts(definition) if _reads_local(options) else context.catalog.originals(definition)
    chosen = [(stored, matching_files(predicate, stored.part, definition)) for stored in parts]
    return definition, predicate, _reachable([pair for pair in chosen if pair[1]], context, options)


@contextmanager
def opened_store(options: ReadOptions) -> Iterator[Store]:
    """The store as it is now. Local files that are removed from now on stay until the block ends."""
    context = make_context(
        load(options.config), actor="spark", workers=None, limiter=None, progress=None, clock=wall_clock
    )
    with Store(context, recovered=[]) as store, ExitStack() as leases:
        for disk in context.disks.values():
            leases.enter_context(disk.read_lease())
        store.refresh()
        yield store


def divide(pieces: Iterable[Piece], most_bytes: int, cores: int = 1) -> tuple[tuple[Piece, ...], ...]:
    """Shares of neighbours: small files together, large files by row groups. All are of about one size, not much more
    than `most_bytes`, and as many as a multiple of the cores: a last task alone would leave the others idle."""
    pieces = list(pieces)
    total = sum(map(_cost, pieces))
    target = min(most_bytes, max(LEAST_BYTES, -(-total // cores)))
    count = -(-total // target)
    if count > cores:
        count = -(-count // cores) * cores
    divided = [smaller for whole in pieces for smaller in _split(whole, -(-total // max(count, 1)))]
    shares: dict[int, list[Piece]] = {}  # those with something in them: of tiny shares there may be millions
    total, before = sum(map(_cost, divided)), 0
    for piece in divided:  # to the share in which its middle lies
        shares.setdefault((2 * before + _cost(piece)) * count // (2 * total), []).append(piece)
        before += _cost(piece)
    return tuple(map(tuple, shares.values()))


def _cost(piece: Piece) -> int:
    in_directory = piece.path or (piece.store is not None and piece.store.config.url.startswith("file:"))
    return piece.wanted_bytes + (LOCAL_OPEN_COST_BYTES if in_directory else OPEN_COST_BYTES)


def _split(piece: Piece, target_bytes: int) -> Iterator[Piece]:
    """The piece by row groups when it is larger than the target; each gets as many of them as make the target."""
    numbers = piece.row_groups if piece.row_groups is not None else tuple(range(len(piece.group_bytes)))
    if piece.wanted_bytes <= target_bytes or len(numbers) < 2:
        yield replace(piece, group_bytes=())
        return
    count = -(-piece.wanted_bytes // target_bytes)
    each = -(-len(numbers) // count)
    for start in range(0, len(numbers), each):
        chosen = numbers[start : start + each]
        wanted = sum(piece.group_bytes[number] for number in chosen)
        yield replace(piece, row_groups=chosen, wanted_bytes=wanted, group_bytes=())


# -- the revision --------------------------------------------------------------------------------------------------


def asked_revision(store: Store, options: ReadOptions) -> int | None:
    """The revision that the table is read at; None for the table as it is."""
    if options.revision is None and options.timestamp is None:
        return None
    from restore.rebuild.rebuild import revision_of

    disks = store.object_disks()
    if len(disks) != 1:
        raise UsageError("a revision or timestamp needs exactly one disk with an operations log")
    return revision_of(disks[0], options.revision, options.timestamp)


def _pinned_revision(store: Store, options: ReadOptions, until: datetime) -> int | None:
    """The revision that was asked for, kept until then; None for the table as it is, which is kept as long, too."""
    revision = asked_revision(store, options)
    hold_revision(store, revision, until)
    return revision


def hold_revision(store: Store, revision: int | None, until: datetime) -> None:
    """Keep what the revision, or the table as it is, names until then, where the retention does not."""
    lease = until - datetime.now(UTC)
    for disk in store.object_disks():
        if revision is not None or timedelta(seconds=disk.retention_seconds) < lease:
            _pin(disk, revision or disk.revision or 0, until)


def _pin(disk: LoggedDisk, revision: int, until: datetime) -> None:
    """A pin that runs out by itself: nobody knows when a data frame is read for the last time. A disk that is only read
    cannot be pinned: an object that its owner collects is then an error of the read."""
    if revision == 0 or disk.read_only:
        return
    require_clock(disk.store)
    name = f"spark-{secrets.token_hex(8)}"
    pins.create(disk.store, name, revision, holder=f"spark@{socket.gethostname()}", until=until, reason="read by Spark")


# -- pieces --------------------------------------------------------------------------------------------------------

_Chosen = tuple[StoredPart, tuple[DataFile, ...]]


def _reachable(chosen: list[_Chosen], context: Context, options: ReadOptions) -> list[_Chosen]:
    """Without, or refused, parts on disks that only this machine has."""
    local = [pair for pair in chosen if not context.disk(pair[0].disk).capabilities.remote]
    if not local or _reads_local(options):
        return chosen
    if options.local_disks == "skip":
        return [pair for pair in chosen if pair not in local]
    names = ", ".join(stored.facts.name for stored, _ in local[:3]) + (", …" if len(local) > 3 else "")
    disks = sorted({stored.disk for stored, _ in local})
    raise Refused(
        f"disks of this machine ({', '.join(disks)}) have {counted(len(local), 'part')} of {options.table}, which the "
        f"executors cannot reach: {names}",
        hint=LOCAL_HINT,
    )


def _reads_local(options: ReadOptions) -> bool:
    """Whether the executors reach the local disks of this machine."""
    return options.local_disks == "shared" or (options.local_disks == "auto" and options.on_this_machine)


def _pieces(
    context: Context, definition: TableDefinition, chosen: Sequence[_Chosen], predicate: Predicate
) -> Iterator[Piece]:
    """What is left of the files, row group by row group, and where it lies."""
    stores: dict[str, StoreAddress] = {}
    for stored, files in chosen:
        for file in files:
            label = f"{stored.disk}:{stored.path(file.name)}"
            piece = piece_of(file, definition, predicate, label, stored.part.schema_version)
            if piece is None:
                continue
            disk = context.disk(stored.disk)
            reachability.require([disk], f"reading {definition.full_name}")
            if disk.capabilities.remote:
                info = disk.stat(stored.path(file.name))
                if info.key is None:
                    raise UsageError(f"{piece.label} has no object of its own", hint="'frostline query' reads it")
                if stored.disk not in stores:
                    stores[stored.disk] = shared_store(context, stored.disk)
                yield replace(piece, store=stores[stored.disk], key=info.key)
            elif as_disk(disk, DirectoryDisk) is None:
                raise UsageError(
                    f"{piece.label} is in no directory and no bucket: no executor reads it",
                    hint="'frostline query' reads it; 'frostline move' takes it to another disk",
                )
            else:
                yield replace(piece, path=stored.path(file.name))


def piece_of(
    file: DataFile, definition: TableDefinition, predicate: Predicate, label: str, schema_version: int
) -> Piece | None:
    """The row groups of the file that may hold rows of the answer, without a place; None where there are none."""
    groups = _row_groups(file, definition, predicate)
    if groups == ():
        return None
    return Piece(
        label=label,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        row_groups=groups,
        wanted_bytes=_wanted_bytes(file, groups),
        group_bytes=tuple(group.size_bytes for group in file.row_groups),
        file=_sums_of(file),
        schema_version=schema_version,
    )


def _sums_of(file: DataFile) -> DataFile:
    """Without what only planning needs: every task is sent it."""
    groups = tuple(msgspec.structs.replace(group, first_key=()) for group in file.row_groups)
    return msgspec.structs.replace(file, row_groups=groups, columns={})


def shared_store(context: Context, disk: str) -> StoreAddress:
    """How executors reach the disk's bucket."""
    limits = context.config.limits
    return StoreAddress.of(
        context.config.bucket(disk),
        bytes_per_second=limits.bytes_per_second,
        requests_per_second=limits.requests_per_second,
    )


def _held(context: Context, chosen: Sequence[_Chosen], pieces: Sequence[Piece], until: datetime) -> list[Piece]:
    """The pieces with local files under names that stay until then, or until the driver ends."""
    names: dict[str, str] = {}
    # Spark plans in helpers of the driver's JVM that come and go; as long as the JVM runs somebody may read.
    driver = nearest_ancestor("java") or os.getpid()
    for name in sorted({stored.disk for stored, _ in chosen}):
        if (disk := as_disk(context.disk(name), DirectoryDisk)) is not None:
            paths = [piece.path for piece in pieces if piece.path and piece.label == f"{name}:{piece.path}"]
            held = disk.hold(paths, until=until, process=driver)
            names |= {f"{name}:{path}": str(file) for path, file in zip(paths, held, strict=True)}
    return [replace(piece, path=names[piece.label]) if piece.path else piece for piece in pieces]


def _wanted_bytes(file: DataFile, groups: tuple[int, ...] | None) -> int:
    if groups is None:
        return file.size_bytes
    return sum(file.row_groups[number].size_bytes for number in groups)


def _row_groups(file: DataFile, definition: TableDefinition, predicate: Predicate) -> tuple[int, ...] | None:
    """The row groups that can hold selected rows, by the sparse index: no request. None for all of them."""
    numbers = [
        number
        for number, group in enumerate(file.row_groups)
        if rows_may_match(predicate, group.rows, _key_range(file, number, definition), definition)
    ]
    return None if len(numbers) == len(file.row_groups) else tuple(numbers)


def _key_range(file: DataFile, number: int, definition: TableDefinition) -> dict[str, ColumnRange]:
    """What the file's order says of a row group: the leading key lies between its first one and that of the next."""
    column = definition.column(definition.order_by[0])
    whole, group = file.columns.get(str(column.id)), file.row_groups[number]
    low = group.first_key[0] if group.first_key else None
    if whole is None or low is None or group.rows < 2:
        return {}
    following = file.row_groups[number + 1].first_key if number + 1 < len(file.row_groups) else (whole.max,)
    # Nulls come last; a row group before some may hold the first of them.
    return {str(column.id): ColumnRange(low, following[0] if following else None, 1 if whole.nulls else 0)}
