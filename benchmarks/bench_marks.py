"""The marks of 100,000 objects that three logs share: what an audit of them takes, what gc's report does, against as
many objects of one log alone, and what ZooKeeper keeps.

The audit is measured against a listing of the same objects in the same run, both by our own client over S3 from the
same server on loopback, which holds them in memory: one that serves a directory reads all of it for each page, so that
a listing of 100,000 objects never ends. What an audit has besides is three logs and 30,000 marks to compare. The bytes
are the server's own count of its tree, for 100,000 parts; they do not change with the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from benchmarks.bench_replicas import NAMES
from benchmarks.bench_zero_copy import config
from benchmarks.measure import Figure, bound_figure, paired, ratio_figure, report, scratch, timed
from disks.file_table.blob_sets import BlobReference, NewSet
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from oplog.kinds import Inserted
from oplog.revision import BLOBS_PREFIX, blob_prefix, is_blob_key
from tests.servers import Server, ministack, zookeeper
from tiering.config.settings import Config, KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.keeper.client import Keeper
from zerocopy.marks.marks import Marks

OBJECTS = 100_000
FILES = 10
"""Of a part: so 10,000 parts have 30,000 marks."""
UPLOADS = 8
"""At once."""
COMMIT = 500
"""Parts."""
PARTS = 100_000
"""Of the marks whose bytes are counted."""


def audited(home: Path, keeper: KeeperConfig, *, objects: int, rounds: int) -> Iterator[Figure]:
    """All three logs name all of the objects, and nothing is wrong."""
    with ministack() as server, ExitStack() as stack:
        bucket = server.new_bucket()
        configured = [over_s3(home, name, keeper, server, bucket) for name in NAMES]
        fill(configured, objects // FILES)
        store = stack.enter_context(Store.open(configured[0]))
        disk = object_disk(store)

        def listed() -> None:
            assert sum(is_blob_key(one.key) for one in disk.store.list(BLOBS_PREFIX)) == objects

        def audit() -> None:
            found = auditing.run(store.context, disk, repairs=False)
            assert (found.clean, found.objects, found.marks) == (True, objects, 3 * objects // FILES), found

        audit()  # which makes the caches of the other logs
        ours, listing = paired(lambda: timed(audit), lambda: timed(listed), rounds=rounds)
        shares = f"{objects:,} objects, 3 logs and {3 * objects // FILES:,} marks"
        yield ratio_figure(f"audit of {shares}", ours, listing, at_most=2, baseline_name="the listing alone")

        lonely = by_itself(home, keeper, server)
        fill([lonely], objects // FILES)
        alone = stack.enter_context(Store.open(lonely))

        def reported(one: Store) -> None:
            found = one.gc("s3", GcRules())
            assert (found.refused, found.referenced) == (None, objects), found

        reported(store)
        shared, one = (partial(timed, partial(reported, whose)) for whose in (store, alone))
        several, single = paired(shared, one, rounds=rounds)
        yield ratio_figure(f"gc of {shares}, over S3", several, single, at_most=1.6, baseline_name="one log without")


def fill(configured: Sequence[Config], parts: int) -> None:
    """The first uploads, the others adopt."""
    body = b"x" * 100
    digest = hashlib.sha256(body).hexdigest()
    with ExitStack() as stack:
        first, *others = (object_disk(stack.enter_context(Store.open(one))) for one in configured)
        for begin in range(0, parts, COMMIT):
            paths = [
                f"store/abc/table/all_{part}_{part}_0/data-{number:04}.parquet"
                for part in range(begin, min(begin + COMMIT, parts))
                for number in range(FILES)
            ]
            with first.transaction(Inserted(), reason="benchmark") as transaction:
                transaction.reserve(dict.fromkeys(paths, len(body)))
                with ThreadPoolExecutor(UPLOADS) as pool:
                    list(pool.map(lambda path: transaction.create(path, body, sha256=digest), paths))
                transaction.commit()
        rows = list(first.file_table.rows())
        for other in others:
            for begin in range(0, len(rows), COMMIT * FILES):
                with other.transaction(Inserted(), reason="benchmark") as transaction:
                    for row in rows[begin : begin + COMMIT * FILES]:
                        transaction.adopt(row)
                    transaction.commit()


def object_disk(store: Store) -> ObjectDisk:
    disk = store.disk("s3")
    assert isinstance(disk, ObjectDisk)
    return disk


def over_s3(home: Path, name: str, keeper: KeeperConfig, server: Server, bucket: str) -> Config:
    """A machine whose bucket is the server's."""
    bare = config(home, name, keeper)
    return replace(bare, disks={**bare.disks, "s3": server.disk(f"s3://{bucket}/p/", log=name)})


def by_itself(home: Path, keeper: KeeperConfig, server: Server) -> Config:
    """A machine that shares with nobody."""
    bare = config(home, "alone", keeper)
    return replace(
        bare, disks={**bare.disks, "s3": server.disk(f"s3://{server.new_bucket()}/p/")}, keeper=KeeperConfig()
    )


def counted(endpoint: str, keeper: KeeperConfig, *, parts: int) -> Iterator[Figure]:
    """One file a part; the marks of one replica, then of two more."""
    host, _, port = endpoint.rpartition(":")
    with Keeper(keeper) as session:
        session.make_path("/")
        bare = tree_bytes(host, int(port))
        for count, name in enumerate(NAMES, 1):
            marks = Marks(session, "0" * 32, name)
            for begin in range(0, parts, COMMIT):
                numbers = range(begin, begin + COMMIT)
                uses = [BlobReference(f"{number:032x}", directory_of(number)) for number in numbers]
                if count == 1:
                    marks.create([NewSet(use.blob_set, (key_of(use),), use.directory) for use in uses])
                else:
                    marks.add(uses)
            if count != 2:
                size = (tree_bytes(host, int(port)) - bare) / 1e6
                what = "one replica" if count == 1 else f"{count} replicas"
                yield bound_figure(f"marks of {parts:,} parts, {what}, in ZooKeeper", size, at_most=60, unit="MB")


def directory_of(number: int) -> str:
    return f"store/e9b/e9bd4f9c-0000-4000-8000-000000000000/202601_{number}_{number}_0"


def key_of(use: BlobReference) -> str:
    return f"{blob_prefix(1_000)}{'a' * 32}"


def tree_bytes(host: str, port: int) -> int:
    """What the server says that its tree takes: paths and data."""
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"mntr")
        answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    return next(int(line.split("\t")[1]) for line in answer.splitlines() if line.startswith("zk_approximate_data_size"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--parts", type=int, default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("counted", "audited"), help="this one alone")
    options = parser.parse_args()
    figures: list[Figure] = []
    with scratch() as home, zookeeper() as server:
        counting, auditing_ = (KeeperConfig(hosts=(server.endpoint_url,), root=f"/bench-{one}") for one in "ca")
        if options.only != "audited":
            figures += counted(server.endpoint_url, counting, parts=options.parts)
        with Keeper(auditing_) as session:
            session.make_path("/")
        if options.only != "counted":
            figures += audited(home, auditing_, objects=options.objects, rounds=options.rounds)
    report(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
