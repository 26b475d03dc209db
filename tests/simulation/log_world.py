"""Three machines with one object disk: commits, removals, collections, restores and pins on one log."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import timedelta

from disks.base import Disk
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.wrappers.retry import Backoff, RetryingStore
from oplog import pins
from oplog.entry import now
from oplog.errors import FrostlineError
from oplog.kinds import Dropped, Inserted
from oplog.revision import LEASES_PREFIX
from restore.check.check import check
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from restore.rebuild.result import RebuildResult
from tests.simulation.scheduler import Machine
from tests.simulation.simulated import clock
from tests.simulation.truth import Violation, tree_at
from tests.simulation.world import World

_RETENTION_SECONDS = 1800
_COLLECTING = GcRules(
    guard=timedelta(minutes=5),
    delete=True,
    max_delete_fraction=1.0,
    compact_after_commits=1,
    allow_short_guard=True,
    allow_bucket_root=True,
)


class LogWorld(World):
    """Marks of commits are their actors."""

    def begin(self) -> None:
        self._disks: dict[int, ObjectDisk] = {}
        self._restores: list[tuple[str, int, int]] = []
        for number in range(2):
            self._put(self._disk(0), f"begin-{number}", "t/first")

    def _disk(self, number: int) -> ObjectDisk:
        if number not in self._disks:
            retrying = RetryingStore(self.bucket, Backoff(attempts=3))
            self._disks[number] = ObjectDisk(
                "s3",
                retrying,
                self.home / str(number),
                snapshot_every_commits=4,
                retention_seconds=_RETENTION_SECONDS,
            )
        return self._disks[number]

    def do(self, machine: Machine, verb: str, mark: str, chance: random.Random) -> object:
        disk = self._disk(machine.number)
        if verb == "reopen":
            self._disks.pop(machine.number).close()
            return None
        if chance.random() < 0.5:
            disk.refresh()
        match verb:
            case "put":
                return self._put(disk, mark, f"t{chance.randrange(2)}/{mark}")
            case "remove":
                paths = [info.path for info in disk.walk()]
                return self._remove(disk, mark, chance.choice(paths)) if paths else None
            case "gc":
                return collect(disk, _COLLECTING)
            case "restore":
                wanted = RebuildRequest(revision=chance.randint(1, max(disk.revision, 1)), apply=True, actor=mark)
                return restore(disk, wanted)
            case "pin":
                until = now() + timedelta(hours=chance.choice((1, 8)))
                return pins.create(disk.store, mark, max(disk.revision, 1), holder=mark, until=until)
            case "snapshot":
                return disk.write_snapshot()
        return [info.path for info in disk.walk()]

    @staticmethod
    def _put(disk: Disk, mark: str, path: str) -> int | None:
        with disk.transaction(Inserted(), actor=mark) as transaction:
            transaction.create(path if path != "t/first" else f"t/{mark}", mark.encode())
            return transaction.commit()

    @staticmethod
    def _remove(disk: Disk, mark: str, path: str) -> int | None:
        with disk.transaction(Dropped(), actor=mark) as transaction:
            transaction.remove(path)
            return transaction.commit()

    def ended(
        self, machine: Machine, verb: str, mark: str, how: str, answer: object, error: BaseException | None
    ) -> None:
        if how == "refused":
            self.truth.denied.add(mark)
        if how != "done":
            return
        if verb in ("put", "remove") and isinstance(answer, int):
            self.truth.acknowledged.append((answer, mark))
        elif isinstance(answer, RebuildResult) and answer.commit is not None:
            self.truth.acknowledged.append((answer.commit, mark))
            self._restores.append((mark, answer.revision, answer.commit))

    def lose(self, machine: Machine) -> None:
        if (disk := self._disks.pop(machine.number, None)) is not None:
            disk.cache.close()

    def judge(self) -> None:
        witness = ObjectDisk("s3", self.bucket, self.home / "witness", retention_seconds=_RETENTION_SECONDS)
        self._disks[9] = witness
        last = self.truth.newest()
        self.truth.judge(last, conditional=self.plan.conditional)
        if self.truth.overwritten:
            return
        assert last is not None
        chain = self.truth.chain(last)
        for mark, wanted, made in self._restores:
            if tree_at(chain, made) != tree_at(chain, wanted):
                raise Violation(f"I7: {mark} restored {wanted} as {made}, which is another tree")
        self._agree()
        clock.passed += 3 * 86_400
        self.quietly(lambda: collect(witness, _COLLECTING))
        if self.truth.violations:
            raise Violation("; ".join(self.truth.violations[:3]))
        self._agree()
        found = check({"s3": witness}).problems
        if not self.plan.conditional:  # who stood still within a commit leaves word of it, whatever it did
            found = [problem for problem in found if not (problem.object or "").startswith(LEASES_PREFIX)]
        problems = [f"{problem.what} {problem.path}" for problem in found]
        if problems:
            raise Violation(f"fsck at {witness.revision}: {problems[:3]}")

    def _agree(self) -> None:
        """Every machine sees the table of the log, one that is new as well."""
        last = self.truth.newest()
        assert last is not None
        expected = tree_at(self.truth.chain(last), last.revision)
        for number in (*range(len(self.machines)), 9):
            disk = self._disk(number)

            def look(disk: ObjectDisk = disk) -> dict[str, str]:
                disk.recover()
                disk.refresh()
                return {row.path: row.sha256 for row in disk.file_table.rows()}

            found = self.quietly(look)
            if found != expected:
                raise Violation(f"I7: machine {number} sees {found} at {disk.revision}, and the log is {expected}")

    def close(self) -> None:
        for disk in self._disks.values():
            with suppress(FrostlineError):
                disk.close()
