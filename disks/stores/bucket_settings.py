"""What the owner of a bucket has set on it, as far as the store tells: versioning, lifecycle rules, Object Lock."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


class NotAnswered(msgspec.Struct, frozen=True):
    """A question that the store did not answer, and what it said instead. Never taken for a no."""

    reason: str


class LifecycleRule(msgspec.Struct, frozen=True):
    """One enabled rule, with what matters here. Days are None where the rule does not do that."""

    name: str
    prefix: str
    """Full keys of the bucket that the rule applies to."""
    filtered: bool
    """The rule asks for tags or sizes too, so not every object below the prefix is meant."""
    expires: str | None = None
    """When it deletes current objects: `after 30 days`, `on 2027-01-01`."""
    archives: str | None = None
    """When it moves current objects to a class that a GET cannot read at once."""
    old_versions_days: int | None = None
    """After how many days it deletes versions that are no longer current."""
    abort_uploads_days: int | None = None
    """After how many days it ends unfinished multipart uploads."""


class ObjectLock(msgspec.Struct, frozen=True):
    """Object Lock of a bucket. `mode` and `retention` None: no default, each object may have its own."""

    enabled: bool
    mode: Literal["GOVERNANCE", "COMPLIANCE"] | None = None
    retention_days: int | None = None


class BucketSettings(msgspec.Struct, frozen=True):
    """Everything at once; each answer by itself may be `NotAnswered`."""

    versioning: Literal["on", "suspended", "off"] | NotAnswered
    lifecycle: tuple[LifecycleRule, ...] | NotAnswered
    object_lock: ObjectLock | NotAnswered


class OldVersion(msgspec.Struct, frozen=True):
    """A version that is no longer current (`size_bytes` 0 and `is_marker` for a delete marker)."""

    key: str
    size_bytes: int
    modified: datetime
    is_marker: bool = False
