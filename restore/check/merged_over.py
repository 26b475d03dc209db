"""Merges over a part that a move had taken to a disk of one machine: its rows may lie there, and no other machine sees
that disk (I19). What the log of a bucket tells of it, to everybody, as far back as it is kept."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from oplog.entry import Commit, Create, Remove, Rename
from oplog.errors import Damaged
from oplog.kinds import Merged, Moved
from restore.check.findings import FileTree, Findings, Problem
from tiering.catalog.lineage import is_lossless
from tiering.table import part as part_format
from tiering.table import schema, tombstones
from tiering.table.part import PART_FILE, PartName
from tiering.table.paths import directory_of, name_at, part_name

_Group = tuple[str, str]
"""Table and partition."""


class MergedOver(msgspec.Struct):
    """Takes the entries as they come. `tell` says what is so after the last of them."""

    _away: dict[_Group, dict[PartName, Commit]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """Parts that the move took to another disk, and that are not back."""
    _over: dict[_Group, dict[PartName, tuple[Commit, set[PartName]]]] = msgspec.field(
        default_factory=lambda: defaultdict(dict)
    )
    """Parts that the merge made, and which of those away it spans without having had them."""

    def note(self, commit: Commit) -> None:
        """The next entry."""
        for operation in commit.operations:
            match operation:
                case Remove(path=path):
                    self._goes(path, commit)
                case Rename(source=path):
                    self._goes(path, commit)
                case Create(path=path) if path.endswith(f"/{PART_FILE}"):
                    self._comes(operation, commit)

    def _goes(self, path: str, commit: Commit) -> None:
        if (found := name_at(path)) is None:
            for group in [group for group in (*self._away, *self._over) if directory_of(group[0], "") == f"{path}/"]:
                self._away.pop(group, None)
                self._over.pop(group, None)
            return
        uuid, name = found
        if path != directory_of(uuid, str(name)):
            return
        group = uuid, name.partition
        self._over.get(group, {}).pop(name, None)
        if isinstance(commit.kind, Moved):
            self._away[group][name] = commit

    def _comes(self, operation: Create, commit: Commit) -> None:
        if (found := name_at(operation.path)) is None:
            return
        uuid, name = found
        group = uuid, name.partition
        away, over = self._away.get(group), self._over.get(group, {})
        if away is None:
            return
        inputs = _merged_from(operation, commit)
        for found_again in (name, *inputs):
            away.pop(found_again, None)
            for _, lacking in over.values():
                lacking.discard(found_again)
        if not inputs:
            return
        lacking = {other for other in away if name.covers(other) and not self._had(group, inputs, other)}
        if lacking:
            self._over[group][name] = commit, lacking

    def _had(self, group: _Group, inputs: list[PartName], other: PartName) -> bool:
        over = self._over.get(group, {})
        return any(one.covers(other) and (one not in over or other not in over[one][1]) for one in inputs)

    def tell(self, tree: FileTree, findings: Findings) -> None:
        """Name each such part that is there."""
        for (uuid, partition), made in self._over.items():
            if not _keeps_every_number(tree, uuid):
                continue
            for name, (merge, lacking) in made.items():
                for other in sorted(lacking):
                    move = self._away[uuid, partition][other]
                    what = (
                        f"part {name} was merged{_by(merge)} over {other}, which revision {move.revision} had "
                        f"moved{_by(move)} to another disk: it is no input, and that machine may still have it"
                    )
                    findings.add(Problem("I19", what, tree.disk, table=uuid, part=str(name)))


def _merged_from(operation: Create, commit: Commit) -> list[PartName]:
    """The parts that went into the one that comes; none where nobody says so, as of an older version."""
    try:
        named = part_format.decode(operation.inline or b"", path=operation.path).sources
    except Damaged:  # the survey reports the part
        named = ()
    kind = commit.kind
    both = (*named, *(kind.inputs if isinstance(kind, Merged) else ()))
    return [name for text in both if (name := part_name(text)) is not None]


def _by(commit: Commit) -> str:
    return f" by {commit.actor}" if commit.actor else ""


def _keeps_every_number(tree: FileTree, uuid: str) -> bool:
    """Whether a part that is in no merge must be somewhere: Keeper numbers the blocks of replicas, with gaps, and of
    other tables a merge on an SSD may leave no row."""
    row = tree.find(tombstones.definition_path(uuid))
    if row is None or row.inline is None:
        return False
    try:
        definition = schema.decode(row.inline, path=row.path)
    except Damaged:  # the survey reports the table
        return False
    return is_lossless(definition) and not definition.is_replicated
