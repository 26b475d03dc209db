"""What a transaction of an object disk rests on: looked at again before each attempt to commit, however late that is.

A collection commits a fence before it deletes (docs/design.md, L5 and L6). So an entry that follows the one at which
the objects were looked at, with no fence between, cannot name one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from disks.host.moment import Moment
from disks.object_disk.pending_deletes import announced
from disks.object_disk.sharing.marks import Marking
from disks.stores.base import ObjectStore
from oplog.entry import Commit, Create, Link, Operation, Rename
from oplog.errors import Conflict, NotFound, Refused

VERIFY_AFTER_SECONDS = 3600
"""From this age on a transaction asks the bucket for its blobs before it names them: gc's shortest guard interval."""

MAX_AGE_SECONDS = 12 * 3600
"""An older transaction does not commit: half of gc's usual guard interval, so that no collection can be close."""

_ASK_AGAIN_SECONDS = 60.0
"""A collection of an older version commits no fence: old blobs are asked for again after so long."""
_HEAD_THREADS = 16
_LISTINGS = 5


class CommitChecks(msgspec.Struct):
    """The blobs that a commit names, and the state of the disk that it was made from."""

    store: ObjectStore
    word: str
    """What the commit does, for messages."""
    blobs: Sequence[Create]
    first_upload: Moment | None
    looked_at: int
    """No fence up to this revision can be about the blobs."""
    made_from: int | None = None
    within: Sequence[str] | None = None
    looked: Moment | None = None
    """When they were asked for last."""
    marking: Marking | None = None
    """Where other logs share the blobs: what tells them that this one uses some."""

    def check(self, head: int, fence: int, between: Callable[[int], Iterable[Commit]], *, proved: int) -> None:
        """Raise `Refused` when a blob is gone or about to go, `Conflict` when the disk is not what the commit was made
        from. `fence`: the newest one up to `head`; `between`: the commits after a revision, up to `head`. Those up to
        `proved` are the log's; later ones may turn out to be none, and are looked at again then."""
        if self.made_from is not None and head != self.made_from:
            self._check_untouched(head, between, proved)
        if not self.blobs:
            return
        age = self.first_upload.age_seconds if self.first_upload is not None else 0.0
        if age > MAX_AGE_SECONDS:
            raise Refused(
                f"the uploads for this {self.word} began {age / 3600:.0f} h ago: gc may have removed them",
                hint="nothing was changed; run the command again, in smaller steps if it takes that long",
            )
        recently = self.looked is not None and self.looked.age_seconds < _ASK_AGAIN_SECONDS
        if fence > self.looked_at or (age > VERIFY_AFTER_SECONDS and not recently):
            self._look()
            self.looked_at, self.looked = head, Moment()

    def _look(self) -> None:
        """What is announced comes first: it is withdrawn only when its objects are gone."""
        going = self._announced()
        for blob in self.blobs:
            if blob.key in going:
                raise Refused(
                    f"a collection is deleting object {blob.key} of {blob.path}: nothing had named it for too long",
                    hint="nothing was changed; run the command again",
                )
        with ThreadPoolExecutor(_HEAD_THREADS, thread_name_prefix="head") as pool:
            list(pool.map(self.check_blob, self.blobs))

    def _announced(self) -> set[str]:
        for _ in range(_LISTINGS - 1):
            try:
                return announced(self, now=None)
            except NotFound:
                continue  # withdrawn since it was listed
        return announced(self, now=None)

    def check_blob(self, blob: Create) -> None:
        """Raise `Refused` when the object is not there with its size."""
        assert blob.key is not None
        try:
            size = self.store.head(blob.key).size_bytes
        except NotFound:
            size = -1
        if size != blob.size_bytes:
            what = "is gone" if size < 0 else f"has {size} bytes instead of {blob.size_bytes}"
            raise Refused(
                f"object {blob.key} of {blob.path} {what}: uploaded too long before its commit?",
                hint="nothing was changed; run the command again",
            )

    def _check_untouched(self, head: int, between: Callable[[int], Iterable[Commit]], proved: int) -> None:
        """Where there is no `within`, any entry that changes a file counts."""
        assert self.made_from is not None
        if head > self.made_from:
            try:
                commits = list(between(self.made_from))
            except NotFound:
                commits = []  # collected: so much has happened that nobody can tell
            done = {commit.revision for commit in commits} == set(range(self.made_from + 1, head + 1))
            if done and not any(self._touches(commit.operations) for commit in commits):
                self.made_from = max(self.made_from, proved)
                return
        raise Conflict(
            f"the disk is at revision {head} and was at {self.made_from} when this {self.word} was worked out",
            hint="run the command again",
        )

    def _touches(self, operations: Iterable[Operation]) -> bool:
        paths = [path for operation in operations for path in _paths(operation)]
        if self.within is None:
            return bool(paths)
        return any(_overlap(path, place.rstrip("/")) for path in paths for place in self.within)


def _paths(operation: Operation) -> tuple[str, ...]:
    match operation:
        case Link(source=source, target=target) | Rename(source=source, target=target):
            return source, target
    return (operation.path,)


def _overlap(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")
