"""`doctor`: looks at every disk of a configuration and at this machine, and lets `diagnosis` say what it means.

It opens nothing that would recover or repair: a broken disk, journal or file table is found as it is. It writes only
objects and files of its own, and takes them away again.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.effects import op
from disks.host.database import for_reading
from disks.host.reserve import Reserve
from disks.local.tree import OWN_DIRECTORY
from disks.object_disk.sharing.writers import WriterClaim
from disks.registry import open_disk
from disks.stores.open import open_store
from disks.stores.time_budget import time_budget
from disks.stores.trial.examine import examine
from disks.stores.trial.probe_results import StoreFacts
from disks.workers.progress import SILENT, Progress, Task
from oplog.errors import FrostlineError, NoSpace, ReadOnly
from tiering.catalog.clock_check import Clocks
from tiering.catalog.identities.faults import Fault
from tiering.catalog.identities.identity import Identities
from tiering.config.disk_locations import place_of
from tiering.config.settings import Config
from tiering.doctor import diagnosis, store_diagnosis
from tiering.doctor.diagnosis import Finding, LocalFacts, NodeFacts
from tiering.journal.journal import Journal
from tiering.plugins import Plug

if TYPE_CHECKING:
    from disks.stores.wrappers.limit import Limiter

_PACKAGES = ("frostline", "pyarrow", "duckdb", "boto3")
_PATIENCE_SECONDS = 5.0


class ReplicaExamination(Protocol):
    """Looks at Keeper and at this machine's replicas."""

    def findings(self, config: Config) -> list[Finding]:
        """Whether Keeper answers, and what replicas cannot do that they should. Changes nothing."""


_replica_examination = Plug[ReplicaExamination]("replicas examined")


def run(
    config: Config, only: Collection[str] = (), *, limiter: Limiter | None = None, progress: Progress = SILENT
) -> list[Finding]:
    """Everything that was looked at; `only` these disks and not the node, if any is named. Never raises for what it
    finds."""
    now = datetime.now(UTC)
    node = look_at_node(config)
    findings = look_at_identities(config, limiter) if node.journal == "ok" else []
    if only:  # a disk is itself, another or twice among all that are configured
        findings = [finding for finding in findings if finding.subject in {f"disk {name}" for name in only}]
    else:
        findings += diagnosis.of_node(node, now=now)
    chosen = {name: disk for name, disk in config.disks.items() if not only or name in only}
    with progress.task("examining disks", items=len(chosen)) as task:
        for name, disk in chosen.items():
            task.note(name)
            match disk:
                case LocalDiskConfig():
                    findings += diagnosis.of_local(name, disk, look_at_directory(disk))
                case ObjectDiskConfig():
                    facts = look_at_store(disk, limiter, partial(_note, task, name))
                    findings += store_diagnosis.of_store(name, disk, facts, now=now)
                    findings += _promises_less(name, disk)
                    findings += look_at_writer(name, disk, config.state_directory / "disks" / name, limiter)
                    if directory := _directory_of(disk):
                        findings += diagnosis.of_local(name, directory, look_at_directory(directory))
            task.advance(items=1)
    if not only:
        by_store = any(finding.check == "clock" and finding.level in ("ok", "warning") for finding in findings)
        findings.append(diagnosis.of_clock("" if by_store else node.clock_doubt))
    if not only and config.keeper.hosts:
        findings += _replica_examination().findings(config)
    return findings


def look_at_identities(config: Config, limiter: Limiter | None) -> list[Finding]:
    """The disks that are not those that their names stand for. The journal is in order."""
    disks = {
        name: open_disk(name, disk, config.state_directory, limiter=limiter) for name, disk in config.disks.items()
    }
    places = {name: place_of(disk, os.environ).text for name, disk in config.disks.items()}
    try:
        with closing(Journal(config.state_directory)) as journal:
            identities = Identities(disks, places, journal)
            identities.look()
            return list(map(of_fault, identities.faults))
    except (FrostlineError, OSError):  # what is wrong with the disk or the journal is found below
        return []
    finally:
        for disk in disks.values():
            disk.close()


def of_fault(fault: Fault) -> Finding:
    """That a disk is not what its name stands for."""
    return Finding(
        subject=f"disk {fault.disk}",
        check="identity",
        level="problem",
        what=fault.error.message,
        hint=fault.error.hint,
    )


def look_at_writer(name: str, config: ObjectDiskConfig, state_path: Path, limiter: Limiter | None) -> list[Finding]:
    """Of a disk whose log is one of several: whether another machine writes it, as where this one lost its state."""
    if config.log is None or config.read_only:
        return []
    try:
        with time_budget(_PATIENCE_SECONDS), open_store(config, limiter=limiter) as store:
            objection = WriterClaim(store, name, state_path, config.retention_seconds).objection()
    except FrostlineError:  # what is wrong with the store is said by its examination
        return []
    if objection is None:
        return []
    return [
        Finding(subject=f"disk {name}", check="writer", level="problem", what=objection.message, hint=objection.hint)
    ]


def _promises_less(name: str, config: ObjectDiskConfig) -> list[Finding]:
    """What a disk with ClickHouse's own log format cannot promise."""
    if config.log_format != 1:
        return []
    from disks.clickhouse.disk import LIMITATIONS

    return [
        Finding(subject=f"disk {name}", check="log-format-1", level="note", what=sentence) for sentence in LIMITATIONS
    ]


