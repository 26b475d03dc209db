"""Requests that others send are counted with our own: they are on the same bill."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from disks.stores.wrappers.metered import MeteredStore
from disks.workers.runner import OpensStore, Runner

T = TypeVar("T")
R = TypeVar("R")


class CountingRunner:
    """Runs pieces as another runner does, and sums up the requests that they send to these buckets, by verb."""

    def __init__(self, runner: Runner, *stores: OpensStore) -> None:
        self._runner, self._stores = runner, stores
        self.requests: Counter[str] = Counter()

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        title: str,
        on_done: Callable[[int, R], None],
        stop: threading.Event | None = None,
    ) -> None:
        """As `Runner.run`. What a piece sent that was lost is not known."""

        def done(index: int, answer: tuple[R, dict[str, int]]) -> None:
            result, requests = answer
            self.requests.update(requests)
            on_done(index, result)

        self._runner.run(CountedPiece(function, self._stores), items, title=title, on_done=done, stop=stop)


class CountedPiece(msgspec.Struct, Generic[T, R], frozen=True):
    """A piece of work that also says which requests it sent. One at a time in a process, as Spark's tasks are."""

    function: Callable[[T], R]
    stores: tuple[OpensStore, ...]

    def __call__(self, argument: T) -> tuple[R, dict[str, int]]:
        before = self._sent()
        result = self.function(argument)
        return result, {verb: count - before[verb] for verb, count in self._sent().items()}

    def _sent(self) -> Counter[str]:
        sent: Counter[str] = Counter()
        for store in {id(store): store for store in (one.open() for one in self.stores)}.values():
            sent.update(store.counts() if isinstance(store, MeteredStore) else {})
        return sent


def add_requests(to: dict[str, int], more: Mapping[str, int]) -> None:
    """Sum up, verb by verb."""
    for verb, count in more.items():
        to[verb] = to.get(verb, 0) + count
