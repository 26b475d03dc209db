"""Clean-ups that a signal gives time: what they take away is in a bucket, where nobody else may take it for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_owed: set[object] = set()  # no counter under a lock: a signal may be raised at any instruction


@contextmanager
def clean_up_owed() -> Iterator[None]:
    """While it lasts, this process has to take something away: objects of a measurement, a pin, a claim. A signal ends
    the body as any other, and the end of the process waits for the clean-up, for a time. Not around computations: they
    would use that time up."""
    owed = object()
    _owed.add(owed)
    try:
        yield
    finally:
        _owed.discard(owed)


def is_clean_up_owed() -> bool:
    """Whether a clean-up is to come, or under way, in any thread."""
    return bool(_owed)
