"""What a restore found and did, as the command line shows it."""

from __future__ import annotations

import msgspec

from oplog.clickhouse.replay import LogProblem
from restore.rebuild.duplicates import Elsewhere
from restore.rebuild.naming import in_words
from restore.rebuild.part_admission import Arrivals, StaysAway
from restore.rebuild.plan import MissingObject, TableDifference


class CopyCounts(msgspec.Struct):
    """The objects that a restore from another bucket copies, or would copy."""

    source: str
    objects: int
    bytes: int
    inside_store: bool | None = None
    """Whether the store copied them itself, or their bytes went through this machine; None before anything did."""
    done: int = 0
    """Objects copied by this run; those that an interrupted run had copied are not among them."""

    def document(self) -> dict[str, object]:
        """The part of the JSON that only a restore from another bucket has."""
        return {
            "source": self.source,
            "copy": {
                "objects": self.objects,
                "bytes": self.bytes,
                "copied": self.done,
                "server_side": self.inside_store,
            },
        }


class RebuildResult(msgspec.Struct):
    """What a restore found, and what it changed or would change. Counts are of files within the scope."""

    disk: str
    revision: int
    """The revision the disk is compared with, or taken back to."""
    head: int
    """The newest revision in the bucket when it was listed."""
    files: int
    bytes: int
    difference: TableDifference
    missing_objects: list[MissingObject]
    digest: str
    """`table_digest` of the table at `revision` within the scope."""
    applied: bool = False
    commit: int | None = None
    """The revision of the restore's own commit; None when nothing had to change, or for the cache."""
    objects: int = 0
    requests: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    moved_in: list[str] = msgspec.field(default_factory=list)
    """Directories of parts that go although they lay on another disk at the time: now they lie on none."""
    left_out: list[StaysAway] = msgspec.field(default_factory=list)
    """Parts that do not come, for their rows are there."""
    in_the_way: list[StaysAway] = msgspec.field(default_factory=list)
    """Parts for which it is refused."""
    notes: list[str] = msgspec.field(default_factory=list)
    objection: str = ""
    """Of a preview: why it would be refused."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Of tables that `missing_objects` are about, by uuid."""
    copy: CopyCounts | None = None
    """For a restore from another bucket: what has to come over."""
    problems: list[LogProblem] = msgspec.field(default_factory=list)
    """What a ClickHouse bucket is known to have lost of the files within the scope: the restored parts lack it."""

    @property
    def created(self) -> int:
        return self.difference.created_files

    @property
    def removed(self) -> int:
        return self.difference.removed_files

    @property
    def unchanged(self) -> int:
        return self.difference.unchanged

    def lacks(self, lost: MissingObject) -> str:
        """The message for an object that is missing."""
        return f"{lost.key} ({in_words(lost.path, self.names)})"

    def take(self, arrivals: Arrivals, elsewhere: Elsewhere) -> None:
        """Take in which parts come, as things are now."""
        self.difference = arrivals.difference
        self.left_out, self.in_the_way = arrivals.stay_away, arrivals.forbid
        self.missing_objects = [lost for lost in self.missing_objects if not arrivals.keeps_out(lost.path)]
        if arrivals.parts:
            self.notes += [note for note in elsewhere.notes if note not in self.notes]

    def document(self) -> dict[str, object]:
        """The JSON of the command line."""
        return {
            "disk": self.disk,
            "revision": self.revision,
            "files": self.files,
            "bytes": self.bytes,
            "created": self.created,
            "removed": self.removed,
            "unchanged": self.unchanged,
            "missing_objects": [lost.document() for lost in self.missing_objects],
            "applied": self.applied,
            "commit": self.commit,
            "digest": self.digest,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "moved_in": self.moved_in,
            "left_out": [one.document() for one in self.left_out],
            "notes": self.notes,
            **({"objection": self.objection} if self.objection else {}),
            **(self.copy.document() if self.copy is not None else {}),
            **({"problems": [_problem_document(problem) for problem in self.problems]} if self.problems else {}),
        }


def _problem_document(problem: LogProblem) -> dict[str, str | None]:
    return {"kind": problem.kind, "what": problem.what, "path": problem.path, "object": problem.object}
