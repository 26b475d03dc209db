"""A signal ends what the main thread does, but for the moments in which that would leave a lock held for ever."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, TracebackType

import pytest

from tiering.cli.frame.signals import Handler, keeps_lock, raising


class _SignalledLock:
    """A lock during whose taking a signal arrives, as it does between two instructions of who takes it."""

    def __init__(self, arrive: Callable[[FrameType], None]) -> None:
        self._lock = threading.Lock()
        self._arrive = arrive

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._arrive(sys._getframe(1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)


def test_work_is_handed_over_before_the_signal_ends_it() -> None:
    delayed: list[Handler] = []
    handle = raising(KeyboardInterrupt, delayed.append)
    with ThreadPoolExecutor(1) as pool:
        pool._shutdown_lock = _SignalledLock(lambda frame: handle(signal.SIGINT, frame))  # type: ignore[assignment]
        first = pool.submit(lambda: 1)
        assert first.result() == 1
        assert delayed
        assert pool.submit(lambda: 2).result() == 2, "the lock was left held"
    with pytest.raises(KeyboardInterrupt):
        handle(signal.SIGINT, sys._getframe())


def test_starting_a_thread_counts_with_all_that_it_calls() -> None:
    seen: list[bool] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "wait":
            seen.append(keeps_lock(frame))

    sys.setprofile(look)
    try:
        threading.Thread(target=int).start()
    finally:
        sys.setprofile(None)
    assert seen
    assert all(seen)


def test_a_wait_is_ended_at_once() -> None:
    waiting: list[bool] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is threading.Condition.wait.__code__:
            waiting.append(keeps_lock(frame))

    sys.setprofile(look)
    try:
        threading.Event().wait(0)
    finally:
        sys.setprofile(None)
    assert waiting == [False]


def test_our_own_code_is_ended_at_once() -> None:
    assert not keeps_lock(sys._getframe())
    assert not keeps_lock(None)
    with pytest.raises(KeyboardInterrupt):
        raising(KeyboardInterrupt, lambda handle: pytest.fail("delayed"))(signal.SIGINT, sys._getframe())


def test_what_does_not_leave_is_ended_all_the_same() -> None:
    delayed: list[Handler] = []
    handle = raising(KeyboardInterrupt, delayed.append)
    seen: list[type[BaseException]] = []

    def arrive(frame: FrameType) -> None:
        try:
            for _ in range(1000):
                handle(signal.SIGINT, frame)
        except KeyboardInterrupt as error:
            seen.append(type(error))

    with ThreadPoolExecutor(1) as pool:
        pool._shutdown_lock = _SignalledLock(arrive)  # type: ignore[assignment]
        pool.submit(int)
    assert seen[:1] == [KeyboardInterrupt]
    assert len(delayed) < 1000


def test_a_delayed_signal_comes_again_by_itself() -> None:
    handle = raising(KeyboardInterrupt)
    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(1) as pool:
            once = [True]

            def arrive(frame: FrameType) -> None:
                if once:
                    once.clear()
                    handle(signal.SIGINT, frame)

            pool._shutdown_lock = _SignalledLock(arrive)  # type: ignore[assignment]
            pool.submit(int)
            while True:
                threading.Event().wait(0.01)
    finally:
        signal.signal(signal.SIGALRM, before)
