"""A writer that stops while others truncate the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from disks.garbage.collect import GcRules
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.revision import parse_commit_key

TRUNCATING = GcRules(
    guard=timedelta(0),
    retention=timedelta(0),
    delete=True,
    compact_after_commits=1,
    allow_short_guard=True,
    allow_bucket_root=True,
    max_delete_fraction=1.0,
)


class Stopping(WrappedStore):
    """Stops its machine right before, or right after, the next entry is put, while the others go on."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        counts = parse_commit_key(key) is not None
        if counts and self.before is not None:
            others, self.before = self.before, None
            others()
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)
        if counts and self.after is not None:
            others, self.after = self.after, None
            others()
