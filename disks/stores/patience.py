"""How long a store is worth waiting for: less where the caller can do without it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_patience: ContextVar[float] = ContextVar("patience", default=math.inf)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Within the block, wait no longer than this for a server that fails, and not much longer for one that is silent.
    Holds for this thread."""
    before = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(before)


def patience_seconds() -> float:
    """How long the caller wants to wait; infinite where nobody said."""
    return _patience.get()
