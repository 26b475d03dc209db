"""What is known of the latest statements, so that one that comes again is not parsed and planned again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_STATEMENTS = 256
_LONGEST = 20_000
"""Longer ones, in characters, are seldom repeated, and what is known of them takes room."""
_T = TypeVar("_T")


class KeptByText(Generic[_T]):
    """By the text of the statement. Thread-safe. What is kept must not change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _T] = OrderedDict()

    def get(self, text: str) -> _T | None:
        """None for one that is not kept."""
        with self._lock:
            value = self._kept.get(text)
            if value is not None:
                self._kept.move_to_end(text)
            return value

    def put(self, text: str, value: _T) -> None:
        """Keep it in place of what was kept of this text, for as long as it is among the latest."""
        if len(text) > _LONGEST:
            return
        with self._lock:
            self._kept[text] = value
            self._kept.move_to_end(text)
            if len(self._kept) > _STATEMENTS:
                self._kept.popitem(last=False)
