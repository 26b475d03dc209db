"""Random operations on a disk."""

from __future__ import annotations

import contextlib

from hypothesis import strategies as st

from disks.base import Disk, Transaction
from disks.memory import MemoryDisk
from oplog.errors import Conflict
from oplog.kinds import OtherKind
from oplog.paths import ancestors

NAMES = ["a", "b", "a-", "é"]
DIRECTORIES = [*NAMES, *(f"{one}/{two}" for one in NAMES for two in NAMES[:3])]
FILES = [f"{directory}/{name}" for directory in DIRECTORIES for name in ("f.json", "f")]
BYTES = {"f.json": [b"", b"1", b"2" * 50], "f": [b"", b"3" * 9_000]}
Operations = list[tuple[str, str, object]]


def draw_operations(data: st.DataObject, files: dict[str, bytes]) -> Operations:
    """Operations that mostly fit the tree, each seeing what the ones before left."""
    tree = MemoryDisk()
    tree.files = dict(files)
    operations: Operations = []
    for _ in range(data.draw(st.integers(1, 5), label="operations")):
        operation = _draw_operation(data, tree)
        operations.append(operation)
        with contextlib.suppress(Conflict), tree.transaction(OtherKind("draw")) as transaction:
            fill(transaction, [operation])
            transaction.commit()
    return operations


def _draw_operation(data: st.DataObject, tree: MemoryDisk) -> tuple[str, str, object]:
    here = sorted(tree.files)
    directories = sorted({ancestor for path in here for ancestor in ancestors(path)})
    verbs = ["create", "remove", "rename", "link", "rename back"] if here else ["create"]
    fits = data.draw(st.integers(0, 19)) > 0
    match data.draw(st.sampled_from(verbs), label="verb"):
        case "create":
            path = data.draw(st.sampled_from([f for f in FILES if not fits or not tree.exists(f)] or FILES))
            return "create", path, data.draw(st.sampled_from(BYTES[path.rpartition("/")[2]]))
        case "remove":
            return "remove", data.draw(st.sampled_from(here + directories)), None
        case "link":
            free = [path for path in FILES if not fits or not tree.exists(path)] or FILES
            return "link", data.draw(st.sampled_from(here)), data.draw(st.sampled_from(free))
        case _:
            source = data.draw(st.sampled_from(here + directories))
            space = FILES if source in here else DIRECTORIES
            free = [path for path in space if not fits or not (tree.exists(path) or path.startswith(source))] or space
            return "rename", source, data.draw(st.sampled_from(free))


def fill(transaction: Transaction, operations: Operations) -> None:
    for verb, first, second in operations:
        if isinstance(second, bytes):
            transaction.create(first, second)
        elif isinstance(second, str):
            getattr(transaction, verb)(first, second)
        else:
            transaction.remove(first)


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}
