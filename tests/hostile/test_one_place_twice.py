"""Two disks of one place. What was done, and what is answered: a configuration error (exit 2) that names both keys.

| what was done | what used to happen |
|---|---|
| two disks with one path, or one URL | a move between them deleted the only copy and said "moved" |
| one path within the other, through a symbolic link, or a bind mount | the same |
| `s3://b/p`, `s3://b/p/` and `s3://b/p/q/`; a directory and a `file://` bucket in it | the same |
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from oplog.errors import UsageError
from tests.command_line import Frostline
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.engine.store import Store

POLICY = "policies: {tiers: {volumes: [{name: hot, disks: [one]}, {name: cold, disks: [two]}]}}\n"

PAIRS = {
    "the same path": ("type: local, path: a", "type: local, path: a/"),
    "another spelling": ("type: local, path: a", "type: local, path: b/../a"),
    "a path within the other": ("type: local, path: a/b", "type: local, path: a"),
    "through a symbolic link": ("type: local, path: real", "type: local, path: link"),
    "within a symbolic link": ("type: local, path: real", "type: local, path: link/inside"),
    "a directory as a bucket": ("type: local, path: a", 'type: object_disk, url: "file:a/bucket/"'),
    "one directory bucket": ('type: object_disk, url: "file:a/"', 'type: object_disk, url: "file:link/../a"'),
    "one prefix": ('type: object_disk, url: "s3://b/p"', 'type: object_disk, url: "s3://b/p/"'),
    "one prefix, doubled slashes": ('type: object_disk, url: "s3://b/p/q"', 'type: object_disk, url: "s3://b//p//q/"'),
    "a prefix within the other": ('type: object_disk, url: "s3://b/p/q/"', 'type: object_disk, url: "s3://b/p/"'),
    "the whole bucket": ('type: object_disk, url: "s3://b/"', 'type: object_disk, url: "s3://b/p/"'),
    "one endpoint written twice": (
        'type: object_disk, url: "s3://b/p", endpoint_url: "http://S3.local:80"',
        'type: object_disk, url: "s3://b/p", endpoint_url: "http://s3.local/"',
    ),
}


def configured(one: str, two: str) -> Path:
    path = Path("frostline.yaml").absolute()
    path.write_text(f"state_path: state\ndisks:\n  one: {{{one}}}\n  two: {{{two}}}\n{POLICY}")
    return path


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_two_disks_of_one_place_are_an_error(frostline: Frostline, pair: tuple[str, str]) -> None:
    Path("real").mkdir()
    Path("link").symlink_to("real")
    configured(*pair)
    for verb in (["config", "validate"], ["status"], ["fsck"], ["query", "select 1"]):
        frostline(*verb, code=2)
        assert "disks.one" in frostline.error
        assert "disks.two" in frostline.error
    assert not Path("state").exists()


def test_neighbours_are_two_places(frostline: Frostline) -> None:
    for one, two in (
        ("type: local, path: a", "type: local, path: ab"),
        ('type: object_disk, url: "s3://b/p"', 'type: object_disk, url: "s3://b/pq"'),
        ('type: object_disk, url: "s3://b/p"', 'type: object_disk, url: "s3://c/p"'),
        (
            'type: object_disk, url: "s3://b/p", endpoint_url: "http://one:1"',
            'type: object_disk, url: "s3://b/p", endpoint_url: "http://two:1"',
        ),
    ):
        configured(one, two)
        frostline("config", "validate")


def test_the_endpoint_of_the_environment_counts(frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3.local:9000")
    configured(
        'type: object_disk, url: "s3://b/p"',
        'type: object_disk, url: "s3://b/p", endpoint_url: "http://user:hidden@s3.local:9000/"',
    )
    frostline("config", "validate", code=2)
    assert "hidden" not in frostline.error


def test_a_bind_mount_is_one_place(frostline: Frostline, tmp_path: Path) -> None:
    Path("real/inside").mkdir(parents=True)
    Path("mounted").mkdir()
    mount = subprocess.run(["mount", "--bind", "real", "mounted"], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        configured("type: local, path: real", "type: local, path: mounted/inside")
        frostline("config", "validate", code=2)
    finally:
        subprocess.run(["umount", "mounted"], check=True)


def test_a_program_is_told_as_well(tmp_path: Path) -> None:
    config = Config(
        state_path=str(tmp_path / "state"),
        disks={
            "one": LocalDiskConfig(path=str(tmp_path / "a")),
            "two": ObjectDiskConfig(url=(tmp_path / "a" / "bucket").as_uri()),
        },
        policies={"tiers": PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("one", "two")),))},
    )
    with pytest.raises(UsageError, match=r"disks\.two"):
        Store.open(config)
