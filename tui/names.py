"""The themes and keys that the configuration may name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.theme import BUILTIN_THEMES

from oplog.errors import UsageError
from tui.app import VIEWS, Dashboard, Settings
from tui.widgets.grid import Grid


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
