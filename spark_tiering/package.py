"""Frostline's own code as a zip archive for the executors of a cluster.

Spark puts .zip files, not wheels, on the path of its Python workers. What Frostline depends on (pyarrow, boto3, …) is
compiled and must be installed there. The archive is the same, byte for byte, for the same code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("backup", "disks", "oplog", "restore", "spark_tiering", "tiering", "tui", "zerocopy")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip can hold


def ship_code(session: SparkSession, directory: Path) -> Path | None:
    """Send our code to the session's executors; None where they share this machine's Python."""
    context = getattr(session, "_sc", None)  # a Connect session has none
    if context is not None and shares_python(str(context.master)):
        return None
    archive = write_archive(directory)
    if context is None:
        session.addArtifacts(str(archive), pyfile=True)
    elif archive.name not in (context._python_includes or ()):
        context.addPyFile(str(archive))
    return archive


def shares_python(master: str) -> bool:
    """Whether the tasks of the master run on this machine, with this Python and its files."""
    return master == "local" or master.startswith("local[")


def write_archive(directory: Path) -> Path:
    """`frostline-<digest>.zip` of our packages; one that is there is used."""
    content = archive_bytes()
    file = directory / f"frostline-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.part")
        unfinished.write_bytes(content)
        unfinished.replace(file)
    return file


def archive_bytes() -> bytes:
    """The archive: every file of our packages in the order of their names, with a constant time."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(_files()):
            about = zipfile.ZipInfo(name, _EPOCH)
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = 0o644 << 16
            archive.writestr(about, file.read_bytes())
    return written.getvalue()


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        for place in (found.submodule_search_locations or ()) if found else ():
            root = Path(place)
            for file in root.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield f"{package}/{file.relative_to(root).as_posix()}", file
