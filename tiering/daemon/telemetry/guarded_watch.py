"""The watch of a daemon, such as the server of its metrics: that it fails is shown, and hinders nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oplog.errors import FrostlineError, in_a_line
from tiering.daemon.status import DaemonStatus, Watch
from tiering.daemon.trouble import Trouble

WHERE = "the metrics"


class GuardedWatch:
    """Tells it of the daemon. One that cannot begin, for its port is in use, is tried again with each pass."""

    def __init__(self, watch: Watch, trouble: Trouble, record: Callable[..., Any]) -> None:
        """`record` changes the daemon's status."""
        self._watch, self._trouble, self._record = watch, trouble, record
        self._working: Callable[[], bool] = lambda: True
        self._has_begun = False

    def begin(self, status: DaemonStatus, working: Callable[[], bool]) -> None:
        """The daemon begins; `working` says whether it still makes passes."""
        self._working = working
        self._try(status, lambda: self._begin(status))

    def passed(self, status: DaemonStatus, problem: str, *, serves: bool) -> None:
        """A pass is done; `problem` is why it failed as a whole, or empty. `serves`: of a daemon that goes on."""

        def tell() -> None:
            if serves and not self._has_begun:
                self._begin(status)
            self._watch.passed(status, problem)

        self._try(status, tell)

    def end(self) -> None:
        """The daemon ends."""
        self._watch.end()

    def _begin(self, status: DaemonStatus) -> None:
        self._watch.begin(status, self._working)
        self._has_begun = True

    def _try(self, status: DaemonStatus, tell: Callable[[], None]) -> None:
        problem = ""
        try:
            tell()
        except (FrostlineError, OSError) as error:
            problem = in_a_line(error)
        self._trouble.met(WHERE, [problem] if problem else [])
        if problem != status.unserved:
            failures = status.failures + 1 if problem else status.failures
            self._record(unserved=problem, failures=failures, last_error=problem or status.last_error)
