"""How long a store is worth waiting for: less where the caller can do without it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_budget: ContextVar[float] = ContextVar("patience", default=math.inf)


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Within the block, wait no longer than this for a server that fails, and not much longer for one that is silent.
    Holds for this thread."""
    before = _budget.set(seconds)
    try:
        yield
    finally:
        _budget.reset(before)


def time_budget_seconds() -> float:
    """How long the caller wants to wait; infinite where nobody said."""
    return _budget.get()
