"""Many questions to ZooKeeper that are on their way at the same time, waited for as one. Only `client` uses it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as zk


class AtOnce:
    """What kazoo's `IAsyncResult` is for one question, as far as `Keeper` asks it."""

    def __init__(self, asked: Sequence[Any]) -> None:
        self._asked = asked

    def wait(self, seconds: float) -> bool:
        """Whether all are answered, or failed, within so many seconds."""
        end = time.monotonic() + seconds
        return all(one.wait(max(end - time.monotonic(), 0)) for one in self._asked)

    def get(self, *, block: bool) -> tuple[Any, ...]:
        """All answers; None for a node that is not there. Raises what the first one that failed did."""
        return tuple(self._answer(one) for one in self._asked)

    @staticmethod
    def _answer(one: Any) -> Any:
        try:
            return one.get(block=False)
        except zk.NoNodeError:
            return None
