"""How long automatic work waits after it failed: a minute, twice that with each further time, in the end a day."""

from __future__ import annotations

from datetime import timedelta

FIRST_WAIT = timedelta(minutes=1)
_LONGEST_WAIT = timedelta(hours=6)
_RARELY = timedelta(days=1)
"""Between tries of what failed too often to be expected to succeed: what hinders it may be mended meanwhile."""
RARE_AFTER_ATTEMPTS = 8
AHEAD = timedelta(hours=1)
"""What was noted for later than that was noted by a clock that was wrong: nothing waits for such a time."""


def wait_after(attempts: int, *, first: timedelta = FIRST_WAIT, rare_after: int = RARE_AFTER_ATTEMPTS) -> timedelta:
    """The wait after so many attempts in a row have failed, from 1 on."""
    return _RARELY if attempts >= rare_after else min(first * 2 ** min(attempts - 1, 16), _LONGEST_WAIT)
