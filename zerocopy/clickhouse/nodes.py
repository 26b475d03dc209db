"""What ClickHouse servers keep in Keeper of the objects that they share.

<root>/zero_copy_s3/<table>/<part>/<unique id>/<replica>   the replica has the part, with these objects

The unique id is the key of the first object of the part's `checksums.txt`, in the whole bucket, with `_` for `/`. Of a
table of before 22.1 the root is its own node, and `shared` stands for the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from oplog.errors import NotFound
from zerocopy.keeper.client import Keeper

DEFAULT_ROOT = "/clickhouse/zero_copy"
"""`remote_fs_zero_copy_zookeeper_path` of a server that does not set it."""
MARKS = "/zero_copy_s3"
_BEING_MOVED = "part_exclusive_lock"


class ServerMark(NamedTuple):
    """One replica's word that it uses the objects of a part."""

    table: str
    part: str
    unique_id: str
    replica: str

    @property
    def node(self) -> str:
        return "/".join((MARKS, *self))


@dataclass(frozen=True, slots=True)
class ServerMarks:
    """All of them."""

    marks: tuple[ServerMark, ...]
    empty: tuple[str, ...] = ()
    """Nodes of objects that no replica holds any more."""
    moved_now: tuple[str, ...] = field(default=())
    """Parts that a server moves or merges at this moment."""


def unique_id(key_in_bucket: str) -> str:
    """What marks call the part whose `checksums.txt` begins with this object."""
    return key_in_bucket.replace("/", "_")


def read(keeper: Keeper, root: str) -> ServerMarks:
    """Every mark below the root, with which the connection was opened. Raises `NotFound` where there is none."""
    try:
        tables = keeper.children(MARKS)
    except NotFound:
        raise NotFound(
            f"no ClickHouse server has zero-copy marks in Keeper below {root}{MARKS}",
            hint="use --keeper-path with the servers' remote_fs_zero_copy_zookeeper_path",
        ) from None
    parts = _below(keeper, [(table,) for table in tables])
    found = _below(keeper, parts)
    ids = [words for words in found if words[-1] != _BEING_MOVED]
    marks = _below(keeper, ids)
    held = {words[:3] for words in marks}
    return ServerMarks(
        tuple(ServerMark(*words) for words in marks),
        tuple("/".join((MARKS, *words)) for words in ids if words not in held),
        tuple(sorted(words[1] for words in found if words[-1] == _BEING_MOVED)),
    )


def _below(keeper: Keeper, nodes: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    listed = keeper.children_of_all(["/".join((MARKS, *words)) for words in nodes])
    return [(*words, name) for words, names in zip(nodes, listed, strict=True) for name in names or ()]
