"""Which tables and partitions a backup or a restore is about. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from oplog.errors import NotFound


class Scope(msgspec.Struct, frozen=True):
    """Globs of table names, and partitions; nothing given means everything."""

    tables: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Names that globs may mean as well: of directories that ClickHouse wrote."""

    @property
    def text(self) -> tuple[str, ...]:
        """What was asked for, as a header keeps it."""
        return (*(f"table {name}" for name in self.tables), *(f"partition {name}" for name in self.partitions))

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Those of the tables that are meant. Raises `NotFound` for a glob that means none."""
        known = sorted(names)
        for glob in self.tables:
            if not any(fnmatchcase(name, glob) for name in (*known, *self.others)):
                shown = ", ".join((*known, *self.others))
                raise NotFound(f"No such table: {glob}", hint=f"the tables are: {shown or 'none'}")
        return [name for name in known if self.means(name)]

    def means(self, name: str) -> bool:
        """Whether a table of this name is meant."""
        return not self.tables or any(fnmatchcase(name, glob) for glob in self.tables)

    def has_tree(self, name: str) -> bool:
        """Whether a directory that ClickHouse wrote is meant: it has no partitions that could be told apart."""
        return not self.partitions and self.means(name)

    def has(self, partition: str) -> bool:
        """Whether the partition is meant."""
        return not self.partitions or partition in self.partitions

    def check_partitions(self, partitions: Iterable[str]) -> None:
        """Raise `NotFound` for a partition that none of the chosen tables has."""
        existing = set(partitions)
        for partition in self.partitions:
            if partition not in existing:
                hint = f"the partitions are: {', '.join(sorted(existing)) or 'none'}"
                raise NotFound(f"No such partition: {partition}", hint=hint)


def scope_of(tables: Sequence[str] | None, partitions: Sequence[str] | None) -> Scope:
    """The scope that somebody asked for."""
    return Scope(tuple(tables or ()), tuple(partitions or ()))
