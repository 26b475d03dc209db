"""Second names for files of a local disk that other processes are going to read by and by.

A lease (`Disk.read_lease`) ends with the process that took it. A process that only plans the reads of others gives
files a second name instead, a hard link below `<root>/.frostline/readers/`: the bytes outlive the first name, until the
time that was asked for is over or the process that it was done for has ended.

<root>/.frostline/readers/<id>/until.json      {"until", "pid", "start", "sight"}, the first file there
<root>/.frostline/readers/<id>/<n>-<name>      the files
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from disks.effects import hard_link, make_directory, remove_tree, replace_file
from disks.host.processes import is_alive, process_start, sight
from oplog.documents import Document

DIRECTORY = "readers"
_NOTE = "until.json"
_UNSEEN_SECONDS = 86_400
"""Files stay so long for a process of which nobody here can tell whether it lives."""


class _Until(msgspec.Struct, frozen=True):
    until: datetime
    pid: int
    start: str
    sight: str | None = None
    """Who can see the process; None in notes of an earlier version."""


_document = Document("note of files that tasks read", _Until)


def hold_files(own: Path, files: Sequence[Path], *, until: datetime, process: int) -> list[Path]:
    """Names under which the files stay readable until then, or until the process ends; in the order of the files.

    `own` is the disk's own directory. Raises `FileNotFoundError` when a file is gone: it was removed meanwhile.
    """
    held = own / DIRECTORY / secrets.token_hex(8)
    make_directory(held)
    note = _Until(until, process, process_start(process), sight())
    replace_file(held / _NOTE, _document.encode(note))
    names = [held / f"{number}-{file.name}" for number, file in enumerate(files)]
    for file, name in zip(files, names, strict=True):
        hard_link(file, name)
    return names


def let_go(own: Path) -> list[str]:
    """Remove what is held no longer; the names of what was removed."""
    directory = own / DIRECTORY
    if not directory.is_dir():
        return []
    over = sorted(entry for entry in directory.iterdir() if _is_over(entry))
    for entry in over:
        remove_tree(entry)
    return [entry.name for entry in over]


def _is_over(held: Path) -> bool:
    try:
        note = _document.decode((held / _NOTE).read_bytes())
    except FileNotFoundError:
        # Somebody is making it just now, unless it is old.
        return _age_seconds(held) > 60
    except msgspec.DecodeError:
        return True
    if note.until <= datetime.now(UTC):
        return True
    if note.sight not in (None, sight()):  # of another container, or of before the machine was started again
        return _age_seconds(held) > _UNSEEN_SECONDS
    return not is_alive(note.pid, note.start)


def _age_seconds(held: Path) -> float:
    return datetime.now(UTC).timestamp() - held.stat().st_mtime
