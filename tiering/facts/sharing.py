"""Whose the bytes are on disks whose objects several machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.sharing.shared_bytes import shared_bytes
from oplog.errors import FrostlineError
from tiering.policy.cost import price_of_storage

if TYPE_CHECKING:
    from tiering.engine.store import Store


class SharingRow(msgspec.Struct, frozen=True, kw_only=True, rename={"by_log": "with"}):
    """What this machine's log names on a disk, what of it the other logs name, and what both cost a month."""

    disk: str
    log: str
    bytes: int
    alone_bytes: int
    shared_bytes: int
    share_bytes: int
    price_month: float
    alone_price_month: float
    share_price_month: float
    currency: str
    by_log: dict[str, int]


class UnknownSharing(msgspec.Struct, frozen=True):
    """A disk whose logs cannot be read."""

    disk: str
    log: str
    error: str


def sharing_rows(store: Store, table: str | None = None) -> list[SharingRow | UnknownSharing]:
    """`shared` of `du --json`: each disk with a log of several, for the table or for all."""
    prices = store.context.config.prices
    directory = store.definition(table).directory if table is not None else ""
    rows: list[SharingRow | UnknownSharing] = []
    for disk in store.context.disks.values():
        logged = as_disk(disk, LoggedDisk)
        if logged is None or logged.log_name is None or disk.broken is not None:
            continue
        try:
            (found,) = shared_bytes(logged, [directory], now=store.context.clock())
        except FrostlineError as error:
            rows.append(UnknownSharing(disk.name, logged.log_name, error.message))
            continue

        def price(size_bytes: int, name: str = disk.name) -> float:
            return round(price_of_storage({name: size_bytes}, prices, {name}), 6)

        alone_bytes = found.size_bytes - found.shared_bytes
        rows.append(
            SharingRow(
                disk=disk.name,
                log=logged.log_name,
                bytes=found.size_bytes,
                alone_bytes=alone_bytes,
                shared_bytes=found.shared_bytes,
                share_bytes=found.share_bytes,
                price_month=price(found.size_bytes),
                alone_price_month=price(alone_bytes),
                share_price_month=price(found.share_bytes),
                currency=prices.currency,
                by_log=dict(found.by_log),
            )
        )
    return rows
