"""On a full disk what makes room is killed at each of its effects: the reserve goes and nothing else (I2, I14, I20)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from disks.base import Transaction
from disks.local.disk import LocalDisk
from tests.crash.conftest import RecordTally
from tests.crash.disk_effects import START, Effects, attempt, content, fill, release_locks
from tests.crash.enumeration import Tally, act, prepare, reopen
from tests.crash.harness import ForkServer
from tests.crash.site import Site
from tests.mounts import Mount, mounted
from tiering.config.settings import Config, LimitsConfig

pytestmark = pytest.mark.crash

_DISK_RESERVE_BYTES = 64 * 1024
_STATE_RESERVE_BYTES = 1024 * 1024
AFTER = {"a/y": START["a/y"], "b/x": START["b/x"]}


def take_off(transaction: Transaction) -> None:
    transaction.remove("c")
    transaction.remove("a/x")


def open_disk(root: Path) -> LocalDisk:
    return LocalDisk("hot", root, reserve_bytes=_DISK_RESERVE_BYTES)


@pytest.mark.parametrize("reading", [False, True], ids=["alone", "reader"])
def test_a_removal_killed_at_every_effect(reading: bool, tmp_path: Path, record_tally: RecordTally) -> None:
    fill(open_disk(tmp_path / "template"))
    reserve = Path(".frostline") / "reserve"
    assert (tmp_path / "template" / reserve).stat().st_size == _DISK_RESERVE_BYTES
    with mounted(tmp_path / "full", size="4m") as mount:
        root = mount.path / "hot"

        def begin_again() -> LocalDisk:
            mount.free()
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(tmp_path / "template", root)
            mount.fill()
            return open_disk(root)

        whole = Effects()
        disk = begin_again()
        assert attempt(disk, take_off, whole, reading)
        assert content(disk) == AFTER
        disk.close()
        tally = Tally(effects=whole.count)
        outcomes = set()
        for stop in sorted({1, *tally.due(f"full {reading}", range(1, whole.count + 1)), whole.count}):
            for when in ("before", "after"):
                tally.runs += 1
                disk = begin_again()
                acknowledged = attempt(disk, take_off, Effects(stop, when), reading)
                disk.close()
                release_locks(root)
                again = open_disk(root)
                again.recover()  # the disk is as full as it was
                found = content(again)
                assert found in (START, AFTER), (stop, when)
                assert found == AFTER or not acknowledged
                outcomes.add(found == AFTER)
                mount.free()
                assert again.recover() == []
                assert list((root / ".frostline").glob("*/*")) == []
                fill_more(again)
                assert (root / reserve).stat().st_size == _DISK_RESERVE_BYTES
                again.close()
        record_tally(tally)
        assert outcomes == {True, False}


def fill_more(disk: LocalDisk) -> None:
    from oplog.kinds import OtherKind

    with disk.transaction(OtherKind("more")) as transaction:
        transaction.create("more", b"more")
        transaction.commit()


@dataclass(frozen=True, slots=True)
class FullSite(Site):
    """The SSD and the state on one file system, `root/small`, which each `reset` leaves without a free byte."""

    @property
    def mount(self) -> Mount:
        return Mount(self.root / "small")

    def config(self) -> Config:
        config = Site.config(self)
        small = self.mount.path
        disks = {**config.disks, "ssd": msgspec.structs.replace(config.disks["ssd"], path=str(small / "ssd"))}
        limits = LimitsConfig(state_reserve_bytes=_STATE_RESERVE_BYTES)
        return msgspec.structs.replace(config, state_path=str(small / "state"), disks=disks, limits=limits)

    def reset(self) -> None:
        for path in (*self.root.iterdir(), *self.mount.path.iterdir()):
            if path.is_dir() and path != self.mount.path:
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()
        shutil.copytree(self.gold, self.root, symlinks=True, dirs_exist_ok=True)
        self.mount.fill()


@pytest.fixture
def full_site(tmp_path: Path) -> Iterator[FullSite]:
    site = FullSite(tmp_path)
    with mounted(site.mount.path, size="8m"):
        yield site


@pytest.mark.parametrize("name", ["move", "drop_parts"])
def test_a_move_off_a_full_disk_killed_at_every_effect(
    server: ForkServer, full_site: FullSite, name: str, record_tally: RecordTally
) -> None:
    before = server.value(prepare, name, full_site)
    assert full_site.mount.free_bytes() == 0
    effects = server.value(act, name, full_site, "count", 0)
    after, violations = reopen(full_site)
    assert not violations, violations
    leaf = [effect for effect in effects if not effect.startswith("store.")]
    tally = Tally(effects=len(leaf))
    for at in tally.due(f"kill {name} when full", range(1, len(leaf) + 2)):
        where = f"{name} when full, killed at {at}"
        full_site.reset()
        outcome = server.run(act, name, full_site, "kill", at)
        assert outcome.kind == ("killed" if at <= len(leaf) else "returned"), where
        found, violations = reopen(full_site)
        tally.add(where, violations if found in (before, after) else [*violations, f"I2 {found}"])
        server.value(act, name, full_site, "count", 0)
        again, violations = reopen(full_site)
        tally.violations += [f"{where}, repeated: {line}" for line in violations]
        assert again == after, where
    record_tally(tally)
    assert tally.runs == tally.tried
    assert not tally.violations, "\n".join(tally.violations[:20])
