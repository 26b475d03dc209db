"""P23: the clock of this machine jumps, and by no rule is anything moved or deleted until it is right again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from oplog.errors import Refused
from tests.servers import Server
from tiering.catalog.clock_check import Clocks
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table, set_ttl

EPOCH = datetime(1970, 1, 2, tzinfo=UTC)


@pytest.fixture
def config(tmp_path: Path, s3_environment: Server) -> Config:
    config = embedded(tmp_path)
    disk = ObjectDiskConfig(url=f"s3://{s3_environment.new_bucket()}/store/")
    return msgspec.structs.replace(config, disks={**config.disks, "s3": disk})


class Clock:
    """Ours: right, until a test sets it."""

    ahead = timedelta(0)
    fixed: datetime | None = None

    def __call__(self) -> datetime:
        return self.fixed or datetime.now(UTC) + self.ahead


def fill(store: Store) -> None:
    store.create_table(define_table("d.t", columns=["ts:timestamp[us, UTC]"], order_by="ts", policy="hot_cold"))
    for days in (3, 400):
        times = [datetime.now(UTC) - timedelta(days=days, hours=hour) for hour in range(2)]
        store.table("d.t").insert(pa.table({"ts": times}).to_batches())
    definition = store.definition("d.t")
    store.alter_table(definition, set_ttl(definition, ["30d on ts to volume cold", "300d on ts delete"]))


@pytest.mark.parametrize(
    ("ahead", "fixed"),
    [(timedelta(days=365), None), (timedelta(days=-365), None), (timedelta(0), EPOCH)],
    ids=["a year ahead", "a year behind", "epoch"],
)
def test_a_jump_moves_and_deletes_nothing(config: Config, ahead: timedelta, fixed: datetime | None) -> None:
    clock = Clock()
    with Store.open(config, clock=clock) as store:
        fill(store)
        parts = {(stored.part.name, stored.disk) for stored in store.parts()}
        clock.ahead, clock.fixed = ahead, fixed
        report = store.tick()
        assert not report.moves.moved
        assert not report.deleted
        assert not report.merges
        assert any("the clock shows" in problem for problem in report.problems)
        assert {(stored.part.name, stored.disk) for stored in store.parts()} == parts
        for stored in store.parts():
            assert store.explain("d.t", stored.part.name).reason.kind == "clock"
        with pytest.raises(Refused, match="wrong clock"):
            store.merge("d.t", MergeRequest(final=True))
        assert store.query("SELECT count(*) AS n FROM d.t").read_all().to_pylist() == [{"n": 4}]
        clock.ahead, clock.fixed = timedelta(0), None
        report = store.tick()
        assert not report.problems
        assert len(report.deleted) == 1, "with the right clock, what was due is done"


def test_asking_about_another_time_compares_nothing(config: Config) -> None:
    with Store.open(config) as store:
        fill(store)
        plan = store.plan(at=datetime.now(UTC) + timedelta(days=31))
        assert [move.target for move in plan.moves] == ["s3"]


def test_a_clock_that_jumps_meanwhile_is_seen_without_any_bucket() -> None:
    clocks = Clocks()
    now = datetime.now(UTC)
    assert clocks.other({}, now, steady=False) is None
    first = clocks.other({}, now)
    assert first is not None
    assert first.time == now
    later = clocks.other({}, now + timedelta(days=365))
    assert later is not None
    assert abs(later.time - now) < timedelta(minutes=5)
    assert "since this process began" in later.source
