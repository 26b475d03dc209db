"""Requests that others send are counted with our own: they are on the same bill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from disks.stores.wrappers.metered import MeteredStore
from disks.workers.runner import OpensStore, Run

T = TypeVar("T")
R = TypeVar("R")


class RequestCount:
    """A hook of a runner that sums up the requests that its pieces send to these buckets, by verb. What a piece sent
    that was lost is not known."""

    def __init__(self, *stores: OpensStore) -> None:
        self._stores = stores
        self.requests: Counter[str] = Counter()

    @contextmanager
    def __call__(self, run: Run) -> Iterator[Run]:
        def done(index: int, answer: tuple[Any, dict[str, int]]) -> None:
            result, requests = answer
            self.requests.update(requests)
            run.on_done(index, result)

        yield run._replace(function=CountedPiece(run.function, self._stores), on_done=done)


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
