"""Several machines that commit to one bucket, and one that comes late to a long log. On Ceph.

Writers are processes with a state directory each, which commit small changes one after the other for some seconds. One
writer, and two, three and eight, run in turn; what several reach is compared with the one of the same rounds. The
requests that the server answered are counted, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.measure import Figure, bound_figure, ratio_figure, report, scratch
from disks.config import ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from disks.stores.open import open_store
from disks.stores.wrappers.metered import MeteredStore
from oplog import earlier, entry, log, mark, snapshot
from oplog.entry import GENESIS_DIGEST, Commit, Create
from oplog.kinds import Inserted
from oplog.replay import FileRow
from oplog.revision import SCHEMA_VERSION_KEY, commit_key, snapshot_key
from oplog.table_digest import TableDigest
from tests.servers import ceph, ministack

WRITERS = (1, 2, 3, 8)
SECONDS = 4.0
BEHIND = 1_000
LONG_LOG = 100_000
LIVE_FILES = 1_000
PROOFS = 200


@dataclass(frozen=True, slots=True)
class Round:
    """What writers reached together: of each the seconds that its commits took, and all requests."""

    seconds: float
    latencies: list[list[float]]
    requests: int
    cpu_seconds: float

    @property
    def commits(self) -> int:
        return sum(map(len, self.latencies))

    @property
    def rate(self) -> float:
        return self.commits / self.seconds

    @property
    def least_share(self) -> float:
        """The least served writer's part of a fair share."""
        return min(map(len, self.latencies)) * len(self.latencies) / self.commits


def opened(url: str) -> MeteredStore:
    return open_store(ObjectDiskConfig(url=url, endpoint_url=os.environ["AWS_ENDPOINT_URL"]))


def write(url: str, state: Path, seconds: float) -> None:
    """One writer, in a process of its own: ready, then told to begin; prints what its commits took."""
    store = opened(url)
    disk = ObjectDisk("s3", store, state)
    commit_one(disk, 0)
    print("ready", flush=True)
    sys.stdin.readline()
    before, cpu, began = sum(store.counts().values()), time.process_time(), time.perf_counter()
    latencies: list[float] = []
    while (start := time.perf_counter()) < began + seconds:
        commit_one(disk, len(latencies) + 1)
        latencies.append(time.perf_counter() - start)
    spent = {"requests": sum(store.counts().values()) - before, "cpu": time.process_time() - cpu}
    print(json.dumps({"latencies": latencies, **spent}), flush=True)
    disk.close()


def commit_one(disk: ObjectDisk, number: int) -> None:
    with disk.transaction(Inserted(), reason="benchmark") as transaction:
        transaction.create(f"store/abc/{disk.state_path.name}/{number}/part.json", b"{}" * 50)
        transaction.commit()


