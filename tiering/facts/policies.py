"""Policies as rows."""

from __future__ import annotations

import msgspec

from tiering.config.settings import PolicyConfig


class VolumeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A volume of a policy."""

    name: str
    disks: list[str]
    max_data_part_size_bytes: int | None
    max_data_part_size_ratio: float | None
    prefer_not_to_merge: bool
    perform_ttl_move_on_insert: bool
    load_balancing: str


class PolicyRow(msgspec.Struct, frozen=True):
    """A policy with the factor that is in force."""

    name: str
    move_factor: float
    volumes: list[VolumeRow]

    @classmethod
    def of(cls, name: str, policy: PolicyConfig) -> PolicyRow:
        factor = policy.move_factor if policy.move_factor is not None else 0.1 * (len(policy.volumes) > 1)
        fields = VolumeRow.__struct_fields__
        volumes = [VolumeRow(**{field: getattr(volume, field) for field in fields}) for volume in policy.volumes]
        return cls(name, factor, volumes)
