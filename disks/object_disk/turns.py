"""Whose turn it is, where several commit to one log without pause. It decides how long to wait, and nothing else: who
goes too early loses a race, and who goes too late some time (docs/design.md, "Turns").

Each entry tells who wrote it. Of those who wrote the newest entries the one whose last entry is the oldest is next. Who
is not among them tries at once, and is from its first entry on. So a writer that is alone never waits, and of several
none comes twice before another that wants to.

Nobody can know whether the next one still wants to. So who waits goes after some commits' time in which nothing came,
the one behind it a little later; and waits in vain for no more than a share of the time that its own commits take.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable

from disks.stores.wrappers.retry import Backoff
from oplog.entry import Commit

_MOST_ENTRIES = 32
"""Who wrote none of so many is not waited for."""
_RECENT = 16
"""So many of one's own commits tell what one takes."""
_PATIENCE_COMMITS = 2.0
"""So many times what the slowest of them took: the next one has to see the entry before it, too."""
_LOOKS = 4
"""So often one looks while a commit takes place, when it is the next one's turn."""
_MOST_LOOKS = 50
"""In one wait, whatever the clock says."""
_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1.0
"""What a commit takes, whatever was measured."""
_VAIN_SHARE = 1 / 8
_MOST_VAIN_WAITS = 4.0
_IN_VAIN = Backoff(first_seconds=0.05, longest_seconds=5.0)
_BETWEEN = "-"


def name_of(commit: Commit) -> str:
    """Who wrote it; empty for what older versions wrote."""
    name, between, _ = commit.writer.partition(_BETWEEN)
    return name if between else ""


class Turns:
    """The turns of one who commits to one log. Used by one thread at a time. Tests replace clock, pause and chance."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.name = secrets.token_hex(8)
        """Of this writer, in the entries that it writes."""
        self._clock, self._sleep = clock or time.monotonic, sleep or time.sleep
        self._chance = chance or random.random
        self._newest: deque[str] = deque(maxlen=_MOST_ENTRIES)
        """Who wrote the newest entries that were seen, the last one last."""
        self._revision = 0
        self._changed = 0.0
        """When the last of them came."""
        self._took: deque[float] = deque([_LEAST_SECONDS], maxlen=_RECENT)
        self._spare_seconds = _MOST_SECONDS
        """What may still be waited in vain."""

    def sign(self) -> str:
        """The `writer` of the next attempt: who, and a nonce of its own."""
        return f"{self.name}{_BETWEEN}{secrets.token_hex(16)}"

    def note(self, commits: Iterable[Commit]) -> None:
        """Entries that came, in order; those that are known already change nothing. After a gap all starts over."""
        for commit in commits:
            if commit.revision <= self._revision:
                continue
            if commit.revision != self._revision + 1:
                self._newest.clear()
            self._newest.append(name_of(commit))
            self._revision = commit.revision
            self._changed = self._clock()

    def took(self, seconds: float) -> None:
        """So long it took to put an entry and to prove that the log ends with it."""
        self._took.append(min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS))
        most = _MOST_VAIN_WAITS * self._patience_seconds
        self._spare_seconds = min(self._spare_seconds + seconds * _VAIN_SHARE, most)

    @property
    def ahead(self) -> int:
        """How many come first. What older versions wrote tells nobody, and nobody waits for them."""
        names = list(self._newest)
        if self.name not in names:
            return 0
        mine = len(names) - names[::-1].index(self.name)
        return len({name for name in names[:mine] if name} - {self.name, *names[mine:]})

    def wait(self, look: Callable[[], None]) -> None:
        """Return when it is this one's turn, or those who come first have left it by. `look` takes in what there is."""
        if self._spare_seconds < self._patience_seconds:
            return
        began = self._clock()
        for _ in range(_MOST_LOOKS):
            ahead = self.ahead
            if not ahead:
                return
            left = self._changed + ahead * self._patience_seconds - self._clock()
            if left <= 0 or self._clock() - max(began, self._changed) >= self._spare_seconds:
                break
            import statistics  # most writers never wait

            self._sleep(min(left, max(ahead - 1, 1 / _LOOKS) * statistics.median(self._took)))
            look()
        waited = self._clock() - max(began, self._changed)
        self._spare_seconds -= min(max(waited, self._patience_seconds), self._spare_seconds)

    def pause(self, losses: int) -> None:
        """Wait after so many lost races in a row that taught nothing: longer each time, by chance, up to some seconds.
        Who has learned what came first does not wait here: it would be behind again."""
        if losses:
            self._sleep(_IN_VAIN.pause_seconds(losses, self._chance()))

    @property
    def _patience_seconds(self) -> float:
        return _PATIENCE_COMMITS * max(self._took)
