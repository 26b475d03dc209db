"""One history: steps on two machines with a bucket, chosen by a seed, and what each must leave.

Steps are command lines, run in this process. A step may be refused (exit 13) and then changes nothing; whatever it
does, every machine must answer afterwards with the rows of the model, or say why it does not.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.histories.model import MODES, TIMES, TTL, Block, Blocks, Row, Truth
from tiering.cli import main as cli

TABLE = "d.t"
PARTITIONS = "ab"
KEYS = 4
COLUMNS = ("seq:int64", "k:int64", "g:string", "v:int64", "gone:bool", "n:int64", "ts:timestamp[us, UTC]")
_QUERY = (
    "SELECT seq, k, g, v, gone, n, "
    "CASE WHEN ts IS NULL THEN NULL ELSE strftime(ts AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%SZ') END AS ts "
    f"FROM {TABLE}"
)


class Finding(Exception):
    """What should not be. One sentence."""


@dataclass(slots=True)
class Machine:
    name: str
    root: Path
    has_second_ssd: bool = True

    @property
    def home(self) -> Path:
        return self.root / self.name

    @property
    def configuration(self) -> Path:
        return self.home / "frostline.yaml"

    def configure(self) -> None:
        ssds = ["ssd", "ssd2"] if self.has_second_ssd else ["ssd"]
        self.home.mkdir(parents=True, exist_ok=True)
        self.configuration.write_text(
            yaml.safe_dump(
                {
                    "state_path": str(self.home / "state"),
                    "disks": {
                        **{ssd: {"type": "local", "path": str(self.home / ssd)} for ssd in ssds},
                        "s3": {"type": "object_disk", "url": f"{(self.root / 'bucket').as_uri()}/store/"},
                    },
                    "policies": {
                        "hot_cold": {"volumes": [{"name": "hot", "disks": ssds}, {"name": "cold", "disks": ["s3"]}]}
                    },
                }
            )
        )
        self.configuration.chmod(0o600)


@dataclass(slots=True)
class History:
    root: Path
    chance: random.Random
    truth: Truth
    machines: dict[str, Machine]
    done: list[str] = field(default_factory=list)
    inserts: dict[int, Path] = field(default_factory=dict)
    inserted: dict[int, dict[Block, tuple[Row, ...]]] = field(default_factory=dict)
    writer: str = "A"
    """Which machine inserts, where the order between two that do is not to be kept."""
    why: str = ""
    """What the last question was answered with on stderr."""
    next_seq: int = 1
    refused: int = 0

    # ---- command lines

    def run(self, machine: str, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run(["-c", str(self.machines[machine].configuration), "--yes", "--no-progress", *arguments])
        self.done.append(f"{machine}: {' '.join(arguments)}  -> {code}")
        if "unexpected " in err.getvalue() or "Traceback" in err.getvalue():
            raise Finding(f"exit {code} of {' '.join(arguments)}: {err.getvalue()[:400]}")
        return code, out.getvalue(), err.getvalue()

    def happens(self, machine: str, *arguments: str) -> bool:
        """Whether the step was carried out; False where it was refused."""
        code, _, error = self.run(machine, *arguments)
        if code not in (0, 10, 13):
            raise Finding(f"exit {code} of {' '.join(arguments)}: {error.strip()[:400]}")
        self.refused += code != 0
        return code == 0

    def answer(self, machine: str) -> list[Row] | None:
        """The rows that it shows; None where it refuses to answer."""
        code, out, self.why = self.run(machine, "query", _QUERY, "--json")
        self.done.pop()
        return None if code else [Row(*values) for values in json.loads(out)["rows"]]

    def check(self) -> None:
        for machine in self.machines:
            answer = self.answer(machine)
            if answer is None:
                raise Finding(f"{machine} does not answer: {self.why[:400]}")
            if wrong := self.truth.wrong(machine, answer):
                raise Finding(f"{machine}: {wrong}")

    # ---- steps

    def insert(self, machine: str) -> None:
        self._insert(machine, self._new_rows(self.chance.choice((PARTITIONS, *PARTITIONS))))

    def insert_again(self, machine: str) -> None:
        """The same file once more. Not where another machine's SSD has its rows, which this one cannot see; and not
        where it would come in as a later insert, if the order of inserts matters."""
        seen = self.truth.visible(machine)
        elsewhere = {block for name, hot in self.truth.hot.items() if name != machine for block in hot}
        repeatable = [
            number
            for number, blocks in self.inserted.items()
            if not blocks.keys() & elsewhere and (self.truth.keeps_all_rows or blocks.keys() <= seen.keys())
        ]
        if repeatable:
            self._insert(machine, self.chance.choice(repeatable))

    def replace(self, machine: str) -> None:
        number = self._new_rows(self.chance.choice(PARTITIONS))
        if self.happens(machine, "insert", TABLE, str(self.inserts[number]), "--replace-partitions"):
            for partition in {block[1] for block in self.inserted[number]}:
                self._forget(machine, partition)
            shown = self._shown_elsewhere(machine)
            brought = self.inserted[number]
            to_bucket = any(row.seq in shown for rows in brought.values() for row in rows)
            (self.truth.cold if to_bucket else self.truth.hot[machine]).update(brought)
        else:
            self._never(number)

    def move_down(self, machine: str) -> None:
        self._move_down(machine)

    def move_down_and_keep(self, machine: str) -> None:
        self._move_down(machine, "--keep-source")

    def move_up(self, machine: str) -> None:
        """Also of what the SSD has a copy already."""
        partition = self._partition()
        if self.happens(machine, "move", TABLE, "--partition", partition, "--to-disk", "ssd"):
            self.truth.hot[machine] |= _take(self.truth.cold, partition)

    def drop(self, machine: str) -> None:
        partition = self._partition()
        if self.happens(machine, "partition", "drop", TABLE, partition):
            self._forget(machine, partition)

    def detach_and_attach(self, machine: str) -> None:
        partition = self._partition()
        if not self.happens(machine, "partition", "detach", TABLE, partition):
            return
        cold, hot = _take(self.truth.cold, partition), _take(self.truth.hot[machine], partition)
        self.check()
        if self.chance.random() < 0.5:
            self.insert(machine)
            self.check()
        if self.happens(machine, "partition", "attach", TABLE, partition):
            self.truth.cold |= cold
            self.truth.hot[machine] |= hot
        else:
            raise Finding(f"attach of {partition} was refused")

    def merge(self, machine: str) -> None:
        self.happens(machine, "merge", TABLE, "--final")

    def merge_cold(self, machine: str) -> None:
        self.happens(machine, "merge", TABLE, "--cold", "--final")

    def adopt(self, machine: str) -> None:
        self.happens(machine, "merge", TABLE, "--adopt")

    def adopt_and_merge_cold(self, machine: str) -> None:
        self.happens(machine, "merge", TABLE, "--adopt", "--cold", "--final")

    def tick(self, machine: str) -> None:
        code, _, error = self.run(machine, "tick", "--believe-clock")
        if code not in (0, 3, 13):
            raise Finding(f"exit {code} of tick: {error[:400]}")

    def undo(self, machine: str) -> None:
        """Drop what a partition has in the bucket, and take that back."""
        partition = self._partition()
        before = self._head(machine)
        if not self.happens(machine, "partition", "drop", TABLE, partition):
            return
        cold = {block: rows for block, rows in self.truth.cold.items() if block[1] == partition}
        self._forget(machine, partition)
        head = self._head(machine)
        if cold and head == before + 1 and self.happens(machine, "undo", "s3", str(head)):
            self.truth.cold |= cold

    def lose(self, machine: str) -> None:
        """A machine dies with its disks, and another one takes its place."""
        if self.truth.keeps_all_rows and self.chance.random() < 0.4:
            self.truth.hot[machine].clear()
        elif not self._move_all_down(machine):
            return
        shutil.rmtree(self.machines[machine].home)
        self.machines[machine].configure()
        self.truth.hot[machine].clear()
        self.done.append(f"{machine}: lost with its disks")
        self.writer = self.chance.choice(list(self.machines))

    def lose_state(self, machine: str) -> None:
        shutil.rmtree(self.machines[machine].home / "state", ignore_errors=True)
        self.done.append(f"{machine}: lost its state")

    def set_back(self, machine: str) -> None:
        """An older copy of the SSDs is in their place for a while, and must be noticed if it matters."""
        home = self.machines[machine].home
        ssds = [name for name in ("ssd", "ssd2") if (home / name).is_dir()]
        for name in ssds:
            shutil.copytree(home / name, home / f"{name}.older", symlinks=True)
        self.done.append(f"{machine}: copy of its SSDs begins")
        for _ in range(self.chance.randint(1, 3)):
            self.chance.choice((self.insert, self.move_down, self.drop, self.replace, self.merge))(machine)
        for name in ssds:
            (home / name).rename(home / f"{name}.newer")
            (home / f"{name}.older").rename(home / name)
        self.done.append(f"{machine}: SSDs set back")
        answer = self.answer(machine)
        if answer is not None and (wrong := self.truth.wrong(machine, answer)):
            raise Finding(f"{machine}, set back, answers: {wrong}")
        # A copy that answers is as new as the other, and opening it may have written to it: it stays in use.
        for name in ssds:
            shutil.rmtree(home / (name if answer is None else f"{name}.newer"))
            if answer is None:
                (home / f"{name}.newer").rename(home / name)
        self.done.append(f"{machine}: SSDs as they were")

    def give_up(self, machine: str) -> None:
        """The second SSD is given up, and comes back into the configuration for a while."""
        here = self.machines[machine]
        if not (self.truth.keeps_all_rows and here.has_second_ssd and (here.home / "ssd2").is_dir()):
            return
        here.has_second_ssd = False
        here.configure()
        if self.run(machine, "disk", "forget", "ssd2")[0]:
            here.has_second_ssd = True
            here.configure()
            return
        answer = {row.seq for row in self.answer(machine) or ()}
        hot = self.truth.hot[machine]
        for block, rows in list(hot.items()):
            if not {row.seq for row in rows} & answer:
                del hot[block]
        self.check()
        for _ in range(self.chance.randint(0, 2)):
            self.insert_again(machine)
            self.check()
        here.has_second_ssd = True
        here.configure()
        answers = self.answer(machine)
        if answers is not None and (wrong := self.truth.wrong(machine, answers)):
            raise Finding(f"{machine} takes in the disk that it gave up: {wrong}")
        here.has_second_ssd = False
        here.configure()

    # ---- parts of steps

    def _shown_elsewhere(self, machine: str) -> set[int]:
        """The rows that the other machine shows: of what this one has just brought or moved, those in the bucket."""
        other = next(name for name in self.machines if name != machine)
        return {row.seq for row in self.answer(other) or ()}

    def _partition(self) -> str:
        return self.chance.choice(PARTITIONS)

    def _new_rows(self, partitions: str) -> int:
        number = len(self.inserts) + 1
        blocks: dict[Block, list[Row]] = {}
        for _ in range(self.chance.randint(1, 5)):
            k = self.chance.randrange(KEYS)
            g = PARTITIONS[k % len(PARTITIONS)]
            if g not in partitions:
                continue
            row = Row(
                seq=self.next_seq,
                k=k,
                g=g,
                v=self.chance.choice((None, 1, 2, 3)),
                gone=self.chance.random() < 0.2,
                n=self.chance.choice((None, 1, 5, 9)),
                ts=self.chance.choice(TIMES),
            )
            self.next_seq += 1
            blocks.setdefault((number, g), []).append(row)
        if not blocks:
            return self._new_rows(partitions)
        source = self.root / f"{number}.jsonl"
        ordered = sorted(row for rows in blocks.values() for row in rows)
        source.write_text("".join(json.dumps(row._asdict()) + "\n" for row in ordered))
        self.inserts[number] = source
        self.inserted[number] = {block: tuple(rows) for block, rows in blocks.items()}
        return number

    def _never(self, number: int) -> None:
        del self.inserts[number], self.inserted[number]

    def _insert(self, machine: str, number: int) -> None:
        if self.truth.order_is_needed_across_machines and machine != self.writer:
            return
        if not self.happens(machine, "insert", TABLE, str(self.inserts[number])):
            raise Finding(f"insert was refused on {machine}")
        seen = self.truth.visible(machine)
        self.truth.hot[machine] |= {b: rows for b, rows in self.inserted[number].items() if b not in seen}

    def _move_down(self, machine: str, *more: str) -> None:
        partition = self._partition()
        if self.happens(machine, "move", TABLE, "--partition", partition, "--to-disk", "s3", *more):
            self.truth.cold |= _take(self.truth.hot[machine], partition)

    def _move_all_down(self, machine: str) -> bool:
        for partition in PARTITIONS:
            if not any(block[1] == partition for block in self.truth.hot[machine]):
                continue
            if not self.happens(machine, "move", TABLE, "--partition", partition, "--to-disk", "s3"):
                return False
            self.truth.cold |= _take(self.truth.hot[machine], partition)
        return True

    def _forget(self, machine: str, partition: str) -> None:
        _take(self.truth.cold, partition)
        _take(self.truth.hot[machine], partition)

    def _head(self, machine: str) -> int:
        code, out, _ = self.run(machine, "log", "s3", "--limit", "1", "--json")
        self.done.pop()
        entries = json.loads(out)["entries"] if not code else []
        return int(entries[0]["revision"]) if entries else 0


STEPS: tuple[tuple[Callable[[History, str], None], int], ...] = (
    (History.insert, 10),
    (History.insert_again, 3),
    (History.replace, 1),
    (History.move_down, 6),
    (History.move_down_and_keep, 3),
    (History.move_up, 2),
    (History.drop, 1),
    (History.detach_and_attach, 1),
    (History.merge, 4),
    (History.merge_cold, 3),
    (History.adopt, 4),
    (History.adopt_and_merge_cold, 2),
    (History.tick, 4),
    (History.undo, 2),
    (History.lose, 3),
    (History.lose_state, 1),
    (History.set_back, 2),
    (History.give_up, 2),
)


def _take(blocks: Blocks, partition: str) -> Blocks:
    taken = {block: rows for block, rows in blocks.items() if block[1] == partition}
    for block in taken:
        del blocks[block]
    return taken


def begin(root: Path, seed: int) -> History:
    """A new table on two machines; its merge mode and whether it has a rule that deletes depend on the seed."""
    chance = random.Random(seed)
    mode = chance.choice(MODES)
    has_ttl = mode == "ordinary" and chance.random() < 0.6
    machines = {name: Machine(name, root) for name in "AB"}
    history = History(root, chance, Truth(mode, has_ttl, hot={name: {} for name in machines}), machines)
    for machine in machines.values():
        machine.configure()
    columns = [word for column in COLUMNS for word in ("--column", column)]
    more = ("--ttl", TTL) if has_ttl else ()
    arguments = ("--order-by", "k", "--partition-by", "identity(g)", "--merge-mode", mode, *more)
    if not history.happens("A", "table", "create", TABLE, *columns, *arguments):
        raise Finding("the table was not created")
    return history


def go_on(history: History, steps: int, without: frozenset[str] = frozenset()) -> None:
    """Take so many steps, none of the names in `without`; raises `Finding` at the first that leaves something wrong."""
    choices, weights = zip(*(step for step in STEPS if step[0].__name__ not in without), strict=True)
    for _ in range(steps):
        machine = history.chance.choice(list(history.machines))
        history.chance.choices(choices, weights)[0](history, machine)
        history.check()
