"""Which rows a table must show, by a list of what was inserted and what became of it. Pure; knows nothing of parts.

Rows carry the number of their insert (`seq`), which is the order that merge modes go by. A machine sees what is in the
bucket (`cold`) and on its own disks (`hot`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MODES = (
    "ordinary",
    "ordinary",
    "replacing",
    "replacing:v",
    "replacing:v,gone",
    "summing:n",
    "aggregating:n=any,v=anyLast",
)
DUE = ("0001-01-01T00:00:00Z", "2020-05-01T00:00:00Z")
TIMES = (None, *DUE, "2100-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
TTL = "365d on ts delete"


class Row(NamedTuple):
    seq: int
    k: int
    g: str
    v: int | None
    gone: bool
    n: int | None
    ts: str | None


Block = tuple[int, str]
"""The rows of one insert (its number) in one partition: they come and go together."""
Blocks = dict[Block, tuple[Row, ...]]


def _last(rows: Sequence[Row]) -> Row:
    return rows[-1]


def _highest_version(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: (row.v is not None, row.v or 0, row.seq))


def _summed(rows: Sequence[Row]) -> Row:
    numbers = [row.n for row in rows if row.n is not None]
    return rows[0]._replace(n=sum(numbers) if numbers else None)


def _aggregated(rows: Sequence[Row]) -> Row:
    first = next((row.n for row in rows if row.n is not None), None)
    last = next((row.v for row in reversed(rows) if row.v is not None), None)
    return rows[0]._replace(n=first, v=last)


_REDUCED: dict[str, Callable[[Sequence[Row]], Row]] = {
    "replacing": _last,
    "replacing:v": _highest_version,
    "replacing:v,gone": _highest_version,
    "summing:n": _summed,
    "aggregating:n=any,v=anyLast": _aggregated,
}


def reduced(mode: str, rows: Iterable[Row]) -> list[Row]:
    """What a merge of all these rows leaves, in the order of their keys."""
    by_key: dict[int, list[Row]] = {}
    for row in sorted(rows):
        by_key.setdefault(row.k, []).append(row)
    return [_REDUCED[mode](group) for _, group in sorted(by_key.items())]


@dataclass(slots=True)
class Truth:
    mode: str
    has_ttl: bool
    cold: Blocks = field(default_factory=dict)
    hot: dict[str, Blocks] = field(default_factory=dict)

    @property
    def keeps_all_rows(self) -> bool:
        return self.mode == "ordinary"

    @property
    def order_is_needed_across_machines(self) -> bool:
        """Whether two machines that insert in turn leave rows whose order no merge of one machine's parts can keep."""
        return self.mode.startswith(("summing", "aggregating"))

    def visible(self, machine: str) -> Blocks:
        return {**self.cold, **self.hot[machine]}

    def rows(self, machine: str) -> list[Row]:
        return [row for rows in self.visible(machine).values() for row in rows]

    def wrong(self, machine: str, answer: Sequence[Row]) -> str | None:
        """What is wrong with an answer on this machine, in one sentence."""
        rows = self.rows(machine)
        if self.keeps_all_rows:
            twice = [row.seq for row, count in Counter(answer).items() if count > 1]
            stays = {row for row in rows if not (self.has_ttl and row.ts in DUE)}
            missing = sorted(row.seq for row in stays - set(answer))
            extra = sorted(row.seq for row in set(answer) - set(rows))
            if twice or missing or extra:
                return f"rows missing {missing[:9]}, that should be gone {extra[:9]}, twice {twice[:9]}"
            return None
        known = {row.seq for row in rows}
        if extra := sorted(row.seq for row in answer if row.seq not in known):
            return f"rows that should be gone {extra[:9]}"
        shown, expected = reduced(self.mode, answer), reduced(self.mode, rows)
        if shown != expected:
            return f"merged to the end it shows {_differing(shown, expected)}"
        return None


def _differing(shown: Sequence[Row], expected: Sequence[Row]) -> str:
    missing, extra = set(expected) - set(shown), set(shown) - set(expected)
    return f"{sorted(extra)[:3]} in place of {sorted(missing)[:3]}"
