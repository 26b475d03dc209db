"""How mistakes are put in, for the lists of `tests.crash.mutants`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def replaced(module: str, name: str, value: Any) -> Callable[[], None]:
    """Something of a module is replaced; `module:Class` for something of a class."""

    def apply() -> None:
        path, _, owner = module.partition(":")
        found: Any = importlib.import_module(path)
        changed = getattr(found, owner) if owner else found
        getattr(changed, name)  # a mistake in what is no longer there would be none
        setattr(changed, name, value)

    return apply


def nothing(*arguments: Any, **options: Any) -> None:
    """What a step does that was left out."""
