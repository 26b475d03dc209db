"""What was found wrong with a ClickHouse disk, told: the losses first, what is many times the same once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from oplog.clickhouse.replay import LogProblem
from tiering.config.units import counted

REPEATED = "duplicate_revision"
NO_LOSS = frozenset({REPEATED, "unfinished_part", "unknown_schema"})
"""Kinds of findings that say of no file that it is not what it was: all others do, or may."""
_SHOWN = 20


def losses(findings: Iterable[LogProblem]) -> list[LogProblem]:
    """Those that say that a file, or the name of a part, is lost or may be."""
    return [finding for finding in findings if finding.kind not in NO_LOSS]


def told(findings: Sequence[LogProblem]) -> list[LogProblem]:
    """The findings as a person reads them: losses first, and all revisions that several objects bear as one."""
    repeated = [finding for finding in findings if finding.kind == REPEATED]
    others = [finding for finding in findings if finding.kind != REPEATED]
    first = losses(others)
    rest = [finding for finding in others if finding.kind in NO_LOSS]
    return [*first, *rest, *([_together(repeated)] if repeated else [])]


def _together(repeated: Sequence[LogProblem]) -> LogProblem:
    if len(repeated) == 1:
        return repeated[0]
    numbers = sorted({finding.revision for finding in repeated if finding.revision is not None})
    what = f"{counted(len(repeated), 'revision')} ({_ranges(numbers)}) are borne by several objects each"
    return LogProblem(REPEATED, what + repeated[0].what[repeated[0].what.rindex(":") :])


def _ranges(numbers: Sequence[int], shown: int = 5) -> str:
    """`1 to 3, 7` for ascending numbers; the first few ranges."""
    cuts = [0, *(place for place, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1), len(numbers)]
    ranges = [(numbers[begin], numbers[end - 1]) for begin, end in pairwise(cuts)]
    texts = [f"{low}" if low == high else f"{low:,} to {high:,}" for low, high in ranges[:shown]]
    return ", ".join(texts) + (", …" if ranges[shown:] else "")


def sentences(findings: Sequence[LogProblem]) -> list[str]:
    """The findings: the first few in full and the others counted."""
    texts = [finding.what for finding in told(findings)]
    more = [f"and {len(texts) - _SHOWN:,} more: see 'frostline clickhouse inspect'"] if texts[_SHOWN:] else []
    return texts[:_SHOWN] + more
