"""Soak a store: `python -m tests.soak --seconds 3600 --seed 1`, or `make soak SECONDS=3600 SEED=1`.

Real processes of the command line work on three disks, one of them in a bucket of a real S3 server behind a proxy that
makes faults. They are killed by SIGKILL, disks go and come back, local state is lost; after every round all rows of all
tables must be those that were acknowledged. One store after the other is made; each depends on the seed and its number
only (and on what it answers in time), so a finding is repeated by `--store N`.

Exit 0: nothing was found, and enough happened to say so. 1: something was found; the directory is kept. 3: too little
happened, which proves nothing.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests import servers
from tests.meddling import meddling
from tests.servers import Server
from tests.soak.faults import Faults
from tests.soak.processes import Processes
from tests.soak.rounds import ROUNDS_A_STORE, Found, Soaked, Tally
from tests.soak.world import World

WANTED_AN_HOUR = {"kills": 1000, "S3 faults": 500, "disk outages": 20}
_MOST_FOUND = 10
_MEMORY = Path("/dev/shm")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long; default: an hour")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--store", type=int, metavar="N", help="only this store, to repeat a finding")
    parser.add_argument("--directory", type=Path, help="default: in memory, where there is some")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    where = options.directory or (_MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir()))
    base = Path(tempfile.mkdtemp(prefix="frostline-soak-", dir=where))
    faults, tally = Faults(), Tally()
    found: list[str] = []
    with servers.ministack() as server, meddling(server, around=faults.around) as proxy:
        bucket = server.new_bucket()
        with Processes(base, {**servers.without_aws(), **proxy.environment()}) as processes:
            processes.start(("--version",), base).wait(60)
            began = time.monotonic()
            try:
                for number in [options.store] if options.store is not None else range(1, sys.maxsize):
                    soaked = _store(base, number, options.seed, bucket, proxy, processes, faults, tally)
                    if _soak(soaked, options.seed, number, began + options.seconds, found, server, bucket):
                        shutil.rmtree(base / str(number))
                    if time.monotonic() > began + options.seconds or len(found) >= _MOST_FOUND:
                        break
            except KeyboardInterrupt:
                print("stopped")
    seconds = time.monotonic() - began
    _report(tally, faults, seconds)
    if found:
        print(f"{len(found)} found; kept in {base}:", *found, sep="\n  ")
        return 1
    shutil.rmtree(base)
    lacking = [] if options.store is not None else too_little(tally, faults, options.seconds)
    print(*(f"proves nothing: {what}" for what in lacking), sep="\n", end="\n" if lacking else "")
    return 3 if lacking else 0


def _store(
    base: Path,
    number: int,
    seed: int,
    bucket: str,
    proxy: Server,
    processes: Processes,
    faults: Faults,
    tally: Tally,
) -> Soaked:
    place = base / str(number)
    chance = random.Random(f"{seed}/{number}")
    world = World.made(place / "store", chance, url=f"s3://{bucket}/{number}/", endpoint=proxy.endpoint_url)
    processes.place = place / "runs"
    processes.place.mkdir()
    tally.stores += 1
    return Soaked(world, processes, faults, tally)


def _soak(soaked: Soaked, seed: int, number: int, until: float, found: list[str], server: Server, bucket: str) -> bool:
    """Whether nothing was found."""
    current = 0
    try:
        soaked.begin()
        for current in range(1, ROUNDS_A_STORE + 1):
            if time.monotonic() > until:
                break
            soaked.round(current)
            print(f"seed {seed} store {number} round {current}: {'; '.join(soaked.say)}", flush=True)
    except Exception as problem:  # a mistake of the soak is one finding more, and not its end
        if not isinstance(problem, Found):
            traceback.print_exc()
        text = f"seed {seed} store {number} round {current}: {'; '.join(soaked.say)}: {problem}"
        print(f"FOUND {text}\nagain: make soak SEED={seed} STORE={number}", flush=True)
        found.append(text)
        soaked.faults.plan([])
        soaked.faults.outage(away=False)
        _keep_objects(server, bucket, f"{number}/", soaked.world.place.parent / "bucket")
        return False
    return True


def _keep_objects(server: Server, bucket: str, prefix: str, target: Path) -> None:
    client = server.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            path = target / item["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read())


def too_little(tally: Tally, faults: Faults, seconds: float) -> list[str]:
    """What did not happen often enough for that time."""
    happened = {
        "kills": tally.kills,
        "S3 faults": faults.fired.total(),
        "disk outages": tally.outages.total(),
    }
    wanted = {what: int(number * seconds / 3600) for what, number in WANTED_AN_HOUR.items()}
    return [f"{happened[what]} {what}, {number} wanted" for what, number in wanted.items() if happened[what] < number]


def _report(tally: Tally, faults: Faults, seconds: float) -> None:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{what} {number}" for what, number in sorted(counts.items()) if number)

    print(
        f"{seconds:.0f} s: {tally.rounds} rounds on {tally.stores} stores, {tally.verbs.total()} command lines",
        f"kills {tally.kills}: {listed(tally.killed)}",
        f"S3 faults {faults.fired.total()}: {listed(faults.fired)}",
        f"disk outages {tally.outages.total()}: {listed(tally.outages)}",
        f"local state lost {tally.states_lost}; objects that gc deleted {tally.collected}",
        f"compared {tally.checks} answers, {tally.rows} rows; fsck mended by recovery {tally.mended}",
        f"ended with: {listed(tally.endings)}",
        f"side effects at most: {listed(tally.reach)}",
        sep="\n",
    )


if __name__ == "__main__":
    sys.exit(main())
