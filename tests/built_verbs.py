"""The command line of this process is built once, not for each command: that is a third of what a short one takes.

A verb is built again when its module has changed, as it has where a test or a mutant replaces a function of it.
"""

from __future__ import annotations

import copy
import importlib
import sys
from functools import cache
from typing import Any


def build_once() -> None:
    """Only where tests have imported the command line: others do not pay for it."""
    if "tiering.cli.main" not in sys.modules:
        return
    import typer.main

    from tiering.cli import main
    from tiering.cli.frame import verb_table

    build_module = verb_table.build
    get_command = typer.main.get_command
    built: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def build(module: str) -> dict[str, Any]:
        """The verbs of a module as it is now."""
        state = tuple(vars(importlib.import_module(module)).values())
        if module not in built or not _are_same(built[module][0], state):
            built[module] = state, build_module(module)
        return dict(built[module][1])

    app = cache(main.build)
    group = cache(lambda: get_command(app()))

    def command(asked: typer.Typer) -> Any:
        """Of the command line one that has no verbs yet, as each run of it begins."""
        if asked is not app():
            return get_command(asked)
        fresh = copy.copy(group())
        fresh.commands = {}  # type: ignore[attr-defined]
        return fresh

    main.build = app
    verb_table.build = build
    typer.main.get_command = command


def _are_same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))
