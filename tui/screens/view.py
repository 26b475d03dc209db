"""What every screen has: facts that are read in the store's thread, and choices that become keys, palette and help."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import msgspec
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from oplog.errors import Refused

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tui.actions.action import Action
    from tui.source import Source


class Board(Protocol):
    """What screens ask of the app."""

    source: Source
    read_only: bool

    def tell(self, text: str) -> None:
        """Say what was done."""

    def tell_error(self, error: Exception) -> None:
        """Say what went wrong, and what to do."""

    def reload(self) -> None:
        """Read the facts again."""

    def read_again(self) -> None:
        """The same as soon as what reading costs allows it."""

    async def ask(self, dialog: ModalScreen[Any]) -> Any:
        """What somebody answers; None or False when they leave it."""

    async def carry_out(self, action: Action) -> None:
        """Show the dry run, ask, do it, say what was done."""


class Choice(msgspec.Struct, frozen=True):
    """Something that can be chosen on a screen. `id` is what the configuration calls its key."""

    id: str
    key: str
    title: str
    choose: Callable[[Any], Awaitable[None]]
    changes: bool = True
    """Whether it acts on the store: --read-only refuses it."""


class View(Vertical):
    """A screen. Created when it is first seen."""

    name_: ClassVar[str]
    """In the line of tabs, and in the configuration's names of keys."""
    about: ClassVar[str]
    """For the help."""
    choices: ClassVar[tuple[Choice, ...]] = ()
    needs_store: ClassVar[bool] = True
    """Whether what it shows is on disks: these are looked at again before it is read. The journal is always read."""
    leaves_out_what_is_away: ClassVar[bool] = True
    """Whether it shows what is on disks and does not itself say which are away: then that is said above it."""

    def __init__(self) -> None:
        super().__init__(id=f"view-{self.name_}", classes="view")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.BINDINGS = [  # textual reads them when the class is made
            *cls.__dict__.get("BINDINGS", ()),
            *(Binding(one.key, f"choose('{one.id}')", one.title, id=one.id) for one in cls.choices),
        ]
        super().__init_subclass__(**kwargs)

    @property
    def board(self) -> Board:
        """The app."""
        return cast("Board", self.app)

    async def action_choose(self, id: str) -> None:  # noqa: A002  as the choice calls it
        """Begin what was chosen; it may ask, and takes its time."""
        choice = next(one for one in self.choices if one.id == id)
        if choice.changes and self.board.read_only:
            self.board.tell_error(
                Refused(f"{choice.title}: this dashboard only reads.", hint="start it without --read-only to act")
            )
            return
        self.begin(lambda: choice.choose(self), group="choice")

    def begin(self, work: Callable[[], Awaitable[None]], *, group: str, exclusive: bool = False) -> None:
        """Do it beside the event loop; what goes wrong is said."""

        async def carry() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  no traceback reaches a user
                self.board.tell_error(error)

        run: Any = carry  # a function: a coroutine that is replaced before it began would be warned of
        self.run_worker(run, group=group, exclusive=exclusive, exit_on_error=False)

    def question(self) -> Callable[[Store], Any]:
        """What to ask the store for: a function that runs in its thread."""
        raise NotImplementedError

    def answer(self, facts: Any) -> None:
        """Show what it said."""
        raise NotImplementedError

    def no_answer(self) -> None:
        """There is none; the app says why, and what was shown stays."""

    def aged(self) -> Callable[[Store], bool]:
        """A question that costs little: whether the clock alone has changed what is shown, so that all is to be read.
        Asked once a minute. A screen that is not costly to read needs no other answer than this one."""
        return lambda store: True

    def draw_ages(self) -> None:
        """A minute has gone by, and nothing is to be read for it."""

    def glance(self) -> Callable[[Store], Any] | None:
        """A question that costs next to nothing, asked while work goes on and the whole would be asked too often."""
        return None

    def take_in(self, facts: Any) -> None:
        """Show what `glance` found."""

    def take_focus(self) -> None:
        """The keys go to what one works with here."""
