"""Cut the power at every side effect: what was not synced is lost, and nothing acknowledged needs it (P14, P45)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import enumeration
from tests.crash.conftest import RecordTally
from tests.crash.harness import ForkServer
from tests.crash.scenarios import SCENARIOS
from tests.crash.site import Site

pytestmark = pytest.mark.crash

SAMPLE = 60
MODELLED = [
    *("first_open", "alter_table", "insert", "merge", "move", "move_back", "drop_parts", "drop_table", "gc"),
    *("backup_create", "backup_create_pin", "backup_verify", "backup_restore"),
]


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MODELLED)
def test_whatever_a_power_cut_leaves(server: ForkServer, site: Site, name: str, record_tally: RecordTally) -> None:
    """A fixed sample of the model's states."""
    tally = enumeration.cut_power_everywhere(server, site, name, limit=SAMPLE)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points > 15, "the model proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("name", ["insert", "merge", "move", "move_back"])
def test_whatever_a_power_cut_leaves_of_very_many_files(
    keeping_server: ForkServer, site: Site, name: str, record_tally: RecordTally
) -> None:
    """The same where commits make the whole file system durable, not each file."""
    tally = enumeration.cut_power_everywhere(keeping_server, site, name, limit=SAMPLE)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points > 15, "the model proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_all_that_a_power_cut_may_leave(server: ForkServer, site: Site, name: str, record_tally: RecordTally) -> None:
    """All states of the model."""
    tally = enumeration.cut_power_everywhere(server, site, name, limit=100_000)
    record_tally(tally)
    assert not tally.violations, "\n".join(tally.violations[:20])


# For real: a file system on a loop device, shut down without flushing


@pytest.fixture
def disk_site(tmp_path: Path) -> Iterator[tuple[Site, Path]]:
    """A store on an ext4 of its own that is never flushed by the clock, and the image it lives in."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    if not shutil.which("mkfs.ext4"):
        pytest.skip("mkfs.ext4 is not installed")
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(48 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m0", str(image)], check=True)
    if _mount(image, mount).returncode:
        pytest.skip("no loop device can be mounted here")
    try:
        yield Site(mount), image
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def _mount(image: Path, mount: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["mount", "-o", "loop,commit=300", str(image), str(mount)], check=False, capture_output=True)


def _remount(image: Path, mount: Path) -> None:
    subprocess.run(["umount", str(mount)], check=True)
    assert _mount(image, mount).returncode == 0


@pytest.mark.parametrize("name", ["insert", "move", "merge"])
def test_a_real_power_cut_loses_nothing_acknowledged(
    server: ForkServer, disk_site: tuple[Site, Path], name: str, record_tally: RecordTally
) -> None:
    """ext4 on a loop device, FS_IOC_SHUTDOWN without a log flush: at every seventh effect, and after the last."""
    tally = _cut_for_real(server, *disk_site, name, step=7)
    record_tally(tally)
    assert tally.runs == tally.tried
    assert tally.points > 5
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if not scenario.fresh])
def test_a_real_power_cut_at_every_effect(
    server: ForkServer, disk_site: tuple[Site, Path], name: str, record_tally: RecordTally
) -> None:
    """The same at every effect of every operation."""
    tally = _cut_for_real(server, *disk_site, name, step=1)
    record_tally(tally)
    assert not tally.violations, "\n".join(tally.violations[:20])


def _cut_for_real(server: ForkServer, site: Site, image: Path, name: str, *, step: int) -> enumeration.Tally:
    known = enumeration.reference(server, site, name)
    site.reset()
    subprocess.run(["umount", str(site.base)], check=True)
    gold = image.with_name("gold")
    shutil.copyfile(image, gold)
    tally = enumeration.Tally(effects=known.countable)
    points = [*range(1, known.countable + 1, step), known.countable + 1]
    for at in tally.due(f"real power cut {name}", points):
        shutil.copyfile(gold, image)
        assert _mount(image, site.base).returncode == 0
        outcome = server.run(enumeration.act_then_cut, name, site, at, str(site.base))
        assert outcome.kind == "killed", outcome
        acknowledged = at > known.countable
        _remount(image, site.base)
        tally.judge(f"{name}, power cut at {at}", site, name, known, acknowledged=acknowledged)
        subprocess.run(["umount", str(site.base)], check=True)
    assert _mount(image, site.base).returncode == 0
    return tally
