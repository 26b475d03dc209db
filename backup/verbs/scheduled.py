"""The jobs that this package brings to the daemon (`tiering.config.jobs`). One at a time works on the repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiering.config.settings import Config
from tiering.config.units import counted
from tiering.daemon.jobs.kinds import JobKind, Told, read_share

if TYPE_CHECKING:
    from tiering.engine.store import Store

_REPOSITORY = frozenset({"repository"})
_CHECKS: dict[str, Any] = {
    "shares": _REPOSITORY,
    "bad_codes": frozenset({4}),
    "found_event": "verification_failed",
}


def _create(config: Config, store: Store) -> Sequence[Sequence[str]]:
    return [["backup", "create"]]


def _verify(config: Config, store: Store) -> Sequence[Sequence[str]]:
    return [["backup", "verify", "--all", *read_share(config, "verification")]]


def _drill(config: Config, store: Store) -> Sequence[Sequence[str]]:
    return [["backup", "drill"]]


def _prune(config: Config, store: Store) -> Sequence[Sequence[str]]:
    """What stays is for the job's options to say: without a rule the verb refuses."""
    return [["backup", "prune"]]


def _tell_created(document: Mapping[str, Any]) -> Told:
    lacking = ", ".join(table["table"] for table in document.get("left_out", ()))
    lacks = f", lacks {lacking}, which cannot be read" if lacking else ""
    parts = counted(document.get("parts") or 0, "part")
    return Told(f"{document.get('name')}: {parts}, {document.get('new_bytes')} bytes sent{lacks}")


def _tell_checked(document: Mapping[str, Any]) -> Told:
    problems = document.get("problems", [])
    first = f", the first: {_shown(problems[0])}" if problems else ""
    return Told(f"{document.get('name')}: {counted(len(problems), 'problem')}{first}")


def _shown(problem: Any) -> str:
    return str(problem.get("what", problem)) if isinstance(problem, dict) else str(problem)


def _tell_pruned(document: Mapping[str, Any]) -> Told:
    return Told(f"{counted(len(document.get('dropped', [])), 'backup')} dropped")


KINDS = (
    JobKind("backup", _tell_created, _create, shares=_REPOSITORY, bad_codes=frozenset({3}), done_event="backup"),
    JobKind("verification", _tell_checked, _verify, **_CHECKS),
    JobKind("drill", _tell_checked, _drill, **_CHECKS),
    JobKind("prune", _tell_pruned, _prune, shares=_REPOSITORY),
)
