"""What `doctor` says of Keeper and of this machine's replicas. Changes nothing; `tiering.doctor` loads it by name."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.config.settings import Config
from tiering.doctor.diagnosis import Finding, Level
from tiering.engine.store import Store
from zerocopy.replica.connections import connections
from zerocopy.replica.status import OwnReplica, ReplicaStatus, own_replicas, statuses

_PATIENCE_SECONDS = 5.0


def findings(config: Config) -> list[Finding]:
    """Whether Keeper answers, and of each replicated table here which replicas cannot do what they should."""
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
        return
    yield Finding(subject="keeper", check="session", level="ok", what="Keeper answers")
    tables = {table.full_name: table for table in context.catalog.tables()}
    for own in own_replicas(context):
        subject = f"replicas of {own.table}"
        if own.read_only:
            yield _read_only(subject, own)
            continue
        for one in statuses(context, tables[own.table]):
            level, what, hint = _said(one)
            yield Finding(subject=subject, check=f"replica-{one.replica}", level=level, what=what, hint=hint)


def _read_only(subject: str, own: OwnReplica) -> Finding:
    level: Level = "problem" if own.replica else "note"
    return Finding(subject=subject, check="writable", level=level, what=own.read_only)


def _said(one: ReplicaStatus) -> tuple[Level, str, str]:
    number = one.queue + one.behind
    waiting = f"{number} entr{'y' if number == 1 else 'ies'}"
    where = f"replica {one.replica}" + (" (here)" if one.here else "")
    if one.lost:
        hint = "its next pass makes it whole; if its machine is gone for good: 'frostline replica drop'"
        return "warning", f"{where} fell behind what the log keeps", hint
    if not one.active:
        what = f"{where} is not heard of, and has {waiting} to do: what was merged moves to no bucket without it"
        return "warning", what, "run 'frostline daemon run' there; if its machine is gone: 'frostline replica drop'"
    if number:
        return "note", f"{where} has {waiting} to do", "'frostline replica sync' there says what keeps it"
    return "ok", f"{where} has {one.parts} parts and nothing to do", ""
