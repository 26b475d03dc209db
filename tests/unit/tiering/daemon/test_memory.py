"""What work leaves goes back to the system: a daemon that inserts and merges for months does not grow."""

from __future__ import annotations

import gc
import weakref

from tiering.daemon.daemon import MemoryKeeping, give_back


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def test_what_only_a_circle_holds_is_given_back() -> None:
    gc.disable()
    try:
        held = weakref.ref(_Circle())
        assert held() is not None
        give_back()
        assert held() is None
    finally:
        gc.enable()


def test_once_a_minute_and_only_after_work() -> None:
    given: list[float] = []
    now = [0.0]
    memory = MemoryKeeping(lambda: given.append(now[0]), lambda: now[0])
    for second in range(400):
        now[0] = float(second)
        if second in (5, 7, 70, 200):
            memory.worked()
        memory.look()
    assert given == [60, 120, 200]
