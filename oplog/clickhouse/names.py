"""Format 1 of the operations log: the names that ClickHouse's S3 disk gives to its objects when `send_metadata` is on.

    .SCHEMA_VERSION                              "1"
    r<64 binary digits>-file-<3 a-z>/<29 a-z>    a file; user metadata `path`: its path when it was created
    r<64 binary digits>-file-<32 a-z>            the same, written before mid-2022
    operations/r<64 binary digits>-[<host>-]rename     user metadata `from_path`, `to_path`
    operations/r<64 binary digits>-[<host>-]hardlink   user metadata `src_path`, `dst_path`
    <3 a-z>/<29 a-z>, <32 a-z>                   a file from before `send_metadata`; `path` added later, or never

Files and operations share one counter. It restarts at 1 with every start of the server, so numbers repeat; `epochs`
puts the objects back in the order in which they were written. Nothing here does I/O; `oplog.clickhouse.replay` turns
records into a tree.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from itertools import pairwise
from typing import Final, Literal

import msgspec

SCHEMA_VERSION = "1"
FILE: Final = "file"
RENAME: Final = "rename"
HARDLINK: Final = "hardlink"
SHADOW_LINK: Final = "shadowlink"
"""A hard link into `shadow/`, which Frostline logs and ClickHouse does not: its replay passes over the word."""

PATH_NAME = "path"
PATH_NAMES: Mapping[str, tuple[str, str]] = {
    RENAME: ("from_path", "to_path"),
    HARDLINK: ("src_path", "dst_path"),
    SHADOW_LINK: ("src_path", "dst_path"),
}
"""The user metadata of an operation: its source and its target."""

# A revision that does not fit into 63 bits is none: no server counts so far, and SQLite cannot hold it.
_FILE_KEY = re.compile(r"r(0[01]{63})-file-([a-z]{3}/[a-z]{29}|[a-z]{32})\Z")
_OPERATION_KEY = re.compile(r"operations/r(0[01]{63})-(?:(.+)-)?([a-z_]+)\Z", re.DOTALL)
_COPY_DISORDER = 0.1
_OVERTAKING = timedelta(seconds=1)
"""By so much uploads that began one after the other may end in another order."""
_RACE = timedelta(seconds=2)
_RACE_REVISIONS = 64
_BARE_KEY = re.compile(r"(?:[a-z]{3}/[a-z]{29}|[a-z]{32})\Z")


class Name(msgspec.Struct, frozen=True):
    """What the key of an object says. `revision` is 0 for a file from before there were revisions."""

    revision: int
    kind: str
    """`file`, `rename`, `hardlink`, or the unknown word at the end of an operation's key."""
    host: str | None = None


class ListedObject(msgspec.Struct, frozen=True):
    """An object of the log as the listing shows it: enough to order and to filter it."""

    key: str
    name: Name
    size_bytes: int
    modified: datetime

    @property
    def revision(self) -> int:
        return self.name.revision


class LogObject(msgspec.Struct, frozen=True):
    """A listed object with what its user metadata says. A file has a target only: the path it was created at.

    `target` is None when the metadata is missing: the store or a proxy dropped it, or it never was there.
    """

    listed: ListedObject
    source: str | None
    target: str | None

    @property
    def complete(self) -> bool:
        """Whether the metadata says all that this kind of object needs."""
        return self.target is not None and (self.listed.name.kind == FILE or self.source is not None)


def parse_key(key: str) -> Name | None:
    """What the key (below the disk's prefix) says; None when ClickHouse's log gives no such name."""
    if found := _FILE_KEY.match(key):
        return Name(int(found[1], 2), FILE)
    if found := _OPERATION_KEY.match(key):
        return Name(int(found[1], 2), found[3], found[2])
    if _BARE_KEY.match(key):
        return Name(0, FILE)
    return None


def is_numbered(key: str) -> bool:
    """Whether the key carries a revision, as only `send_metadata` gives it."""
    return _FILE_KEY.match(key) is not None or _OPERATION_KEY.match(key) is not None


