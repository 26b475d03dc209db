"""What a replicated table must hold: whole blocks, each in a partition, that were inserted and dropped side by side.

Pure. Who inserts and who drops is told by when each began and ended; what was killed, or said that its outcome is not
known, has no end and counts or not. A look finds each block whole or not at all, and so it is from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class Span:
    """Something that was tried, from when to when."""

    began: float
    ended: float
    acknowledged: bool

    @classmethod
    def of(cls, began: float, ended: float, *, acknowledged: bool) -> Span:
        return cls(began, ended if acknowledged else inf, acknowledged)


@dataclass(slots=True)
class Block:
    """Rows that come together or not at all."""

    partition: int
    rows: Mapping[int, int]
    held: bool = False
    """Whether the last look found it."""
    inserts: list[Span] = field(default_factory=list)
    """Since that look."""


@dataclass(slots=True)
class Truth:
    """All blocks that were ever sent, by a number."""

    blocks: dict[int, Block] = field(default_factory=dict)
    drops: dict[int, list[Span]] = field(default_factory=dict)
    """Since the last look, by partition."""

    def insert(self, number: int, span: Span) -> None:
        self.blocks[number].inserts.append(span)

    def drop(self, partition: int, span: Span) -> None:
        self.drops.setdefault(partition, []).append(span)

    def look(self, found: Sequence[tuple[int, int]]) -> str | None:
        """Take what is there for the truth from now on; or say in one sentence why it cannot be."""
        twice = [key for key, number in Counter(key for key, _ in found).items() if number > 1]
        if twice:
            return f"{len(twice)} rows are there twice: {sorted(twice)[:10]}"
        seen = dict(found)
        known = {key for block in self.blocks.values() for key in block.rows}
        if foreign := sorted(seen.keys() - known):
            return f"{len(foreign)} rows are not known: {foreign[:10]}"
        wrong = [sentence for number in self.blocks if (sentence := self._wrong(number, seen)) is not None]
        if wrong:
            return f"{len(wrong)} blocks of {len(self.blocks)}: " + "; ".join(wrong[:5])
        for block in self.blocks.values():
            block.held, block.inserts = min(block.rows) in seen, []
        self.drops.clear()
        return None

    def _wrong(self, number: int, seen: Mapping[int, int]) -> str | None:
        block = self.blocks[number]
        there = {key: seen[key] for key in block.rows if key in seen}
        what = f"block {number} of partition {block.partition}"
        if there and there != dict(block.rows):
            return f"{what} is there in part, or with other values: {there}"
        if not there and self._must_be_there(block):
            return f"{what} was acknowledged and is gone"
        if there and not self._may_be_there(block):
            return f"{what} was dropped, or never inserted, and is there"
        return None

    def _must_be_there(self, block: Block) -> bool:
        drops = self.drops.get(block.partition, [])
        if block.held and not drops:
            return True
        inserts = [span for span in block.inserts if span.acknowledged]
        return any(all(drop.ended < span.began for drop in drops) for span in inserts)

    def _may_be_there(self, block: Block) -> bool:
        if not block.held and not block.inserts:
            return False
        drops = [span for span in self.drops.get(block.partition, []) if span.acknowledged]
        return all(any(span.ended >= drop.began for span in block.inserts) for drop in drops)
