"""What was found about local disks and this machine, as findings: what it means and what to do. Pure: no I/O, no clock.

`tiering.doctor.store_diagnosis` does the same for object disks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from disks.config import LocalDiskConfig
from tiering.config.units import counted, format_duration, format_size

Level = Literal["ok", "note", "unknown", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "unknown", "warning", "problem")

_FEW_FILES = 1024
_FEW_INODES = 0.05
_SLOW_FSYNC_SECONDS = 0.5
_VOLATILE = {"tmpfs", "ramfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "9p"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `check` is a stable word for scripts."""

    subject: str
    """`disk s3`, `node`"""
    check: str
    level: Level
    what: str
    hint: str = ""


class LocalFacts(msgspec.Struct, frozen=True):
    """A local disk's directory. `error` says why it could not be looked at."""

    path: str
    error: str = ""
    writable: bool = True
    file_system: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    total_inodes: int = 0
    free_inodes: int = 0
    fsync_seconds: float | None = None
    fsync_error: str = ""
    fsync_untried: str = "the disk is read-only"
    missing_reserve_bytes: int = 0


class NodeFacts(msgspec.Struct, frozen=True):
    """This machine and the state directory."""

    versions: dict[str, str]
    open_files_limit: int
    state_path: str
    state_file_system: str
    state_error: str = ""
    journal: str = "none"
    """`none`, `ok`, or what is wrong with it."""
    unfinished: int = 0
    oldest_unfinished: datetime | None = None
    failed: int = 0
    damaged_tables: tuple[str, ...] = ()
    missing_reserve_bytes: int = 0
    state_free_bytes: int = 0
    clock_doubt: str = ""
    """Why rules that delete do not go by this machine's clock, its disks aside; empty if they do."""


def is_clean(findings: Sequence[Finding]) -> bool:
    """Whether nothing is a problem."""
    return not any(finding.level == "problem" for finding in findings)


# -- a local disk ------------------------------------------------------------------------------------------------------


def of_local(name: str, config: LocalDiskConfig, facts: LocalFacts) -> list[Finding]:
    """Everything about one local disk."""

    def say(check: str, level: Level, message: str, hint: str = "") -> Finding:
        return Finding(subject=f"disk {name}", check=check, level=level, what=message, hint=hint)

    if facts.error:
        return [say("directory", "problem", facts.error, "mount the disk, or correct `path`")]
    findings = [say("directory", "ok", f"{facts.path} on {facts.file_system or 'an unknown file system'}")]
    findings += list(_file_system(facts.file_system, facts.path, say))
    if not facts.writable and not config.read_only:
        hint = "the user that runs frostline must be able to write here"
        return [*findings, say("writable", "problem", f"{facts.path} cannot be written to", hint)]
    room = max(facts.free_bytes - config.keep_free_space_bytes, 0)
    size = f"{format_size(facts.free_bytes)} of {format_size(facts.total_bytes)} are free"
    if config.keep_free_space_bytes > facts.total_bytes > 0:
        hint = f"keep_free_space_bytes ({format_size(config.keep_free_space_bytes)}) is more than the file system has"
        findings.append(say("space", "problem", f"{size}: nothing can be written", hint))
    elif room == 0:
        hint = "free space, lower keep_free_space_bytes, or let 'frostline tick' move parts away"
        kept = (
            f", of which {format_size(config.keep_free_space_bytes)} stay free" if config.keep_free_space_bytes else ""
        )
        findings.append(say("space", "problem", f"{size}{kept}: there is no room", hint))
    elif facts.total_bytes and room < facts.total_bytes * 0.05:
        findings.append(say("space", "warning", f"{size}: nearly full", "lower the table's TTL, or raise move_factor"))
    else:
        findings.append(say("space", "ok", size))
    findings += list(_reserve(facts.missing_reserve_bytes, facts.free_bytes, say))
    if facts.total_inodes and facts.free_inodes < facts.total_inodes * _FEW_INODES:
        message = f"{facts.free_inodes:,} of {facts.total_inodes:,} inodes are free"
        findings.append(say("inodes", "warning", message, "merge small parts, or move them away"))
    elif facts.total_inodes:
        findings.append(say("inodes", "ok", f"{facts.free_inodes:,} of {facts.total_inodes:,} inodes are free"))
    if facts.fsync_error:
        hint = "without fsync a power cut loses acknowledged parts: use another file system"
        findings.append(say("fsync", "problem", f"fsync fails: {facts.fsync_error}", hint))
    elif facts.fsync_seconds is None:
        findings.append(say("fsync", "unknown", f"not tried: {facts.fsync_untried}"))
    elif facts.fsync_seconds > _SLOW_FSYNC_SECONDS:
        message = f"fsync takes {facts.fsync_seconds * 1000:.0f} ms; each insert waits for several"
        findings.append(say("fsync", "warning", message, "a faster disk, or larger inserts"))
    else:
        findings.append(say("fsync", "ok", f"fsync works, in {facts.fsync_seconds * 1000:.1f} ms"))
    return findings


