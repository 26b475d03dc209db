"""Measure a store as a disk uses it, and check each answer on the way: a fast store that answers wrong is no store.

Everything lies below one fresh `objbench/` place and is deleted at the end, also after Ctrl-C. What a killed run left
is recognised by its name and its age, and deleted by the next run or by gc.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from disks.host.clean_up import clean_up_owed
from disks.stores.base import ByteRange, ObjectStore
from disks.stores.capability_checks import (
    DELETES,
    GONE,
    IN_ORDER,
    LISTED,
    NEW_KEYS,
    ONE_WINNER,
    RANGE,
    READ_BACK,
    Question,
)
from oplog.errors import AlreadyExists, FrostlineError, OutcomeUnknown, Retained
from oplog.revision import OBJBENCH_PREFIX, is_scratch_key, scratch_prefix

Verb = Literal["put", "get", "ranged get", "list", "put if absent", "delete"]

_RANGE_BYTES = 64 * 1024
_RACES = 10
_RACERS = 4
_ABANDONED = timedelta(hours=1)
_MOST_BYTES_A_SIZE = 256 * 1024 * 1024
_FEWEST_OBJECTS = 4
_PAGE_KEYS = 1000


class BenchStep(msgspec.Struct, frozen=True):
    """The same operation on `count` objects of one size by `workers` threads."""

    verb: Verb
    size_bytes: int
    workers: int
    count: int


class Measurement(msgspec.Struct, frozen=True):
    """How a step went. Times are seconds a request; `requests` those that the percentiles are of."""

    step: BenchStep
    requests: int
    seconds: float
    p50: float
    p95: float
    p99: float
    moved_bytes: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds if self.seconds else 0.0


class PromiseCheck(msgspec.Struct, frozen=True):
    """One promise of the store, kept or not."""

    name: str
    ok: bool
    what: str


class BenchReport(msgspec.Struct):
    """What was measured and checked."""

    measurements: list[Measurement] = msgspec.field(default_factory=list)
    checks: list[PromiseCheck] = msgspec.field(default_factory=list)
    leftovers_removed: int = 0
    """Objects of an earlier run that was killed."""
    kept: int = 0
    """Objects that a lock of the store keeps; gc removes them when it ends."""


def plan(sizes: Sequence[int], objects: int, workers: Sequence[int]) -> list[BenchStep]:
    """The steps in their order. Large objects are fewer: at most 256 MiB a size and number of workers."""
    steps: list[BenchStep] = []
    for size, threads in itertools.product(sizes, workers):
        count = min(objects, max(_FEWEST_OBJECTS, _MOST_BYTES_A_SIZE // max(size, 1)))
        steps += [BenchStep(verb, size, threads, count) for verb in ("put", "get", "ranged get", "list")]
        steps.append(BenchStep("delete", size, threads, count))
    for threads in workers:
        steps.append(BenchStep("put if absent", 0, threads, objects))
    return steps


def requests_of(steps: Iterable[BenchStep]) -> dict[str, int]:
    """What the steps and their checks send, by kind of request, without retries."""
    counts = {"PUT": 1, "GET": 1, "LIST": 2, "DELETE": 1, "bytes_up": 0, "bytes_down": 0}
    for step in steps:
        pages = -(-step.count // _PAGE_KEYS)
        match step.verb:
            case "put":
                counts["PUT"] += step.count
                counts["bytes_up"] += step.count * step.size_bytes
            case "get":
                counts["GET"] += step.count
                counts["bytes_down"] += step.count * step.size_bytes
            case "ranged get":
                counts["GET"] += step.count
                counts["bytes_down"] += step.count * min(step.size_bytes, _RANGE_BYTES)
            case "list":
                counts["LIST"] += pages
            case "delete":
                counts["DELETE"] += pages
                counts["LIST"] += 1
            case "put if absent":
                counts["PUT"] += step.count + _RACES * _RACERS
                counts["DELETE"] += 1
    return counts


def run(
    store: ObjectStore, steps: Sequence[BenchStep], advance: Callable[[BenchStep], None] = lambda step: None
) -> BenchReport:
    """Carry the steps out. A wrong answer becomes a failed check; an error of the store is raised after cleaning up."""
    report = BenchReport(leftovers_removed=remove_leftovers(store))
    bench = _Bench(store, report)
    with clean_up_owed():
        try:
            bench.warm_up()
            for step in steps:
                advance(step)
                bench.carry_out(step)
        finally:
            report.kept = bench.remove_all()
    report.checks = bench.checks()
    return report


def remove_leftovers(store: ObjectStore, *, now: datetime | None = None) -> int:
    """Delete what a run that was killed more than an hour ago left behind; how many objects."""
    now = now or datetime.now(UTC)
    old = [
        info.key
        for info in store.list(OBJBENCH_PREFIX)
        if is_scratch_key(info.key) and now - info.modified > _ABANDONED
    ]
    return sum(error is None for error in store.delete(old).values()) if old else 0


class _Bench:
    def __init__(self, store: ObjectStore, report: BenchReport) -> None:
        self._store = store
        self._report = report
        self._scratch = scratch_prefix(OBJBENCH_PREFIX)
        self._noise = os.urandom(1 << 20)
        self._serial = itertools.count()
        self._made: set[str] = set()
        self._digests: dict[str, bytes] = {}
        self._wrong: dict[Question, list[str]] = {}
        self._tried: set[Question] = set()
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """One request of each client, so that connecting and loading code is measured nowhere."""
        key = self._key("warm-up")
        self._put(key, 1)
        self._get(key)
        self._delete(self._scratch)

    def carry_out(self, step: BenchStep) -> None:
        size = step.size_bytes
        match step.verb:
            case "put":
                keys = [self._key(f"{size}-{next(self._serial)}") for _ in range(step.count)]
                self._timed(step, lambda key: self._put(key, size), keys, size)
            case "get":
                self._timed(step, self._get, list(self._digests), size)
            case "ranged get":
                self._timed(step, lambda key: self._range(key, size), list(self._digests), min(size, _RANGE_BYTES))
            case "list":
                self._timed(step, self._list, [self._scratch])
            case "delete":
                self._timed(step, self._delete, [self._scratch])
            case "put if absent":
                keys = [self._key(f"once-{next(self._serial)}") for _ in range(step.count)]
                self._timed(step, self._put_if_absent, keys)
                self._races()

    def _timed(self, step: BenchStep, call: Callable[[str], float], keys: Sequence[str], moved_bytes: int = 0) -> None:
        """Each call returns the seconds its request took, so that preparing data does not count."""
        waiting, stop = iter(keys), threading.Event()

        def work() -> list[float]:
            seconds = []
            for key in waiting:  # each key comes to one worker
                if stop.is_set():
                    break
                seconds.append(call(key))
            return seconds

        began = time.perf_counter()
        with ThreadPoolExecutor(step.workers, thread_name_prefix="objbench") as pool:
            try:
                # A call a worker, not one a key: Ctrl-C within one of thousands could leave a lock of the pool's held.
                shares = [pool.submit(work) for _ in range(step.workers)]
                taken = sorted(itertools.chain.from_iterable(share.result() for share in shares))
            except BaseException:
                stop.set()
                raise
        wall = time.perf_counter() - began
        if not taken:
            return
        # Preparing and checking bodies takes processor time of ours: the busiest possible worker is the measure.
        seconds = min(wall, max(sum(taken) / step.workers, taken[-1]))
        self._report.measurements.append(
            Measurement(
                step=step,
                requests=len(taken),
                seconds=seconds,
                p50=percentile(taken, 0.50),
                p95=percentile(taken, 0.95),
                p99=percentile(taken, 0.99),
                moved_bytes=moved_bytes * len(taken),
            )
        )

    # One request each; what is not timed is the work of this program

    def _body(self, key: str, size_bytes: int) -> bytes:
        seed = hashlib.sha256(key.encode()).digest()
        repeats = -(-size_bytes // len(self._noise))
        return (seed + self._noise * repeats)[:size_bytes]

    def _put(self, key: str, size_bytes: int) -> float:
        body = self._body(key, size_bytes)
        digest = hashlib.sha256(body).digest()
        began = time.perf_counter()
        self._store.put(key, body, sha256=digest)
        taken = time.perf_counter() - began
        with self._lock:
            self._digests[key] = digest
        return taken

    def _get(self, key: str) -> float:
        began = time.perf_counter()
        data = self._store.get(key)
        taken = time.perf_counter() - began
        self._expect(READ_BACK, hashlib.sha256(data).digest() == self._digests[key], key)
        return taken

    def _range(self, key: str, size_bytes: int) -> float:
        start = max((size_bytes - _RANGE_BYTES) // 2, 0)
        stop = min(start + _RANGE_BYTES, size_bytes)
        began = time.perf_counter()
        data = self._store.get(key, ByteRange(start, stop))
        taken = time.perf_counter() - began
        self._expect(RANGE, data == self._body(key, size_bytes)[start:stop], key)
        return taken

    def _list(self, prefix: str) -> float:
        began = time.perf_counter()
        listing = list(self._store.list(prefix))
        taken = time.perf_counter() - began
        keys = [info.key for info in listing]
        missing = set(self._digests).difference(keys)
        self._expect(LISTED, not missing, next(iter(missing), ""))
        self._expect(IN_ORDER, keys == sorted(keys, key=str.encode), "")
        return taken / -(-max(len(keys), 1) // _PAGE_KEYS)

    def _delete(self, prefix: str) -> float:
        keys = list(self._digests)
        began = time.perf_counter()
        answers = self._store.delete(keys)
        taken = time.perf_counter() - began
        failed = [key for key, error in answers.items() if error is not None and not isinstance(error, Retained)]
        self._expect(DELETES, not failed, next(iter(failed), ""))
        gone = {key for key, error in answers.items() if error is None}
        left = gone.intersection(info.key for info in self._store.list(prefix))
        self._expect(GONE, not left, next(iter(left), ""))
        self._made -= gone - left
        self._digests.clear()
        return taken / -(-max(len(keys), 1) // _PAGE_KEYS)

    def _put_if_absent(self, key: str) -> float:
        body = key.encode()
        began = time.perf_counter()
        try:
            self._store.put_if_absent(key, body, sha256=hashlib.sha256(body).digest())
        except AlreadyExists:
            self._expect(NEW_KEYS, False, key)
        except OutcomeUnknown:
            pass
        return time.perf_counter() - began

    def _races(self) -> None:
        """Several writers for one key at the same moment: exactly one may win, and its bytes must be there."""
        if not self._store.capabilities.conditional_put:
            return
        for _ in range(_RACES):
            key = self._key(f"race-{next(self._serial)}")
            start = threading.Barrier(_RACERS)
            with ThreadPoolExecutor(_RACERS, thread_name_prefix="objbench") as pool:
                bodies = [f"{key} by {number}".encode() for number in range(_RACERS)]
                wins = list(pool.map(lambda body, key=key, start=start: self._race(key, body, start), bodies))
            if None in wins:
                continue  # an answer was lost: it proves nothing
            winners = [body for body, won in zip(bodies, wins, strict=True) if won]
            right = len(winners) == 1 and self._store.get(key) == winners[0]
            self._expect(ONE_WINNER, right, f"{len(winners)} won at {key}")

    def _race(self, key: str, body: bytes, start: threading.Barrier) -> bool | None:
        start.wait(30)
        try:
            self._store.put_if_absent(key, body, sha256=hashlib.sha256(body).digest())
        except AlreadyExists:
            return False
        except OutcomeUnknown:
            return None
        return True

    # Bookkeeping

    def _key(self, name: str) -> str:
        key = self._scratch + name
        with self._lock:
            self._made.add(key)
        return key

    def _expect(self, promise: Question, kept: bool, where: str) -> None:
        with self._lock:
            self._tried.add(promise)
            if not kept:
                self._wrong.setdefault(promise, []).append(where)

    def checks(self) -> list[PromiseCheck]:
        return [
            PromiseCheck(promise.measured, promise not in self._wrong, _failures(self._wrong.get(promise, [])))
            for promise in sorted(self._tried, key=lambda promise: promise.measured)
        ]

    def remove_all(self) -> int:
        """Delete what was made and is still there; how many objects a lock keeps."""
        if not self._made:
            return 0
        with suppress(FrostlineError):  # whatever stopped the run is raised already; the names tell the rest to gc
            answers = self._store.delete(sorted(self._made))
            return sum(isinstance(error, Retained) for error in answers.values())
        return 0


def _failures(where: list[str]) -> str:
    return f"{len(where)} times not, such as {where[0]}" if where else ""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ascending values do not exceed (nearest rank)."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
