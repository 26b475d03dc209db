"""Three replicas of one table, what they do at once, what goes wrong meanwhile, and what must hold afterwards."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.replicas.keeper.line import KeeperLine
from tests.soak import sharing
from tests.soak.blocks import Block, Span, Truth
from tests.soak.faults import Fault, Faults
from tests.soak.keeper_server import KeeperServer
from tests.soak.processes import NEVER, Processes, Run
from tests.soak.rounds import LONGEST_SECONDS, Found
from tests.soak.sharing import TABLE

NAMES = ("a", "b", "c")
PARTITIONS = (0, 1, 2)
_SESSION_SECONDS = 2.0
_HEALING_SECONDS = 150.0
_FIRST_REACH = 80
"""Side effects of a verb, where its like has not come to its end yet."""
_CONFIG = """state_path: state
disks:
  ssd: {{type: local, path: ssd}}
  s3: {{type: object_disk, url: {url}, endpoint_url: {endpoint}, retry_seconds: 4, retention_seconds: {retention},
    snapshot_every_commits: 20{log}}}
policies:
  tiers: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
limits: {{workers: 2}}
daemon: {{tick_seconds: 2}}
keeper: {{hosts: ["{line}"], root: {root}, session_timeout_seconds: {session}, request_timeout_seconds: 8}}
interserver: {{secret: a-secret-of-the-soak, port: 0}}
macros: {{shard: "01", replica: {name}}}
"""
TEMPORARY = frozenset({0, 1, 3, 4, 5, 10, 11, 13})
"""No mistake of the user (2), no refusal of the store (12)."""
_MAY_WAIT = frozenset({0, 1, 3, 5, 11})
COLLECT = (
    "--guard-interval",
    f"{sharing.GUARD_SECONDS}s",
    "--allow-short-guard-interval",
    "--max-delete-fraction",
    "1",
    "-y",
)
_VERBS = {"insert": 10, "repeat": 4, "merge": 3, "move": 4, "drop": 2, "alter": 2, "sync": 3, "tick": 1, "gc": 1}
_SHARING_VERBS = {**_VERBS, "move": 6, "back": 3, "drain": 2, "audit": 2, "gc": 3}
_VERBS_A_ROUND = {False: (2, 3, 4), True: (4, 6, 8)}
_BREAKS_A_ROUND = {False: (1, 2, 2), True: (2, 3, 4)}
"""With own logs all machines are audited and collect after each round, one after the other, which takes as long as many
verbs that are disturbed."""
_FAULTS = (
    Fault("lost_answer", "PUT .*/operations/", 0, 1),
    Fault("reset", "PUT .*/operations/", 1, 1),
    Fault("slow", "PUT .*/operations/", 0, 2),
    Fault("slow_down", ".", 2, 3, 0.3),
    Fault("reset", "LIST", 0, 1),
)


@dataclass(slots=True)
class Happened:
    """What did. A kill or a stop that came too late is not in it."""

    kills: int = 0
    stops: int = 0
    keeper_kills: int = 0
    expiries: int = 0
    faults: int = 0
    rounds: int = 0
    collections: int = 0
    wipes: int = 0
    left: int = 0
    """Machines that dropped their replica, after which the others had every row."""
    compared: int = 0
    broken_lines: Counter[str] = field(default_factory=Counter)
    verbs: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = ", ".join(f"{what} {number}" for what, number in sorted(self.broken_lines.items()))
        verbs = ", ".join(f"{what} {number}" for what, number in sorted(self.verbs.items()))
        return (
            f"{self.rounds} rounds, kills {self.kills}, stops {self.stops}, kills of Keeper {self.keeper_kills}, "
            f"expiries {self.expiries}, lines {lines or 'whole'}, S3 faults {self.faults}\n"
            f"collections in calm {self.collections}, wipes of Keeper {self.wipes}, machines that left {self.left}\n"
            f"compared {self.compared} rows\nended with: {verbs}"
        )


@dataclass(slots=True)
class Nodes:
    """One table and its machines. What they do depends on the seed, and on what answers in time."""

    place: Path
    chance: random.Random
    processes: Processes
    faults: Faults
    keeper: KeeperServer
    happened: Happened
    own_logs: bool = False
    """Zero-copy: each machine has a log of its own in the prefix, and moves parts to it and back by itself."""
    names: list[str] = field(default_factory=lambda: list(NAMES))
    """Of the machines that have the table."""
    truth: Truth = field(default_factory=Truth)
    said: list[str] = field(default_factory=list)
    """Of the present round."""
    _lines: dict[str, KeeperLine] = field(default_factory=dict)
    _daemons: dict[str, Run] = field(default_factory=dict)
    _columns: set[str] = field(default_factory=set)
    """Whose adding was acknowledged."""
    _is_altering: bool = False
    """Whether the present round may change the columns: a block of other columns is another block, and none repeats."""
    _first_to_repeat: int = 1
    _rows: int = 0
    _reach: dict[str, int] = field(default_factory=dict)
    """How many side effects a verb had the last times, the most of them: beyond it no kill strikes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _problems: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._daemons.values():
            self._signal(run, signal.SIGKILL)
            run.wait(LONGEST_SECONDS)
        for line in self._lines.values():
            line.cut()

    def begin(self, url: str, endpoint: str) -> None:
        root = f"/soak-{uuid.uuid4().hex}"
        for name in NAMES:
            self._lines[name] = KeeperLine(f"http://127.0.0.1:{self.keeper.port}")
            values = {"line": self._lines[name].host, "root": root, "session": _SESSION_SECONDS, "name": name}
            values["retention"] = sharing.RETENTION_SECONDS
            values["log"] = f", log: {name}" if self.own_logs else ""
            (self.place / name).mkdir(parents=True)
            configuration = self.place / name / "frostline.yaml"
            configuration.write_text(_CONFIG.format(url=url, endpoint=endpoint, **values))
            configuration.chmod(0o600)
        columns = ("--column", "p:int64", "--column", "id:int64", "--column", "n:int64")
        order = ("--order-by", "id", "--partition-by", "p", "--policy", "tiers")
        self.calm("a", "table", "create", TABLE, *columns, *order, "--replicated")
        for name in NAMES[1:]:
            self.calm(name, "table", "create", TABLE, "--replicated", "--policy", "tiers")
        self._mend()

    def round(self, *, fsck: bool) -> None:
        """All three work at once while something goes wrong; then what they have is compared. Raises `Found`."""
        self.said = []
        self._is_altering = self.chance.random() < 0.25
        chances = [random.Random(self.chance.random()) for _ in NAMES]
        threads = [threading.Thread(target=self._work, args=pair) for pair in zip(NAMES, chances, strict=True)]
        for thread in threads:
            thread.start()
        for _ in range(self.chance.choice(_BREAKS_A_ROUND[self.own_logs])):
            self._break(self.chance)
        for thread in threads:
            thread.join()
        self._mend()
        if self._problems:
            raise Found("; ".join(self._problems))
        self.heal()
        if self.own_logs:
            sharing.check(self, wipes=fsck)
        self.compare(fsck=fsck)
        if self._is_altering:
            self._first_to_repeat = len(self.truth.blocks) + 1
        self.happened.rounds += 1

    # What they do

    def _work(self, name: str, chance: random.Random) -> None:
        try:
            for _ in range(chance.choice(_VERBS_A_ROUND[self.own_logs])):
                self._verb(name, chance)
        except Exception as problem:
            self._problems.append(f"machine {name}: {problem}")

    def _verb(self, name: str, chance: random.Random) -> None:
        verbs = _SHARING_VERBS if self.own_logs else _VERBS
        verb = chance.choices(list(verbs), list(verbs.values()))[0]
        if verb == ("repeat" if self._is_altering else "alter"):
            verb = "insert"
        partition, number, column = chance.choice(PARTITIONS), 0, ""
        match verb:
            case "insert" | "repeat":
                number = self._block(chance, partition, again=verb == "repeat")
                arguments: tuple[str, ...] = ("insert", TABLE, f"../{number}.csv")
            case "merge":
                arguments = ("merge", TABLE, "--final")
            case "move":
                arguments = ("move", TABLE, "--partition", str(partition), "--to-volume", "cold")
            case "back":
                arguments = ("move", TABLE, "--partition", str(partition), "--to-volume", "hot")
            case "drain":
                arguments = ("disk", "drain", "s3", *(("--stop",) if chance.random() < 0.5 else ()))
            case "audit":
                arguments = ("replica", "audit", "--repair")
            case "drop":
                arguments = ("partition", "drop", TABLE, str(partition), "-y")
            case "alter":
                column = f"c{chance.randrange(10**9)}"
                arguments = ("table", "alter", TABLE, "--add-column", f"{column}:int64", "--default", "7", "-y")
            case "sync":
                arguments = ("replica", "sync", TABLE)
            case "tick":
                arguments = ("tick",)
            case _:
                arguments = ("gc", "s3", "--delete", *COLLECT)
        began = time.monotonic()
        run = self._disturbed(name, arguments, chance, reach=self._reach.get(verb, _FIRST_REACH))
        ended = "killed" if run.killed else str(run.code)
        span = Span.of(began, time.monotonic(), acknowledged=ended == "0")
        with self._lock:
            self.said.append(f"{name}: {verb} {number or partition}: {ended}")
            self.happened.verbs[f"{verb}: {ended}"] += 1
            self.happened.kills += run.killed
            if run.effects is not None:  # a little more: what it meets the next time may take more
                self._reach[verb] = max(run.effects + 2, self._reach.get(verb, 0) * 3 // 4)
            if verb in ("insert", "repeat"):
                self.truth.insert(number, span)
            elif verb == "drop":
                self.truth.drop(partition, span)
            elif verb == "alter" and span.acknowledged:
                self._columns.add(column)
        if not run.killed:
            self._check_end(run)

    def _block(self, chance: random.Random, partition: int, *, again: bool) -> int:
        """The number of a new block whose file is written, or of one that was sent before."""
        with self._lock:
            sent = [known for known in self.truth.blocks if known >= self._first_to_repeat]
            unknown = [one for one in sent if not any(span.acknowledged for span in self.truth.blocks[one].inserts)]
            if again and sent:  # what has no answer is what people insert again
                return chance.choice(unknown[-4:] if unknown and chance.random() < 0.7 else sent[-12:])
            number, first = len(self.truth.blocks) + 1, self._rows + 1
            self._rows += chance.choice((1, 5, 20))
            rows = {key: key * 7 + 3 for key in range(first, self._rows + 1)}
            self.truth.blocks[number] = Block(partition, rows)
        lines = "".join(f"{partition},{key},{value}\n" for key, value in rows.items())
        (self.place / f"{number}.csv").write_text("p,id,n\n" + lines)
        return number

    @staticmethod
    def _check_end(run: Run) -> None:
        if run.code not in TEMPORARY or "unexpected" in run.err or "Traceback" in run.err:
            what = " ".join(run.arguments)
            raise Found(f"{what} ended with {run.code}: {run.err.strip()[-800:]} ({run.place})")

    # What goes wrong

    def _disturbed(self, name: str, arguments: Sequence[str], chance: random.Random, *, reach: int) -> Run:
        """Run it; it may die at a side effect within `reach` or at a moment, or stand still for a while."""
        share = chance.random()
        at = 1 + chance.randrange(reach) if share < 0.3 else NEVER
        run = self._start(name, arguments, kill_at=at)
        if 0.3 <= share < 0.45:
            if not run.wait(chance.random()):
                self._signal(run, signal.SIGKILL)
        elif 0.45 <= share < 0.6 and not run.wait(chance.random() * 0.6):
            self._stop(run, chance)
        self._wait(run)
        return run

    def _stop(self, run: Run, chance: random.Random) -> None:
        self._signal(run, signal.SIGSTOP)
        stopped = not run.wait(chance.choice((0.5, 1.0, 1.5 * _SESSION_SECONDS)))
        with self._lock:
            self.happened.stops += stopped
        self._signal(run, signal.SIGCONT)

    def _break(self, chance: random.Random) -> None:
        """Something of what all of them need; in the main thread, with which ZooKeeper would end."""
        name = chance.choice(NAMES)
        line, daemon = self._lines[name], self._daemons[name]
        time.sleep(chance.random())
        what = chance.choice(("kill", "stop", "cut", "mute", "lose", "lose", "keeper", "s3", "s3", "nothing"))
        self.said.append(f"{what} {name}")
        match what:
            case "kill":
                self._signal(daemon, signal.SIGKILL)
                self.happened.kills += 1
                daemon.wait(LONGEST_SECONDS)
                self._run_daemon(name, kill_at=chance.choice((NEVER, 1 + chance.randrange(80))))
            case "stop":
                self._stop(daemon, chance)
            case "cut":
                line.cut()
                time.sleep(chance.choice((0.5, 1.5 * _SESSION_SECONDS)))
                line.mend()
            case "mute":
                line.mute()
                time.sleep(chance.choice((0.5, 1.5 * _SESSION_SECONDS)))
                line.cut()
                line.mend()
            case "lose":
                line.lose_answers(chance.choice((1, 2, 3)))
            case "keeper":
                self.keeper.count()
                self.keeper.kill()
                self.happened.keeper_kills += 1
                time.sleep(chance.random())
                self.keeper.start()
            case "s3":
                planned = [Fault(one.kind, one.where, one.after, one.count, one.share) for one in _FAULTS]
                self.faults.plan(chance.sample(planned, 2), random.Random(chance.random()))
        if what in ("cut", "mute", "lose"):
            self.happened.broken_lines[what] += 1

    # One process

    def _start(self, name: str, arguments: Sequence[str], *, kill_at: int = NEVER) -> Run:
        with self._lock:
            return self.processes.start(tuple(arguments), self.place / name, kill_at=kill_at)

    def _run_daemon(self, name: str, *, kill_at: int = NEVER) -> None:
        self._daemons[name] = self._start(name, ("daemon", "run"), kill_at=kill_at)

    def _signal(self, run: Run, number: signal.Signals) -> None:
        with self._lock:
            self.processes.signal(run, number)

    def _wait(self, run: Run) -> None:
        if not run.wait(LONGEST_SECONDS):
            self._signal(run, signal.SIGUSR1)
            time.sleep(1)
            self._signal(run, signal.SIGKILL)
            raise Found(f"{' '.join(run.arguments)} hangs: {run.place}")

    def calm(self, name: str, *arguments: str, codes: frozenset[int] | None = frozenset({0})) -> Run:
        """With nothing going wrong."""
        run = self._start(name, arguments)
        self._wait(run)
        if codes is not None and run.code not in codes:
            what = " ".join(arguments)
            raise Found(f"{what} of {name} ended with {run.code}: {run.err.strip()[-800:]} ({run.place})")
        return run

    def collect(self, name: str, codes: frozenset[int] | None = frozenset({0})) -> Run:
        """gc with --delete; None: however it ends."""
        return self.calm(name, "gc", "s3", "--delete", *COLLECT, codes=codes)

    def drop(self, name: str) -> None:
        """The machine drops its replica and is gone."""
        self.calm(name, "table", "drop", TABLE, "-y")
        self._signal(self._daemons[name], signal.SIGKILL)
        self._daemons.pop(name).wait(LONGEST_SECONDS)
        self.names.remove(name)

    # Afterwards

    def _mend(self) -> None:
        """Nothing goes wrong any more, and every daemon runs."""
        self.keeper.count()
        self.happened.expiries = self.keeper.expiries
        self.faults.plan([])
        self.faults.wait_until_idle()
        for name in self.names:
            self._lines[name].lose_answers(0)
            daemon = self._daemons.get(name)
            if daemon is not None and not daemon.wait(0):
                if daemon.kill_at == NEVER:
                    continue
                self._signal(daemon, signal.SIGKILL)  # else it dies in the calm, and nobody begins another one
                daemon.wait(LONGEST_SECONDS)
            if daemon is not None:
                self.happened.kills += daemon.killed
                if not daemon.killed:
                    raise Found(f"the daemon of {name} ended with {daemon.code}: {daemon.err[-800:]} ({daemon.place})")
            self._run_daemon(name)

    def heal(self) -> None:
        """Return when every replica has done all that was agreed upon. Raises `Found` where one does not come to it."""
        end = time.monotonic() + _HEALING_SECONDS
        while True:
            self.everywhere(lambda name: self.calm(name, "replica", "sync", TABLE, codes=_MAY_WAIT))
            run = self.calm(self.names[0], "replica", "status", TABLE, "--json", codes=frozenset({0, 4, 5}))
            if run.code == 0:
                return
            if time.monotonic() > end:
                waiting = [self.calm(name, "replica", "sync", TABLE, codes=TEMPORARY).err for name in self.names]
                raise Found(f"the replicas do not come to rest: {run.out} {run.err} {waiting} ({run.place})")

    def compare(self, *, fsck: bool) -> None:
        """Every replica answers all that was acknowledged, once; nobody finds anything wrong."""
        answers: dict[str, list[tuple[int, int]]] = {}

        def ask(name: str) -> None:
            out = self.calm(name, "query", f"SELECT id, n FROM {TABLE}", "--json").out
            answers[name] = [(int(key), int(value)) for key, value in json.loads(out)["rows"]]

        self.everywhere(ask)
        for name in self.names:
            if (wrong := self.truth.look(answers[name])) is not None:
                raise Found(f"replica {name}: {wrong}")
            self.happened.compared += len(answers[name])
        if fsck:
            self.everywhere(self._examine)

    def _examine(self, name: str) -> None:
        shown = json.loads(self.calm(name, "table", "show", TABLE, "--json").out)
        if lacking := self._columns - {column["name"] for column in shown["columns"]}:
            raise Found(f"replica {name} lacks the columns {sorted(lacking)}")
        run = self.calm(name, "fsck", "--read-data", "--json", codes=frozenset({0, 4}))
        if run.code:
            raise Found(f"fsck of {name}: {json.loads(run.out)['problems'][:5]} ({run.place})")

    def everywhere(self, act: Callable[[str], object]) -> None:
        """On all machines at once. Raises the `Found` of the first that has one."""
        with ThreadPoolExecutor(len(self.names)) as threads:
            for one in [threads.submit(act, name) for name in self.names]:
                one.result()
