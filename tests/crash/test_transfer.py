"""A restore from another bucket that dies: run again, it ends as if it had not. Guards I6, I7 and I14."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disks.effects import set_hook
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from restore.rebuild.request import RebuildRequest
from restore.transfer import changes
from restore.transfer.transfer import restore_from
from tests.integration.rebuilding import put
from tests.integration.transferring import TABLE, blobs, content


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "batch_files"), [("directory", 100), ("directory", 2), ("mixed", 100)])
def test_dying_and_running_again(
    tmp_path: Path, kind: str, batch_files: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7, I14: whichever effect is the last one, the second run ends with the same tree, and copies nothing twice."""
    monkeypatch.setattr(changes, "BATCH_FILES", batch_files)
    step = 0
    while True:
        place = tmp_path / str(step)
        store: ObjectStore = DirectoryStore(place / "from") if kind == "directory" else MemoryStore(f"from{step}")
        source = ObjectDisk("source", store, place / "source")
        put(source, f"{TABLE}/p1/data.parquet", f"{TABLE}/p2/data.parquet", f"{TABLE}/table.json")
        target = ObjectDisk("target", DirectoryStore(place / "to"), place / "target")
        put(target, f"{TABLE}/p9/data.parquet")
        count = 0

        def die(when: str, name: str, arguments: tuple[object, ...], step: int = step) -> None:
            nonlocal count
            if when == "before":
                count += 1
            if count > step:
                raise Died  # and so does every later effect, as after a kill

        set_hook(die)
        try:
            restore_from(target, source.store, RebuildRequest(apply=True), workers=1)
        except Died:
            pass
        finally:
            set_hook(None)
        again = ObjectDisk("target", DirectoryStore(place / "to"), place / "target")
        again.recover()
        restore_from(again, source.store, RebuildRequest(apply=True), workers=1)
        assert content(again) == content(source)
        assert len(blobs(again)) == 3, "two copies, and the object that was there before"
        assert not (place / "target" / "restore.json").exists()
        assert [entry.commit.revision for entry in again.entries()] == list(range(1, again.revision + 1))
        if count <= step:
            break
        step += stride
    assert step > 15


@pytest.mark.in_turn
def test_killed_for_real(tmp_path: Path) -> None:
    """The same with SIGKILL from outside, through the command line; the kill is known to have come in the middle."""
    source = ObjectDisk("source", DirectoryStore(tmp_path / "from"), tmp_path / "source")
    put(source, *(f"{TABLE}/p{number}/data.parquet" for number in range(40)), f"{TABLE}/table.json")
    target = DirectoryStore(tmp_path / "home" / "bucket" / "store")
    command = [str(Path(sys.executable).with_name("frostline")), "restore", "s3", "--from", f"file://{tmp_path}/from/"]
    environment = {**os.environ, "FROSTLINE_HOME": str(tmp_path / "home")}
    process = subprocess.Popen([*command, "--apply", "--tpslimit", "25"], env=environment)
    deadline = time.monotonic() + 60
    while sum(1 for _ in target.list("r")) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    copied = {item.key for item in target.list("r")}
    assert 5 <= len(copied) < 40
    assert list(target.list("operations/")) == []

    subprocess.run([*command, "--apply", "-q"], env=environment, check=True, timeout=120)
    again = ObjectDisk("target", target, tmp_path / "again")
    assert content(again) == content(source)
    assert copied <= set(blobs(again))
    assert len(blobs(again)) == 40
