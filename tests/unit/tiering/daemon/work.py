"""The work of a daemon, observed by its test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tiering.config.settings import DaemonConfig, embedded
from tiering.daemon import daemon
from tiering.engine.store import Store
from tiering.table.definitions import define_table

SETTINGS = DaemonConfig(tick_seconds=0.05, large_bytes=100_000)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    with Store.open(embedded(tmp_path)) as opened:
        opened.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        yield opened


class Work:
    """A daemon in a thread, ended with the test."""

    def __init__(self, store: Store, **more: Any) -> None:
        self.state = store.context.config.state_directory
        self.stop = threading.Event()
        self.thread = threading.Thread(target=daemon.run, args=(store, SETTINGS, self.stop), kwargs=more)

    def __enter__(self) -> Work:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop.set()
        self.thread.join(100)
        assert not self.thread.is_alive()


def insert(store: Store, rows: int) -> str:
    keys = np.random.default_rng(rows).integers(0, 2**62, rows)
    before = {part.facts.name for part in store.parts("d.t")}
    store.table("d.t").insert([pa.record_batch({"k": keys})])
    store.refresh()
    (name,) = {part.facts.name for part in store.parts("d.t")} - before
    return name


def pin(store: Store, part: str) -> None:
    store.context.journal.overrides.pin(store.definitions()[0].uuid, part=part, volume="cold")
