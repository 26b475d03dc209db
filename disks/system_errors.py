"""What the operating system refuses, in our errors: a limit of the process, a full disk, a quota, a device that fails.

None of it says anything about the bytes that are stored. So who turns a failed read into `Damaged` asks here first:
nothing is set aside, or called damaged, because this process may not open another file.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from typing import TYPE_CHECKING

from oplog.errors import FrostlineError, LimitReached, NoSpace, ReadOnly

if TYPE_CHECKING:
    import sqlite3

_SPOKEN = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG, errno.EDQUOT, errno.ENOSPC, errno.EIO)
"""Errors that libraries report by their text alone."""
_TEXTS = {os.strerror(number).lower(): number for number in _SPOKEN}
_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|malloc of size|can't start new thread|failed to map segment", re.IGNORECASE
)
_NUMBER = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)


def of_the_system(error: BaseException, where: object = "") -> FrostlineError | None:
    """Our error for what the operating system refused; None for any other. `where` is the path, if the error does not
    say it. An error without a number is read by its text where it is one of input and output."""
    where = getattr(error, "filename", None) or where
    number = error.errno if isinstance(error, OSError) and error.errno else errno_in(error)
    match number:
        case errno.ENOSPC:
            return NoSpace(
                f"no space left on device: {where}",
                hint="free space, lower keep_free_space_bytes or move parts to a colder volume; nothing was changed",
            )
        case errno.EDQUOT:
            return NoSpace(
                f"the disk quota of this user is used up: {where}",
                hint="free space or raise the quota; nothing was changed",
            )
        case errno.EROFS:
            return read_only(where)
        case errno.EMFILE:
            return LimitReached(
                f"too many open files: this process may open {_limit(resource.RLIMIT_NOFILE)}{_at(where)}",
                hint="raise the limit: ulimit -n 4096 (LimitNOFILE= of a service)",
            )
        case errno.ENFILE:
            return LimitReached(
                f"too many open files on this machine{_at(where)}", hint="raise the limit: sysctl fs.file-max"
            )
        case errno.ENOMEM:
            return LimitReached(
                f"no memory left for this process (ulimit -v: {_size_limit(resource.RLIMIT_AS)}){_at(where)}",
                hint="raise the limit or free memory; -j 1 and a query of less need less",
            )
        case errno.EFBIG:
            return LimitReached(
                f"file too large: this process may write {_size_limit(resource.RLIMIT_FSIZE)} to a file{_at(where)}",
                hint="raise the limit: ulimit -f unlimited; nothing was changed",
            )
        case errno.EIO:
            return FrostlineError(
                f"the device failed (Input/output error){_at(where)}",
                hint="check the kernel log (dmesg) and the disk; nothing was set aside",
            )
    return None


def read_only(where: object) -> ReadOnly:
    """The error for a path that cannot be written because of its mount."""
    return ReadOnly(f"mounted read-only: {where}", hint="remount it for writing; nothing was changed")


def of_sqlite(error: sqlite3.Error, where: object) -> FrostlineError | None:
    """Our error where SQLite could not open, read or write a file for want of something; None where something else is
    wrong. SQLite does not say which number the system gave, so the limits are tried."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR")):
        return None
    if name.startswith("SQLITE_IOERR_NOMEM"):
        return of_the_system(OSError(errno.ENOMEM, "", str(where)))
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as refused:
        return of_the_system(OSError(refused.errno, "", str(where)))
    if name.startswith("SQLITE_CANTOPEN"):
        return None
    is_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return of_the_system(OSError(errno.EFBIG if is_limited and "READ" not in name else errno.EIO, "", str(where)))


def errno_in(error: BaseException) -> int | None:
    """The number of the system's error that a library put into words; None for another one."""
    text = str(error)
    if (stated := _NUMBER.search(text)) is not None:
        return int(stated[1])
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return errno.ENOMEM
    lowered = text.lower()
    return next((number for words, number in _TEXTS.items() if words in lowered), None)


def allow_open_files(most: int = 65_536) -> None:
    """Raise this process's own limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_to_open() -> int:
    """How many more files this process may open now, about."""
    try:
        taken = len(os.listdir("/proc/self/fd"))
    except OSError:
        taken = 64
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (1 << 30 if soft == resource.RLIM_INFINITY else soft) - taken


def _limit(kind: int) -> str:
    soft = resource.getrlimit(kind)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"


def _size_limit(kind: int) -> str:
    soft = resource.getrlimit(kind)[0]
    if soft == resource.RLIM_INFINITY:
        return "unlimited"
    return (
        f"{soft / 2**30:,.1f} GiB" if soft >= 2**30 else f"{soft / 2**20:,.1f} MiB" if soft >= 2**20 else f"{soft:,} B"
    )


def _at(where: object) -> str:
    return f": {where}" if where else ""
