"""What `doctor` says of Keeper and of this machine's replicas. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.object_disk.sharing.retiring import heeded_logs
from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.config.settings import Config
from tiering.config.units import counted
from tiering.doctor.diagnosis import Finding, Level
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.keeper.exposure import exposures
from zerocopy.replica.connections import connections
from zerocopy.replica.status import OwnReplica, ReplicaStatus, own_replicas, statuses

_PATIENCE_SECONDS = 5.0


def findings(config: Config) -> list[Finding]:
    """Whether Keeper answers, what of each disk with a log of several may be collected, and of each replicated table
    here which replicas cannot do what they should."""
    patience = min(config.keeper.request_timeout_seconds, _PATIENCE_SECONDS)
    keeper = msgspec.structs.replace(config.keeper, request_timeout_seconds=patience)
    try:
        with Store.open(msgspec.structs.replace(config, keeper=keeper), recover=False) as store:
            return list(_of_store(store.context))
    except FrostlineError as error:  # what is wrong with the store is said elsewhere
        return [Finding(subject="keeper", check="replicas", level="unknown", what=f"not looked at: {error.message}")]


def _of_store(context: Context) -> Iterator[Finding]:
    try:
        connections(context).keeper.sync()
    except FrostlineError as error:
        yield Finding(subject="keeper", check="session", level="problem", what=error.message, hint=error.hint)
        yield from _exposed(context.config, is_open=None)
        return
    yield Finding(subject="keeper", check="session", level="ok", what="Keeper answers")
    yield from _exposed(context.config, is_open=_is_open(context))
    for disk in auditing.disks(context, None):
        yield from _shared(context, disk)
    tables = {table.full_name: table for table in context.catalog.tables()}
    for own in own_replicas(context):
        subject = f"replicas of {own.table}"
        if own.read_only:
            yield _read_only(subject, own)
            continue
        try:
            found = statuses(context, tables[own.table])
        except FrostlineError as error:  # of this table: the others are looked at
            yield Finding(subject=subject, check="replicas", level="problem", what=error.message, hint=error.hint)
            continue
        for one in found:
            level, what, hint = _said(one)
            yield Finding(subject=subject, check=f"replica-{one.replica}", level=level, what=what, hint=hint)


def _is_open(context: Context) -> bool | None:
    try:
        return connections(context).keeper.is_open("/")
    except FrostlineError:  # no node yet, or nobody says
        return None


def _exposed(config: Config, *, is_open: bool | None) -> Iterator[Finding]:
    """What others on the network can do: much of it the configuration says, also while Keeper does not answer."""
    for one in exposures(config.keeper, config.interserver, is_open=is_open):
        level: Level = "note" if one.local else "warning"
        yield Finding(subject=one.subject, check=one.check, level=level, what=one.message, hint=one.hint)


def _shared(context: Context, disk: LoggedDisk) -> Iterator[Finding]:
    """Who uses the objects of the disk's prefix beside this machine, and whether it may collect there."""
    subject = f"disk {disk.name}"
    try:
        others = heeded_logs(disk, now=context.clock())
        objection = auditing.objection(context, disk)
    except FrostlineError as error:
        what = f"whose its objects are is unknown: {error.message}"
        yield Finding(subject=subject, check="sharing", level="unknown", what=what, hint=error.hint)
        return
    names = f"logs {', '.join(others)}" if others else "no other log"
    what = f"log {disk.log_name} shares its objects with {names}"
    hint = "an object stays until none of them names it: 'frostline du' shows how much that is" if others else ""
    yield Finding(subject=subject, check="sharing", level="ok", what=what, hint=hint)
    if objection is None:
        yield Finding(subject=subject, check="marks", level="ok", what="gc may collect: the last audit was clean")
        return
    why, _, advice = objection.rpartition(": ")
    yield Finding(subject=subject, check="marks", level="warning", what=f"gc collects nothing: {why}", hint=advice)


def _read_only(subject: str, own: OwnReplica) -> Finding:
    level: Level = "problem" if own.replica else "note"
    return Finding(subject=subject, check="writable", level=level, what=own.read_only)


def _said(status: ReplicaStatus) -> tuple[Level, str, str]:
    number = status.queue + status.behind
    waiting = f"{number} entr{'y' if number == 1 else 'ies'}"
    where = f"replica {status.replica}" + (" (here)" if status.here else "")
    if status.lost:
        hint = "its next pass makes it whole; if its machine is gone for good: 'frostline replica drop'"
        return "warning", f"{where} fell behind what the log keeps", hint
    if not status.active:
        message = f"{where} is not heard of, and has {waiting} to do: what was merged moves to no bucket without it"
        return "warning", message, "run 'frostline daemon run' there; if its machine is gone: 'frostline replica drop'"
    if number:
        return "note", f"{where} has {waiting} to do", "'frostline replica sync' there shows what keeps it"
    return "ok", f"{where} has {counted(status.parts, 'part')} and nothing to do", ""