def file_key(revision: int, letters: str) -> str:
    """The key of a file's object in the present style; `letters` are 32 random ones from a to z."""
    return f"r{revision:064b}-{FILE}-{letters[:3]}/{letters[3:]}"


def operation_key(revision: int, kind: Literal["rename", "hardlink", "shadowlink"], host: str) -> str:
    """The key of an operation's object."""
    return f"operations/r{revision:064b}-{host}-{kind}"


def record(listed: ListedObject, metadata: Mapping[str, str]) -> LogObject:
    """The object with its paths, whichever spelling of `from_path` the store gives back: Ceph says `from-path`."""
    spelled = {name.lower().replace("-", "_"): value for name, value in metadata.items()}
    if listed.name.kind == FILE:
        return LogObject(listed, None, _path(spelled.get(PATH_NAME)))
    source, target = PATH_NAMES.get(listed.name.kind, ("", ""))
    # Ours bear the same paths under names without '_' as well, which no store drops.
    return LogObject(
        listed, _path(spelled.get(source) or spelled.get("source")), _path(spelled.get(target) or spelled.get("target"))
    )


def _path(value: str | None) -> str | None:
    """The path of a metadata value. AWS gives values that are no ASCII back in the form of RFC 2047."""
    if value is not None and value.startswith("=?") and value.endswith("?="):
        try:
            return str(make_header(decode_header(value))) or None
        except (HeaderParseError, LookupError, UnicodeDecodeError, ValueError):
            return value
    return value or None


# The order


class Epochs(msgspec.Struct, frozen=True):
    """The objects of a log, a list for each run of the counter, each in revision order; the oldest run first."""

    runs: tuple[tuple[ListedObject, ...], ...]
    duplicates: Mapping[int, tuple[str, ...]]
    """Revisions that several objects bear -> their keys in the order of their times."""
    times_unusable: bool = False
    """Revisions repeat, but the times are those of a copy of the bucket: the order between runs is not known."""

    @property
    def head(self) -> int:
        """The highest revision of any run; 0 when there is none."""
        return max((run[-1].revision for run in self.runs), default=0)

    @property
    def newest(self) -> int:
        """The revision that was written last: lower than the highest when the counter restarted."""
        return self.runs[-1][-1].revision if self.runs else 0

    def until(self, revision: int | None) -> tuple[ListedObject, ...]:
        """The objects written up to the revision, in order; all for None, and for one above the highest.

        A revision that several runs reached is that of the newest such run: earlier runs count as a whole, since the
        disk held their files by then.
        """
        if revision is None or revision > self.head:
            return tuple(listed for run in self.runs for listed in run)
        last = self._run_of(revision)
        earlier = [listed for run in self.runs[:last] for listed in run]
        reached = self.runs[last] if self.runs else ()
        return (*earlier, *(listed for listed in reached if listed.revision <= revision))

    def _run_of(self, revision: int) -> int:
        """The newest run that went past the revision, else the newest that began below it, else the first."""
        began = [index for index, run in enumerate(self.runs) if _first(run) <= revision]
        passed = [index for index in began if revision <= self.runs[index][-1].revision]
        return max(passed or began, default=0)


def _first(run: Sequence[ListedObject]) -> int:
    """The lowest revision of a run; 0 for one that holds nothing but files from before there were revisions."""
    return next((listed.revision for listed in run if listed.revision), 0)


