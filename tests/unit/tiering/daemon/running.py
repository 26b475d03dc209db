"""A daemon that runs beside its test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tiering.config.settings import DaemonConfig, embedded
from tiering.engine.store import Store
from tiering.table.schema import Column, MoveToVolume, TableDefinition, TtlRule

TABLE = TableDefinition(
    uuid="abc11111-0000-4000-8000-000000000001",
    database="d",
    name="t",
    columns=(Column(id=1, name="ts", type="timestamp[us, UTC]"), Column(id=2, name="n", type="int64")),
    order_by=("n",),
    policy="hot_cold",
    ttl=(TtlRule(after_seconds=86400, column="ts", action=MoveToVolume(volume="cold")),),
    last_column_id=2,
)
NEWEST = datetime(2026, 1, 1, tzinfo=UTC)
FAST = DaemonConfig(tick_seconds=0.05)


class Clock:
    """Starts when the rows are new, so that nothing moves on insert; then a day passes."""

    def __init__(self) -> None:
        self.now = NEWEST

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))  # where processes of jobs find the store
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    with Store.open(embedded(tmp_path), clock=clock, workers=1) as opened:
        opened.create_table(TABLE)
        yield opened


def disks_of(store: Store) -> list[str]:
    store.refresh()
    return [part.disk for part in store.parts("d.t")]


def until(condition: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
