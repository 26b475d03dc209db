"""What a table has, by what its replicas say that they have. Pure.

All names come from one history of numbers, so of two parts whose blocks meet one covers the other. Where that is not
so, or two replicas have other bytes of a part, the one that has the most parts is believed; of the others nothing is
deleted, it goes to `detached/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import msgspec

from tiering.table.part import PartName

Said: TypeAlias = Mapping[str, Mapping[PartName, str]]
"""Of each replica its parts, with their digests."""


class Agreement(msgspec.Struct, frozen=True):
    """What follows from what the replicas say."""

    digests: Mapping[PartName, str]
    """Of every part that counts, also of those that others cover."""
    refused: Mapping[str, frozenset[PartName]]
    """Of each replica that has some, the parts that do not count."""
    lacking: Mapping[PartName, str] = msgspec.field(default_factory=dict)
    """The parts that some replica has to fetch, each with one that has it."""


def agree(said: Said) -> Agreement:
    """What counts, what does not, and what is to be fetched."""
    order = sorted(said, key=lambda replica: (-len(said[replica]), replica))
    digests: dict[PartName, str] = {}
    rank: dict[PartName, int] = {}
    for place, replica in enumerate(order):
        for name, digest in said[replica].items():
            digests.setdefault(name, digest)
            rank.setdefault(name, place)
    outer = _without_crossing(digests, rank)
    refused = {
        replica: frozenset(name for name, digest in parts.items() if digests.get(name) != digest)
        for replica, parts in said.items()
    }
    lacking: dict[PartName, str] = {}
    for name in outer:
        having = [replica for replica in order if said[replica].get(name) == digests[name]]
        if len(having) < len(order):
            lacking[name] = having[0]
    return Agreement(digests, {replica: names for replica, names in refused.items() if names}, lacking)


def without_place(
    names: Collection[PartName], places: Collection[PartName], half_done: Collection[PartName]
) -> list[PartName]:
    """Those of the parts that are neither among the others nor covered by one of them, nor what is half done."""
    alone = [name for name in names if name not in places and name not in half_done]
    return [name for name in alone if not any(one.covers(name) for one in (*places, *half_done))]


def _without_crossing(digests: dict[PartName, str], rank: Mapping[PartName, int]) -> list[PartName]:
    """Take the parts out whose blocks are in another one that does not cover them; returns those that none covers."""
    outer: list[PartName] = []
    open_ones: list[PartName] = []
    ordered = sorted(digests, key=lambda name: (name.partition, name.min_block, -name.max_block, -name.level))
    for name in ordered:
        while open_ones and (open_ones[-1].partition, open_ones[-1].max_block) < (name.partition, name.min_block):
            open_ones.pop()
        while open_ones and not open_ones[-1].covers(name):
            if rank[open_ones[-1]] <= rank[name]:
                del digests[name]
                break
            del digests[open_ones.pop()]
        if name in digests:
            open_ones.append(name)
    last: PartName | None = None
    for name in ordered:
        if name in digests and (last is None or not last.covers(name)):
            outer.append(name)
            last = name
    return outer
