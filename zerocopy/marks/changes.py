"""What a mark's coming and going is as changes in Keeper. Pure.

    new sets     each set's node and its first mark: before the first byte of it goes up
    more marks   the marks alone, never a set's node: a set that is gone is being collected, or was
    no marks        the marks alone; gc, which may collect, removes the set's node

What belongs to one directory is never torn apart: its marks are there, all, or none is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from disks.file_table.blob_sets import BlobReference, NewSet
from zerocopy.keeper.operations import CheckNode, CreateNode, DeleteNode, Operation, Set, portions
from zerocopy.marks.nodes import StoreNodes, encode_keys


def creating(nodes: StoreNodes, log: str, sets: Iterable[NewSet], token: bytes) -> list[list[Operation]]:
    """Requests that make the sets and their first marks."""

    def of_one(new: NewSet) -> list[Operation]:
        made = CreateNode(nodes.blob_set(new.blob_set), encode_keys(new.keys))
        return [made, CreateNode(nodes.mark(new.reference, log), token)]

    return _requests([(new.directory, of_one(new)) for new in sets])


def adding(
    nodes: StoreNodes, log: str, references: Collection[BlobReference], token: bytes, there: Mapping[str, int]
) -> list[list[Operation]]:
    """Requests that make the marks. Marks that are `there`, by path with their versions, are rewritten: an earlier
    attempt left them, and the process that cleans up after that attempt must see that they changed."""

    def of_one(reference: BlobReference) -> list[Operation]:
        path = nodes.mark(reference, log)
        return [Set(path, token, there[path]) if path in there else CreateNode(path, token)]

    return _requests([(reference.directory, of_one(reference)) for reference in set(references)])


def checking(nodes: StoreNodes, log: str, references: Collection[BlobReference]) -> list[list[Operation]]:
    """Requests that fail where a mark is missing."""
    groups = [(one.directory, [CheckNode(nodes.mark(one, log))]) for one in set(references)]
    return _requests(groups)


def removing(nodes: StoreNodes, log: str, seen: Mapping[BlobReference, int]) -> list[list[Operation]]:
    """Requests that take the marks away, at the versions that were seen."""
    groups = [(one.directory, [DeleteNode(nodes.mark(one, log), version)]) for one, version in seen.items()]
    return _requests(groups)


def _requests(groups: Sequence[tuple[str, Sequence[Operation]]]) -> list[list[Operation]]:
    ordered = sorted(groups, key=lambda group: (group[0], group[1][0].path))
    by_directory = groupby(ordered, key=lambda group: group[0])
    return list(portions([[one for _, some in group for one in some] for _, group in by_directory]))
