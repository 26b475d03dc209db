"""Work whose end cannot be forced, done so that Ctrl-C and SIGTERM end the wait for it at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_AHEAD = 2
"""Items made before they are asked for."""
_LOOK_SECONDS = 0.2
_begun = threading.Event()


def interruptible(items: Iterable[Item]) -> Iterator[Item]:
    """The items, made in a thread of their own; what making them raises is raised here.

    Signals reach Python between two of its instructions, and an engine may compute for minutes within one. When the
    wait ends early, what was begun goes on until the next item, or until the process ends: `main` does not wait for it.
    """
    made: queue.Queue[tuple[Item | None, BaseException | None, bool]] = queue.Queue(_AHEAD)
    given_up = threading.Event()

    def make() -> None:
        try:
            for item in items:
                made.put((item, None, False))
                if given_up.is_set():
                    return
            made.put((None, None, True))
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            made.put((None, error, True))

    _begun.set()
    threading.Thread(target=make, name="interruptible", daemon=True).start()
    try:
        while True:
            try:
                item, error, is_end = made.get(timeout=_LOOK_SECONDS)
            except queue.Empty:  # a signal that came just before the wait began does not end it
                continue
            if error is not None:
                raise error
            if is_end:
                return
            yield item  # type: ignore[misc]
    finally:
        given_up.set()
        while not made.empty():  # who waits to put one must come to see it
            made.get_nowait()


def has_begun() -> bool:
    """Whether there may be threads that nobody waits for: theirs here, or those of an engine."""
    return _begun.is_set()
