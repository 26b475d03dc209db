"""The store that is soaked: three disks, six tables, their files, and what each verb does to the model of them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.soak.model import Mode, Rows, Table

DONE = frozenset({0})
REFUSABLE = frozenset({0, 10, 13})
"""A verb that may be refused by what the store holds just now."""

_CONFIG = """state_path: state
disks:
  ssd: {{type: local, path: ssd}}
  hdd: {{type: local, path: hdd}}
  s3:
    type: object_disk
    url: {url}
    endpoint_url: {endpoint}
    retry_seconds: 4
    retention_seconds: 20
    snapshot_every_commits: 20
policies:
  tiers: {{volumes: [
    {{name: hot, disks: [ssd]}},
    {{name: warm, disks: [hdd], perform_ttl_move_on_insert: false}},
    {{name: cold, disks: [s3], perform_ttl_move_on_insert: false}}]}}
  arriving: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: warm, disks: [hdd]}}, {{name: cold, disks: [s3]}}]}}
  bucket: {{volumes: [{{name: cold, disks: [s3]}}]}}
limits: {{workers: 2}}
daemon: {{tick_seconds: 1, gc_seconds: 2}}
"""
_ROW_COLUMNS = ("id:int64", "ts:timestamp[us, UTC]", "n:int64", "text:string")
_MOVES = ("--ttl", "30d on ts to volume warm", "--ttl", "365d on ts to volume cold")
_AGES_DAYS = (3, 100, 400)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a table is made and read."""

    columns: tuple[str, ...] = _ROW_COLUMNS
    order_by: str = "id"
    policy: str = "tiers"
    mode: Mode = "rows"
    select: str = "id AS k, n AS v FROM {}"
    more: tuple[str, ...] = ()
    parted: bool = False
    """Rows of one insert may go to several disks at once, each of which commits by itself."""


KINDS: Mapping[str, Kind] = {
    "soak.plain": Kind(more=("--partition-by", "month(ts)", *_MOVES)),
    "soak.aged": Kind(policy="arriving", more=("--partition-by", "month(ts)", *_MOVES), parted=True),
    "soak.ending": Kind(more=("--partition-by", "month(ts)", "--ttl", "365d on ts delete")),
    "soak.cold": Kind(policy="bucket", more=("--partition-by", "month(ts)")),
    "soak.latest": Kind(
        columns=("id:int64", "n:int64", "text:string"),
        mode="latest",
        select="id AS k, max(n) AS v FROM {} GROUP BY id",
        more=("--merge-mode", "replacing:n"),
    ),
    "soak.sums": Kind(
        columns=("id:int64", "n:int64"),
        mode="sums",
        select="id AS k, CAST(sum(n) AS BIGINT) AS v FROM {} GROUP BY id",
        more=("--merge-mode", "summing:n"),
    ),
}


@dataclass(slots=True)
class Act:
    """One command line, and what it does to the model when it is acknowledged and when it is not."""

    arguments: tuple[str, ...]
    done: Callable[[], None] = lambda: None
    in_doubt: Callable[[], None] = lambda: None
    codes: frozenset[int] = DONE
    """How it may end when nothing goes wrong."""
    asks: tuple[str, ...] = ()
    """A query: the tables that it names."""
    alone: bool = False
    """Nothing else may run meanwhile."""

    @property
    def verb(self) -> str:
        words = self.arguments[:2] if self.arguments[0] in ("table", "daemon") else self.arguments[:1]
        return " ".join((*words, *(a for a in self.arguments if a in ("--cold", "--repair", "--delete", "--revision"))))


@dataclass(slots=True)
class Insert:
    """A file of rows, by the groups that commit together."""

    table: str
    file: str
    groups: list[dict[int, int]]
    passing: dict[int, int]


