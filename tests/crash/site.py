"""Where a scenario runs: a store below one directory, its tables and rows, and what several scenarios do to it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.garbage import collect as garbage
from disks.garbage.collect import GcReport
from disks.garbage.rules import GcRules
from oplog.errors import FrostlineError, Refused
from tiering.catalog.freshness import Freshness
from tiering.config.settings import Config, LimitsConfig, PacingConfig, PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.table.schema import Column, PartitionField, TableDefinition

if TYPE_CHECKING:
    pass


TABLE = "demo.events"
OTHER = "demo.other"
JANUARY, FEBRUARY = "202601", "202602"
ROWS_A_PART = 40
GUARD = timedelta(hours=24)
_MEMORY = Path("/dev/shm")
_RESERVE_BYTES = 16 * 1024
_LATE = PacingConfig(late_seconds=3600)
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.int64()), ("text", pa.string())])


def import_everything() -> None:
    """Load what operations and looks at a store use, so that no child pays for it: pyarrow's `read_table` imports its
    data sets when it is first called, and these import pandas, in 0.2 s."""
    import pyarrow.dataset  # noqa: F401

    import tests.crash.backing_up
    import tests.crash.scenarios
    import tests.replicas.killing  # noqa: F401
    import tiering.cli.main
    import tiering.insert.insert
    import tiering.merge.cold.job
    import tiering.merge.merger
    import tiering.query.scan  # noqa: F401
    import zerocopy.interserver.client
    import zerocopy.interserver.server  # noqa: F401


@dataclass(frozen=True, slots=True)
class Site:
    """Where one store lives: `root` holds all of it, `gold` a copy to begin from again."""

    base: Path
    retention: timedelta = timedelta(hours=24)

    @property
    def root(self) -> Path:
        return self.base / "root"

    @property
    def gold(self) -> Path:
        return self.base / "gold"

    @property
    def scratch(self) -> Path:
        """Where merges of shards, which know no store, keep what they work on."""
        return self.root / "temporary"

    @property
    def bucket(self) -> Path:
        return self.root / "bucket" / "store"

    def config(self) -> Config:
        """A local disk and a directory bucket; snapshots often, so that crashes meet them; small reserves, for each
        crash point copies them."""
        root = self.root
        volumes = (VolumeConfig(name="hot", disks=("ssd",)), VolumeConfig(name="cold", disks=("s3",)))
        return Config(
            state_path=str(root / "state"),
            disks={
                "ssd": LocalDiskConfig(path=str(root / "ssd"), reserve_bytes=_RESERVE_BYTES),
                "s3": ObjectDiskConfig(
                    url=self.bucket.as_uri() + "/",
                    snapshot_every_commits=4,
                    retention_seconds=int(self.retention.total_seconds()),
                ),
            },
            policies={
                "hot_cold": PolicyConfig(volumes=volumes),
                "waiting": PolicyConfig(volumes=volumes, pacing=_LATE),
            },
            limits=LimitsConfig(state_reserve_bytes=_RESERVE_BYTES),
        )

    def open(
        self,
        *,
        recover: bool = True,
        workers: int = 1,
        ahead: timedelta = timedelta(0),
        freshness: Freshness = Freshness.EVERY_FILE,
    ) -> Store:
        """The store; with `ahead`, its clock runs that far in the future."""
        return Store.open(
            self.config(),
            actor="test",
            workers=workers,
            clock=lambda: datetime.now(UTC) + ahead,
            recover=recover,
            freshness=freshness,
        )

    def save(self) -> None:
        shutil.rmtree(self.gold, ignore_errors=True)
        shutil.copytree(self.root, self.gold, symlinks=True)

    def reset(self) -> None:
        """Begin again from the saved copy."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.gold, self.root, symlinks=True)


@contextmanager
def temporary_site() -> Iterator[Site]:
    """A place in memory where there is /dev/shm: syncing costs nothing there, and what it means is the power cut's
    business."""
    with tempfile.TemporaryDirectory(prefix="frostline-crash-", dir=_MEMORY if _MEMORY.is_dir() else None) as base:
        yield Site(Path(base))


def events(number: int = 1, *, name: str = TABLE) -> TableDefinition:
    """A table partitioned by month with one sort column. `number` makes its uuid."""
    database, _, short = name.partition(".")
    return TableDefinition(
        uuid=f"{number:08x}-0000-4000-8000-000000000000",
        database=database,
        name=short,
        columns=(
            Column(id=1, name="ts", type="timestamp[us, UTC]"),
            Column(id=2, name="key", type="int64"),
            Column(id=3, name="text", type="string"),
        ),
        order_by=("key",),
        partition_by=(PartitionField(transform="month", column="ts"),),
        policy="hot_cold",
        last_column_id=3,
    )


def rows(first: int, *, months: Sequence[int] = (1, 2), count: int = ROWS_A_PART) -> pa.RecordBatch:
    """`count` rows a month with keys from `first` on; equal calls give equal rows."""
    keys = [first + index for index in range(count * len(months))]
    times = [datetime(2026, months[index % len(months)], 2 + index % 20, tzinfo=UTC) for index in range(len(keys))]
    return pa.record_batch([times, keys, [f"text {key} " + "x" * 40 for key in keys]], schema=SCHEMA)


def insert(store: Store, first: int, *, months: Sequence[int] = (1, 2), table: str = TABLE) -> None:
    store.table(table).insert([rows(first, months=months)])


def tables(store: Store, site: Site) -> None:
    store.create_table(events())
    store.create_table(events(2, name=OTHER))
    insert(store, 0, table=OTHER)


def hot(store: Store, site: Site) -> None:
    tables(store, site)
    insert(store, 0)
    insert(store, 1000, months=(1,))


def mixed(store: Store, site: Site) -> None:
    """January cold, February hot."""
    hot(store, site)
    move(store, "cold", JANUARY)


def move(store: Store, volume: str, partition: str | None = None) -> None:
    for wanted in [partition] if partition else [JANUARY, FEBRUARY]:
        with suppress(Refused):  # an earlier attempt moved the whole partition
            moves = store.plan_manual_move(TABLE, partition=wanted, to_volume=volume)
            report = store.apply(moves)
            if report.failed:
                raise FrostlineError(f"moves failed: {report.failed}")


def drop_january(store: Store, site: Site) -> None:
    from tiering.catalog import tables

    to_delete = [stored for stored in store.parts(TABLE) if stored.name.partition == JANUARY]
    tables.drop_parts(store.context, to_delete, reason="test")


def collect(store: Store, disk: str, *, quarantine: timedelta = timedelta(0)) -> GcReport:
    """gc --delete with the caps off: what goes is decided by references and age alone."""
    return garbage.collect(
        store.object_disk(disk),
        GcRules(guard=GUARD, delete=True, max_delete_fraction=1.0, quarantine=quarantine),
        now=store.context.clock(),
    )