def _directory_of(config: ObjectDiskConfig) -> LocalDiskConfig | None:
    """A bucket that is a directory, as a local disk: its file system matters as much."""
    parts = urlsplit(config.url)
    if parts.scheme != "file":
        return None
    return LocalDiskConfig(path=unquote(parts.path), read_only=config.read_only)


def _note(task: Task, name: str, message: str) -> None:
    task.note(f"{name}: {message}")


def look_at_store(config: ObjectDiskConfig, limiter: Limiter | None, step: Callable[[str], None]) -> StoreFacts:
    """Try an object disk's store out."""
    try:
        with time_budget(_PATIENCE_SECONDS), open_store(config, limiter=limiter) as store:
            return examine(store, read_only=config.read_only, step=step)
    except FrostlineError as error:
        return StoreFacts(config.url, unreachable=error.message, hint=error.hint)


# -- a local disk ------------------------------------------------------------------------------------------------------


def look_at_directory(config: LocalDiskConfig) -> LocalFacts:
    """A local disk's directory, as the file system tells it. A missing one is looked at where it would be made."""
    path = Path(config.path).expanduser()
    place = _existing(path)
    if config.read_only and place != path:
        return LocalFacts(str(path), error=f"{path} does not exist")
    try:
        if not place.is_dir():
            return LocalFacts(str(path), error=f"{place} is no directory")
        numbers = os.statvfs(place)
        writable = os.access(place, os.W_OK | os.X_OK)
        seconds, problem, untried = None, "", "the disk is read-only"
        if writable and not config.read_only:
            seconds, problem, untried = _fsync(place)
    except OSError as error:
        return LocalFacts(str(path), error=f"{path}: {error.strerror}")
    return LocalFacts(
        path=str(path),
        writable=writable,
        file_system=file_system_of(place),
        total_bytes=numbers.f_blocks * numbers.f_frsize,
        free_bytes=numbers.f_bavail * numbers.f_frsize,
        total_inodes=numbers.f_files,
        free_inodes=numbers.f_favail,
        fsync_seconds=seconds,
        fsync_error=problem,
        fsync_untried=untried,
        missing_reserve_bytes=0 if config.read_only else _missing_reserve(path / OWN_DIRECTORY, config.reserve_bytes),
    )


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _missing_reserve(directory: Path, size_bytes: int) -> int:
    """Of the reserve in the directory; none is missing where nothing was written yet."""
    return Reserve(directory, size_bytes).missing_bytes if directory.is_dir() else 0


def _fsync(directory: Path) -> tuple[float | None, str, str]:
    """Write and sync a file that has no name where the file system can do that, so nothing can be left behind: how long
    it took, what failed, and why it could not be tried."""
    try:
        with op("doctor.fsync", directory), tempfile.TemporaryFile(dir=directory, prefix="frostline-doctor-") as file:
            file.write(b"frostline doctor\n")
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - began
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return seconds, "", ""
    except NoSpace:
        return None, "", "there is no room"
    except ReadOnly:
        return None, "", "it is mounted read-only"
    except OSError as error:
        return None, error.strerror or str(error), ""


def file_system_of(path: Path) -> str:
    """The type of the file system that holds the path, such as `ext4`; empty where the kernel does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        device = os.stat(path).st_dev
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


# -- the node ----------------------------------------------------------------------------------------------------------


def look_at_node(config: Config) -> NodeFacts:
    """This machine and the state directory; SQLite files are only read."""
    import resource

    state = config.state_directory
    place = _existing(state)
    versions = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    versions |= {name: found for name in _PACKAGES if (found := _version(name))}
    journal = _sqlite_state(state / "journal.db")
    active, failed, confirmed = _moves(state) if journal == "ok" else ([], 0, None)
    trust = timedelta(seconds=config.limits.clock_trust_seconds)
    tables = {name: state / "disks" / name / "files.db" for name in config.buckets()}
    return NodeFacts(
        versions=versions,
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        state_path=str(state),
        state_file_system=file_system_of(place),
        state_error="" if place.is_dir() and os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written to",
        journal=journal,
        unfinished=len(active),
        oldest_unfinished=min(active, default=None),
        failed=failed,
        missing_reserve_bytes=_missing_reserve(state, config.limits.state_reserve_bytes),
        state_free_bytes=_free_bytes(place),
        clock_doubt=Clocks().doubt({}, datetime.now(UTC), confirmed, trust),
        damaged_tables=tuple(name for name, path in tables.items() if _sqlite_state(path) not in ("ok", "none")),
    )


def _free_bytes(directory: Path) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sqlite_state(path: Path) -> str:
    """`none`, `ok`, or what is wrong with the file. A busy one is `ok`: somebody uses it."""
    try:
        if not path.exists():
            return "none"
        if path.stat().st_size == 0:
            return "the file is empty"
        connection = for_reading(path)
        try:
            return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        return "ok" if "locked" in str(error) or "busy" in str(error) else str(error)
    except (sqlite3.DatabaseError, OSError) as error:
        return str(error)


def _moves(state: Path) -> tuple[list[datetime], int, datetime | None]:
    """When each unfinished move began, how many failed for good, and when the clock was last confirmed."""
    try:
        journal = Journal(state)
    except (FrostlineError, OSError):
        return [], 0, None
    try:
        active = [record.created for record in journal.work.moves(active=True)]
        return active, len(journal.work.failures()), journal.confirmed_time()
    finally:
        journal.close()
