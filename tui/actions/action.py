"""An action: what it is called, what it would do, the command line that does the same, and the call that does it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from oplog.errors import FrostlineError, PartlyDone

if TYPE_CHECKING:
    from tiering.engine.store import Store

Lines = Sequence[str]


class NothingToDo(list[str]):
    """A dry run by which nothing would be done, and why: it is shown, and nothing is asked."""


class Action(msgspec.Struct, frozen=True):
    """Something that changes the store, or takes long. Texts are not escaped yet."""

    title: str
    commands: tuple[tuple[str, ...], ...]
    """The same on the command line: arguments of `frostline`, a command line each."""
    run: Callable[[Store], str]
    """Does it; says what was done in a sentence. Raises errors of ours."""
    preview: Callable[[Store], Lines] | None = None
    """The dry run. None where the title says it all and doing the opposite takes it back."""
    name: str = ""
    """What to type before it is done: it destroys something. Empty: a yes is enough."""
    changes: bool = True
    """Whether --read-only refuses it."""
    brief: bool = False
    """It only notes a wish in the journal: done on the store that the screens read. Else on one of its own, beside."""

    @property
    def command_lines(self) -> list[str]:
        """What somebody would type in a shell."""
        return [shlex.join(("frostline", *arguments)) for arguments in self.commands]


def each(names: Sequence[str], steps: Sequence[Callable[[], object]]) -> str:
    """Do all; what fails does not keep the others from being done. Raises `PartlyDone` when some failed and some did
    not, else the error."""
    failed: list[tuple[str, FrostlineError]] = []
    for name, step in zip(names, steps, strict=True):
        try:
            step()
        except FrostlineError as error:
            failed.append((name, error))
    if failed and len(failed) == len(steps):
        raise failed[0][1]
    if failed:
        name, first = failed[0]
        raise PartlyDone(f"{len(failed)} of {len(steps)} failed; {name}: {first.message}", hint=first.hint)
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
