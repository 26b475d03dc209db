"""Reading the marks of a bucket whole, and taking away the node of a set that nobody uses any more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from oplog.errors import Conflict, FrostlineError, NotFound
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import ANY_VERSION, CheckNode, DeleteNode
from zerocopy.marks.nodes import Holder, StoreNodes, decode_keys, parse_holder

_RELEASED_AT_ONCE = 100


class MarkedSet(msgspec.Struct, frozen=True):
    """A blob set as Keeper knows it."""

    name: str
    keys: tuple[str, ...]
    marks: int
    """How many replicas' directories use it."""


class CollectionGate(msgspec.Struct, frozen=True):
    """The node that tells whether anything may be collected now, at the version at which it said so."""

    path: str
    version: int = ANY_VERSION


def sets(keeper: Keeper, nodes: StoreNodes) -> Iterator[MarkedSet]:
    """Every set with the number of its marks, as of a moment after the call. Raises `FrostlineError` where one cannot
    be read: then nothing is known of any."""
    keeper.sync(nodes.path)
    try:
        names = keeper.children(nodes.path)
    except NotFound:
        return
    paths = [nodes.blob_set(name) for name in names]
    for name, path, node in zip(names, paths, keeper.find_all(paths), strict=True):
        if node is not None:
            yield MarkedSet(name, decode_keys(node.data, path=path), node.children)


def holders(keeper: Keeper, nodes: StoreNodes, names: Sequence[str]) -> Iterator[tuple[str, list[Holder]]]:
    """Who holds each of the sets. Sets that have no node any more are left out. Raises `Damaged` for what is no
    mark."""
    for name, marks in zip(names, keeper.children_of_all([nodes.blob_set(one) for one in names]), strict=True):
        if marks is not None:
            yield name, [parse_holder(mark) for mark in marks]


def release(keeper: Keeper, nodes: StoreNodes, names: Collection[str], gate: CollectionGate) -> set[str]:
    """Take the nodes of sets away that nobody has marked; returns which are gone now. From then on nobody can mark
    such a set any more, so its objects may go. Raises `FrostlineError` when the gate is another one: nothing may go.

    The server itself refuses to take a node away that has marks, so nobody is asked before.
    """
    released: set[str] = set()
    ordered = sorted(names)
    if not ordered:
        keeper.multi([CheckNode(gate.path, gate.version)])
    for begin in range(0, len(ordered), _RELEASED_AT_ONCE):
        portion = ordered[begin : begin + _RELEASED_AT_ONCE]
        if _release(keeper, nodes, portion, gate):
            released |= {*portion}
        else:
            released |= {name for name in portion if _release(keeper, nodes, [name], gate)}
    return released


def _release(keeper: Keeper, nodes: StoreNodes, names: Sequence[str], gate: CollectionGate) -> bool:
    """All of them, or none: one has marks, or has no node any more."""
    try:
        keeper.multi([CheckNode(gate.path, gate.version), *(DeleteNode(nodes.blob_set(name)) for name in names)])
    except (Conflict, NotFound):
        pass
    except FrostlineError:  # the answer was lost; what is gone is seen below
        keeper.sync(nodes.path)
    else:
        return True
    keeper.multi([CheckNode(gate.path, gate.version)])
    return len(names) == 1 and keeper.find(nodes.blob_set(names[0])) is None
