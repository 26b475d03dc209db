"""What is asked before something is done, and texts to read. Each is a modal screen that returns a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from tui.actions.action import Action, Lines
from tui.widgets.plain import Plain, plain_content

_SHOWN = 500
"""Lines of a preview."""


class Confirm(ModalScreen[bool]):
    """Shows what would be done, and by which command line; what destroys something has to be called by its name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "dismiss(False)", "No"),
        Binding("y", "agree", "Yes"),
    ]

    def __init__(self, action: Action, preview: Lines) -> None:
        super().__init__()
        self.chosen = action
        self.preview = preview

    def compose(self) -> ComposeResult:
        """The question, the dry run, the command lines, the answer."""
        action = self.chosen
        more = [f"… and {len(self.preview) - _SHOWN:,} more"] if len(self.preview) > _SHOWN else []
        lines = action.command_lines
        by_hand = [*lines[:3], *([f"… and {len(lines) - 3:,} more"] if len(lines) > 3 else [])]
        with Vertical(id="dialog", classes="destructive" if action.name else ""):
            yield Plain(f"{action.title}?", classes="title")
            with VerticalScroll(id="preview", can_focus=not action.name):
                yield Plain(*self.preview[:_SHOWN], *more)
            yield Plain(*(f"$ {line}" for line in by_hand), classes="command")
            if action.name:
                yield Plain(f"Type {action.name} and press Enter to confirm; Escape cancels.", classes="question")
                yield Input(id="name", compact=True)
            else:
                yield Plain("y confirms; n or Escape cancels.", classes="question")

    def on_mount(self) -> None:
        """The keys go where the answer is."""
        self.query_one("#name" if self.chosen.name else "#preview").focus()

    def action_agree(self) -> None:
        """Yes; where a name is asked for, only that will do."""
        if not self.chosen.name:
            self.dismiss(True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The name was typed, or another."""
        if event.value.strip() == self.chosen.name:
            self.dismiss(True)
        else:
            self.query_one(".question", Plain).say([f"No match. Type {self.chosen.name}, or Escape to cancel."])


class Choose(ModalScreen[str | None]):
    """One of several values."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, question: str, options: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._question, self._options = question, options

    def compose(self) -> ComposeResult:
        """The question, and what can be answered."""
        with Vertical(id="dialog"):
            yield Plain(self._question, classes="title")
            yield OptionList(*(Option(plain_content([text])) for _, text in self._options), id="options")
            yield Plain("Enter selects; Escape cancels.", classes="question")

    def on_mount(self) -> None:
        """The keys go to the list."""
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """That one."""
        self.dismiss(self._options[event.option_index][0])


class Ask(ModalScreen[str | None]):
    """A line of text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """The question, and a line for the answer."""
        with Vertical(id="dialog"):
            yield Plain(self._question, classes="title")
            yield Input(self._value, id="answer", compact=True)
            yield Plain("Enter confirms; Escape cancels.", classes="question")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """That is it."""
        self.dismiss(event.value.strip())


class Text(ModalScreen[None]):
    """Something to read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,q,question_mark", "dismiss(None)", "Close")]

    def __init__(self, title: str, lines: Lines) -> None:
        super().__init__()
        self.heading, self.lines = title, lines

    def compose(self) -> ComposeResult:
        """Title and text."""
        with Vertical(id="dialog", classes="text"):
            yield Plain(self.heading, classes="title")
            with VerticalScroll(id="preview"):
                yield Plain(*self.lines)
            yield Plain("Escape closes this.", classes="question")

    def on_mount(self) -> None:
        """The keys scroll."""
        self.query_one("#preview").focus()
