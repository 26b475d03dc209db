"""Decoders are made when modules are loaded, or one at a time.

msgspec learns the fields of a type at its first use. A second thread that decodes the type meanwhile reads fields that
are not there yet, and the process ends with a segmentation fault: no Python code is there to catch it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("oplog", "disks", "tiering", "restore", "backup", "spark_tiering", "tui", "zerocopy")
ALONE = {
    "tiering/cli/frame/saved_plan.py": "SavedPlan",  # the command's own thread, before any other
}


def first_uses(source: str) -> Iterator[str]:
    """The types of `decode(…, type=…)`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode":
            yield from (ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "type")


@pytest.mark.in_turn
def test_no_thread_is_the_first_to_decode_a_type() -> None:
    found = {
        str(path.relative_to(ROOT)): kind
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for kind in first_uses(path.read_text())
    }
    assert found == ALONE


def test_such_a_use_is_found() -> None:
    assert list(first_uses("msgspec.json.decode(data, type=list[Packed])")) == ["list[Packed]"]
