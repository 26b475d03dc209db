"""Whose the bytes are on disks whose objects several machines share, as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from disks.object_disk.sharing.shared_bytes import shared_bytes
from oplog.errors import FrostlineError
from tiering.policy.cost import price_of_storage

if TYPE_CHECKING:
    from tiering.engine.store import Store


def sharing_documents(store: Store, table: str | None = None) -> list[dict[str, Any]]:
    """`shared` of `du --json`: of each disk with a log of several, what this machine's log names of the table, or of
    all, what of it the other logs name, what both cost a month, and this log's share. Where the logs cannot be read,
    `error` says why, and nothing else is said."""
    prices = store.context.config.prices
    directory = store.definition(table).directory if table is not None else ""
    documents: list[dict[str, Any]] = []
    for disk in store.context.disks.values():
        logged = disk.logged
        if logged is None or logged.log_name is None or disk.broken is not None:
            continue
        document = {"disk": disk.name, "log": logged.log_name}
        try:
            (found,) = shared_bytes(logged, [directory], now=store.context.clock())
        except FrostlineError as error:
            documents.append(document | {"error": error.message})
            continue

        def price(size_bytes: int, name: str = disk.name) -> float:
            return round(price_of_storage({name: size_bytes}, prices, {name}), 6)

        alone_bytes = found.size_bytes - found.shared_bytes
        documents.append(
            document
            | {
                "bytes": found.size_bytes,
                "alone_bytes": alone_bytes,
                "shared_bytes": found.shared_bytes,
                "share_bytes": found.share_bytes,
                "price_month": price(found.size_bytes),
                "alone_price_month": price(alone_bytes),
                "share_price_month": price(found.share_bytes),
                "currency": prices.currency,
                "with": dict(found.by_log),
            }
        )
    return documents
