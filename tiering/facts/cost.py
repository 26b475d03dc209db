"""`cost`: what storage costs a month, what moves did cost, and what a plan or another policy would. As documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disks.object_disk.sharing.shared_bytes import shared_bytes
from oplog.errors import FrostlineError
from tiering.facts.moves import plan_cost
from tiering.facts.sharing import sharing_documents
from tiering.policy import cost
from tiering.policy.pacing import price_of
from tiering.policy.placement import ordered_volumes

if TYPE_CHECKING:
    from disks.base import LoggedDisk
    from tiering.engine.store import Store
    from tiering.policy.plan import Move, TtlDelete
    from tiering.table.schema import TableDefinition

_DAYS_A_MONTH = 365.25 / 12


class Bill:
    """What the bytes of a store cost, by the section `prices`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prices = store.context.config.prices
        self._remote = store.context.config.buckets().keys()

    def document(self, table: str | None = None) -> dict[str, Any]:
        """`cost --json` without a plan and a policy: of one table, or of all."""
        storage = self._storage(table)
        whole = sum(row["price_month"] for row in storage)
        hot = sum(row["hot_price_month"] for row in storage)
        return {
            "currency": self._prices.currency,
            "storage": storage,
            "by_disk": self._by_disk(storage),
            "bytes": sum(row["bytes"] for row in storage),
            "price_month": _money(whole),
            "share_price_month": _money(sum(row["share_price_month"] for row in storage)),
            "hot_price_month": _money(hot),
            "times_cheaper": round(hot / whole, 2) if whole else None,
            "shared": sharing_documents(self._store, table),
            "moves": self._moved(table),
            "plan": None,
            "what_if": None,
        }

    def of_plan(self, moves: Sequence[Move], deletes: Sequence[TtlDelete]) -> dict[str, Any]:
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
        return {"deletes": len(deletes), **self._effect(moves, before, after)}

    def of_policy(self, name: str) -> dict[str, Any]:
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
        return {
            "policy": name,
            "by_disk": [
                {
                    "disk": disk,
                    "parts": found.parts_by_disk[disk],
                    "bytes": size,
                    "price_month": _money(self._month(disk, size)),
                }
                for disk, size in sorted(found.bytes_by_disk.items())
            ],
            "expired": found.expired,
            "expired_bytes": found.expired_bytes,
            "kept": dict(found.kept),
            **self._effect(found.moves, before, found.bytes_by_disk),
        }

    def _effect(self, moves: Sequence[Move], before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Any]:
        """What the moves cost once, what the bytes of each disk cost a month before and after, and when it pays."""
        total = plan_cost(self._store, moves).total
        once = cost.price(total, self._prices)
        was = cost.price_of_storage(before, self._prices, self._remote)
        then = cost.price_of_storage(after, self._prices, self._remote)
        saved = was - then
        return {
            "moves": len(moves),
            "bytes": sum(move.bytes for move in moves),
            "put": total.put,
            "get": total.get,
            "bytes_up": total.bytes_up,
            "bytes_down": total.bytes_down,
            "price": _money(once),
            "before_price_month": _money(was),
            "after_price_month": _money(then),
            "saved_price_month": _money(saved),
            "pays_back_days": round(once / saved * _DAYS_A_MONTH, 1) if saved > 0 else None,
        }

    def _storage(self, table: str | None) -> list[dict[str, Any]]:
        from tiering.catalog.rows import usage_rows

        store = self._store
        chosen = store.definitions() if table is None else [store.definition(table)]
        definitions = {item.full_name: item for item in chosen}
        rows: dict[tuple[str, str], dict[str, int]] = {}
        for item in usage_rows(store.context.catalog, chosen, include_outdated=True):
            row = rows.setdefault((item.table, item.disk), {"parts": 0, "bytes": 0})
            row["parts"] += item.parts
            row["bytes"] += item.bytes
        shares = self._shares([*definitions.values()])
        return [
            self._row(definitions[name], disk, row, shares.get((name, disk), 1.0))
            for (name, disk), row in sorted(rows.items())
        ]

    def _row(self, definition: TableDefinition, disk: str, row: Mapping[str, int], share: float) -> dict[str, Any]:
        policy = self._store.context.config.policy(definition.policy)
        price = self._month(disk, row["bytes"])
        return {
            "table": definition.full_name,
            "volume": self._store.context.catalog.volume_of(definition, disk),
            "disk": disk,
            **row,
            "gb_month": cost.gb_month(disk, self._prices, self._remote),
            "price_month": _money(price),
            "share_price_month": _money(price * share),
            "hot_price_month": _money(self._month(ordered_volumes(policy)[0].disks[0], row["bytes"])),
        }

    def _by_disk(self, storage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        summed: dict[str, dict[str, Any]] = {}
        for row in storage:
            one = summed.setdefault(row["disk"], {"parts": 0, "bytes": 0, "price_month": 0.0, "share_price_month": 0.0})
            for key in one:
                one[key] += row[key]
        return [
            {
                "disk": disk,
                "in_bucket": disk in self._remote,
                **one,
                "price_month": _money(one["price_month"]),
                "share_price_month": _money(one["share_price_month"]),
            }
            for disk, one in sorted(summed.items())
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
            if (logged := disk.logged) is not None and logged.log_name is not None and disk.broken is None
        ]

    def _moved(self, table: str | None) -> dict[str, Any]:
        """What the moves of this machine cost that its journal remembers, by month and way."""
        ways: dict[tuple[str, str, str], dict[str, Any]] = {}
        since = None
        for move in self._store.context.journal.work.tried_moves():
            if table not in (None, move.table):
                continue
            since = since or move.created
            one = ways.setdefault(
                (f"{move.created:%Y-%m}", move.source, move.target),
                {"tries": 0, "failed": 0, "bytes": 0, "requests": 0, "price": 0.0},
            )
            spent = price_of(move.bytes, move.source, move.target, self._remote, self._prices)
            one["tries"] += 1
            one["failed"] += move.state == "failed"
            one["bytes"] += spent.bytes
            one["requests"] += spent.requests
            one["price"] += spent.money
        by_month = [
            {"month": month, "from": source, "to": target, **one, "price": _money(one["price"])}
            for (month, source, target), one in ways.items()
        ]
        return {"since": since, "by_month": by_month, "price": _money(sum(one["price"] for one in ways.values()))}

    def _month(self, disk: str, size_bytes: int) -> float:
        return cost.price_of_storage({disk: size_bytes}, self._prices, self._remote)


def _money(amount: float) -> float:
    return round(amount, 9)
