"""Machines with a home of their own (state and SSD) that share buckets, driven by the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tiering.cli import main as cli


class Home:
    """One machine. `buckets` are shared directories by the name of the disk, in the order of the cold volume."""

    def __init__(
        self,
        root: Path,
        name: str,
        capsys: pytest.CaptureFixture[str],
        *,
        buckets: Sequence[str] = ("s3",),
        look_seconds: float = 0,
        log: str | None = None,
    ) -> None:
        """`log`: the name of this machine's log in each bucket, which the machines share then by objects alone."""
        self.path = root / name
        self.error = ""
        self.capsys = capsys
        self.path.mkdir(parents=True, exist_ok=True)
        looks: dict[str, Any] = {"look_seconds": look_seconds} if look_seconds else {}
        looks |= {"log": log} if log is not None else {}
        shared = {bucket: {"type": "object_disk", "url": f"{(root / bucket).as_uri()}/", **looks} for bucket in buckets}
        volumes = [{"name": "hot", "disks": ["ssd"]}, *({"name": f"cold_{name}", "disks": [name]} for name in buckets)]
        self.configuration = self.path / "frostline.yaml"
        self.configuration.write_text(
            yaml.safe_dump(
                {
                    "state_path": str(self.path / "state"),
                    "disks": {"ssd": {"type": "local", "path": str(self.path / "ssd")}, **shared},
                    "policies": {"hot_cold": {"volumes": volumes}},
                }
            )
        )
        self.configuration.chmod(0o600)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command line; what it printed. Fails unless it ends with `code`."""
        self.capsys.readouterr()
        actual = cli.run(["-c", str(self.configuration), "--yes", *arguments])
        captured = self.capsys.readouterr()
        self.error = captured.err
        assert actual == code, f"exit {actual}: {' '.join(arguments)}\n{captured.out}\n{captured.err}"
        return captured.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The document that the command line answers with."""
        return json.loads(self(*arguments, "--json", code=code))

    def create(self, table: str = "d.t") -> None:
        self("table", "create", table, "--column", "k:int64", "--order-by", "k")

    def insert(self, *keys: int, table: str = "d.t") -> None:
        source = self.path / "rows.csv"
        source.write_text("\n".join(["k", *map(str, keys)]))
        self("insert", table, str(source))

    def to_bucket(self, disk: str = "s3", table: str = "d.t", part: str = "") -> None:
        which = ("--part", part) if part else ("--partition", "all")
        self("move", table, *which, "--to-disk", disk)

    def keys(self, table: str = "d.t") -> list[int]:
        """What the table answers, in order."""
        return [row[0] for row in self.json("query", f"SELECT k FROM {table} ORDER BY k")["rows"]]

    def tables(self) -> list[str]:
        return [table["table"] for table in self.json("table", "list")["tables"]]

    def head(self, disk: str = "s3") -> int:
        revision: int = self.json("log", disk, "--limit", "1")["entries"][0]["revision"]
        return revision

    def on_ssd(self) -> set[str]:
        """The tables that have files on the SSD, by uuid."""
        return {path.parent.name for path in (self.path / "ssd").glob("store/*/*/table.json")}
