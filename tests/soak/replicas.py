"""Soak three replicas of a table: `make soak-replicas SECONDS=3600 SEED=1`.

Three homes, each with a daemon and real processes of the command line of its own, insert, merge, move, drop and alter
at the same time, coordinated by a real ZooKeeper behind a line a machine, on one prefix of a real S3 server behind a
proxy that makes faults. Processes die by SIGKILL at a side effect or at a moment, or stand still for longer than their
session; lines are cut, fall silent and lose answers; ZooKeeper is killed and started again. After every round all is
mended: then each replica must have all that was acknowledged, once, and nothing that was dropped; and `fsck` must find
nothing. With --own-logs each machine has a log of its own in the prefix (zero-copy), moves parts there and back by its
own choice, and Keeper loses all that it knew in between.

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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests import servers
from tests.meddling import meddling
from tests.soak import sharing
from tests.soak.faults import Faults
from tests.soak.keeper_server import KeeperServer
from tests.soak.processes import Processes
from tests.soak.replicated import Happened, Nodes
from tests.soak.rounds import Found

WANTED_AN_HOUR = {
    "kills": 300,
    "stops": 60,
    "broken lines": 60,
    "kills of Keeper": 20,
    "expiries": 20,
    "S3 faults": 100,
}
WANTED_OF_OWN_LOGS_AN_HOUR = {"wipes of Keeper": 10, "machines that left": 4}
_ROUNDS_A_TABLE = 12


def too_little(happened: Happened, seconds: float, *, own_logs: bool = False) -> list[str]:
    """What did not happen often enough for that time."""
    there = {
        "kills": happened.kills,
        "stops": happened.stops,
        "broken lines": happened.broken_lines.total(),
        "kills of Keeper": happened.keeper_kills,
        "expiries": happened.expiries,
        "S3 faults": happened.faults,
        "wipes of Keeper": happened.wipes,
        "machines that left": happened.left,
    }
    an_hour = WANTED_AN_HOUR | (WANTED_OF_OWN_LOGS_AN_HOUR if own_logs else {})
    wanted = {what: int(number * seconds / 3600) for what, number in an_hour.items()}
    return [f"{there[what]} {what}, {number} wanted" for what, number in wanted.items() if there[what] < number]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.replicas", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long; default: an hour")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="no more than so many in all")
    parser.add_argument("--own-logs", action="store_true", help="zero-copy: a log a machine; Keeper is wiped, too")
    parser.add_argument("--table", type=int, metavar="N", help="only this table, to repeat a finding")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="frostline-replicas-", dir=memory if memory.is_dir() else None))
    happened, faults = Happened(), Faults()
    found = ""
    with ExitStack() as stack:
        server = stack.enter_context(servers.ministack())
        proxy = stack.enter_context(meddling(server, around=faults.around))
        bucket = server.new_bucket()
        keeper = stack.enter_context(KeeperServer(base / "keeper"))
        processes = stack.enter_context(Processes(base, {**servers.without_aws(), **proxy.environment()}))
        processes.start(("--version",), base).wait(120)
        began = time.monotonic()
        number = (options.table or 1) - 1
        while not found and time.monotonic() < began + options.seconds and happened.rounds < options.rounds:
            number += 1
            processes.place = base / str(number) / "runs"
            processes.place.mkdir(parents=True)
            chance = random.Random(f"{options.seed}/{number}")
            with Nodes(base / str(number), chance, processes, faults, keeper, happened, options.own_logs) as nodes:
                current = 0
                try:
                    nodes.begin(f"s3://{bucket}/{number}/", proxy.endpoint_url)
                    for current in range(1, _ROUNDS_A_TABLE + 1):
                        last = time.monotonic() > began + options.seconds or happened.rounds + 1 >= options.rounds
                        nodes.round(fsck=last or current % 3 == 0)
                        print(
                            f"seed {options.seed} table {number} round {current}: {'; '.join(nodes.said)}", flush=True
                        )
                        if last:
                            break
                    if options.own_logs:
                        sharing.leave(nodes)
                except Found as problem:
                    found = f"seed {options.seed} table {number} round {current}: {'; '.join(nodes.said)}: {problem}"
            if not found:
                shutil.rmtree(base / str(number))
            if options.table:
                break
        happened.faults = faults.fired.total()
        seconds = time.monotonic() - began
    print(f"{seconds:.0f} s: {happened}")
    if found:
        print(f"FOUND {found}; kept in {base}")
        more = " OWN_LOGS=1" if options.own_logs else ""
        print(f"again: make soak-replicas SEED={options.seed} TABLE={number}{more}")
        return 1
    shutil.rmtree(base)
    is_long = options.rounds == sys.maxsize
    lacking = too_little(happened, min(options.seconds, seconds), own_logs=options.own_logs) if is_long else []
    print(*(f"proves nothing: {what}" for what in lacking), sep="\n", end="\n" if lacking else "")
    return 3 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
