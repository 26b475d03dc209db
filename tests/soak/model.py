"""What the tables must hold: the rows that were acknowledged, and what may or may not have happened to others.

Pure. A table is a mapping of a key to a number. What a killed process was doing happened whole or not at all, so a
table has a few possible states; a look at it must find one of them, and that one it is from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

Rows = Mapping[int, int]
Mode = Literal["rows", "latest", "sums"]


def folded(mode: Mode, held: Rows, added: Rows) -> dict[int, int]:
    """What the table shows after an insert."""
    result = dict(held)
    for key, value in added.items():
        if mode == "sums":
            result[key] = result.get(key, 0) + value
        elif mode == "latest":
            result[key] = max(result.get(key, value), value)
        else:
            result[key] = value
    return result


@dataclass(slots=True)
class Table:
    """One table as it must be."""

    name: str
    mode: Mode = "rows"
    states: list[dict[int, int] | None] = field(default_factory=lambda: [None])
    """What it may hold; None: there is no such table."""
    doubts: list[Rows] = field(default_factory=list)
    """Inserts, each of which happened or did not."""
    passing: dict[int, int] = field(default_factory=dict)
    """Rows that a TTL rule may have deleted by now."""

    @property
    def certain(self) -> bool:
        return len(self.states) == 1 and not self.doubts

    @property
    def may_exist(self) -> bool:
        return any(state is not None for state in self.states)

    @property
    def rows(self) -> dict[int, int] | None:
        """What it holds, when that is certain."""
        assert self.certain
        return self.states[0]

    def added(self, groups: Sequence[Rows], *, passing: Rows | None = None) -> None:
        """An insert that was acknowledged."""
        for rows in groups:
            self.states = [None if state is None else folded(self.mode, state, rows) for state in self.states]
        self.passing |= passing or {}

    def perhaps_added(self, groups: Sequence[Rows], *, passing: Rows | None = None) -> None:
        """An insert that was not acknowledged; each group is there whole or not at all."""
        self.doubts += [rows for rows in groups if not any(rows is known for known in self.doubts)]
        self.passing |= passing or {}

    def became(self, state: Rows | None) -> None:
        self.states, self.doubts = [None if state is None else dict(state)], []

    def perhaps_became(self, state: Rows | None) -> None:
        self.states.append(None if state is None else dict(state))

    def look(self, found: Sequence[tuple[int, int]] | None) -> str | None:
        """Take what is there for the truth from now on; or say in one sentence why it cannot be."""
        if found is None:
            if None not in self.states:
                return f"{self.name} is gone"
            self.became(None)
            return None
        if len({key for key, _ in found}) != len(found):
            twice = sorted({key for key, _ in found if [k for k, _ in found].count(key) > 1})
            return f"{self.name} has {len(twice)} rows twice: {twice[:10]}"
        seen = {key: value for key, value in found if self.passing.get(key) != value}
        if seen not in list(self.possible()):
            return self._what_is_wrong(seen)
        self.became(seen)
        return None

    def possible(self) -> Iterator[dict[int, int] | None]:
        """Every state that it may be in."""
        for state in self.states:
            if state is None:
                yield None
                continue
            for happened in product((False, True), repeat=len(self.doubts)):
                result = state
                for is_there, rows in zip(happened, self.doubts, strict=True):
                    result = folded(self.mode, result, rows) if is_there else result
                yield result

    def _what_is_wrong(self, seen: Rows) -> str:
        wanted = next((state for state in self.states if state is not None), None)
        if wanted is None:
            return f"{self.name} is there, with {len(seen)} rows, and was dropped"
        missing = sorted(wanted.keys() - seen.keys())
        doubtful = {key for rows in self.doubts for key in rows}
        foreign = sorted(seen.keys() - wanted.keys() - doubtful)
        parted = [rows for rows in self.doubts if 0 < len(rows.keys() & seen.keys() - wanted.keys()) < len(rows)]
        other = sorted(key for key in wanted.keys() & seen.keys() if wanted[key] != seen[key])
        return (
            f"{self.name}: {len(missing)} of {len(wanted)} rows are missing {missing[:10]}, {len(foreign)} are not "
            f"known {foreign[:10]}, {len(other)} have another value {[(k, wanted[k], seen[k]) for k in other[:5]]}, "
            f"{len(parted)} of {len(self.doubts)} doubtful inserts are there in part ({len(self.states)} states)"
        )
