"""The dashboard as an app: its screens, what is read and when, what is done and how that is said.

Nothing here waits for a disk or a bucket: the store is read in `Source`'s thread, and actions run in threads of theirs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from textual import events, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import ModalScreen, Screen
from textual.theme import BUILTIN_THEMES
from textual.timer import Timer
from textual.widgets import Footer

from oplog.errors import Refused, UsageError
from tiering.catalog.freshness import Freshness
from tiering.config.escaping import visible
from tui.actions.action import Action, NothingToDo
from tui.facts.overview import missing_lines
from tui.refresh_interval import OTHERS_SECONDS, RefreshInterval
from tui.screens.dialogs import Confirm, Text
from tui.screens.history import Backups, Log
from tui.screens.list_view import ListView
from tui.screens.overview import Overview, bar
from tui.screens.sql import Sql
from tui.screens.storage import Disks, Parts, Replicas, Tables
from tui.screens.view import View
from tui.screens.work import Jobs, Moves, Policy
from tui.source import Source, fingerprint, state_of_disks
from tui.widgets.as_of import AsOf
from tui.widgets.grid import Grid
from tui.widgets.plain import Ascii, Plain, error_lines
from tui.widgets.tabs import TabLine

if TYPE_CHECKING:
    from tiering.engine.store import Store


VIEWS: tuple[tuple[str, type[View]], ...] = (
    ("1", Overview),
    ("2", Tables),
    ("3", Parts),
    ("4", Moves),
    ("5", Policy),
    ("6", Disks),
    ("7", Log),
    ("8", Backups),
    ("9", Jobs),
    ("0", Sql),
    ("minus", Replicas),
)
"""Key and screen, in the order of the tabs."""

_LOOK_SECONDS = 0.25
_NOTE_SECONDS = 60.0
_NARROW = 100
_SIGNS = ("Times are UTC. Before a row: > the cursor, * marked, + new or changed since the last refresh.",)


class Settings(msgspec.Struct, frozen=True):
    """How the dashboard is to be."""

    state_directory: Path
    theme: str = ""
    keys: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Id of a key's action -> keys, comma between them."""
    read_only: bool = False
    ascii: bool = False
    watch: bool = True
    """Whether it looks for changes by itself; tests ask for it."""


