"""The daemon's numbers: seen after each pass, answered at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiering.daemon.jobs.status import job_rows
from tiering.facts.metrics import collect
from tiering.facts.metrics.families import families
from tiering.facts.metrics.family import Family
from tiering.facts.metrics.health import Health, judge
from tiering.facts.metrics.server import MetricsServer
from tiering.facts.metrics.snapshot import Seen

if TYPE_CHECKING:
    from disks.stores.wrappers.limit import Limiter
    from tiering.daemon.status import DaemonStatus
    from tiering.engine.store import Store
    from tiering.facts.backups import BackupsStatus

log = logging.getLogger("frostline.daemon")


class Metrics:
    """What the daemon tells of each pass (`tiering.daemon.status.Watch`), served on a port."""

    def __init__(
        self,
        store: Store,
        port: int,
        *,
        version: str,
        limiter: Limiter | None = None,
        backups: Callable[[], BackupsStatus | None] = lambda: None,
    ) -> None:
        self._store, self._port, self._version = store, port, version
        self._limiter, self._backups = limiter, backups
        self._seen: Seen | None = None
        self._status: DaemonStatus | None = None
        self._problem = ""
        self._working: Callable[[], bool] = lambda: True
        self.server = MetricsServer(self._families, self._health)

    def begin(self, status: DaemonStatus, working: Callable[[], bool]) -> None:
        """Serve. Raises `UsageError` where that cannot be."""
        self._status, self._working = status, working
        self.server.begin(self._port)
        log.info("metrics at %s/metrics", self.server.address)

    def passed(self, status: DaemonStatus, problem: str) -> None:
        """A pass is done; `problem` says why it failed, if it did. Then what was seen before is still shown."""
        self._status, self._problem = status, problem
        if not problem:
            self._seen = collect.look(self._store, self._backups())

    def end(self) -> None:
        """Serve no more."""
        self.server.end()

    def _families(self) -> list[Family]:
        assert self._status is not None
        process = collect.process(self._status, job_rows(self._store.context.config), self._store, self._limiter)
        return families(self._seen, process, version=self._version)

    def _health(self) -> Health:
        return judge(self._seen, working=self._working(), last_problem=self._problem)
