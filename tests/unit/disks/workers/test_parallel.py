"""Pieces of a stream, worked on ahead of who reads it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from disks.workers.parallel import worked_ahead


def test_results_come_in_the_order_of_the_items() -> None:
    later = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert later.wait(60), "the second item is worked on beside the first"
        else:
            later.set()
        return item * item

    assert list(worked_ahead(work, range(20))) == [item * item for item in range(20)]


def test_few_items_are_ahead_of_the_reader() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            asked.append(item)
            yield item

    results = worked_ahead(str, items(), threads=2)
    assert next(results) == "0"
    assert asked == [0, 1, 2]
    results.close()
    assert asked == [0, 1, 2]


def test_an_error_of_the_items_comes_after_what_was_before_it() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise EOFError("cut off")

    results = worked_ahead(str, items())
    assert [next(results), next(results)] == ["1", "2"]
    with pytest.raises(EOFError, match="cut off"):
        next(results)


def test_an_error_of_the_work_comes_in_its_turn_and_ends_it() -> None:
    results = worked_ahead(lambda item: 12 // item, [3, 0, 4])
    assert next(results) == 4
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == []


def test_nothing_comes_of_nothing() -> None:
    assert list(worked_ahead(str, [])) == []
