"""Machines with replicas of tables: each a home of its own, driven by the command line, with parts for the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from disks.workers.progress import Silent
from oplog.revision import parse_blob_key
from tests.servers import Server
from tiering.cli import main as cli
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import following

SECRET = "a-secret-of-the-tests"


class Machine:
    """One machine: state, an SSD and an HDD, its macros, the way to Keeper; `bucket` is the one that all share."""

    def __init__(
        self,
        root: Path,
        name: str,
        keeper: KeeperConfig,
        capsys: pytest.CaptureFixture[str],
        bucket: str = "",
        *,
        log: str = "",
    ) -> None:
        """`log`: the machine's own in the bucket, which is then shared by objects alone."""
        self.name = name
        self.bucket = bucket
        self.log = log
        self.path = root / name
        self.error = ""
        self._capsys = capsys
        self.path.mkdir(parents=True)
        self.configuration = self.path / "frostline.yaml"
        self.write_configuration(keeper)

    def write_configuration(self, keeper: KeeperConfig, **more: Any) -> None:
        disks = {name: {"type": "local", "path": str(self.path / name)} for name in ("ssd", "hdd")}
        volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "warm", "disks": ["hdd"]}]
        policies = {"local": {"volumes": volumes}}
        if self.bucket:
            disks["s3"] = {"type": "object_disk", "url": self.bucket} | ({"log": self.log} if self.log else {})
            policies["cold"] = {"volumes": [*volumes, {"name": "cold", "disks": ["s3"]}]}
        plain = {
            "state_path": str(self.path / "state"),
            "disks": disks,
            "policies": policies,
            "keeper": {
                "hosts": list(keeper.hosts),
                "root": keeper.root,
                "session_timeout_seconds": keeper.session_timeout_seconds,
                "request_timeout_seconds": keeper.request_timeout_seconds,
            },
            "interserver": {"secret": SECRET, "port": 0},
            "macros": {"shard": "01", "replica": self.name},
            **more,
        }
        self.configuration.write_text(yaml.safe_dump(plain))
        self.configuration.chmod(0o600)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command line; how it ended, and what it printed."""
        self._capsys.readouterr()
        code = cli.run(["-c", str(self.configuration), "--yes", *arguments])
        captured = self._capsys.readouterr()
        self.error = captured.err
        return code, captured.out

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command line; what it printed. Fails unless it ends with `code`."""
        actual, out = self.run(*arguments)
        assert actual == code, f"exit {actual}: {' '.join(arguments)}\n{out}\n{self.error}"
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The document that the command line answers with."""
        return json.loads(self(*arguments, "--json", code=code))

    def create(self, *more: str, table: str = "d.t") -> None:
        self("table", "create", table, "--column", "k:int64", "--order-by", "k", "--replicated", *more)

    def join(self, *more: str, table: str = "d.t") -> None:
        self("table", "create", table, "--replicated", *more)

    def insert(self, *keys: int, table: str = "d.t", code: int = 0) -> Any:
        source = self.path / "rows.csv"
        source.write_text("\n".join(["k", *map(str, keys)]))
        return self.json("insert", table, str(source)) if not code else self("insert", table, str(source), code=code)

    def sync(self, table: str = "d.t", code: int = 0) -> Any:
        (synced,) = self.json("replica", "sync", table, code=code)["synced"]
        return synced

    def disks(self, table: str = "d.t") -> dict[str, str]:
        """Where each part of the table answers from."""
        return {part["part"]: part["disk"] for part in self.json("parts", table)["parts"]}

    def on_disk(self, disk: str, table: str = "d.t") -> set[str]:
        """The parts whose files lie on a disk of this machine, in answers or not."""
        return {place.parent.name for place in (self.path / disk).glob("store/*/*/*/part.json")}

    def move(self, part: str, disk: str = "s3", table: str = "d.t", code: int = 0) -> Any:
        return self.json("move", table, "--part", part, "--to-disk", disk, code=code)

    def keys(self, table: str = "d.t") -> list[int]:
        """What the table answers, in order."""
        return [row[0] for row in self.json("query", f"SELECT k FROM {table} ORDER BY k")["rows"]]

    def parts(self, table: str = "d.t") -> list[str]:
        return [part["part"] for part in self.json("parts", table)["parts"]]

    def files(self, table: str = "d.t") -> dict[str, bytes]:
        """Every file of the table's parts, by part and name."""
        found = {}
        for disk in ("ssd", "hdd"):
            for part in (self.path / disk).glob("store/*/*/*/part.json"):
                for file in part.parent.iterdir():
                    found[f"{part.parent.name}/{file.name}"] = file.read_bytes()
        return found

    @contextmanager
    def serving(self, *, follows: bool = False, pass_due: Callable[[], object] = lambda: None) -> Iterator[Store]:
        """As while its daemon runs: other replicas may fetch from it, and with `follows` it takes in what they do, and
        calls `pass_due` when one of them is gone that moved parts."""
        with Store.open(self.configuration) as store:

            def beside() -> Store:
                return store.beside(store.context.config, store.context.stop, Silent())

            following.serve(store.context, beside if follows else None, pass_due)
            yield store


Machines = Callable[[str], Machine]
"""Makes a machine of that name."""


def both_with_an_old_part(machine: Machines) -> tuple[Machine, Machine]:
    """Two replicas of a table, each with the one part on its SSD, which by its TTL is due in the bucket."""
    a, b = machine("a"), machine("b")
    a("table", "create", "d.t", "--column", "k:int64", "--column", "ts:timestamp", "--order-by", "k", "--replicated",
      "--policy", "cold", "--ttl", "1d on ts to volume cold")  # fmt: skip
    b.join("--policy", "cold")
    source = a.path / "old.csv"
    source.write_text("k,ts\n1,2020-01-01T00:00:00\n")
    a("insert", "d.t", str(source))
    with a.serving():
        b.sync()
    return a, b


def blobs_in(bucket: str, server: Server) -> list[str]:
    """The keys of the objects that are files of parts."""
    found = server.client().list_objects_v2(Bucket=bucket).get("Contents", [])
    return [one["Key"] for one in found if parse_blob_key(one["Key"].removeprefix("cold/")) is not None]
