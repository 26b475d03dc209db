"""Soak three machines on one bucket: `make soak-machines SECONDS=3600 SEED=1 SERVER=ceph`.

Three homes, each with an SSD, a state directory and real processes of the command line of its own, insert, move, merge
and collect at the same time on one prefix of a real S3 server behind a proxy that makes faults. Processes die by
SIGKILL at a side effect or at a moment, and are stopped by SIGSTOP while the others go on. After every round each
machine recovers and brings its rows to the bucket; then each must answer all rows that were acknowledged, once.

It ends after its seconds, or up to four times as late on a machine where too little happened by then.

Exit 0: nothing was found, and enough happened to say so. 1: something was found; the directory is kept. 3: too little
happened, which proves nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests import servers
from tests.meddling import meddling
from tests.soak.faults import Fault, Faults
from tests.soak.model import Table
from tests.soak.processes import NEVER, Processes, Run
from tests.soak.rounds import LONGEST_SECONDS, Found

WANTED_AN_HOUR = {"kills": 500, "stops": 100, "faults": 300, "commits side by side": 100}
_PATIENCE = 4
"""A machine that is busy with other things has so many times the time until enough happened."""
MACHINES = ("a", "b", "c")
_ROUNDS_A_PREFIX = 40
_TABLE = "soak.t"
_CONFIG = """state_path: state
disks:
  ssd: {{type: local, path: ssd}}
  s3: {{type: object_disk, url: {url}, endpoint_url: {endpoint}, retry_seconds: 4, retention_seconds: 20,
    snapshot_every_commits: 20}}
policies:
  tiers: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
