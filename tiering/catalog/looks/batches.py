"""A look at a directory of very many parts, some thousands at a time: all that it finds is kept, and none of it held.

A first look at a million parts as a whole takes gigabytes, for the sums that most commands ask for. What one that was
killed has kept already the next one does not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from disks.base import Disk, Mark
from disks.workers.progress import Progress
from tiering.catalog.looks.look import Look, Looked
from tiering.config.settings import PolicyConfig
from tiering.journal.kept_looks import FoundFiles, KeptLook, PartSums
from tiering.journal.kept_parts import KeptParts, KeptRow, NewLook
from tiering.policy import part_sums
from tiering.table.part import PART_FILE

MANY = 16384
"""Fewer parts are looked at as a whole: it is faster, and they fit into memory."""
AT_ONCE = 4096


def look_by_batches(
    asked: Looked,
    disk: Disk,
    kept: KeptParts,
    state: Mark,
    *,
    policy: PolicyConfig | None,
    take_rows: Callable[[Looked, Iterable[KeptRow]], None],
    progress: Progress,
) -> Looked | None:
    """What `asked` asks of a disk in this state, with `steady` held: a look that is kept, and whose parts are unread.
    None for fewer than many parts, and where some of what was found cannot be kept; the rest of it is then.
    `take_rows` gives a look the parts of rows."""
    place, directory = asked.location, asked.definition.directory
    names = sorted(f"{name}/" for name in disk.directories(directory))  # in the order of paths
    if len(names) < MANY:
        return None
    sums, found, can_be_kept = PartSums(), FoundFiles(), True
    with progress.task(
        f"reading what the parts of {asked.definition.full_name} on {disk.name} say", items=len(names)
    ) as task:
        for batch, low, high in _ranges(directory, names):
            last = replace(asked, parts={}, marks={})
            take_rows(last, kept.between(place, low, high))
            look = Look(asked, last, state)
            for file in disk.look_over(directory, PART_FILE, last.marks, batch):
                look.take(file)
            can_be_kept = can_be_kept and look.can_be_kept()
            if look.new or look.gone():
                kept.note(place, look.new_rows, look.gone())
            for path, mark in look.result.marks.items():
                found.add(path, msgspec.msgpack.encode(mark))
            sums = part_sums.added(sums, look.result.parts.values(), policy)
            task.advance(items=len(batch))
    if not can_be_kept:
        return None
    whole = NewLook(state, asked.rules, sums, found.digest)
    _, number = kept.note(place, [], [], whole)
    if number is None:
        return None
    return replace(asked, state=state, kept=KeptLook(number, state, asked.rules, sums), is_unread=True)


def _ranges(directory: str, names: list[str]) -> Iterator[tuple[list[str], str, str]]:
    """Some names at a time, and the range of paths up to the next ones: together all below the directory."""
    low = f"{directory}/"
    for start in range(0, len(names), AT_ONCE):
        following = names[start + AT_ONCE : start + AT_ONCE + 1]
        high = f"{directory}/{following[0]}" if following else f"{directory}/\U0010ffff"
        yield [name[:-1] for name in names[start : start + AT_ONCE]], low, high
        low = high
