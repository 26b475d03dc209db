"""Keeps the classes that Spark's driver loads as the JVM wants them in memory, so that later ones start in less time.

A driver loads some 20,000 classes out of 250 jars before its first task, and reads, checks and lays out each. Java can
keep the result in a file (JEP 350, dynamic archives of class data): the first driver writes it as it ends, the later
ones map it. It is a cache: the JVM itself refuses one that was made of other jars or by another Java, and one that is
not whole, as its header is written last; and goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_ROOM_BYTES = 1 << 30
"""An archive takes 160 MB; where less than this is free none is written."""
_WHOLE_BYTES = 90 << 20
"""A smaller one was left by a driver that ended before it had worked: it is made again."""
_UNUSED_SECONDS = 30 * 86400.0
"""An archive that no driver has used for so long is one of an environment that is gone: it is removed."""
_SILENT = "-Xlog:cds*=off"
"""The JVM tells, on standard output, of each class that it cannot keep."""
_PLAIN = re.compile(r"/[\w./@%+,=-]*", re.ASCII)


def java_options(jars: Path, java: str, environment: Mapping[str, str]) -> str:
    """What to start a driver with: to use the archive of these jars and this Java (what `java -version` says), or to
    write it when it ends; empty where neither can be.

    The archive is in the user's cache (`$XDG_CACHE_HOME/frostline`, `~/.cache/frostline`), which is made if need be.
    Archives of the same jars by another Java are removed, and those that nobody used for a month.
    """
    directory = _cache(environment)
    configured = environment.get("SPARK_CONF_DIR") or jars.parent / "conf"
    if directory is None or _has_files(Path(configured)):
        return ""  # the JVM keeps no classes of a class path with directories that have files
    place = hashlib.sha256(str(jars.resolve()).encode()).hexdigest()[:12]
    archive = directory / f"spark-{place}-{hashlib.sha256(f'{java}{_state(jars)}'.encode()).hexdigest()[:12]}.jsa"
    if _size(archive) >= _WHOLE_BYTES:
        with suppress(OSError):
            os.utime(archive)  # its last use
        return f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces {_SILENT}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in directory.glob("spark-*.jsa"):
            if old.name.startswith(f"spark-{place}-") or time.time() - old.stat().st_mtime > _UNUSED_SECONDS:
                old.unlink(missing_ok=True)
        if shutil.disk_usage(directory).free < _ROOM_BYTES or not os.access(directory, os.W_OK):
            return ""
    except OSError:
        return ""
    return f"-XX:ArchiveClassesAtExit={archive} {_SILENT}"


def _cache(environment: Mapping[str, str]) -> Path | None:
    """None for a user without such a place, or whose name of it Spark would take for several options."""
    home = environment.get("HOME")
    named = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    return Path(named) / "frostline" if _PLAIN.fullmatch(named) else None


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _state(jars: Path) -> str:
    """Changes when the jars do: an archive of others would be refused each time, and never be replaced."""
    with suppress(OSError):
        return str(jars.stat().st_mtime_ns)
    return ""


def _has_files(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False
