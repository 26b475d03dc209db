"""`cost`: what storage costs a month, what moves did cost, and what a plan or another policy would. As documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.sharing.shared_bytes import shared_bytes
from oplog.errors import FrostlineError
from tiering.facts.moves import plan_cost
from tiering.facts.sharing import SharingRow, UnknownSharing, sharing_rows
from tiering.policy import cost
from tiering.policy.pacing import price_of
from tiering.policy.placement import ordered_volumes

if TYPE_CHECKING:
    from disks.contracts.bucket_disk import LoggedDisk
    from tiering.engine.store import Store
    from tiering.policy.plan import Move, TtlDelete
    from tiering.table.schema import TableDefinition

_DAYS_A_MONTH = 365.25 / 12


class StorageCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a table costs a month on a disk."""

    table: str
    volume: str | None
    disk: str
    parts: int
    bytes: int
    gb_month: float
    price_month: float
    share_price_month: float
    """This machine's share, where others name the same objects."""
    hot_price_month: float
    """The same bytes on the hottest volume."""


class DiskCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a disk costs a month."""

    disk: str
    in_bucket: bool
    parts: int
    bytes: int
    price_month: float
    share_price_month: float


class MonthOfMoves(msgspec.Struct, kw_only=True, rename={"source": "from", "target": "to"}):
    """What the moves of a month from one disk to another cost."""

    month: str
    source: str
    target: str
    tries: int = 0
    failed: int = 0
    bytes: int = 0
    requests: int = 0
    price: float = 0.0


class PastMoves(msgspec.Struct, frozen=True):
    """What the journal remembers of moves."""

    since: datetime | None
    by_month: list[MonthOfMoves]
    price: float


class PolicyDiskCost(msgspec.Struct, frozen=True):
    """What a disk would cost a month under another policy."""

    disk: str
    parts: int
    bytes: int
    price_month: float


class CostEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What moves cost once, what the bytes of each disk cost a month before and after, and when it pays."""

    moves: int
    bytes: int
    put: int
    get: int
    bytes_up: int
    bytes_down: int
    price: float
    before_price_month: float
    after_price_month: float
    saved_price_month: float
    pays_back_days: float | None


class PlanEffect(CostEffect, frozen=True):
    """Of a plan. Its own field is the first: those of the base are keyword-only."""

    deletes: int


class PolicyEffect(CostEffect, frozen=True):
    """Of all parts where a policy would put them."""

    policy: str
    by_disk: list[PolicyDiskCost]
    expired: int
    """Parts past their TTL."""
    expired_bytes: int
    kept: dict[str, int]
    """Parts that stay where no rule of their table wants them, by the kind of reason."""


class CostDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`cost --json`."""

    currency: str
    storage: list[StorageCost]
    by_disk: list[DiskCost]
    bytes: int
    price_month: float
    share_price_month: float
    hot_price_month: float
    times_cheaper: float | None
    shared: list[SharingRow | UnknownSharing]
    moves: PastMoves
    plan: PlanEffect | None = None
    what_if: PolicyEffect | None = None


class Bill:
    """What the bytes of a store cost, by the section `prices`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prices = store.context.config.prices
        self._remote = store.context.config.buckets().keys()

    def document(self, table: str | None = None) -> CostDocument:
        """`cost --json` without a plan and a policy: of one table, or of all."""
        storage = self._storage(table)
        whole = sum(row.price_month for row in storage)
        hot = sum(row.hot_price_month for row in storage)
        return CostDocument(
            currency=self._prices.currency,
            storage=storage,
            by_disk=self._by_disk(storage),
            bytes=sum(row.bytes for row in storage),
            price_month=_money(whole),
            share_price_month=_money(sum(row.share_price_month for row in storage)),
            hot_price_month=_money(hot),
            times_cheaper=round(hot / whole, 2) if whole else None,
            shared=sharing_rows(self._store, table),
            moves=self._moved(table),
        )

    def of_plan(self, moves: Sequence[Move], deletes: Sequence[TtlDelete]) -> PlanEffect:
        """What carrying it out costs once, and a month before and after. Raises `NotFound` for a disk that is none."""
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        for move in moves:
            for name in (move.source, move.target):
                self._store.context.disk(name)
            before[move.source] = before.get(move.source, 0) + move.bytes
            after[move.target] = after.get(move.target, 0) + move.bytes
            if move.keep_source:
                after[move.source] = after.get(move.source, 0) + move.bytes
        for delete in deletes:
            self._store.context.disk(delete.disk)
            before[delete.disk] = before.get(delete.disk, 0) + delete.bytes
        return PlanEffect(len(deletes), **asdict(self._effect(moves, before, after)))

    def of_policy(self, name: str) -> PolicyEffect:
        """What all parts cost a month if they lay as the policy would put them, and what bringing them there would cost
        once. Raises `NotFound` where there is no such policy."""
        from tiering.facts.what_if import what_if
        from tiering.move.policy_facts import placed

        context = self._store.context
        policy = context.config.policy(name)
        parts = [placed(stored) for table in context.catalog.tables() for stored in context.catalog.parts(table)]
        found = what_if(parts, context.reservations.states(), name, policy, context.clock())
        before: dict[str, int] = {}
        for part in parts:
            before[part.disk] = before.get(part.disk, 0) + part.part.size_bytes
        by_disk = [
            PolicyDiskCost(disk, found.parts_by_disk[disk], size, _money(self._month(disk, size)))
            for disk, size in sorted(found.bytes_by_disk.items())
        ]
        effect = asdict(self._effect(found.moves, before, found.bytes_by_disk))
        return PolicyEffect(name, by_disk, found.expired, found.expired_bytes, dict(found.kept), **effect)

    def _effect(self, moves: Sequence[Move], before: Mapping[str, int], after: Mapping[str, int]) -> CostEffect:
        total = plan_cost(self._store, moves).total
        once = cost.price(total, self._prices)
        was = cost.price_of_storage(before, self._prices, self._remote)
        then = cost.price_of_storage(after, self._prices, self._remote)
        saved = was - then
        return CostEffect(
            moves=len(moves),
            bytes=sum(move.bytes for move in moves),
            put=total.put,
            get=total.get,
            bytes_up=total.bytes_up,
            bytes_down=total.bytes_down,
            price=_money(once),
            before_price_month=_money(was),
            after_price_month=_money(then),
            saved_price_month=_money(saved),
            pays_back_days=round(once / saved * _DAYS_A_MONTH, 1) if saved > 0 else None,
        )

    def _storage(self, table: str | None) -> list[StorageCost]:
        from tiering.catalog.rows import usage_rows

        store = self._store
        chosen = store.definitions() if table is None else [store.definition(table)]
        definitions = {definition.full_name: definition for definition in chosen}
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for row in usage_rows(store.context.catalog, chosen, include_outdated=True):
            parts, size_bytes = sums.get((row.table, row.disk), (0, 0))
            sums[row.table, row.disk] = parts + row.parts, size_bytes + row.bytes
        shares = self._shares([*definitions.values()])
        return [
            self._row(definitions[name], disk, *both, shares.get((name, disk), 1.0))
            for (name, disk), both in sorted(sums.items())
        ]

    def _row(self, definition: TableDefinition, disk: str, parts: int, size_bytes: int, share: float) -> StorageCost:
        policy = self._store.context.config.policy(definition.policy)
        price = self._month(disk, size_bytes)
        return StorageCost(
            table=definition.full_name,
            volume=self._store.context.catalog.volume_of(definition, disk),
            disk=disk,
            parts=parts,
            bytes=size_bytes,
            gb_month=cost.gb_month(disk, self._prices, self._remote),
            price_month=_money(price),
            share_price_month=_money(price * share),
            hot_price_month=_money(self._month(ordered_volumes(policy)[0].disks[0], size_bytes)),
        )

    def _by_disk(self, storage: Sequence[StorageCost]) -> list[DiskCost]:
        by_disk: dict[str, list[StorageCost]] = {}
        for row in storage:
            by_disk.setdefault(row.disk, []).append(row)
        return [
            DiskCost(
                disk=disk,
                in_bucket=disk in self._remote,
                parts=sum(row.parts for row in rows),
                bytes=sum(row.bytes for row in rows),
                price_month=_money(sum(row.price_month for row in rows)),
                share_price_month=_money(sum(row.share_price_month for row in rows)),
            )
            for disk, rows in sorted(by_disk.items())
        ]

    def _shares(self, definitions: Sequence[TableDefinition]) -> dict[tuple[str, str], float]:
        """By table and disk: which share of what it names there this machine's log stands for, where several logs share
        the objects. Where the others cannot be read, it is all of it."""
        directories = [definition.directory for definition in definitions]
        found: dict[tuple[str, str], float] = {}
        for disk in self._shared_disks():
            try:
                sizes = shared_bytes(disk, directories, now=self._store.context.clock())
            except FrostlineError:
                continue  # `shared` says why
            for definition, size in zip(definitions, sizes, strict=True):
                if size.size_bytes:
                    found[definition.full_name, disk.name] = size.share_bytes / size.size_bytes
        return found

    def _shared_disks(self) -> list[LoggedDisk]:
        return [
            logged
            for disk in self._store.context.disks.values()
            if (logged := as_disk(disk, LoggedDisk)) is not None and logged.log_name is not None and disk.broken is None
        ]

    def _moved(self, table: str | None) -> PastMoves:
        """What the moves of this machine cost that its journal remembers, by month and way."""
        months: dict[tuple[str, str, str], MonthOfMoves] = {}
        since, uuid = None, self._store.definition(table).uuid if table is not None else None
        for move in self._store.context.journal.work.tried_moves():
            if uuid not in (None, move.table_uuid):
                continue
            since = since or move.created
            key = (f"{move.created:%Y-%m}", move.source, move.target)
            if (row := months.get(key)) is None:
                row = months[key] = MonthOfMoves(month=key[0], source=move.source, target=move.target)
            spent = price_of(move.bytes, move.source, move.target, self._remote, self._prices)
            row.tries += 1
            row.failed += move.state == "failed"
            row.bytes += spent.bytes
            row.requests += spent.requests
            row.price += spent.money
        by_month = [replace(row, price=_money(row.price)) for row in months.values()]
        return PastMoves(since, by_month, _money(sum(row.price for row in months.values())))

    def _month(self, disk: str, size_bytes: int) -> float:
        return cost.price_of_storage({disk: size_bytes}, self._prices, self._remote)


def _money(amount: float) -> float:
    return round(amount, 9)
