"""Whether a process that was recorded once still runs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path


def boot_id() -> str | None:
    """Which start of this machine this is; None where nothing tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def process_start(pid: int) -> str:
    """Boot id and start tick: tells this run of a process id from a later one. Empty when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _signal_probe(pid)
    if (boot := boot_id()) is None:
        return _signal_probe(pid)
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else f"{boot}/{fields[19]}"


def described(pid: int) -> str:
    """The process for people: its id, its command, and since when it runs, as far as the system says."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        since = datetime.fromtimestamp(os.stat(f"/proc/{pid}").st_mtime, UTC)
    except OSError:
        return f"process {pid}"
    command = b" ".join(words).decode(errors="replace")[:200]
    return f"process {pid} ({command}), which runs since {since:%Y-%m-%d %H:%M:%SZ}"


def is_alive(pid: int, start: str) -> bool:
    """Whether the process that was recorded as (pid, start) is seen to run still. One of another container is not to be
    seen, though it may live (`sight`); what must hold while it does goes by a lock (`disks.host.locks`)."""
    return bool(start) and process_start(pid) == start


def sight() -> str:
    """Among whom process ids of this process mean something: those that record the same can see one another. Empty on
    systems that do not say."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _signal_probe(pid: int) -> str:
    """Systems without /proc: the process exists or not; a reused id looks alive, which errs on the safe side."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "unknown"
    return "unknown"


def nearest_ancestor(program: str) -> int | None:
    """The process above this one that runs the program (its name as the kernel has it); None where none does, or on
    systems without /proc."""
    process = os.getppid()
    while process > 1:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return None
        if stat.partition("(")[2].rpartition(")")[0] == program:
            return process
        process = int(stat.rpartition(")")[2].split()[1])
    return None
