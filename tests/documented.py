"""The code of `docs/extending.md` as modules, so that tests run what the page shows."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from disks.registry import DISK_TYPES
from tiering.config import reading
from tiering.config.settings import Config

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
_BLOCK = re.compile(r"^```python (\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> dict[str, str]:
    """The code of each block by its name, the word after `python`."""
    found = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), f"two blocks of one name: {names}"
    return dict(found)


@cache
def documented(name: str) -> ModuleType:
    """The block, run once a process as a module of its own."""
    module = ModuleType(f"documented_{name}")
    sys.modules[module.__name__] = module
    exec(compile(blocks()[name], f"{PAGE}: {name}", "exec", dont_inherit=True), module.__dict__)
    return module


def configure_every_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a configuration name every type of `DISK_TYPES`, as if the union of `Config.disks` had all of them."""
    union: Any = None
    for kind in DISK_TYPES.values():
        union = kind.config if union is None else union | kind.config
    widened = msgspec.defstruct(
        "Config", [("disks", dict[str, union])], bases=(Config,), frozen=True, kw_only=True, forbid_unknown_fields=True
    )
    monkeypatch.setattr(reading, "Config", widened)
