"""A table, its inbox, and the files that land there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tiering.config.settings import InboxConfig, embedded
from tiering.daemon.inbox.inbox import Inbox, Round
from tiering.engine.store import Store
from tiering.table.definitions import define_table


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Place:
    """A store with one table and an inbox."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "inbox" / "d.t"
        self.home.mkdir(parents=True)
        self.clock = Clock()
        self.settings = InboxConfig(path=str(root / "inbox"), stable_seconds=2, batch_seconds=0)
        self.config = msgspec.structs.replace(embedded(root), inbox=self.settings)
        self.store = Store.open(self.config, workers=1)
        self.store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        self.inbox = Inbox(self.store, self.settings, clock=self.clock)

    def land(self, name: str, *keys: object, text: str | None = None) -> Path:
        path = self.home / name
        path.write_text(text if text is not None else "\n".join(["k", *map(str, keys), ""]))
        return path

    def once(self) -> Round:
        return self.inbox.once(wait=self.clock.wait)

    def keys(self) -> list[int]:
        self.store.refresh()
        return sorted(row["k"] for row in self.store.table("d.t").scan().read_all().to_pylist())

    def files(self, directory: str = ".") -> list[str]:
        path = self.home / directory
        return sorted(entry.name for entry in path.iterdir() if entry.is_file()) if path.is_dir() else []

    def report(self, name: str, directory: str = "done") -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.home / directory / f"{name}.report.json").read_text())
        return read


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()
