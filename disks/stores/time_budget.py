"""What a caller asks of requests further down: how long a store is worth waiting for (less where the caller can do
without it), and a last look before a write that only the holder of a lease may send."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_budget: ContextVar[float] = ContextVar("patience", default=math.inf)
_look: ContextVar[Callable[[], None]] = ContextVar("last look", default=lambda: None)


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Within the block, wait no longer than this for a server that fails, and not much longer for one that is silent;
    nor longer than a block around it allows. Holds for this thread."""
    before = _budget.set(min(seconds, _budget.get()))
    try:
        yield
    finally:
        _budget.reset(before)


def time_budget_seconds() -> float:
    """How long the caller wants to wait; infinite where nobody said."""
    return _budget.get()


@contextmanager
def last_look(look: Callable[[], None]) -> Iterator[None]:
    """Within the block `look` is called right before each put if absent that the store itself cannot keep from
    overwriting: it raises where the put must not be sent any more. Holds for this thread."""
    before = _look.set(look)
    try:
        yield
    finally:
        _look.reset(before)


def take_last_look() -> None:
    """Called by stores between their own look for the object and the put."""
    _look.get()()
