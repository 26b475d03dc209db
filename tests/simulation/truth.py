"""What the log of a simulated bucket really was, whatever was deleted since; and what must always hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

import msgspec

from oplog import entry
from oplog.entry import GENESIS_DIGEST, Commit, Create, Link, Remove, Rename
from oplog.revision import is_blob_key, parse_commit_key, parse_floor_key
from tests.simulation.bucket import SimulatedBucket
from tests.simulation.scheduler import Machine
from tests.simulation.simulated import clock

Tree = Mapping[str, str]
"""Path to the SHA-256 of its bytes."""


class Violation(Exception):
    """What must never happen did."""


class Truth:
    """Told of every change of the bucket. `acknowledged`: revision and mark of what was."""

    def __init__(self, bucket: SimulatedBucket) -> None:
        self._bucket = bucket
        bucket.put_object = self._put
        bucket.deleting = self._deleting
        self._commits: dict[str, Commit] = {}
        """Every entry that was ever put, by digest."""
        self._there: dict[int, Commit] = {}
        """The entries that are there now."""
        self.acknowledged: list[tuple[int, str]] = []
        self.denied: set[str] = set()
        """Marks of commits that were said not to be made."""
        self.overwritten: set[str] = set()
        """Marks of entries over which another machine wrote: only where there are no conditional writes."""
        self._writers: dict[str, str] = {}
        self._floor = 0
        self._pins: dict[str, datetime | None] = {}
        self._pinned_by: dict[str, int] = {}
        self.violations: list[str] = []

    def _put(self, machine: Machine | None, key: str, data: bytes, over: bool) -> None:
        if (revision := parse_commit_key(key)) is not None:
            commit = entry.decode(data, name=key)
            if over:
                before = self._there.get(revision)
                if before is not None and before.actor != commit.actor:
                    self.overwritten.add(before.actor)
                    self._writers[commit.actor] = before.actor
            self._commits[hashlib.sha256(data).hexdigest()] = commit
            self._there[revision] = commit
        elif (floor := parse_floor_key(key)) is not None:
            self._floor = max(self._floor, floor)
        elif key.startswith("pins/"):
            until = msgspec.json.decode(data).get("until")
            self._pins[key] = datetime.fromisoformat(until.replace("Z", "+00:00")) if until else None
            self._pinned_by[key] = machine.number if machine is not None else -1

    def _deleting(self, machine: Machine | None, key: str) -> None:
        who = machine.number if machine is not None else -1
        if (revision := parse_commit_key(key)) is not None:
            if revision == max(self._there):
                self.violations.append(f"L1: the newest entry, {revision}, is deleted")
            if revision >= self._floor:
                self.violations.append(f"L4: entry {revision} is deleted, and the floor is {self._floor}")
            self._there.pop(revision, None)
        elif is_blob_key(key):
            newest = self.newest()
            if newest is not None and key in keys_in(self.chain(newest)):
                self.violations.append(f"I4: object {key[-8:]} is deleted, and revision {newest.revision} names it")
        elif key in self._pins and self._pinned_by[key] != who:
            until = self._pins[key]
            if until is None or until > clock.wall():
                self.violations.append(f"I4: machine {who} deletes the live pin {key} of {self._pinned_by[key]}")

    def newest(self) -> Commit | None:
        """The entry with the highest revision."""
        return self._there[max(self._there)] if self._there else None

    def chain(self, last: Commit) -> list[Commit]:
        """The log up to this entry, as each names the one before. Raises `Violation` where one was never put."""
        chain = [last]
        while chain[-1].previous != GENESIS_DIGEST:
            before = self._commits.get(chain[-1].previous)
            if before is None or before.revision != chain[-1].revision - 1:
                raise Violation(f"I6: entry {chain[-1].revision} names a digest that no entry ever had")
            chain.append(before)
        return chain[::-1]

    def judge(self, last: Commit | None, *, conditional: bool) -> None:
        """Raise `Violation` unless what was acknowledged is the log, once, and nothing that was denied is in it."""
        if self.violations:
            raise Violation("; ".join(self.violations[:3]))
        chain = self.chain(last) if last is not None else []
        marks = [commit.actor for commit in chain]
        said = {mark for _, mark in self.acknowledged}
        for mark, before in self._writers.items():
            if mark in said and mark != before:
                raise Violation(f"L: {mark} was acknowledged, and wrote over {before}")
        if self.overwritten:
            return  # what followed is told to whoever looks; docs/machines.md
        for revision, mark in self.acknowledged:
            if len(chain) < revision or chain[revision - 1].actor != mark:
                where = [commit.revision for commit in chain if commit.actor == mark]
                raise Violation(f"L2: {mark} was acknowledged as {revision} and is at {where} of {len(chain)}")
        for mark in {mark for mark in marks if mark.startswith("do-") and marks.count(mark) > 1}:
            raise Violation(f"L3: {mark} was committed {marks.count(mark)} times")
        for mark in self.denied.intersection(marks):
            raise Violation(f"I2: {mark} was said to have changed nothing, and is in the log")


def keys_in(chain: list[Commit]) -> set[str]:
    """The objects that the table at the end of the chain names."""
    return {row.key for row in _replayed(chain).values() if row.key is not None}


def tree_at(chain: list[Commit], revision: int) -> Tree:
    """The files at a revision, with their digests."""
    return {path: row.sha256 for path, row in _replayed(chain[:revision]).items()}


def _replayed(chain: list[Commit]) -> dict[str, Create]:
    """An own replay: it shares nothing with the product's but the decoding of an entry."""
    files: dict[str, Create] = {}
    for commit in chain:
        for operation in commit.operations:
            match operation:
                case Create(path=path):
                    files[path] = operation
                case Link(source=source, target=target):
                    files[target] = files[source]
                case Rename(source=source, target=target):
                    for path in [path for path in files if path == source or path.startswith(f"{source}/")]:
                        files[target + path[len(source) :]] = files.pop(path)
                case Remove(path=gone):
                    for path in [path for path in files if path == gone or path.startswith(f"{gone}/")]:
                        del files[path]
    return files
