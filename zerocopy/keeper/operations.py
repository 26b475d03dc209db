"""What a multi is made of, and how large a request it becomes. Pure.

A server answers a request above 1 MB by breaking the connection, which looks like a network that is down, for ever. So
requests are counted, with path and ACL, before they are sent; 500 operations and 256 KiB are far from the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from oplog.errors import LimitReached

MOST_OPERATIONS = 500
MOST_BYTES = 256 * 1024
ANY_VERSION = -1
_HEADER_BYTES = 64
_ACL_BYTES = 128
"""Scheme, user, digest and permissions of one ACL, generously."""


class CreateNode(msgspec.Struct, frozen=True):
    """A new node. Fails with `AlreadyExists` when it is there, `NotFound` when its parent is not."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    """It goes with the session."""
    numbered: bool = False
    """The server adds ten digits to the name: each higher than all before it below this parent."""


class Set(msgspec.Struct, frozen=True):
    """Other data for a node. Fails with `NotFound`, or with `Conflict` when its version is another one."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteNode(msgspec.Struct, frozen=True):
    """A node goes. Fails with `NotFound`, or with `Conflict` when it has children or another version."""

    path: str
    version: int = ANY_VERSION


class CheckNode(msgspec.Struct, frozen=True):
    """Changes nothing. Fails with `NotFound`, or with `Conflict` when the node's version is another one."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = CreateNode | Set | DeleteNode | CheckNode


def size_bytes(operation: Operation) -> int:
    """What the operation adds to a request, at most."""
    size = _HEADER_BYTES + len(operation.path.encode())
    if isinstance(operation, CreateNode | Set):
        size += len(operation.data)
    return size + _ACL_BYTES if isinstance(operation, CreateNode) else size


def check_size(operations: Sequence[Operation]) -> None:
    """Raise `LimitReached` for more than one request takes."""
    total = sum(map(size_bytes, operations))
    if len(operations) > MOST_OPERATIONS or total > MOST_BYTES:
        raise LimitReached(
            f"{len(operations)} changes of {total} bytes in one request to Keeper, where {MOST_OPERATIONS} and "
            f"{MOST_BYTES} are the most",
            hint="do less at once: fewer partitions in one block, shorter names",
        )


def portions(groups: Iterable[Sequence[Operation]]) -> Iterator[list[Operation]]:
    """The groups in as few requests as their sizes allow; no group is torn apart."""
    portion: list[Operation] = []
    size = 0
    for group in groups:
        more = sum(map(size_bytes, group))
        if portion and (len(portion) + len(group) > MOST_OPERATIONS or size + more > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion += group
        size += more
    if portion:
        yield portion