limits: {{workers: 2}}
"""
_TEMPORARY = frozenset({0, 1, 3, 4, 5, 10, 11, 13})
"""As for one machine: no mistake of the user (2), no refusal of the store (12)."""
_COLLECT = ("--guard-interval", "2s", "--allow-short-guard-interval", "--max-delete-fraction", "1", "-y")
_VERBS = {"insert": 10, "move": 8, "part": 4, "merge": 4, "merge --cold": 4, "gc": 3, "tick": 1, "query": 1}
_FAULTS = (
    Fault("lost_answer", "PUT .*/operations/", 0, 1),
    Fault("reset", "PUT .*/operations/", 1, 1),
    Fault("slow", "PUT .*/operations/", 0, 2),
    Fault("slow_down", ".", 2, 3, 0.3),
    Fault("lost_answer", "PUT", 1, 2, 0.5),
    Fault("reset", "LIST", 0, 1),
)


@dataclass(slots=True)
class Happened:
    """What did. A kill or a stop that came too late is not in it."""

    kills: int = 0
    stops: int = 0
    rounds: int = 0
    prefixes: int = 0
    compared: int = 0
    raced: int = 0
    verbs: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Soaked:
    """One prefix and its machines. What they do depends on the seed, and on what answers in time."""

    place: Path
    chance: random.Random
    processes: Processes
    faults: Faults
    happened: Happened
    table: Table = field(default_factory=lambda: Table(_TABLE))
    rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _problems: list[str] = field(default_factory=list)

    def begin(self, url: str, endpoint: str) -> None:
        for name in MACHINES:
            (self.place / name).mkdir(parents=True)
            (self.place / name / "frostline.yaml").write_text(_CONFIG.format(url=url, endpoint=endpoint))
            (self.place / name / "frostline.yaml").chmod(0o600)
        columns = ("--column", "id:int64", "--column", "n:int64", "--order-by", "id", "--policy", "tiers")
        self._calm("a", "table", "create", _TABLE, *columns)
        self.table.became({})

    def round(self, number: int) -> None:
        """All three work at once; then what they answer is compared. Raises `Found`."""
        planned = [Fault(one.kind, one.where, one.after, one.count, one.share) for one in _FAULTS]
        some = self.chance.sample(planned, self.chance.choice((0, 1, 2)))
        self.faults.plan(some, random.Random(self.chance.random()))
        before = self._head()
        chances = [random.Random(self.chance.random()) for _ in MACHINES]
        threads = [threading.Thread(target=self._work, args=pair) for pair in zip(MACHINES, chances, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.faults.plan([])
        self.faults.wait_until_idle()
        if self._problems:
            raise Found("; ".join(self._problems))
        self.happened.raced += max(0, self._head() - before - 1)
        self._compare(fsck=number % 5 == 0)
        self.happened.rounds += 1

    def _head(self) -> int:
        entries = json.loads(self._calm("a", "log", "s3", "--limit", "1", "--json").out)["entries"]
        return int(entries[0]["revision"])

    # One machine

    def _work(self, machine: str, chance: random.Random) -> None:
        try:
            for _ in range(chance.choice((1, 2, 3))):
                self._verb(machine, chance)
        except Exception as problem:
            self._problems.append(f"machine {machine}: {problem}")

    def _verb(self, machine: str, chance: random.Random) -> None:
        verb = chance.choices(list(_VERBS), list(_VERBS.values()))[0]
        rows: dict[int, int] = {}
        match verb:
            case "insert":
                rows = self._new_rows(chance)
                file = self.place / machine / f"{min(rows)}.csv"
                file.write_text("id,n\n" + "".join(f"{key},{value}\n" for key, value in rows.items()))
                arguments: tuple[str, ...] = ("insert", _TABLE, file.name)
            case "move":
                arguments = ("move", _TABLE, "--partition", "all", "--to-volume", "cold")
            case "part":
                arguments = ("move", _TABLE, "--partition", "all", "--to-volume", "hot")
            case "merge":
                arguments = ("merge", _TABLE, "--final")
            case "merge --cold":
                arguments = ("merge", _TABLE, "--cold", "--final")
            case "gc":
                arguments = ("gc", "s3", "--delete", *_COLLECT)
            case "tick":
                arguments = ("tick",)
            case _:
                arguments = ("query", f"SELECT count(*) FROM {_TABLE}")
        run = self._disturbed(machine, arguments, chance)
        with self._lock:
            self.happened.verbs[f"{verb}: {'killed' if run.killed else run.code}"] += 1
            self.happened.kills += run.killed
            if rows and not run.killed and run.code == 0:
                self.table.added([rows])
            elif rows:
                self.table.perhaps_added([rows])
        if not run.killed and (run.code not in _TEMPORARY or "unexpected" in run.err or "Traceback" in run.err):
            raise Found(f"{' '.join(arguments)} ended with {run.code}: {run.err.strip()[-800:]} ({run.place})")

    def _disturbed(self, machine: str, arguments: Sequence[str], chance: random.Random) -> Run:
        """Run it; it may die at a side effect or at a moment, or stand still for a while."""
        share = chance.random()
        at = 1 + chance.randrange(70) if share < 0.35 else NEVER
        run = self._start(machine, arguments, kill_at=at)
        if 0.35 <= share < 0.5:
            if not run.wait(chance.random()):
                self._signal(run, signal.SIGKILL)
        elif 0.5 <= share < 0.75 and not run.wait(chance.random() * 0.6):
            self._signal(run, signal.SIGSTOP)
            stopped = not run.wait(chance.choice((0.5, 1.0, 3.0)))
            with self._lock:
                self.happened.stops += stopped
            self._signal(run, signal.SIGCONT)
        self._wait(run)
        return run

    def _new_rows(self, chance: random.Random) -> dict[int, int]:
        with self._lock:
            first = self.rows + 1
            self.rows += chance.choice((1, 5, 20))
            return {key: key * 7 + 3 for key in range(first, self.rows + 1)}

    def _start(self, machine: str, arguments: Sequence[str], *, kill_at: int = NEVER) -> Run:
        with self._lock:
            return self.processes.start(tuple(arguments), self.place / machine, kill_at=kill_at)

    def _signal(self, run: Run, number: signal.Signals) -> None:
        with self._lock:
            self.processes.signal(run, number)

    def _wait(self, run: Run) -> None:
        if not run.wait(LONGEST_SECONDS):
            self._signal(run, signal.SIGUSR1)
            time.sleep(1)
            self._signal(run, signal.SIGKILL)
            raise Found(f"{' '.join(run.arguments)} hangs: {run.place}")

    def _calm(self, machine: str, *arguments: str, codes: frozenset[int] = frozenset({0})) -> Run:
        """With nothing going wrong."""
        run = self._start(machine, arguments)
        self._wait(run)
        if run.code not in codes:
            raise Found(
                f"{' '.join(arguments)} of {machine} ended with {run.code}: {run.err.strip()[-800:]} ({run.place})"
            )
        return run

    # The comparison

    def _compare(self, *, fsck: bool) -> None:
        """After recovery and with all rows in the bucket, each machine answers all that was acknowledged, once."""
        for machine in MACHINES:
            self._calm(
                machine, "move", _TABLE, "--partition", "all", "--to-volume", "cold", codes=frozenset({0, 10, 13})
            )
        for machine in MACHINES:
            out = self._calm(machine, "query", f"SELECT id, n FROM {_TABLE}", "--json").out
            found = [(int(key), int(value)) for key, value in json.loads(out)["rows"]]
            if (wrong := self.table.look(found)) is not None:
                raise Found(f"machine {machine}: {wrong}")
            self.happened.compared += len(found)
        for machine in MACHINES if fsck else ():
            self._calm(machine, "status")
            run = self._calm(machine, "fsck", "--json", codes=frozenset({0, 4}))
            if run.code:
                raise Found(f"fsck of {machine}: {json.loads(run.out)['problems'][:5]} ({run.place})")


def too_little(happened: Happened, faults: Faults, seconds: float) -> list[str]:
    """What did not happen often enough for that time."""
    there = {
        "kills": happened.kills,
        "stops": happened.stops,
        "faults": faults.fired.total(),
        "commits side by side": happened.raced,
    }
    wanted = {what: int(number * seconds / 3600) for what, number in WANTED_AN_HOUR.items()}
    return [f"{there[what]} {what}, {number} wanted" for what, number in wanted.items() if there[what] < max(number, 1)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.machines", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long; default: an hour")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--server", choices=("ministack", "ceph"), default="ministack")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="frostline-machines-", dir=memory if memory.is_dir() else None))
    faults, happened, found = Faults(), Happened(), ""
    with ExitStack() as stack:
        server = stack.enter_context(servers.SERVERS[options.server]())
        proxy = stack.enter_context(meddling(server, around=faults.around))
        bucket = server.new_bucket()
        processes = stack.enter_context(Processes(base, {**servers.without_aws(), **proxy.environment()}))
        processes.start(("--version",), base).wait(120)
        began = time.monotonic()

        def goes_on() -> bool:
            past = time.monotonic() - began
            lacking = past < _PATIENCE * options.seconds and too_little(happened, faults, options.seconds)
            return past < options.seconds or bool(lacking)

        while not found and goes_on():
            happened.prefixes += 1
            number = happened.prefixes
            chance = random.Random(f"{options.seed}/{number}")
            processes.place = base / str(number) / "runs"
            processes.place.mkdir(parents=True)
            current = 0
            soaked = Soaked(base / str(number), chance, processes, faults, happened)
            try:
                soaked.begin(f"s3://{bucket}/{number}/", proxy.endpoint_url)
                for current in range(1, _ROUNDS_A_PREFIX + 1):
                    if current > 1 and not goes_on():
                        break
                    soaked.round(current)
                shutil.rmtree(base / str(number))
            except Found as problem:
                found = f"seed {options.seed} prefix {number} round {current}: {problem}"
        seconds = time.monotonic() - began
    fired = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.fired.items()))
    print(
        f"{seconds:.0f} s on {options.server}: {happened.rounds} rounds on {happened.prefixes} prefixes",
        f"kills {happened.kills}, stops {happened.stops}, commits side by side {happened.raced}",
        f"faults {faults.fired.total()}: {fired}",
        f"compared {happened.compared} rows",
        "ended with: " + ", ".join(f"{what} {count}" for what, count in sorted(happened.verbs.items())),
        sep="\n",
    )
    if found:
        print(f"FOUND {found}; kept in {base}")
        return 1
    shutil.rmtree(base)
    lacking = too_little(happened, faults, options.seconds)
    print(*(f"proves nothing: {what}" for what in lacking), sep="\n", end="\n" if lacking else "")
    return 3 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
