"""The code of `docs/extending.md` as modules, so that tests run what the page shows."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

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