class Dashboard(App[None]):
    """One store, in a terminal or a browser."""

    TITLE = "frostline"
    CSS_PATH = "style.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(key, f"see('{view.name_}')", view.name_, show=False, id=f"see.{view.name_.lower()}")
            for key, view in VIEWS
        ),
        Binding("tab", "app.focus_next", "Next", show=False),
        Binding("r", "reload", "Reload", id="app.reload"),
        Binding("question_mark,f1", "help", "Help", id="app.help"),
        Binding("q", "quit", "Quit", id="app.quit"),
        Binding("ctrl+z", "suspend_process", "Suspended; fg resumes it", show=False, id="app.suspend"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, source: Source, settings: Settings, driver_class: type[Driver] | None = None) -> None:
        super().__init__(driver_class=driver_class)
        self.source = source
        self.settings = settings
        self.read_only = settings.read_only
        self.view: View | None = None
        self.problem: Exception | None = None
        """Why the facts could not be read the last time."""
        self._reading = False
        self._again = False
        self.refresh_interval = RefreshInterval()
        self._seen: tuple[object, ...] = ()
        """Of the state directory, as it was looked at last."""
        self._shown: tuple[object, ...] = ()
        """The same when that was read what the screen shows."""
        self._behind = False
        """Whether something went on that the screen does not show yet, for all that is known."""
        self._noted = -math.inf
        self._bars: Timer | None = None
        """Draws how far is what runs; stands still when nothing does."""

    # The frame

    def compose(self) -> ComposeResult:
        """Tabs, what is wrong, the screen, the state of the store, the keys."""
        yield TabLine([("-" if key == "minus" else key, view.name_) for key, view in VIEWS], id="tabs")
        yield Plain(id="error")
        yield AsOf()
        yield Container(id="views")
        yield Plain(id="state")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin with the overview; then look for changes."""
        if self.settings.theme:
            self.theme = self.settings.theme
        if self.settings.keys:
            self.set_keymap(dict(self.settings.keys))
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # others wrote on the terminal
        self.action_see("Overview")
        self._bars = self.set_interval(_LOOK_SECONDS, self._show_state, pause=True)
        if self.settings.watch:
            self.set_interval(_LOOK_SECONDS, self._look)
            self.set_interval(OTHERS_SECONDS, self._look_at_others)

    def get_line_filters(self) -> list[LineFilter]:
        """Where the terminal has no UTF-8, ASCII only."""
        return [*super().get_line_filters(), *([Ascii()] if self.settings.ascii else [])]

    def on_resize(self, event: events.Resize) -> None:
        """What stands beside goes below where there is little room. The app's own size is still that of before."""
        self.set_class(event.size.width < _NARROW, "narrow")

    def action_see(self, name: str) -> None:
        """Go to a screen."""
        kind = next(view for _, view in VIEWS if view.name_ == name)
        self.query_one(TabLine).go(name)
        self._see(kind)

    @work(exclusive=True, group="see")
    async def _see(self, kind: type[View]) -> None:
        views = self.query_one("#views")
        found = views.query(kind)
        if not views.is_attached:  # a signal has ended the dashboard since
            return
        if not found:
            await views.mount(kind())
        for other in views.query(View):
            other.display = isinstance(other, kind)
        self.view = views.query_one(kind)
        self.query_one(AsOf).see(kind.name_)
        self.view.take_focus()
        self.reload()

    def on_tab_line_chosen(self, message: TabLine.Chosen) -> None:
        """A click on a name."""
        self.action_see(message.name)

    # Facts

    def action_reload(self) -> None:
        """Look at the disks, also at one that did not answer a moment ago, and at what others did."""
        self.refresh_interval.is_urgent = True
        self._look_again()

    def _look_again(self) -> None:
        self.refresh_interval.requested += 1
        self.reload()

    def reload(self) -> None:
        """Read what the screen shows; once more when something is being read."""
        if self._reading:
            self._again = True
            return
        self._reading = True
        self._read()

    def read_again(self) -> None:
        """The same as soon as what reading costs allows it."""
        self._behind = True

    def _look(self) -> None:
        """Read when work on this machine went on."""
        seen = fingerprint(self.settings.state_directory)
        went_on, self._seen = seen != self._seen, seen
        if self._reading or not (self._behind or seen != self._shown):
            return
        if self.refresh_interval.may_read():
            self.reload()
        elif went_on and self.view is not None and (glance := self.view.glance()) is not None:
            self._glance(self.view, glance)

    @work(group="others", exclusive=True)
    async def _look_at_others(self) -> None:
        """Look at the disks; read what the screen shows when they have changed, or time has gone by."""
        view = self.view
        if self._reading or view is None or not self.refresh_interval.may_look():
            return
        aged, note = view.aged() if self.refresh_interval.may_have_aged() else None, self._may_note()

        def look(store: Store) -> tuple[object, bool | None, float]:
            began = time.thread_time()
            store.refresh(Freshness.CHANGES)
            note(store)
            has_aged = None if aged is None else aged(store)
            return state_of_disks(store), has_aged, time.thread_time() - began

        try:
            state, has_aged, cost_seconds = await self.source.read(look)
        except Exception as error:  # noqa: BLE001  whatever it is, it is said and the screen stays
            self._show_problem(error)
            return
        if self.refresh_interval.has_looked(state, cost_seconds, aged=has_aged) or self.problem is not None:
            self.reload()
        elif has_aged is False and view.is_mounted:
            view.draw_ages()

    def _may_note(self) -> Callable[[Store], None]:
        """What notes for later what lies where, as the daemon does; nothing when that was done a moment ago."""
        now = time.monotonic()
        if self.read_only or now < self._noted + _NOTE_SECONDS:
            return lambda store: None
        self._noted = now
        return _note

    @work(group="glance", exclusive=True)
    async def _glance(self, view: View, question: Callable[[Store], Any]) -> None:
        with suppress(Exception):  # the next whole look says what is wrong
            facts = await self.source.read(question)
            if view.is_mounted and not self._reading:
                view.take_in(facts)

    @work(group="facts")
    async def _read(self) -> None:
        try:
            again = True
            while again:
                self._again = False
                self._behind = False
                if self.view is not None:
                    await self._read_view(self.view)
                again = self._again
        finally:
            self._reading = False
        self._show_state()

    async def _read_view(self, view: View) -> None:
        question, wanted, as_of = view.question(), self.refresh_interval.requested, self.query_one(AsOf)
        look, again, note = (
            view.needs_store and self.refresh_interval.needs_look(),
            self.refresh_interval.is_urgent,
            self._may_note(),
        )
        self._shown = fingerprint(self.settings.state_directory)  # of what cannot be read there is no other

        def read(store: Store) -> tuple[Any, list[str], object, float]:
            began = time.thread_time()
            if look:
                store.refresh(Freshness.CHANGES, again=again)
            note(store)
            self._shown = fingerprint(self.settings.state_directory)  # what was written till now is read
            state = state_of_disks(store)
            facts, missing = question(store), list(missing_lines(store)) if view.leaves_out_what_is_away else []
            return facts, missing, state, time.thread_time() - began

        as_of.ask(view.name_)
        try:
            facts, missing, state, cost_seconds = await self.source.read(read)
        except Exception as error:  # noqa: BLE001  whatever it is, it is said and the screen stays
            as_of.give_up()
            self._show_problem(error)
            if view.is_mounted:
                view.no_answer()
            return
        self.refresh_interval.has_read(state, cost_seconds, looked_for=wanted if look else None)
        self._show_problem(None)
        as_of.answer(view.name_, missing)
        if view.is_mounted:
            view.answer(facts)

    def _show_problem(self, error: Exception | None) -> None:
        self.problem = error
        line = self.query_one("#error", Plain)
        line.display = error is not None
        line.say([] if error is None else error_lines(error))

    def _show_state(self) -> None:
        running, pieces = self.source.running, ["read-only"] if self.read_only else []
        pieces += [item.title if item.share is None else f"{item.title} {bar(item.share)}" for item in running]
        if self._bars is not None:
            (self._bars.resume if running else self._bars.pause)()
        self.query_one("#state", Plain).say(["   ".join(pieces)])
        self.query_one("#state").display = bool(pieces)

    # Doing things

    async def carry_out(self, action: Action) -> None:
        """Show the dry run, ask, do it, say what was done. Without a dry run it is done at once: it can be undone."""
        if self.read_only and action.changes:
            raise Refused(f"{action.title}: this dashboard only reads.", hint="start it without --read-only to act")
        preview = action.preview
        if preview is not None:
            self.call_later(self._show_state)  # a bucket may take its time to say what would be done
            try:
                lines = await self.source.act(f"preview: {action.title}", preview)
            finally:
                self._show_state()
            if isinstance(lines, NothingToDo):
                await self.ask(Text(f"{action.title}: nothing to do", lines))
            if isinstance(lines, NothingToDo) or not await self.ask(Confirm(action, lines)):
                return
        self._do(action)

    @work(group="actions")
    async def _do(self, action: Action) -> None:
        self.call_later(self._show_state)
        try:
            if action.brief:
                done = await self.source.read(action.run)
            else:
                done = await self.source.act(action.title, action.run)
        except Exception as error:  # noqa: BLE001  no traceback reaches a user
            self.tell_error(error)
        else:
            self.tell(f"{done}\n$ {action.command_lines[0]}" + (" …" if len(action.commands) > 1 else ""))
        self._look_again()

    async def ask(self, dialog: ModalScreen[Any]) -> Any:
        """What somebody answers."""
        return await self.push_screen_wait(dialog)

    def tell(self, text: str) -> None:
        """A remark that goes away."""
        self.notify("\n".join(map(visible, text.splitlines())), markup=False)

    def tell_error(self, error: Exception) -> None:
        """What went wrong and what to do; it stays longer."""
        lines = "\n".join(map(visible, error_lines(error)))
        self.notify(lines, severity="error", timeout=15, markup=False)

    # Help, palette, end

    def action_help(self) -> None:
        """The keys of this screen and of all."""
        if self.view is not None and not isinstance(self.screen, ModalScreen):
            bindings = (active.binding for active in self.active_bindings.values())
            lines = [*help_lines(bindings, self.get_key_display), *_SIGNS]
            self.push_screen(Text(f"{self.view.name_}: {self.view.about}", lines))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: every screen, every action, and what Textual has. Those of other screens need a row of theirs:
        they lead there, and say the key."""
        for _, view in VIEWS:
            yield SystemCommand(f"See {view.name_}", view.about, lambda name=view.name_: self.action_see(name))
        if self.view is not None:
            here = self.view
            for choice in here.choices:
                yield SystemCommand(
                    f"{here.name_}: {choice.title}",
                    choice.id,
                    lambda id=choice.id: self.call_later(here.action_choose, id),  # noqa: A006
                )
            if isinstance(here, ListView):
                yield SystemCommand(f"{here.name_}: Filter", "which rows are shown", here.action_filter)
                yield SystemCommand(f"{here.name_}: Copy", "the selected rows, as JSON", here.action_copy)
        for one in elsewhere((view for _, view in VIEWS), self.view, self.settings.keys):
            yield SystemCommand(f"{one.screen}: {one.title}", f"go to {one.screen}", partial(self._lead_to, one))
        yield from super().get_system_commands(screen)

    def _lead_to(self, there: ActionElsewhere) -> None:
        self.action_see(there.screen)
        self.tell(there.remark)

    async def action_quit(self) -> None:
        """Leave; when something runs, ask first."""
        self._leave()

    @work(exclusive=True, group="leave")
    async def _leave(self) -> None:
        if isinstance(self.screen, Confirm):
            return
        if self.source.running:
            titles = [work.title for work in self.source.running]
            stop = Action(title="Exit and stop running work", commands=(), run=lambda store: "")
            lines = [*titles, "", "Each stops between two of its steps; the next command, or the daemon, continues."]
            if not await self.ask(Confirm(stop, lines)):
                return
        self.exit()


def _note(store: Store) -> None:
    from tiering.engine import capacity

    capacity.note(store.context)


_TITLES = {"list": "Rows", "grid": "Rows", "see": "Everywhere", "app": "Everywhere", "": "Cursor"}
"""By the first word of a key's id; all others are keys of the screen. Textual's own have none."""


def help_lines(bindings: Iterable[Binding], key_text: Callable[[Binding], str]) -> list[str]:
    """Those of the screen, of its rows, and of all screens. Of each the id that the configuration knows it by."""
    groups: dict[str, dict[str, str]] = {"Here": {}, "Rows": {}, "Everywhere": {}, "Cursor": {}}
    for binding in bindings:
        group = groups[_TITLES.get((binding.id or "").partition(".")[0], "Here")]
        if binding.description:
            what = f"{binding.description:<18} [{binding.id}]" if binding.id else binding.description
            keys = group.get(what)
            group[what] = f"{keys} {key_text(binding)}" if keys else key_text(binding)
    return [
        line
        for title, group in groups.items()
        if group
        for line in (title, *(f"  {keys:<14} {what}" for what, keys in group.items()), "")
    ]


class ActionElsewhere(msgspec.Struct, frozen=True):
    """An action of another screen: one goes there, and presses its key on the row that is meant."""

    screen: str
    title: str
    key: str

    @property
    def remark(self) -> str:
        """What is said on that screen."""
        return f"{self.title}: {self.key} does it here."


def elsewhere(views: Iterable[type[View]], here: View | None, keys: Mapping[str, str]) -> Iterator[ActionElsewhere]:
    """The actions of all screens but `here`. `keys` are those that the configuration gives them, by the action's id."""
    for view in views:
        if isinstance(here, view):
            continue
        for choice in view.choices:
            yield ActionElsewhere(view.name_, choice.title, keys.get(choice.id, choice.key).replace(",", " or "))


def check_settings(settings: Settings) -> None:
    """Raise `UsageError` for a theme or a key that there is not, with those that there are."""
    themes = sorted(BUILTIN_THEMES)
    if settings.theme and settings.theme not in themes:
        raise UsageError(f"dashboard.theme: no such theme: {settings.theme!r}", hint=f"one of: {', '.join(themes)}")
    places: tuple[Any, ...] = (Dashboard, Grid, *(view for _, view in VIEWS))
    known = sorted({binding.id for place in places for binding in _bindings(place) if binding.id})
    if unknown := sorted(set(settings.keys) - set(known)):
        raise UsageError(f"dashboard.keys: unknown key action {unknown[0]!r}", hint=f"there are: {', '.join(known)}")


def _bindings(owner: Any) -> Iterable[Binding]:
    return (
        binding for kind in owner.__mro__ for binding in kind.__dict__.get("BINDINGS", ()) if type(binding) is Binding
    )
