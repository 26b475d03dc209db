"""Numbers of one meaning. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["gauge", "counter"]


class Family(msgspec.Struct, frozen=True):
    """Numbers of one meaning. A sample is the values of `labels`, in order, and the number."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    samples: list[tuple[tuple[str, ...], float]] = msgspec.field(default_factory=list)

    def add(self, value: float, *labels: str) -> None:
        """One more sample."""
        self.samples.append((labels, value))