def together(bucket: str, directory: Path, writers: int, seconds: float) -> Round:
    name = uuid.uuid4().hex
    url = f"s3://{bucket}/{name}/"
    command = [sys.executable, "-m", "benchmarks.bench_writers", "--writer", url]
    processes = [
        subprocess.Popen(
            [*command, str(directory / name / str(number)), "--seconds", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(writers)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate()[0]) for process in processes]
    return Round(
        time.perf_counter() - began,
        [answer["latencies"] for answer in answers],
        sum(answer["requests"] for answer in answers),
        sum(answer["cpu"] for answer in answers),
    )


def figures_together(bucket: str, directory: Path, rounds: int, seconds: float) -> Iterator[Figure]:
    found: dict[int, list[Round]] = {writers: [] for writers in WRITERS}
    for _ in range(rounds):
        for writers in WRITERS:
            found[writers].append(together(bucket, directory, writers, seconds))
    alone = statistics.median(one.rate for one in found[1])
    for writers in WRITERS:
        these = found[writers]
        rate = statistics.median(one.rate for one in these)
        commits = sum(one.commits for one in these)
        detail = (
            f"({sum(one.requests for one in these) / commits:.1f} requests and "
            f"{sum(one.cpu_seconds for one in these) / commits * 1e3:.1f} ms of our processor time a commit; the least "
            f"served has {min(one.least_share for one in these):.2f} of a fair share; median "
            f"{statistics.median(_all(these)) * 1e3:.1f}, p95 {_p95(these) * 1e3:.1f} ms)"
        )
        name = f"commits a second of {writers} writer{'s' if writers > 1 else ''}"
        yield Figure(name, rate, "/s", "at least 1 x", rate >= alone, alone, "one writer", detail)
    yield ratio_figure("p95 of 3 writers", _p95(found[3]), _p95(found[1]), at_most=4, baseline_name="one writer's")
    least = min(one.least_share for one in found[3])
    yield Figure("least served of 3 writers", least, "of a fair share", "at least 0.5", least >= 0.5)


def _all(rounds: list[Round]) -> list[float]:
    return sorted(seconds for one in rounds for latencies in one.latencies for seconds in latencies)


def _p95(rounds: list[Round]) -> float:
    every = _all(rounds)
    return every[int(len(every) * 0.95)]


def figures_of_proof(bucket: str, directory: Path) -> Iterator[Figure]:
    """Commits with the proof that the log ends there, and without, in turn."""
    store = opened(f"s3://{bucket}/{uuid.uuid4().hex}/")
    disk = ObjectDisk("s3", store, directory / "proof")
    proving = log.check_end
    taken: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    try:
        for number in range(2 * PROOFS):
            proved = number % 2 == 0
            log.check_end = proving if proved else lambda *arguments: None  # type: ignore[assignment]
            before, start = sum(store.counts().values()), time.perf_counter()
            commit_one(disk, number)
            taken[proved].append((time.perf_counter() - start, sum(store.counts().values()) - before))
    finally:
        log.check_end = proving
        disk.close()
    seconds = {proved: statistics.median(one for one, _ in each) for proved, each in taken.items()}
    requests = {proved: statistics.median(one for _, one in each) for proved, each in taken.items()}
    yield bound_figure("requests that prove the end", requests[True] - requests[False], at_most=1, unit="a commit")
    yield ratio_figure(
        "a commit with its proof",
        seconds[True] * 1e3,
        seconds[False] * 1e3,
        at_most=1.3,
        baseline_name="one without",
        unit="ms",
    )


def figures_of_catching_up(bucket: str, directory: Path, long_log: int) -> Iterator[Figure]:
    url = f"s3://{bucket}/{uuid.uuid4().hex}/"
    one, other = opened(url), opened(url)
    writer = ObjectDisk("s3", one, directory / "writer", snapshot_every_commits=0)
    late = ObjectDisk("s3", other, directory / "late")
    commit_one(writer, 0)
    late.refresh()
    for number in range(BEHIND):
        commit_one(writer, number + 1)
    before, start, cpu = sum(other.counts().values()), time.perf_counter(), time.process_time()
    late.refresh()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    requests = sum(other.counts().values()) - before
    assert late.revision == BEHIND + 1
    yield bound_figure(
        f"catching up {BEHIND:,} commits", seconds, at_most=0.4, unit="s", detail=f"({cpu:.2f} s of processor time)"
    )
    yield bound_figure("requests for it", requests, at_most=100, unit="requests")
    for disk in (writer, late):
        disk.close()
    url = f"s3://{bucket}/{uuid.uuid4().hex}/"
    with opened(url) as store:
        fill(store, long_log)
    with opened(url) as store:
        fresh = ObjectDisk("s3", store, directory / "fresh")
        start, cpu = time.perf_counter(), time.process_time()
        fresh.refresh()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert fresh.revision == long_log
        fresh.close()
        yield bound_figure(
            f"a fresh machine on {long_log:,} commits",
            seconds,
            at_most=2,
            unit="s",
            detail=f"({sum(store.counts().values())} requests, {cpu:.2f} s of processor time)",
        )


def fill(store: MeteredStore, commits: int) -> None:
    """A log of so many commits, each a file that takes the place of an older one, with snapshots as they are due: the
    newest is in the middle between two that are due."""
    store.put_if_absent(SCHEMA_VERSION_KEY, mark.SCHEMA_VERSION, sha256=_sha256(mark.SCHEMA_VERSION))
    previous, at = GENESIS_DIGEST, commits - commits // 200
    rows: dict[str, FileRow] = {}
    texts: list[bytes] = []
    digest = TableDigest()
    with ThreadPoolExecutor(16) as pool:
        waiting = []
        for revision in range(1, commits + 1):
            path, body = f"store/abc/{revision % LIVE_FILES:04}/part.json", b"{}" * 50
            sha256 = entry.digest(body)
            gone = [entry.Remove(path)] if path in rows else []
            made = Commit(
                revision=revision,
                previous=previous,
                writer=f"{revision:032x}",
                time=datetime.now(UTC),
                kind=Inserted(),
                operations=(*gone, Create(path, len(body), sha256, None, body)),
            )
            row = FileRow(path, len(body), sha256, None, body, None, revision)
            if path in rows:
                digest.remove(rows[path])
            digest.add(row)
            rows[path] = row
            made = msgspec.structs.replace(made, table_digest=digest.hex)
            if earlier.brings(revision):
                made = msgspec.structs.replace(made, earlier=earlier.pack(texts))
                texts.clear()
            data = entry.encode(made)
            if not earlier.brings(revision):
                texts.append(data)
            previous = entry.digest(data)
            waiting.append(pool.submit(store.put_if_absent, commit_key(revision), data, sha256=_sha256(data)))
            if revision == at:
                ordered = sorted(rows.values(), key=lambda row: row.path)
                table = snapshot.encode(revision, previous, ordered)
                store.put_if_absent(snapshot_key(revision), table, sha256=_sha256(table))
        for one in waiting:
            one.result()


def _sha256(data: bytes) -> bytes:
    return bytes.fromhex(entry.digest(data))


@contextmanager
def bucket_of(kind: str) -> Iterator[str]:
    """A bucket of a server, which is started unless `python -m tests.servers` has."""
    if "FROSTLINE_BUCKET" in os.environ:
        yield os.environ["FROSTLINE_BUCKET"]
        return
    with {"ceph": ceph, "ministack": ministack}[kind]() as server:
        os.environ.update(server.environment())
        yield server.new_bucket()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=["ministack", "ceph"], default="ceph")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long writers write")
    parser.add_argument("--commits", type=int, default=LONG_LOG, help="of the long log")
    parser.add_argument("--only", choices=["together", "proof", "late"])
    parser.add_argument("--writer", nargs=2, metavar=("URL", "STATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        write(options.writer[0], Path(options.writer[1]), options.seconds)
        return
    with bucket_of(options.server) as bucket, scratch() as directory:
        if options.only in (None, "together"):
            report(list(figures_together(bucket, directory, options.rounds, options.seconds)))
        if options.only in (None, "proof"):
            report(list(figures_of_proof(bucket, directory)))
        if options.only in (None, "late"):
            report(list(figures_of_catching_up(bucket, directory, options.commits)))


if __name__ == "__main__":
    main()
