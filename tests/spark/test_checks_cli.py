"""`--spark` of fsck, gc and restore on the command line: the same documents; refused where it would do nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import REPOSITORY, Server
from tests.spark.checked import PARTS, SECRET, Site, damage
from tests.spark.cluster import CONF, Cluster


def frostline(config: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tiering.cli.main", "--config", str(config), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def configured(site: Site, directory: Path, **conf: str) -> Path:
    keys = {name: getattr(site.config, name) for name in ("url", "endpoint_url", "access_key_id", "secret_access_key")}
    path = directory / "frostline.json"
    document = {
        "state_path": str(directory / "cli"),
        "disks": {"cold": {"type": "object_disk", "region": "us-east-1", **keys}},
        "policies": {"cold": {"volumes": [{"name": "cold", "disks": ["cold"]}]}},
        "spark": {"master": "local[2]", "conf": conf},
    }
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return path


@pytest.mark.in_turn
def test_the_verb_gives_the_same_document_and_what_spark_did(ministack: Server, tmp_path: Path) -> None:
    site = Site(ministack, tmp_path / "state", None)  # type: ignore[arg-type]
    damage(site)
    site.disk.close()
    config = configured(site, tmp_path)
    here = frostline(config, "fsck", "--read-data", "--json")
    there = frostline(config, "fsck", "--read-data", "--json", "--spark", "-vv")
    assert (here.returncode, there.returncode) == (4, 4), here.stderr + there.stderr
    plain, document = json.loads(here.stdout), json.loads(there.stdout)
    spark = document.pop("spark")
    assert document == plain
    assert (spark["master"], spark["retried_tasks"]) == ("local[2,4]", 0)
    assert spark["tasks"] > 2
    everything = (
        there.stdout
        + there.stderr
        + "".join(path.read_text(errors="replace") for path in (tmp_path / "cli").rglob("*.log*"))
    )
    assert SECRET not in everything


@pytest.mark.in_turn
def test_a_collection_and_a_restore_from_another_bucket(ministack: Server, tmp_path: Path) -> None:
    """I5, I7: the same report; the same files, by requests that are all counted."""
    site = Site(ministack, tmp_path / "state", None)  # type: ignore[arg-type]
    site.drop(3)
    site.disk.close()
    config = configured(site, tmp_path)
    here, there = (frostline(config, "gc", "--json", *spark) for spark in ((), ("--spark",)))
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    document = json.loads(there.stdout)
    assert document.pop("spark")["tasks"] == 2
    assert document == json.loads(here.stdout)

    here, there = (frostline(config, "restore", "cold", "--json", *spark) for spark in ((), ("--spark",)))
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    document, plain = json.loads(there.stdout), json.loads(here.stdout)
    assert document.pop("spark")["tasks"] == 1
    for each in (document, plain):
        assert (each.pop("seconds") >= 0, each.pop("requests")["LIST"] > 0) == (True, True)
    assert document == plain

    other = json.loads(config.read_text())
    source = other["disks"]["cold"]["url"]
    other["disks"]["cold"]["url"] = f"s3://{site.bucket}/another/"
    other["state_path"] = str(tmp_path / "another")
    config.write_text(json.dumps(other))
    done = frostline(config, "restore", "cold", "--from", source, "--apply", "--spark", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["applied"], result["files"]) == (True, 2 * (PARTS - 1) + 1)
    assert result["requests"]["COPY"] == PARTS - 1
    assert result["spark"]["tasks"] >= 1
    assert json.loads(frostline(config, "fsck", "--read-data", "--json").stdout)["ok"]


@pytest.mark.in_turn
def test_executors_have_nothing_but_what_they_are_sent(ministack: Server, tmp_path: Path, cluster: Cluster) -> None:
    site = Site(ministack, tmp_path / "state", None)  # type: ignore[arg-type]
    damage(site)
    gone = site.drop(6)
    site.disk.close()
    config = configured(site, tmp_path, **CONF)
    here = frostline(config, "fsck", "--read-data", "--json")
    done = frostline(config, "fsck", "--read-data", "--json", "--spark", "--master", cluster.url)
    assert done.returncode == 4, done.stderr
    document = json.loads(done.stdout)
    assert document.pop("spark")["master"] == cluster.url
    assert document == json.loads(here.stdout)
    assert site.key(1) in site.blobs()
    assert gone in site.blobs()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gc", "--master", "local[2]"), "add --spark"),
        (("restore", "cold", "--spark"), "openjdk"),
        (("restore", "cold", "--from", "{url}", "--spark"), "add --apply"),
        (("fsck", "cold", "--spark"), "openjdk"),
    ],
)
def test_what_spark_does_nothing_for_is_refused(
    ministack: Server, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    """And a machine without Java is told what to install."""
    site = Site(ministack, tmp_path / "state", None)  # type: ignore[arg-type]
    config = configured(site, tmp_path)
    url = f"s3://{site.bucket}/p/"
    if "{url}" in arguments:
        other = json.loads(config.read_text())
        other["disks"]["cold"]["url"] = f"s3://{site.bucket}/another/"
        config.write_text(json.dumps(other))
    given = [argument.format(url=url) for argument in arguments]
    done = frostline(config, *given, "--json", JAVA_HOME="/nonexistent")
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert says in f"{error['message']} {error['hint']}"
    site.disk.close()
