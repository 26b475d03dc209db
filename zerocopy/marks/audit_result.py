"""What the last audits of a prefix found, in the data of its node: by it gc knows whether it may collect.

    {"audits": {"machine-a": {"id": "9f…", "clean": true, "time": "2026-11-23T16:00:00Z"}}}

A machine collects while its own last audit was clean, and the node still says so with the id that the machine has in
its state. A Keeper that lost what it knew, or was set back to before that audit, does not. While a machine audits it
collects nothing, and a collection on another machine stops: it finds that the node has changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from disks.effects import make_directory, replace_file
from oplog import bounds
from oplog.documents import Document
from oplog.errors import Conflict, Damaged
from zerocopy.keeper.client import Keeper
from zerocopy.marks import census, marks_keeper
from zerocopy.marks.census import CollectionGate
from zerocopy.marks.nodes import StoreNodes

_FILE = "audit"
"""In the state of the disk: the id of this machine's last audit."""
_ATTEMPTS = 10
_AGAIN = "run 'frostline replica audit --repair' on this machine"


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's last audit."""

    id: str
    clean: bool
    time: datetime


class AuditResults(msgspec.Struct, frozen=True, kw_only=True):
    """The node's data."""

    audits: dict[str, AuditResult] = {}
    """By the name of the machine's log."""


_document = Document("verdicts of audits, in Keeper", AuditResults)


def read(keeper: Keeper, nodes: StoreNodes) -> tuple[AuditResults, int] | None:
    """What is there, with the node's version; None without a node. Raises `Damaged`."""
    node = keeper.find(nodes.path)
    if node is None:
        return None
    try:
        return (_document.decode(node.data) if node.data else AuditResults()), node.version
    except bounds.UNREADABLE as error:
        raise Damaged(f"{nodes.path} in Keeper cannot be read: {error}", hint=_AGAIN) from error


def begin(keeper: Keeper, nodes: StoreNodes, log: str, now: datetime) -> str:
    """Say that an audit goes on; its id. No collection that has begun releases anything from now on."""
    verdict = AuditResult(id=secrets.token_hex(16), clean=False, time=now)
    _write(keeper, nodes, log, verdict, lambda before: True)
    return verdict.id


def end(keeper: Keeper, nodes: StoreNodes, log: str, verdict: AuditResult, state_path: Path) -> None:
    """Say what the audit found. Raises `Conflict` when Keeper knows nothing of it any more, or another one of this
    machine began."""
    make_directory(state_path)
    replace_file(state_path / _FILE, verdict.id.encode())
    _write(keeper, nodes, log, verdict, lambda before: before is not None and before.id == verdict.id)


def _write(
    keeper: Keeper, nodes: StoreNodes, log: str, verdict: AuditResult, may: Callable[[AuditResult | None], bool]
) -> None:
    for _ in range(_ATTEMPTS):
        keeper.make_path(nodes.path)
        keeper.sync(nodes.path)
        before, version = read(keeper, nodes) or (AuditResults(), 0)
        if not may(before.audits.get(log)):
            break
        data = _document.encode(AuditResults(audits={**before.audits, log: verdict}))
        try:
            keeper.set(nodes.path, data, version)
        except Conflict:
            continue
        return
    raise Conflict("the marks of this bucket in Keeper changed during the audit", hint="run the audit again")


def objection(results: tuple[AuditResults, int] | None, log: str, audit_id: str | None) -> str | None:
    """Why this machine may collect nothing; None when it may. `audit_id` is the id of its last audit. Pure."""
    verdict = results[0].audits.get(log) if results is not None else None
    if audit_id is None:
        why = "the marks of replicas were never compared with the logs on this machine"
    elif verdict is None:
        why = "Keeper knows nothing of the audit of this machine: it lost its data, or is another one"
    elif verdict.id != audit_id:
        why = "Keeper has another audit than this machine's last one: one is running, or Keeper was set back"
    elif not verdict.clean:
        why = "the last audit found something in use that no mark protects"
    else:
        return None
    return f"{why}: {_AGAIN}"


class MarkReferences:
    """What marks say to a collection (`disks.garbage.reference_sources.References`)."""

    def __init__(self, keeper: Keeper, store: str, log: str, state_path: Path) -> None:
        self._keeper = keeper
        self._nodes = StoreNodes(store)
        self._log = log
        self._file = state_path / _FILE
        self._gate: CollectionGate | None = None
        self._sets: Mapping[str, str] = {}

    def objection(self) -> str | None:
        """Why nothing may go; see the module."""
        self._keeper.sync(self._nodes.path)
        found = read(self._keeper, self._nodes)
        known = self._file.read_text() if self._file.exists() else None
        self._gate = CollectionGate(self._nodes.path, found[1]) if found is not None else None
        return objection(found, self._log, known)

    def keeper(self) -> str:
        """The id of this Keeper."""
        return marks_keeper.known_id(self._keeper)

    def held(self) -> Collection[str]:
        """Every key of every set that somebody has marked."""
        everything = list(census.sets(self._keeper, self._nodes))
        self._sets = {key: one.name for one in everything for key in one.keys}
        return {key for one in everything if one.marks for key in one.keys}

    def release(self, keys: Collection[str]) -> Collection[str]:
        """Those of the keys whose set nobody can mark any more: its node goes. Raises `Conflict` when somebody audits
        meanwhile."""
        if self._gate is None:
            return ()
        names = {self._sets[key] for key in keys if key in self._sets}
        released = census.release(self._keeper, self._nodes, names, self._gate)
        return [key for key in keys if key not in self._sets or self._sets[key] in released]
