"""What a job is, and where each is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tiering.config.jobs import JOB_NAMES
from tiering.config.settings import Config, HookEvent, JobConfig
from tiering.daemon.jobs.schedule import Schedule, schedule_of
from tiering.plugins import Plug

if TYPE_CHECKING:
    from tiering.engine.store import Store

Steps = Callable[[Config, "Store"], Sequence[Sequence[str]]]


class Told(msgspec.Struct, frozen=True):
    """What a step did, from the document that its verb printed."""

    text: str
    merged: int = 0
    figures: Mapping[str, int] = msgspec.field(default_factory=dict)
    """What it counted, for the metrics."""


class JobKind(msgspec.Struct, frozen=True):
    """One job: command lines that a process of its own runs, one after the other. Without `steps` it is a pass, which
    the daemon makes itself."""

    name: str
    tell: Callable[[Mapping[str, Any]], Told]
    steps: Steps | None = None
    """Which command lines there are to run now. The configuration's options of the job are put behind each."""
    every: Callable[[Config], float | None] = lambda config: None
    """Its interval where `daemon.jobs` says nothing of it; None: it is off."""
    shares: frozenset[str] = frozenset()
    """What it works on and another job must not at the same time."""
    fine: frozenset[int] = frozenset({0})
    """The exit codes of a verb that did what it was to do."""
    bad_codes: frozenset[int] = frozenset()
    """Those of a verb that did so, and what it found is bad news: the same again would find the same."""
    done_event: HookEvent | None = None
    """The event for hooks when it is done."""
    found_event: HookEvent = "failure"
    """The event for hooks when it found something."""

    def schedule(self, config: Config) -> Schedule:
        """When it runs."""
        return schedule_of(config.daemon.jobs.get(self.name, JobConfig()), self.every(config))


def read_share(config: Config, job: str) -> list[str]:
    """How much a job that checks reads of what it checks: another 5 % each time, unless its own options say."""
    given = config.daemon.jobs.get(job, JobConfig()).options
    return [] if any(option.startswith("--read-data") for option in given) else ["--read-data-subset", "5%"]


class JobKinds(Protocol):
    """A module that has jobs."""

    @property
    def KINDS(self) -> Sequence[JobKind]:  # noqa: N802
        """Them, in the order in which they are shown."""


_jobs = Plug[JobKinds]("jobs")


def kinds() -> dict[str, JobKind]:
    """Every job, by name."""
    found = {kind.name: kind for module in _jobs.each() for kind in module.KINDS}
    assert tuple(found) == JOB_NAMES
    return found
