"""Work for others, cut into pieces of about the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def cut(items: Iterable[T], work: Callable[[T], int], *, most: int, most_items: int) -> Iterator[list[T]]:
    """The items in order, together until their work is more than `most`, or they are `most_items`. One item that is
    more work than that comes alone."""
    piece: list[T] = []
    left = most
    for item in items:
        size = work(item)
        if piece and (size > left or len(piece) == most_items):
            yield piece
            piece, left = [], most
        piece.append(item)
        left -= size
    if piece:
        yield piece
