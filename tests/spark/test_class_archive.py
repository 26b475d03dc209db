"""Later drivers start from the archive that the first one left; what is no archive the JVM refuses, and starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_tiering.running.class_archive import java_options

LARGE = 150 << 20
JAVA = 'openjdk version "17.0.15"'


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    directory = tmp_path / "spark" / "jars"
    directory.mkdir(parents=True)
    return directory


def cached(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def archive(options: str) -> Path:
    """The file that the first of the options names."""
    return Path(options.split()[0].partition("=")[2])


def test_the_first_driver_writes_it_and_the_next_use_it(tmp_path: Path, jars: Path) -> None:
    first = java_options(jars, JAVA, cached(tmp_path))
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    assert archive(first).parent == tmp_path / "cache" / "frostline"
    archive(first).write_bytes(b"of a driver that did not get far")
    assert java_options(jars, JAVA, cached(tmp_path)) == first
    archive(first).touch()
    os.truncate(archive(first), LARGE)
    later = java_options(jars, JAVA, cached(tmp_path))
    assert later.startswith("-XX:SharedArchiveFile=")
    assert "-XX:+VerifySharedSpaces" in later
    assert archive(later) == archive(first)


def test_other_jars_and_another_java_have_their_own(tmp_path: Path, jars: Path) -> None:
    first = archive(java_options(jars, JAVA, cached(tmp_path)))
    first.write_bytes(b"classes")
    elsewhere = jars.parent / "more-jars"
    elsewhere.mkdir()
    assert archive(java_options(elsewhere, JAVA, cached(tmp_path))) != first
    assert first.exists()
    assert archive(java_options(jars, "another", cached(tmp_path))) != first
    assert not first.exists()


def test_one_that_nobody_used_for_a_month_is_removed(tmp_path: Path, jars: Path) -> None:
    used, unused = (archive(java_options(jars.parent / name, JAVA, cached(tmp_path))) for name in ("used", "unused"))
    for file in (used, unused):
        file.touch()
        os.truncate(file, LARGE)
        os.utime(file, (0, 0))
    java_options(jars.parent / "used", JAVA, cached(tmp_path))
    java_options(jars, JAVA, cached(tmp_path))
    assert used.exists()
    assert not unused.exists()


def test_none_is_written_where_it_cannot_be(tmp_path: Path, jars: Path) -> None:
    assert java_options(jars, JAVA, {}) == ""
    assert java_options(jars, JAVA, {"XDG_CACHE_HOME": str(tmp_path / "two words")}) == ""
    (tmp_path / "file").touch()
    assert java_options(jars, JAVA, {"XDG_CACHE_HOME": str(tmp_path / "file")}) == ""
    conf = jars.parent / "conf"
    conf.mkdir()
    assert java_options(jars, JAVA, cached(tmp_path)) != ""
    (conf / "spark-defaults.conf").touch()
    assert java_options(jars, JAVA, cached(tmp_path)) == ""


@pytest.mark.parametrize("left", [b"", b"not an archive"], ids=["holes", "text"])
def test_java_starts_beside_what_is_no_archive(tmp_path: Path, jars: Path, java: None, left: bytes) -> None:
    file = archive(java_options(jars, JAVA, cached(tmp_path)))
    file.write_bytes(left)
    os.truncate(file, LARGE)
    options = java_options(jars, JAVA, cached(tmp_path)).split()
    started = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, check=False)
    assert started.returncode == 0
    assert started.stdout == ""


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nearly = shutil.disk_usage(tmp_path)._replace(free=500 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nearly)
    assert java_options(jars, JAVA, cached(tmp_path)) == ""