@dataclass(slots=True)
class World:
    """One store in a directory of its own, with a prefix of the bucket of its own."""

    place: Path
    chance: random.Random
    tables: dict[str, Table] = field(default_factory=dict)
    inserts: list[Insert] = field(default_factory=list)
    """The last that were acknowledged and whose rows are still there."""
    checkpoints: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """Revisions of the bucket with the rows of soak.cold."""
    _rows: int = 0
    _files: int = 0
    _columns: int = 0

    @classmethod
    def made(cls, place: Path, chance: random.Random, *, url: str, endpoint: str) -> World:
        place.mkdir(parents=True)
        (place / "frostline.yaml").write_text(_CONFIG.format(url=url, endpoint=endpoint))
        tables = {name: Table(name, kind.mode) for name, kind in KINDS.items()}
        return cls(place, chance, tables)

    # What there is

    def query(self) -> Act:
        """All rows of all tables that may be there."""
        names = tuple(name for name, table in self.tables.items() if table.may_exist)
        selects = [f"SELECT '{name}' AS t, {KINDS[name].select.format(name)}" for name in names]
        return Act(("query", " UNION ALL ".join(selects), "--json"), asks=names)

    def look(self, out: str, names: Sequence[str]) -> list[str]:
        """Compare an answer of `query` with the model; what is wrong."""
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        for name, key, value in json.loads(out)["rows"]:
            found[name].append((int(key), int(value)))
        return [wrong for name, rows in found.items() if (wrong := self.tables[name].look(rows))]

    def look_at_names(self, out: str) -> list[str]:
        """Compare an answer of `table list` with the model: which tables are there."""
        names = {table["table"] for table in json.loads(out)["tables"]}
        wrong = [f"{name} is not known" for name in names - self.tables.keys()]
        for name, table in self.tables.items():
            if name not in names:
                wrong += [problem] if (problem := table.look(None)) else []
            elif not table.may_exist:
                wrong.append(f"{name} was dropped and is there")
            else:
                table.states = [state for state in table.states if state is not None]
        return wrong

    @property
    def names_are_certain(self) -> bool:
        return all(None not in table.states or table.states == [None] for table in self.tables.values())

    # Acts

    def act(self) -> Act:
        """One that fits what there is now."""
        absent = [name for name, table in self.tables.items() if not table.may_exist]
        if absent:
            return self.create(absent[0])
        makers, weights = zip(*self._choices(), strict=True)
        made: Act = self.chance.choices(makers, weights)[0]()
        return made

    def _choices(self) -> list[tuple[Callable[[], Act], int]]:
        return [
            (self.insert, 36),
            (self.insert_again, 4),
            (self.merge, 12),
            (self.merge_cold, 8),
            (self.move, 18),
            (self.tick, 8),
            (self.alter, 3),
            (self.pin, 2),
            (self.drop, 2),
            (self.look_only, 3),
            (self.query, 3),
            (lambda: Act(("snapshot", "s3")), 2),
            (lambda: Act(("restore", "s3", "--apply")), 2),
            (lambda: Act(("fsck", "--repair"), alone=True), 3),
            (lambda: Act(("daemon", "run"), codes=frozenset({0, 143})), 2),
            (self.collect, 4),
            (self.restore, 4),
        ]

    def create(self, name: str) -> Act:
        kind, table = KINDS[name], self.tables[name]
        columns = [word for column in kind.columns for word in ("--column", column)]
        if name == "soak.cold":
            self.checkpoints.clear()
        return Act(
            ("table", "create", name, *columns, "--order-by", kind.order_by, "--policy", kind.policy, *kind.more),
            done=lambda: table.became({}),
            in_doubt=lambda: table.perhaps_became({}),
        )

    def drop(self) -> Act:
        name = self.chance.choice(list(self.tables))
        table = self.tables[name]
        self.inserts = [insert for insert in self.inserts if insert.table != name]
        return Act(
            ("table", "drop", name, "-y"),
            done=lambda: table.became(None),
            in_doubt=lambda: table.perhaps_became(None),
            alone=True,
        )

    def insert(self, name: str | None = None) -> Act:
        chosen = name or self.chance.choice(list(self.tables))
        made = self._written(chosen)
        table = self.tables[chosen]

        def done() -> None:  # also of a second try
            table.doubts = [rows for rows in table.doubts if not any(rows is own for own in made.groups)]
            table.added(made.groups, passing=made.passing)
            self.inserts = [*self.inserts[-9:], made]

        return Act(
            ("insert", chosen, made.file, "--json"),
            done=done,
            in_doubt=lambda: table.perhaps_added(made.groups, passing=made.passing),
        )

    def insert_again(self) -> Act:
        """Of an insert that was acknowledged nothing may come a second time."""
        certain = [insert for insert in self.inserts if not insert.passing]
        if not certain:
            return self.insert()
        insert = self.chance.choice(certain)
        return Act(("insert", insert.table, insert.file, "--json"))

    def _written(self, name: str) -> Insert:
        self._files += 1
        file = f"in/{self._files:04}.csv"
        (self.place / "in").mkdir(exist_ok=True)
        count = self.chance.choice((1, 8, 20, 60))
        insert = Insert(name, file, [], {})
        lines = ["id,n" if name == "soak.sums" else "id,n,text" if name == "soak.latest" else "id,ts,n,text"]
        groups: dict[int, dict[int, int]] = {}
        for _ in range(count):
            self._rows += 1
            lines.append(self._row(name, insert, groups))
        insert.groups = list(groups.values())
        (self.place / file).write_text("\n".join(lines) + "\n")
        return insert

    def _row(self, name: str, insert: Insert, groups: dict[int, dict[int, int]]) -> str:
        number = self._rows
        if name in ("soak.sums", "soak.latest"):
            key = self.chance.randrange(40)
            value = number if name == "soak.latest" else self.chance.randrange(1, 1000)
            held = groups.setdefault(0, {})
            held[key] = value if name == "soak.latest" else held.get(key, 0) + value
            return f"{key},{value}" + (f",{number:x}" if name == "soak.latest" else "")
        age = self.chance.choice(_AGES_DAYS)
        time = _START - timedelta(days=age)
        value = number * 7 + 3
        if name == "soak.ending" and age > 365:
            insert.passing[number] = value
        else:
            groups.setdefault(age if KINDS[name].parted else 0, {})[number] = value
        return f"{number},{time:%Y-%m-%dT%H:%M:%SZ},{value},{'x' * self.chance.choice((1, 50, 400))}"

    def merge(self) -> Act:
        more = ("--final",) if self.chance.random() < 0.6 else ()
        return Act(("merge", self._any(), *more))

    def merge_cold(self) -> Act:
        more = ("--final",) if self.chance.random() < 0.6 else ()
        return Act(("merge", self._any(), "--cold", *more))

    def move(self) -> Act:
        name = self._any(("soak.plain", "soak.aged", "soak.ending", "soak.latest", "soak.sums"))
        month = (_START - timedelta(days=self.chance.choice(_AGES_DAYS))).strftime("%Y%m")
        partition = "all" if name in ("soak.latest", "soak.sums") else month
        volume = self.chance.choice(("hot", "warm", "cold", "cold"))
        return Act(("move", name, "--partition", partition, "--to-volume", volume), codes=REFUSABLE)

    def tick(self) -> Act:
        only = self.chance.choice(((), (), ("--only", "moves"), ("--only", "merges"), ("--only", "snapshots")))
        return Act(("tick", *only))

    def alter(self) -> Act:
        """An insert is known again by the bytes of its parts, so none from before may be repeated."""
        self._columns += 1
        name = self._any()
        self.inserts = [insert for insert in self.inserts if insert.table != name]
        return Act(("table", "alter", name, "--add-column", f"c{self._columns}:int64", "--default", "7"), alone=True)

    def pin(self) -> Act:
        verb = self.chance.choice(("pin", "unpin"))
        month = (_START - timedelta(days=self.chance.choice(_AGES_DAYS))).strftime("%Y%m")
        return Act((verb, "soak.plain", "--partition", month), codes=REFUSABLE)

    def look_only(self) -> Act:
        some = (
            ("status",),
            ("disks",),
            ("parts",),
            ("plan",),
            ("log", "s3"),
            ("du",),
            ("fsck", "--read-data"),
            ("gc",),
        )
        return Act((*self.chance.choice(some), "--json"), codes=frozenset({0, 4}))

    def collect(self) -> Act:
        """With an interval as short as nobody should take it: so it runs alone."""
        options = ("--guard-interval", "2s", "--allow-short-guard-interval", "--max-delete-fraction", "1", "-y")
        return Act(("gc", "s3", "--delete", "--json", *options), codes=frozenset({0, 13}), alone=True)

    def restore(self) -> Act:
        """soak.cold as it was at a revision, which may be retained no more."""
        table = self.tables["soak.cold"]
        if not self.checkpoints or not table.certain or table.rows is None:
            return Act(("restore", "s3", "--apply"))
        revision, rows = self.chance.choice(self.checkpoints)
        self.inserts = [insert for insert in self.inserts if insert.table != "soak.cold"]
        arguments = ("restore", "s3", "--revision", str(revision), "--table", "soak.cold", "--apply", "-y")
        return Act(
            arguments,
            done=lambda: table.became(rows),
            in_doubt=lambda: table.perhaps_became(rows),
            codes=REFUSABLE | {1, 4},
            alone=True,
        )

    def undo(self, revision: int, before: Rows | None) -> Act:
        """Takes the newest commit back; `before`: what soak.cold held then."""
        table = self.tables["soak.cold"]
        self.inserts = [insert for insert in self.inserts if insert.table != "soak.cold"]
        return Act(
            ("undo", "s3", str(revision), "-y"),
            done=lambda: table.became(before),
            in_doubt=lambda: table.perhaps_became(before),
            codes=REFUSABLE,
            alone=True,
        )

    def _any(self, names: Sequence[str] = ()) -> str:
        return self.chance.choice(
            [name for name in names or self.tables if self.tables[name].may_exist] or ["soak.plain"]
        )

    def lose(self, what: str) -> None:
        """Remove local state, as a broken disk would."""
        shutil.rmtree(self.place / what, ignore_errors=True)


_START = datetime.now(UTC).replace(day=15, hour=12, minute=0, second=0, microsecond=0)
