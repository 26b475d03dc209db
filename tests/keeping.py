"""For tests: what parts say is kept at once, of each single part, also when its file was written just now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def keeping() -> Iterator[None]:
    """While it lasts, in this process."""
    with mock.patch("disks.local.disk.SETTLED_NS", 0), mock.patch("tiering.catalog.stored_parts.KEPT_FROM", 1):
        yield
