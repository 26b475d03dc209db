"""What a verb does with every replicated table: one that fails does not keep it from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from oplog.errors import FrostlineError, PartlyDone
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from tiering.table.schema import TableDefinition

_Answer = TypeVar("_Answer")


class FailedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of which the verb knows, or could do, nothing."""

    table: str
    error: str
    kind: str
    hint: str


class EachTable:
    """The failures of a verb, which goes on with the next table."""

    def __init__(self) -> None:
        self.failed: list[FailedTable] = []
        self._first: FrostlineError | None = None
        self._tables = 0

    def answers(self, tables: Iterable[TableDefinition], call: Callable[[TableDefinition], _Answer]) -> list[_Answer]:
        """What comes of the tables where nothing fails."""
        found: list[_Answer] = []
        for definition in tables:
            self._tables += 1
            try:
                found.append(call(definition))
            except FrostlineError as error:
                self._first = self._first or error
                self.failed.append(
                    FailedTable(table=definition.full_name, error=error.message, kind=error.kind, hint=error.hint)
                )
        return found

    def raise_alone(self) -> None:
        """Raise the error of a table that was the only one."""
        if self._first is not None and self._tables == 1:
            raise self._first

    def tell(self, session: Session, operation: str) -> None:
        """Name each table that failed, then raise `PartlyDone`; where all did, the error of the first."""
        if self._first is None:
            return
        for failure in self.failed:
            session.output.note(
                f"{failure.table}: {operation}: {failure.error}{f'; {failure.hint}' if failure.hint else ''}"
            )
        if len(self.failed) == self._tables:
            raise self._first
        raise PartlyDone(
            f"{len(self.failed)} of {counted(self._tables, 'table')} failed: "
            f"{', '.join(failure.table for failure in self.failed)}",
            hint="the reasons are above",
        )
