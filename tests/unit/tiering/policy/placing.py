"""Parts on disks, and a plan for them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.policy.decide import Options, Plan, decide
from tiering.policy.placement import DiskState
from tiering.table.part import ColumnRange, Part, PartName
from tiering.table.schema import Column, MoveToVolume, TableDefinition, TtlRule

NOW = datetime(2026, 3, 1, tzinfo=UTC)
GB = 1024**3
TWO = PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("ssd",)), VolumeConfig(name="cold", disks=("s3",))))
ROOMY = {"ssd": DiskState(100 * GB, 50 * GB), "s3": DiskState(None, None)}


@dataclasses.dataclass(frozen=True)
class Placed:
    definition: TableDefinition
    part: Part
    name: PartName
    disk: str


def table(*ttl: tuple[int, Any], **changes: Any) -> TableDefinition:
    fields: dict[str, Any] = {
        "uuid": "u1",
        "database": "d",
        "name": "t",
        "columns": (Column(id=1, name="ts", type="timestamp[us, UTC]"),),
        "order_by": ("ts",),
        "policy": "p",
        "ttl": tuple(TtlRule(after_seconds=days * 86400, column="ts", action=action) for days, action in ttl),
    }
    return TableDefinition(**(fields | changes))


def placed(
    definition: TableDefinition,
    name: str = "all_1_1_0",
    *,
    age: int = 10,
    size: int = GB,
    disk: str = "ssd",
    **changes: Any,
) -> Placed:
    newest = (NOW - timedelta(days=age)).isoformat()
    fields: dict[str, Any] = {
        "table": definition.uuid,
        "name": name,
        "rows": 5,
        "size_bytes": size,
        "created": NOW - timedelta(days=1),
        "columns": {"1": ColumnRange(min=newest, max=newest)},
    }
    made = Part(**(fields | changes))
    return Placed(definition, made, made.part_name, disk)


def plan(*parts: Placed, disks: Any = ROOMY, policy: PolicyConfig = TWO, now: datetime = NOW, **options: Any) -> Plan:
    return decide(parts, disks, {"p": policy}, now, Options(**options))


TO_COLD = (7, MoveToVolume(volume="cold"))