def _reserve(missing_bytes: int, free_bytes: int, say: Callable[[str, Level, str, str], Finding]) -> Iterator[Finding]:
    """A store of an earlier version has none until a change finds room for it: on a full disk that is never."""
    if missing_bytes > free_bytes:
        what = f"{format_size(missing_bytes)} of the reserve are missing, and there is no room for them"
        hint = "free that much another way: otherwise moves and drops may fail on a full disk"
        yield say("reserve", "problem", what, hint)


def _file_system(kind: str, path: str, say: Callable[[str, Level, str, str], Finding]) -> Iterator[Finding]:
    if kind in _VOLATILE:
        yield say("file-system", "warning", f"{path} is on {kind}, which is lost at a reboot", "use a disk")
    elif kind in _NETWORK:
        what = f"{path} is on {kind}: locks and fsync depend on the server"
        yield say(
            "file-system",
            "warning",
            what,
            "use a local file system for local disks and state; network ones as a bucket",
        )


def of_clock(doubt: str) -> Finding:
    """Whether rules that delete go by this machine's clock."""
    if not doubt:
        return Finding(subject="node", check="clock", level="ok", what="delete rules use this machine's clock")
    return Finding(
        subject="node",
        check="clock",
        level="note",
        what=f"delete rules are suspended: {doubt}",
        hint="synchronize the clock (NTP); if it is right: 'frostline tick --believe-clock'",
    )


# -- the node ----------------------------------------------------------------------------------------------------------


def of_node(facts: NodeFacts, *, now: datetime) -> list[Finding]:
    """Everything about this machine."""

    def say(check: str, level: Level, message: str, hint: str = "") -> Finding:
        return Finding(subject="node", check=check, level=level, what=message, hint=hint)

    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    findings = [say("versions", "ok", versions)]
    if facts.open_files_limit < _FEW_FILES:
        message = f"this process may open {counted(facts.open_files_limit, 'file')}; large merges and queries need more"
        findings.append(say("open-files", "warning", message, f"ulimit -n {_FEW_FILES * 4}"))
    else:
        findings.append(say("open-files", "ok", f"this process may open {counted(facts.open_files_limit, 'file')}"))
    if facts.state_error:
        hint = "everything below it can be rebuilt, but it must be writable"
        return [*findings, say("state", "problem", f"state directory: {facts.state_error}", hint)]
    if facts.state_file_system in _VOLATILE | _NETWORK:
        findings += list(_file_system(facts.state_file_system, facts.state_path, say))
    else:
        findings.append(
            say("state", "ok", f"state directory {facts.state_path} on {facts.state_file_system or 'a disk'}")
        )
    findings += list(_reserve(facts.missing_reserve_bytes, facts.state_free_bytes, say))
    if facts.journal == "none":
        findings.append(say("journal", "ok", "no journal yet: nothing was moved or merged here"))
    elif facts.journal != "ok":
        hint = "the next command sets it aside and begins a new one; data is not affected, history and pins are"
        findings.append(say("journal", "problem", f"the journal is damaged: {facts.journal}", hint))
    else:
        findings.append(say("journal", "ok", "the journal is whole"))
    for name in facts.damaged_tables:
        hint = "it is rebuilt from the bucket on next use"
        findings.append(say("file-table", "warning", f"the file table of disk {name} is damaged", hint))
    if facts.unfinished and facts.oldest_unfinished is not None:
        age = now - facts.oldest_unfinished
        message = f"{counted(facts.unfinished, 'unfinished move')}, the oldest for {format_duration(age)}"
        stale = age > timedelta(hours=1)
        hint = "the next command that opens the store finishes or undoes them" if stale else ""
        findings.append(say("moves", "warning" if stale else "note", message, hint))
    if facts.failed:
        message = f"{counted(facts.failed, 'move')} failed and were given up"
        findings.append(say("failed-moves", "warning", message, "'frostline moves list --failed' shows why"))
    return findings
