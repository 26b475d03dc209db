"""What an examination of a store found (`disks.stores.trial.examine`), as plain facts without a judgement."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from disks.stores.base import Upload
from disks.stores.bucket_settings import BucketSettings, NotAnswered


class ProbeResult(msgspec.Struct, frozen=True):
    """What the store did. `good` None: not known, and `said` tells why."""

    good: bool | None
    said: str = ""
    denied: bool = False
    """The credentials do not allow it, which is an answer about them and not about the store."""


NOT_ASKED = ProbeResult(None, "not tried")


class StoreFacts(msgspec.Struct):
    """All answers of one store. What was never reached is `NOT_ASKED`."""

    name: str
    unreachable: str = ""
    """Why the store cannot be used at all; then nothing else was asked."""
    hint: str = ""
    answers: dict[str, ProbeResult] = msgspec.field(default_factory=dict)
    """By the `check` of the question."""
    kept_until: datetime | None = None
    """A lock keeps what was just written until then."""
    is_kept: bool = False
    clock_skew: timedelta | NotAnswered | None = None
    settings: BucketSettings | None = None
    old_versions: int | NotAnswered = 0
    old_bytes: int = 0
    uploads: list[Upload] | NotAnswered = msgspec.field(default_factory=list)

    def of(self, check: str) -> ProbeResult:
        return self.answers.get(check, NOT_ASKED)