def epochs(objects: Iterable[ListedObject]) -> Epochs:
    """Put the objects of a log in the order in which they were written.

    Without duplicates that is the order of their revisions. Where a revision occurs twice, the counter has restarted
    at some time between the two; the objects are divided there by the store's last-modified time. Two objects of one
    revision and one time cannot be told apart: they keep the order of their keys, and are of one run.
    """
    in_order = sorted(objects, key=lambda listed: (listed.revision, listed.modified, listed.key))
    by_revision: dict[int, list[ListedObject]] = defaultdict(list)
    for listed in in_order:
        if listed.revision:
            by_revision[listed.revision].append(listed)
    repeated = {revision: found for revision, found in by_revision.items() if len(found) > 1}
    duplicates = {revision: tuple(listed.key for listed in found) for revision, found in repeated.items()}
    if not repeated:
        return Epochs((tuple(in_order),) if in_order else (), {})
    if _is_copy(in_order):
        return Epochs((tuple(in_order),), duplicates, times_unusable=True)
    restarts = _restarts(in_order, repeated.values())
    runs: list[list[ListedObject]] = [[] for _ in range(len(restarts) + 1)]
    for listed in in_order:
        # A file without a revision is older than the log, whatever time the copy onto itself gave it.
        runs[bisect_right(restarts, listed.modified) if listed.revision else 0].append(listed)
    return Epochs(tuple(tuple(run) for run in runs if run), duplicates)


def _is_copy(objects: Iterable[ListedObject]) -> bool:
    """Whether the times are those of a copy of the bucket in listing order: all operations are older than all files,
    and times grow with the keys, but for the little disorder of a copy by several threads."""
    by_key = sorted(objects, key=lambda listed: listed.key)
    operations = [listed.modified for listed in by_key if listed.name.kind != FILE]
    files = [listed.modified for listed in by_key if listed.name.kind == FILE]
    if not operations or not files or max(operations) >= min(files):
        return False
    return sum(later < earlier for earlier, later in pairwise(files)) <= _COPY_DISORDER * len(files)


def _restarts(objects: Sequence[ListedObject], repeated: Iterable[Sequence[ListedObject]]) -> list[datetime]:
    """The times at which new runs of the counter begin, ascending, so that equal revisions are of different runs.

    Uploads of one run overtake one another, so numbers alone do not show the place. Of the pauses after which numbers
    start again low, the longest are taken, until every two objects of one revision are divided.
    """
    by_time = sorted((listed for listed in objects if listed.revision), key=_modified)
    together = [
        (first.modified, second.modified)
        for found in repeated
        for first, second in pairwise(found)
        if first.modified < second.modified and not _is_race(first, second)
    ]
    restarts: list[datetime] = []
    for moment in _pauses(by_time):
        if not together:
            break
        divided = [pair for pair in together if pair[0] < moment <= pair[1]]
        if divided:
            restarts.append(moment)
            together = [pair for pair in together if not pair[0] < moment <= pair[1]]
    return sorted(restarts)


def _is_race(first: ListedObject, second: ListedObject) -> bool:
    """Whether two threads of one run have read the counter at once: no server starts and writes that much so fast."""
    return second.modified - first.modified <= _RACE and first.revision > _RACE_REVISIONS


def _pauses(by_time: Sequence[ListedObject]) -> list[datetime]:
    """The ends of all pauses: first those after which numbers start again low, the longer ones first."""
    highest = _extremes_nearby(by_time, operator.gt)
    lowest = _extremes_nearby(by_time[::-1], operator.lt)[::-1]
    pauses = []
    for index in range(1, len(by_time)):
        before, after = by_time[index - 1].modified, by_time[index].modified
        if before < after:
            pauses.append((lowest[index] > highest[index - 1], before - after, after))
    return [moment for _, _, moment in sorted(pauses)]


def _extremes_nearby(objects: Sequence[ListedObject], further: Callable[[int, int], bool]) -> list[int]:
    """For each object the most extreme revision of it and of those before it that are as near in time as uploads
    overtake one another."""
    extremes = []
    waiting: deque[ListedObject] = deque()
    for listed in objects:
        while waiting and not further(waiting[-1].revision, listed.revision):
            waiting.pop()
        waiting.append(listed)
        while abs(listed.modified - waiting[0].modified) > _OVERTAKING:
            waiting.popleft()
        extremes.append(waiting[0].revision)
    return extremes


def _modified(listed: ListedObject) -> datetime:
    return listed.modified
