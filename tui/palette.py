"""What the palette has of screens that are not the one that is seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tui.screens.view import View


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
