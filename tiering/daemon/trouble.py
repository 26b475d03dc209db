"""What the daemon says of trouble in its log: when it begins, and when it is over, at one level, so that one filter
finds both. What goes on is not said again."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Literal

from tiering.config.settings import HookEvent
from tiering.daemon.log_lines import fields

Tell = Callable[[HookEvent, str, str, Literal["begins", "ends", "once"]], None]

log = logging.getLogger("frostline.daemon")

_MOVING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d[\d.,]* (?:B|[KMGTP]iB|s)\b|\b[0-9a-f]{16,}\b"
    r"|(?<=cannot be reached: ).* was given up after.*"
    r"|; and \d+ more\Z"
)
"""What changes from one look to the next while the trouble is the same: times, sizes, names made by chance, what it was
that was asked of a Keeper that does not answer, and how many more a job met of the kind."""


class Trouble:
    """What goes wrong now, by where. Thread-safe."""

    def __init__(self, tell: Tell = lambda event, where, text, phase: None) -> None:
        """`tell` hears of each beginning and end."""
        self._tell = tell
        self._known: dict[str, tuple[str, ...]] = {}
        self._disks: set[str] = set()
        self._lock = threading.Lock()

    def met(self, where: str, problems: Sequence[str], event: HookEvent = "failure", *, is_all: bool = True) -> None:
        """What is wrong there now; with none it is over. `event`: as what hooks hear of it. Unless `is_all`, what was
        wrong before may be so still."""
        with self._lock:
            before, self._known[where] = self._known.get(where, ()), tuple(problems)
        said = {_still(problem) for problem in before}
        for problem in problems:
            if _still(problem) not in said:
                log.warning("%s: %s", where, problem, extra=fields(where=where, event=event, problem=problem))
        now = {_still(problem) for problem in problems}
        for problem in before if problems and is_all else ():
            if _still(problem) not in now:
                told = fields(where=where, event="recovery", problem=problem)
                log.warning("%s: no longer: %s", where, problem, extra=told)
        if before and not problems:
            told = fields(where=where, event="recovery", problem=before[-1])
            log.warning("%s: all is well again, it was: %s", where, before[-1], extra=told)
        if problems:
            self._tell(event, where, problems[-1], "begins")
        else:  # perhaps of trouble before a restart
            self._tell("recovery", where, f"all is well again{f', it was: {before[-1]}' if before else ''}", "ends")

    def disks(self, away: Mapping[str, str], all_disks: Set[str]) -> None:
        """The disks that cannot be reached now, each with the reason."""
        for name in sorted(away.keys() - self._disks):
            told = fields(where=f"disk {name}", event="failure", problem=away[name])
            log.warning("%s; the other disks are worked on", away[name], extra=told)
            self._tell("failure", f"disk {name}", away[name], "begins")
        for name in sorted(self._disks - away.keys()):
            told = fields(where=f"disk {name}", event="recovery")
            log.warning("disk %s can be reached again", name, extra=told)
        for name in sorted(all_disks - away.keys()):  # perhaps one that was away before a restart
            self._tell("recovery", f"disk {name}", f"disk {name} can be reached again", "ends")
        self._disks = set(away)

    @property
    def away(self) -> str:
        """Which disks cannot be reached; empty when all can."""
        return f"not to be reached: {', '.join(sorted(self._disks))}" if self._disks else ""


def _still(problem: str) -> str:
    return _MOVING.sub("", problem)
