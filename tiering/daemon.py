"""The daemon: one tick after the other, one daemon a store, a stop between steps and never within one.

It holds the store's daemon lock while it runs (a second one is `Locked`), writes `state/daemon.json` after each pass
for `daemon status`, and survives a failing pass: the failure is logged and shown, the next pass tries again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from disks import effects
from oplog.errors import FrostlineError
from tiering.engine import Store
from tiering.locks import daemon_lock, daemon_lock_path, lock_holder
from tiering.maintenance import TickReport
from tiering.settings import DaemonConfig

STATUS_FILE = "daemon.json"
GC_GUARD = timedelta(hours=24)

log = logging.getLogger("frostline.daemon")


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What `daemon status` shows. Numbers are those of the last run when none is running."""

    running: bool = False
    pid: int | None = None
    started: datetime | None = None
    last_tick: datetime | None = None
    ticks: int = 0
    moved: int = 0
    merged: int = 0
    failures: int = 0
    last_error: str = ""


def status(state_directory: Path) -> DaemonStatus:
    """Whether a daemon runs on this store, and what it did. Never raises for a missing or half-written record."""
    try:
        known = msgspec.json.decode((state_directory / STATUS_FILE).read_bytes(), type=DaemonStatus)
    except (OSError, msgspec.DecodeError):
        known = DaemonStatus()
    holder = lock_holder(daemon_lock_path(state_directory))
    return msgspec.structs.replace(known, running=holder is not None, pid=holder)


def run(
    store: Store,
    settings: DaemonConfig,
    stop: threading.Event,
    *,
    once: bool = False,
    on_tick: Callable[[TickReport], None] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> DaemonStatus:
    """Tick until `stop` is set, or one time. Raises `Locked` when another daemon works on this store."""
    state = store.context.config.state_directory
    with daemon_lock(state):
        now = store.context.clock()
        current = DaemonStatus(running=True, pid=os.getpid(), started=now)
        _write(state, current)
        next_gc = monotonic() + settings.gc_seconds
        while True:
            current = _pass(store, stop, current, on_tick)
            if monotonic() >= next_gc and not stop.is_set():
                current = _collect(store, settings, stop, current)
                next_gc = monotonic() + settings.gc_seconds
            _write(state, current)
            if once or stop.wait(settings.tick_seconds):
                break
        current = msgspec.structs.replace(current, running=False, pid=None)
        _write(state, current)
        return current


def _pass(
    store: Store, stop: threading.Event, current: DaemonStatus, on_tick: Callable[[TickReport], None] | None
) -> DaemonStatus:
    replace = msgspec.structs.replace
    try:
        store.refresh()
        report = store.tick(stop=stop)
    except FrostlineError as error:
        log.error("tick failed: %s", error.message)
        failed = replace(current, failures=current.failures + 1, last_error=error.message)
        return replace(failed, last_tick=store.context.clock(), ticks=current.ticks + 1)
    if on_tick is not None:
        on_tick(report)
    return replace(
        current,
        last_tick=store.context.clock(),
        ticks=current.ticks + 1,
        moved=current.moved + len(report.moves.moved),
        merged=current.merged + len(report.merges),
        failures=current.failures + len(report.moves.failed),
    )


def _collect(store: Store, settings: DaemonConfig, stop: threading.Event, current: DaemonStatus) -> DaemonStatus:
    for disk in store.object_disks():
        if stop.is_set():
            break
        if disk.read_only or "gc" in store.context.journal.paused(None):
            continue
        try:
            report = store.gc(disk.name, guard=GC_GUARD, delete=settings.gc_delete)
            log.info("gc of %s: %s", disk.name, report)
        except FrostlineError as error:
            log.error("gc of %s failed: %s", disk.name, error.message)
            current = msgspec.structs.replace(current, failures=current.failures + 1, last_error=error.message)
    return current


def _write(state_directory: Path, current: DaemonStatus) -> None:
    effects.replace_file(state_directory / STATUS_FILE, msgspec.json.encode(current))
