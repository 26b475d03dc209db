"""Whether the daemon lives, and whether it does its work. Pure; no I/O."""

from __future__ import annotations

import msgspec

from tiering.facts.metrics.snapshot import Seen


class Health(msgspec.Struct, frozen=True):
    """What is wrong, in sentences. `not_alive`: only a restart helps. `not_ready`: passes fail, or have not begun, or a
    disk is away; a restart would not help."""

    not_alive: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()


def judge(seen: Seen | None, *, working: bool, last_problem: str) -> Health:
    """`working`: the thread that makes the passes lives. `last_problem`: why the last pass failed, empty when it did
    not. A pass that takes hours is no fault, so nothing here asks for the time."""
    if not working:
        why = ("the daemon stopped running passes",)
        return Health(why, why)
    problems = [f"the last pass failed: {last_problem}"] if last_problem else []
    if seen is None:
        problems.append("the first pass is not finished")
    else:
        problems += [f"disk {disk.name} is away" for disk in seen.disks if not disk.up]
    return Health((), tuple(problems))
