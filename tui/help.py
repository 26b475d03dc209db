"""The keys, as the help says them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.binding import Binding

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
