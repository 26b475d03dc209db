"""What ZooKeeper's answers mean where it says no, and what its silence does. Only `client` uses it."""

from __future__ import annotations

from typing import Any

from kazoo import exceptions as zk

from oplog.errors import AccessDenied, AlreadyExists, Conflict, FrostlineError, NotFound, OutcomeUnknown, Transient
from tiering.config.settings import KeeperConfig


def answer_of(answer: Any) -> Any:
    """The answer; of a multi that was refused, the error that it was refused for."""
    if isinstance(answer, list):
        errors = [one for one in answer if isinstance(one, Exception)]
        for error in errors:
            if not isinstance(error, zk.RolledBackError | zk.RuntimeInconsistency):
                raise error
        if errors:
            raise errors[0]
    return answer


def refusal(operation: str, error: zk.ZookeeperError) -> FrostlineError:
    """What is raised for the server's no."""
    match error:
        case zk.NoNodeError():
            return NotFound(f"{operation}: there is no such node in Keeper", hint="check with 'frostline keeper ls'")
        case zk.NodeExistsError():
            return AlreadyExists(f"{operation}: the node is there already", hint="look with 'frostline keeper get'")
        case zk.BadVersionError() | zk.NotEmptyError():
            return Conflict(f"{operation}: another client changed the node first", hint="check it again, then retry")
        case zk.NoAuthError() | zk.AuthFailedError():
            return AccessDenied(
                f"{operation}: Keeper refuses this user",
                hint="check keeper.user and keeper.password of the configuration",
            )
        case _:
            return FrostlineError(f"{operation}: Keeper says {type(error).__name__}", hint="see the server's log")


def silence(settings: KeeperConfig, operation: str, seconds: float, *, stopped: bool, lost: bool) -> FrostlineError:
    """What is raised where nobody answers for so long; `lost`: a change was sent."""
    servers = ", ".join(settings.hosts)
    when = "when the process began to stop" if stopped else f"after {seconds:g} s"
    if lost:
        return OutcomeUnknown(
            f"Keeper ({servers}) did not answer, given up {when}: whether {operation} took place is not known",
            hint="check before you run it again: 'frostline keeper check' shows whether the servers answer",
        )
    return Transient(
        f"Keeper ({servers}) cannot be reached: {operation} was given up {when}, and nothing was changed",
        hint="'frostline keeper check' shows which server answers; queries need none",
    )
