"""Where the logs of a prefix, its marks and its bucket differ, and what mends it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import msgspec

from disks.file_table.blob_sets import BlobReference, NewSet
from zerocopy.marks.census import MarkedSet
from zerocopy.marks.nodes import Holder

MARK_MISSING, KEYS_DIFFER, OBJECT_MISSING = "mark_missing", "keys_differ", "object_missing"
LEFT_OVER, OF_THE_DEAD = "mark_left_over", "mark_of_the_dead"
_HARMLESS = frozenset({LEFT_OVER, OF_THE_DEAD})
"""These keep objects that nobody needs, and lose none."""
_MENDED = frozenset({MARK_MISSING, KEYS_DIFFER})

Named = Mapping[BlobReference, frozenset[str]]
"""What a log's newest table names: the keys, by set and directory."""


class MarkDifference(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    kind: str
    log: str
    reference: BlobReference
    what: str
    """A sentence."""

    @property
    def is_harmless(self) -> bool:
        return self.kind in _HARMLESS

    @property
    def is_mended(self) -> bool:
        """Whether a repair puts back what is missing."""
        return self.kind in _MENDED


class Marked(msgspec.Struct, frozen=True):
    """The marks of a prefix."""

    sets: Mapping[str, MarkedSet]
    holders: Mapping[str, tuple[Holder, ...]]
    """Set -> who holds it."""
    settled: frozenset[tuple[str, BlobReference]]
    """Those, by log, that are too old to be of something that goes on."""


def differences(logs: Mapping[str, Named], marked: Marked, sizes: Mapping[str, int]) -> list[MarkDifference]:
    """Everything that differs. `logs` are all of the prefix; `sizes` the objects that the bucket lists."""
    result = [*_unmarked(logs, marked), *_unlisted(logs, marked), *_gone(logs, sizes), *_left(logs, marked)]
    return sorted(
        result, key=lambda difference: (difference.is_harmless, difference.kind, difference.log, difference.reference)
    )


def _unmarked(logs: Mapping[str, Named], marked: Marked) -> Iterator[MarkDifference]:
    for log, named in logs.items():
        for reference in named:
            if Holder(log, reference.directory) not in marked.holders.get(reference.blob_set, ()):
                yield MarkDifference(
                    MARK_MISSING, log, reference, f"{log} has {reference.directory}, and no mark says so"
                )


def _unlisted(logs: Mapping[str, Named], marked: Marked) -> Iterator[MarkDifference]:
    for log, named in logs.items():
        for reference, keys in named.items():
            known = marked.sets.get(reference.blob_set)
            if known is not None and (missing := keys.difference(known.keys)):
                sentence = f"{log} has {reference.directory}, and object {min(missing)} of it is not listed by its set"
                yield MarkDifference(KEYS_DIFFER, log, reference, sentence)


def _gone(logs: Mapping[str, Named], sizes: Mapping[str, int]) -> Iterator[MarkDifference]:
    for log, named in logs.items():
        for reference, keys in named.items():
            for key in sorted(keys):
                if key not in sizes:
                    sentence = f"{log} has {reference.directory}, and object {key} is not in the bucket"
                    yield MarkDifference(OBJECT_MISSING, log, reference, sentence)


def _left(logs: Mapping[str, Named], marked: Marked) -> Iterator[MarkDifference]:
    for name, holders in marked.holders.items():
        for holder in holders:
            reference = BlobReference(name, holder.directory)
            if holder.log not in logs:
                sentence = f"{holder.log} has no log here, and a mark of it holds {holder.directory}"
                yield MarkDifference(OF_THE_DEAD, holder.log, reference, sentence)
            elif reference not in logs[holder.log] and (holder.log, reference) in marked.settled:
                sentence = f"{holder.log} no longer has {holder.directory}, and a mark of it is left"
                yield MarkDifference(LEFT_OVER, holder.log, reference, sentence)


class Repair(msgspec.Struct, frozen=True):
    """What puts back what is missing, and takes away what this machine's own log has no use for."""

    sets: Mapping[str, frozenset[str]]
    """Sets whose node is missing, or does not list all of its keys -> all keys that are known of it."""
    marks: Mapping[str, tuple[BlobReference, ...]]
    """Log -> the marks that it lacks."""
    left_over: tuple[BlobReference, ...]
    """Of the own log: what is not mended by anybody else."""
    retired: Mapping[str, tuple[BlobReference, ...]]
    """The same of logs that count no more."""


def repair(
    logs: Mapping[str, Named],
    marked: Marked,
    differences: list[MarkDifference],
    own: str,
    *,
    retired: Collection[str] = (),
) -> Repair:
    """What mends the differences. Nothing that deletes an object, and no mark of another log goes that was not
    retired."""
    listed = {name: frozenset(log_marks.keys) for name, log_marks in marked.sets.items()}
    keys: dict[str, set[str]] = defaultdict(set)
    for named in (*logs.values(), {BlobReference(name, ""): some for name, some in listed.items()}):
        for reference, some in named.items():
            keys[reference.blob_set] |= some
    wanting = {difference.reference.blob_set for difference in differences if difference.is_mended}
    sets = {name: all_keys for name in wanting if listed.get(name) != (all_keys := frozenset(keys[name]))}
    marks: dict[str, list[BlobReference]] = defaultdict(list)
    for difference in differences:
        if difference.kind == MARK_MISSING:
            marks[difference.log].append(difference.reference)
    left = tuple(
        difference.reference for difference in differences if difference.kind == LEFT_OVER and difference.log == own
    )
    dead: dict[str, list[BlobReference]] = defaultdict(list)
    for difference in differences:
        if difference.kind == OF_THE_DEAD and difference.log in retired:
            dead[difference.log].append(difference.reference)
    return Repair(sets, _frozen(marks), left, _frozen(dead))


def _frozen(references: Mapping[str, list[BlobReference]]) -> dict[str, tuple[BlobReference, ...]]:
    return {log: tuple(some) for log, some in references.items()}


def as_new(name: str, keys: frozenset[str], reference: BlobReference) -> NewSet:
    """A set that is made again for the first of those that use it."""
    return NewSet(name, tuple(sorted(keys)), reference.directory)
